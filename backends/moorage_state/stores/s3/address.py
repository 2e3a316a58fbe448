"""The address of a store in a bucket: from text to fields and back, without credentials.

    s3://bucket/prefix?endpoint=http://host:port&region=eu-west-1&path_style=true

The text is all that another process needs to open an equal store; credentials never stand in it.
What a person typed is not repeated in errors, because people paste credentials into addresses.
"""

import re
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, quote, unquote, urlencode

from moorage_state.errors import UserError
from moorage_state.stores.base import check_key

_BUCKET = re.compile(r"[a-z0-9][-.a-z0-9]{1,61}[a-z0-9]")
_ENDPOINT = re.compile(
    r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?"
)
_REGION = re.compile(r"[a-z0-9-]{1,63}")
_FORM = (
    "write s3://bucket/prefix, then optionally ?endpoint=http://host:port&region=..&path_style=true"
)
_CREDENTIALS = "credentials come from boto3's usual places (environment, profile, role)"


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Credentials that are given and not looked for in boto3's usual places; never shown.

    `region` is for where the address names none.
    """

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = None


@dataclass(frozen=True, slots=True)
class S3Address:
    """Where a store lies.

    Attributes:
        prefix: the folder in the bucket, without `/` at the ends; empty for the whole bucket.
        endpoint: the server's URL; None is AWS.
        region: the region; None is what boto3 finds.
        path_style: whether the bucket stands in the path and not in the host name.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False

    def __post_init__(self) -> None:
        """Raise UserError for a field that no server takes."""
        if not _BUCKET.fullmatch(self.bucket) or ".." in self.bucket:
            raise UserError(
                "store address has no bucket name: use 3 to 63 lower-case letters, digits, '-' "
                f"and '.'; {_FORM}; {_CREDENTIALS}"
            )
        if self.prefix:
            check_key(self.prefix)
        if self.endpoint is not None and not _ENDPOINT.fullmatch(self.endpoint):
            raise UserError(
                f"store address has a wrong endpoint: bucket={self.bucket}; write "
                f"https://host:port without user, password or query, an IPv6 address as "
                f"https://[fd00::1]:port; {_CREDENTIALS}"
            )
        if self.region is not None and not _REGION.fullmatch(self.region):
            raise UserError(
                f"store address has a wrong region: bucket={self.bucket}; write one like eu-west-1"
            )

    @classmethod
    def parse(cls, url: str) -> Self:
        """Return the address that `url` writes. Raises UserError, which does not repeat `url`."""
        scheme, _, rest = url.partition("://")
        place, _, query = rest.partition("?")
        bucket, _, prefix = place.partition("/")
        if scheme != "s3" or "#" in rest or "@" in bucket or prefix.endswith("//"):
            raise UserError(f"store address is not an s3 address: {_FORM}; {_CREDENTIALS}")
        options = _options(query)
        return cls(
            bucket,
            unquote(prefix).removesuffix("/"),
            options.get("endpoint"),
            options.get("region"),
            _boolean(options.get("path_style", "false")),
        )

    @property
    def url(self) -> str:
        """The text that `parse` turns into an equal address."""
        options = {
            "endpoint": self.endpoint,
            "region": self.region,
            "path_style": "true" if self.path_style else None,
        }
        given = {name: value for name, value in options.items() if value is not None}
        place = f"{self.bucket}/{quote(self.prefix)}" if self.prefix else self.bucket
        return f"s3://{place}?{urlencode(given, safe=':/[]')}" if given else f"s3://{place}"

    def object_key(self, key: str) -> str:
        """Return the key in the bucket of the store's object `key`. Raises UserError."""
        check_key(key)
        return check_key(f"{self.prefix}/{key}") if self.prefix else key


def _options(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise UserError(f"store address has options that cannot be read; {_FORM}") from error
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in {"endpoint", "region", "path_style"} or name in found:
            raise UserError(
                f"store address has an option that is unknown or there twice; {_FORM}; "
                f"{_CREDENTIALS}"
            )
        found[name] = value.rstrip("/")
    return found


def _boolean(text: str) -> bool:
    if text not in {"true", "false"}:
        raise UserError(f"store address has a wrong path_style; write true or false; {_FORM}")
    return text == "true"
