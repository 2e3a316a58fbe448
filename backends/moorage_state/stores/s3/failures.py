"""What an error of the client means: wait, ask a person, or "there is no such object".

Messages name bucket, key, operation and the server's code, and what to do. The server's own words
are left out: they may carry account names and signed text.
"""

from moorage_state.errors import (
    Bug,
    CorruptState,
    MoorageError,
    ObjectNotFound,
    Retryable,
    StoreDenied,
    StoreUnavailable,
)
from moorage_state.stores.retries import Failure
from moorage_state.stores.s3.address import S3Address

__all__ = ["code_of", "failure_of", "status_of"]

_CREDENTIALS = (
    "check the credentials that boto3 finds (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, profile, "
    "or role)"
)
_EXPIRED = "the session's credentials have expired: log in again, or use a role that renews itself"
_REGION = "give the region of the bucket, for example ?region=eu-west-1"
_ENDPOINT = "check the endpoint, and whether the server takes requests from here"

_ADVICE = {
    "NoSuchBucket": "create the bucket, or correct its name; buckets are never made for you",
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
_AGAIN_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504})

# By name: importing botocore takes longer than a job on a directory needs to start.
_PERSON = {
    "NoCredentialsError": _CREDENTIALS,
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


def code_of(error: Exception) -> str:
    """Return the server's code in an error of the client, or the error's own name."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", "")) or str(status_of(error))
    return type(error).__name__


def status_of(error: Exception) -> int:
    """Return the HTTP status in an error of the client, 0 when there was no answer."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return 0
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def failure_of(error: Exception, operation: str, address: S3Address, key: str) -> Failure:
    """Return what `error`, met by `operation` on the store's object `key`, means.

    A 404 means 'not found' only if the server says that the key is what it has not got.
    """
    if isinstance(error, MoorageError):
        return Failure(error, again=isinstance(error, Retryable))
    code, status = code_of(error), status_of(error)
    where = f"operation={operation} {_place(address, key)} code={code}"
    if code == "NoSuchKey":
        text = f"no such object: store={address.url} key={key}"
        return Failure(ObjectNotFound(text), again=False)
    if status or code in _ADVICE:
        return _answered(code, status, f"{where} status={status}")
    return _without_answer(error, where)


def _answered(code: str, status: int, where: str) -> Failure:
    if advice := _ADVICE.get(code):
        return Failure(StoreDenied(f"s3 store refuses: {where}; {advice}"), again=False)
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
    return "check the address of the store, and what the server supports"


def _place(address: S3Address, key: str) -> str:
    place = f"bucket={address.bucket}"
    if address.endpoint:
        place = f"{place} endpoint={address.endpoint}"
    full = "/".join(part for part in (address.prefix, key) if part)
    return f"{place} key={full}"
