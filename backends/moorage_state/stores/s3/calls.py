"""Requests to the server: what an error means, the clients, and how often one is tried again.

Messages name bucket, key, operation and the server's code, and what to do. The server's own words
are left out: they may carry account names and signed text.

A client holds sockets and locks, so a forked child must not use its parent's: there is one for each
server and user in a process, made at first use. For the same reason stores do not hold clients but
ask for them, which lets a store be pickled.
"""

import logging
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from moorage_state.errors import (
    Bug,
    CorruptState,
    MoorageError,
    ObjectNotFound,
    Retryable,
    StoreDenied,
    StoreUnavailable,
)
from moorage_state.progress import advance
from moorage_state.stores.base import NoSuchBucket
from moorage_state.stores.retries import Failure, Retries
from moorage_state.stores.s3.address import S3Address, S3Credentials

_CREDENTIALS = (
    "check the credentials that boto3 finds (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, profile, "
    "or role)"
)
_EXPIRED = "the session's credentials have expired: log in again, or use a role that renews itself"
_REGION = "give the region of the bucket, for example ?region=eu-west-1"
_ENDPOINT = "check the endpoint, and whether the server takes requests from here"

_NO_BUCKET = "NoSuchBucket"

_ADVICE = {
    _NO_BUCKET: "create the bucket, or correct its name; buckets are never made for you",
    "InvalidBucketName": "correct the bucket's name",
    "AllAccessDisabled": "have the owner of the bucket enable access",
    "AccountProblem": "have the owner of the account look into it",
    "QuotaExceeded": "raise the quota of the bucket or user, or free space",
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "InvalidToken": _CREDENTIALS,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": "set this machine's clock",
    "RequestExpired": "set this machine's clock",
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "InvalidObjectState": "the object is archived: restore it, and exempt state from archiving",
    "KMS.DisabledException": "enable the key that the bucket is encrypted with",
    "NotImplemented": "use a server that has this operation",
}
"""Answers that stay until a person acts, whatever their status."""

_AGAIN = frozenset({
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "XAmzContentSHA256Mismatch",
})  # fmt: skip
"""Answers that pass, whatever their status; the digests: bytes were damaged on the way."""

_FULL_STATUS = 507
_REDIRECTS = range(300, 400)
_AGAIN_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504})

_NO_CREDENTIALS = "NoCredentialsError"
# By name: importing botocore takes longer than a job on a directory needs to start.
_PERSON = {
    _NO_CREDENTIALS: _CREDENTIALS,
    "PartialCredentialsError": _CREDENTIALS,
    "ProfileNotFound": "correct AWS_PROFILE, or make the profile",
    "ConfigParseError": "correct boto3's configuration file",
    "NoRegionError": _REGION,
    "InvalidRegionError": _REGION,
    "NoAuthTokenError": _EXPIRED,
    "SSOError": _EXPIRED,
    "SSOTokenLoadError": _EXPIRED,
    "UnauthorizedSSOTokenError": _EXPIRED,
    "LoginRefreshRequired": _EXPIRED,
    "TokenRetrievalError": _EXPIRED,
    "InvalidProxiesConfigError": "correct the proxy settings",
    "ParamValidationError": "correct the address of the store",
    "UnknownEndpointError": _REGION,
    "EndpointResolutionError": _REGION,
}

Client = Any
"""boto3's S3 client, which has no types of its own."""

TRANSFER_THREADS = 8
"""How many parts of objects a process sends and receives at a time, whoever asks for them."""

_POOL_CONNECTIONS = 32
"""Sockets that are kept: for the transfer threads, and for as many callers' own requests."""

_GIVEN_CONNECTIONS = 16
"""Connections with credentials of their own that are kept; each takes some megabytes."""

_CONNECT_SECONDS = 5
_READ_SECONDS = 30
_METADATA_ATTEMPTS = 3
_METADATA_ATTEMPTS_ENV = "AWS_METADATA_SERVICE_NUM_ATTEMPTS"
KEYS_DIR_ENV = "MOORAGE_CREDENTIALS_DIR"
"""Names a directory with the keys of the store, which may change under way: see `mounted_keys`."""

