"""The tokens of drivers: a Secret for each attempt, read once and never shown."""

import secrets
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable
from dataclasses import dataclass

from moorage_operator.children import names
from moorage_operator.children.secrets import config_owner, scrape_secret, token_secret
from moorage_operator.objects import is_controlled_by
from moorage_operator.ports import Cluster, NameTaken, Object
from moorage_operator.world import Meta


def _new_token() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True, repr=False)
class AttemptTokens:
    """What opens the endpoint of one attempt's driver."""

    control: str  # what the driver asks for
    # What it asks for if its runtime is an older one; empty where an older operator made the
    # Secret, whose one token is `control`
    older: str = ""

    @property
    def by_older_operator(self) -> bool:
        """Whether the Secret is the job's one Secret, as older operators made it."""
        return not self.older


_MOST = 2


class Tokens:
    """Tokens by job, as their Secrets have them; kept, so that a pass costs no request."""

    def __init__(self, cluster: Cluster, make: Callable[[], str] = _new_token) -> None:
        self._cluster = cluster
        self._make = make
        self._known: dict[str, dict[int, AttemptTokens]] = {}

    async def of(self, meta: Meta, attempt: int) -> AttemptTokens | None:
        """The attempt's tokens; None if there is no Secret of this very object with them."""
        known = self.known(meta.uid, attempt)
        if known is None:
            known = await self._own(meta, attempt) or await self._older(meta)
            if known is not None:
                kept = self._known.setdefault(meta.uid, {})
                kept[attempt] = known
                # A driver, and at most one beside it.
                for number in sorted(kept)[:-_MOST]:
                    del kept[number]
        return known

    def known(self, uid: str, attempt: int) -> AttemptTokens | None:
        """The attempt's tokens if they were read before; asks nobody."""
        return self._known.get(uid, {}).get(attempt)

    async def ensure(self, meta: Meta, attempt: int, config_uid: str) -> None:
        """Make the attempt's Secret if there is none.

        Args:
            config_uid: of the attempt's ConfigMap, with which it goes.
        """
        # What is remembered is of the attempt before.
        self.drop(meta.uid)
        name = names.token_secret_name(meta.name, attempt)
        found = await self._cluster.get("Secret", meta.namespace, name)
        if found is None:
            owner = config_owner(meta, attempt, config_uid)
            found = await self._cluster.create(token_secret(meta, attempt, self._make(), owner))
        owners = [one.get("uid") for one in found["metadata"].get("ownerReferences") or ()]
        if config_uid not in owners or not _value(found, "control"):
            raise NameTaken(
                f"the Secret is another object's: name={name}; it goes with its owner, "
                "else delete it"
            )

    async def ensure_scrape(self, meta: Meta, token: str = "") -> bool:
        """Make the Secret for reading if there is none; say whether that was needed.

        One that somebody made is theirs to choose: it opens nothing but what may be read.
        """
        name = names.scrape_secret_name(meta.name)
        if await self._cluster.get("Secret", meta.namespace, name) is not None:
            return False
        await self._cluster.create(scrape_secret(meta, token or self._make()))
        return True

    def drop(self, uid: str) -> None:
        """Forget tokens that a driver refused, or whose job is gone."""
        self._known.pop(uid, None)

    async def _own(self, meta: Meta, attempt: int) -> AttemptTokens | None:
        name = names.token_secret_name(meta.name, attempt)
        found = await self._cluster.get("Secret", meta.namespace, name)
        if found is None or _label(found, names.JOB_UID_LABEL) != meta.uid:
            return None
        control, older = _value(found, "control"), _value(found, "token")
        return AttemptTokens(control, older) if control and older else None

    async def _older(self, meta: Meta) -> AttemptTokens | None:
        name = names.older_secret_name(meta.name)
        found = await self._cluster.get("Secret", meta.namespace, name)
        token = _value(found, "token") if found and is_controlled_by(found, meta.uid) else ""
        return AttemptTokens(token) if token else None


class Authorities:
    """The authorities of drivers' certificates, kept until a driver is not believed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[str, str], str] = {}

    async def of(self, namespace: str, secret: str) -> str:
        """As PEM; empty if the Secret has none."""
        key = (namespace, secret)
        if key not in self._known:
            found = await self._cluster.get("Secret", namespace, secret)
            authority = _value(found, "ca.crt") if found is not None else ""
            if not authority:
                return ""
            self._known[key] = authority
        return self._known[key]

    def drop(self, namespace: str, secret: str) -> None:
        """Read it anew the next time: it may have been renewed."""
        self._known.pop((namespace, secret), None)


def _label(found: Object, label: str) -> str:
    return str((found["metadata"].get("labels") or {}).get(label, ""))


def _value(secret: Object, key: str) -> str:
    try:
        return b64decode((secret.get("data") or {}).get(key, ""), validate=True).decode()
    except (NotBase64, UnicodeDecodeError, TypeError):
        return ""
