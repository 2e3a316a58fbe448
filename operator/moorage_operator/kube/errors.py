"""What an answer of the API server that is no success means.

Pure, so that stand-ins for the server are judged by the same table as the server itself.
"""

from collections.abc import Mapping
from typing import Any

from moorage_operator.ports import (
    AlreadyExists,
    ApiUnavailable,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
)

__all__ = ["cluster_error"]

_LONGEST = 512
_TERMINATING = "NamespaceTerminating"
_BUSY = (408, 429)


def cluster_error(
    code: int, status: Mapping[str, Any] | None, retry_after: float | None = None
) -> ClusterError:
    """The error for an HTTP status and the `Status` object in the body, if there was one.

    Args:
        code: the HTTP status.
        status: the body, as far as it was a Status object.
        retry_after: seconds, from the header.
    """
    status = status or {}
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or f"the API server answered {code}")[:_LONGEST]
    details = status.get("details")
    if retry_after is None and isinstance(details, Mapping) and code in {*_BUSY, 503, 500}:
        seconds = details.get("retryAfterSeconds")
        retry_after = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None
    if code in _BUSY or code >= 500:
        return ApiUnavailable(message, reason, retry_after)
    if code in {404, 410}:
        return NotFound(message, reason)
    if code == 409:
        return (AlreadyExists if reason == "AlreadyExists" else Conflict)(message, reason)
    if code in {401, 403}:
        return Forbidden(message, _TERMINATING if _terminating(status) else reason)
    if code in {400, 413, 415, 422}:
        return Invalid(message, reason)
    return ClusterError(message, reason)


def _terminating(status: Mapping[str, Any]) -> bool:
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return isinstance(causes, list) and any(
        isinstance(cause, Mapping) and cause.get("reason") == _TERMINATING for cause in causes
    )