_SMALL_BYTES = 64 << 10
"""What a socket takes in one go."""

_log = logging.getLogger(__name__)
_Server = tuple[str | None, str | None, bool, S3Credentials | None, str]
T = TypeVar("T")
_CODE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NO_CODE = frozenset({"404", "NotFound"})
"""What a client makes of a 404 without a body: the answer to every HEAD."""


def code_of(error: Exception) -> str:
    """Return the server's code in an error of the client, or the error's own name.

    What is no code, as of a server that is none of S3's, is not repeated: the status is the code.
    """
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        code = str(response.get("Error", {}).get("Code", ""))
        return code if _CODE.fullmatch(code) else str(status_of(error))
    return type(error).__name__


def status_of(error: Exception) -> int:
    """Return the HTTP status in an error of the client, 0 when there was no answer."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return 0
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def failure_of(error: Exception, operation: str, address: S3Address, key: str) -> Failure:
    """Return what `error`, met by `operation` on the store's object `key`, means."""
    if isinstance(error, MoorageError):
        return Failure(error, again=isinstance(error, Retryable))
    code, status = code_of(error), status_of(error)
    where = f"operation={operation} {_place(address, key)} code={code}"
    # A 404 alone may be of a bucket, or of a proxy.
    if code == "NoSuchKey":
        text = f"no such object: store={address.url} key={key}"
        return Failure(ObjectNotFound(text), again=False)
    if status or code in _ADVICE:
        return _answered(code, status, f"{where} status={status}")
    return _without_answer(error, where)


def _answered(code: str, status: int, where: str) -> Failure:
    if advice := _ADVICE.get(code):
        kind = NoSuchBucket if code == _NO_BUCKET else StoreDenied
        return Failure(kind(f"s3 store refuses: {where}; {advice}"), again=False)
    if code == "NoSuchUpload":
        text = f"upload was aborted by somebody else: {where}; let no rule abort young uploads"
        return Failure(StoreUnavailable(text), again=False)
    if status == _FULL_STATUS:
        text = f"s3 store is out of space: {where}; free space on the server"
        return Failure(StoreUnavailable(text), again=False)
    if code in _AGAIN or status in _AGAIN_STATUSES:
        text = f"s3 store does not serve: {where}; {_ENDPOINT}"
        return Failure(StoreUnavailable(text), again=True)
    return Failure(StoreDenied(f"s3 store refuses: {where}; {_permission(status)}"), again=False)


def _without_answer(error: Exception, where: str) -> Failure:
    name = type(error).__name__
    if advice := _PERSON.get(name):
        return Failure(StoreDenied(f"s3 store cannot be asked: {where}; {advice}"), again=False)
    if name == "FlexibleChecksumError":
        corrupt = CorruptState(
            f"object is not what was stored, by the store's own checksum: {where}",
            advice="restore an older checkpoint, and have the store checked",
        )
        return Failure(corrupt, again=True)
    if isinstance(error, OSError) or _library(error) in {"botocore", "http", "urllib3"}:
        text = f"s3 store does not answer: {where}; {_ENDPOINT}"
        return Failure(StoreUnavailable(text), again=True)
    if isinstance(error, KeyError):  # a header or a field that each server of S3's sends
        text = f"s3 store answers otherwise than S3 does: {where} lacks={error}; {_ENDPOINT}"
        return Failure(StoreDenied(text), again=False)
    return Failure(Bug(f"unexpected error: {where} error={error}"), again=False)


def _library(error: Exception) -> str:
    return type(error).__module__.partition(".")[0]


def _permission(status: int) -> str:
    if status in {401, 403}:
        return (
            "allow s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and "
            "s3:ListBucket (without the last, S3 answers so for keys that do not exist), and "
            f"{_CREDENTIALS}"
        )
    if status in _REDIRECTS:
        return "the endpoint leads elsewhere, such as from http to https: write where it leads to"
    return "check the address of the store, and what the server supports"


def _place(address: S3Address, key: str) -> str:
    place = f"bucket={address.bucket}"
    if address.endpoint:
        place = f"{place} endpoint={address.endpoint}"
    full = "/".join(part for part in (address.prefix, key) if part)
    return f"{place} key={full}"


@dataclass(slots=True)
class S3Connection:
    """What the stores of one server share within a process.

    Attributes:
        pool: the threads that move the parts of large objects.
        creates_once: the buckets of which a probe showed that they refuse to create twice.
        probing: held while a bucket is probed.
    """

    client: Client
    pool: ThreadPoolExecutor
    creates_once: set[str] = field(default_factory=set)
    probing: threading.Lock = field(default_factory=threading.Lock)
    _told: set[str] = field(default_factory=set)

    def tell_once(self, event: str, message: str) -> None:
        """Log `message` the first time that `event` happens here."""
        if event not in self._told:
            self._told.add(event)
            _log.info("%s: %s", event, message)


class _Connections:
    """All connections of the process, by server and by whose credentials they use."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[_Server, S3Connection] = {}

    def get(
        self,
        address: S3Address,
        credentials: S3Credentials | None,
        make: Callable[[S3Address, S3Credentials | None, str], Client],
    ) -> S3Connection:
        keys = os.environ.get(KEYS_DIR_ENV, "")
        server = (address.endpoint, address.region, address.path_style, credentials, keys)
        with self._lock:
            found = self._open.pop(server, None)
            if found is None:
                pool = ThreadPoolExecutor(TRANSFER_THREADS, "s3")
                found = S3Connection(make(address, credentials, keys), pool)
            self._open[server] = found
            if credentials is not None:
                self._drop_oldest()
            return found

    def drop(self, connection: S3Connection) -> None:
        """Make another one next time; who still uses this one holds it until done."""
        with self._lock:
            kept = {s: found for s, found in self._open.items() if found is not connection}
            self._open = kept

    def _drop_oldest(self) -> None:
        """Forget what was not used for long; who still uses it holds it until done."""
        # Those with credentials of their own belong to many jobs and change in time.
        given = [server for server in self._open if server[3] is not None]
        for server in given[:-_GIVEN_CONNECTIONS]:
            del self._open[server]


_connections = _Connections()
os.register_at_fork(after_in_child=_connections.forget)


def connection_to(address: S3Address, credentials: S3Credentials | None = None) -> S3Connection:
    """Return the connection of this process to the server of `address`.

    Without `credentials` they are those in the directory that `KEYS_DIR_ENV` names, as they are at
    each request; where there are none, boto3 finds them in its usual places. Raises what boto3
    raises when it finds no region or a broken profile.
    """
    return _connections.get(address, credentials, _client)


def _client(address: S3Address, credentials: S3Credentials | None, keys: str) -> Client:
    # Slow to import, and a job on a directory needs neither.
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=_POOL_CONNECTIONS,
        tcp_keepalive=True,
        s3={"addressing_style": "path" if address.path_style else "auto"},
        # Checksums are sent as plain headers by us: trailers break servers other than AWS.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_supported",
    )
    region = address.region or (credentials.region if credentials else None)
    session = boto3.session.Session(**_given(credentials), botocore_session=_patient_session())
    if keys and credentials is None:
        from moorage_state.stores.s3.mounted_keys import session_with

        session = session_with(Path(keys)) or session
    client = session.client("s3", endpoint_url=address.endpoint, region_name=region, config=config)
    client.meta.events.register_last("before-call.s3", _send_small_bodies_at_once)
    if address.endpoint:
        client.meta.events.register_first("needs-retry.s3", _go_nowhere_else)
    return client


def _patient_session() -> Any:
    """A session that asks a machine for its role more than once: botocore then says there is none.

    That refuses a job for good. Where a person says how often, so it is.
    """
    from botocore.session import get_session

    session = get_session()
    if _METADATA_ATTEMPTS_ENV not in os.environ:
        session.set_config_variable("metadata_service_num_attempts", _METADATA_ATTEMPTS)
    return session


def _given(credentials: S3Credentials | None) -> dict[str, str | None]:
    if credentials is None:
        return {}
    return {
        "aws_access_key_id": credentials.access_key_id,
        "aws_secret_access_key": credentials.secret_access_key,
        "aws_session_token": credentials.session_token,
    }


def _send_small_bodies_at_once(params: dict[str, Any], **_: object) -> None:
    """Leave out the question whether the server wants the body: it takes a round trip."""
    body = params.get("body")
    # Large bodies keep it, so that a refusal is read and not lost in a broken connection.
    if isinstance(body, BytesIO) and body.getbuffer().nbytes <= _SMALL_BYTES:
        params["headers"].pop("Expect", None)


def _go_nowhere_else(
    request_dict: dict[str, Any], response: tuple[Any, dict[str, Any]] | None, **_: object
) -> None:
    """Take a redirect for the answer that it is, since the endpoint was named.

    botocore would ask in which region of AWS the bucket lies, be redirected again, and so on until
    Python's stack is full. A server that says by which region it wants requests signed is asked
    again: that leads nowhere else.
    """
    error = response[1].get("Error", {}) if response is not None else {}
    if error.get("Code") != "AuthorizationHeaderMalformed" or not error.get("Region"):
        request_dict.setdefault("context", {}).setdefault("s3_redirect", {})["redirected"] = True


class Final(Exception):
    """Ends a request with an error that would otherwise be tried again."""

    def __init__(self, error: MoorageError) -> None:
        super().__init__(error)
        self.error = error


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt of a request works with: the `key` in the bucket, its `number` from 1."""

    connection: S3Connection
    bucket: str
    key: str
    number: int

    @property
    def client(self) -> Client:
        """The client."""
        return self.connection.client

    @property
    def target(self) -> dict[str, str]:
        """The arguments that name the object."""
        return {"Bucket": self.bucket, "Key": self.key}


@dataclass(frozen=True, slots=True)
class Calls:
    """Requests to the store at an address, with given credentials or those that boto3 finds."""

    address: S3Address
    retries: Retries
    credentials: S3Credentials | None = None

    @property
    def connection(self) -> S3Connection:
        """The connection. Raises what boto3 raises when it finds no region or a broken profile."""
        return connection_to(self.address, self.credentials)

    def run(
        self,
        operation: str,
        key: str | None,
        work: Callable[[Attempt], T],
        stop: threading.Event | None = None,
    ) -> T:
        """Return what `work` returns, with its errors made into ours, as `failure_of` says.

        Args:
            operation: its name in errors.
            key: the store's key that it is about; None for the whole store.
            work: one attempt. It may raise what boto3 raises.
            stop: when set, no further attempt starts.
        """
        place = self.address.prefix if key is None else self.address.object_key(key)

        def attempt(number: int) -> T:
            if stop is not None and stop.is_set():
                raise StoreUnavailable(f"transfer was stopped: operation={operation} key={key}")
            connection = self.connection
            one = Attempt(connection, self.address.bucket, place, number)
            try:
                done = work(one)
            except Exception as error:
                if type(error).__name__ == _NO_CREDENTIALS:
                    # A client looks for them once, and what gives them may have been away.
                    _connections.drop(connection)
                if status_of(error) == 404 and code_of(error) in _NO_CODE:
                    # Without a body nobody knows whether the object is missing or the bucket.
                    self._check_bucket(connection)
                    raise ObjectNotFound(
                        f"no such object: store={self.address.url} key={key}"
                    ) from error
                raise
            advance()
            return done

        def judge(error: Exception) -> Failure:
            if isinstance(error, Final):
                return Failure(error.error, again=False)
            failure = failure_of(error, operation, self.address, key or "")
            return replace(failure, again=failure.again and not (stop and stop.is_set()))

        return self.retries.run(attempt, judge)

    def once(self) -> "Calls":
        """Return the same with few attempts: for tidying up, of which nothing depends."""
        return replace(self, retries=self.retries.few)

    def _check_bucket(self, connection: S3Connection) -> None:
        try:
            connection.client.head_bucket(Bucket=self.address.bucket)
        except Exception as error:
            if status_of(error) != 404:
                raise
            response = {
                "Error": {"Code": _NO_BUCKET},
                "ResponseMetadata": {"HTTPStatusCode": 404},
            }
            from botocore.exceptions import ClientError

            raise ClientError(response, "HeadBucket") from error
