"""The errors of Moorage, one class for each thing the receiver must do about it.

Every layer raises these and every edge (the command line, the operator, the state server's wire)
maps them, so the classes carry a stable `code`. They cross a process boundary as code and
arguments through `error_to_wire` and `error_from_wire`, and they survive pickling.

    MoorageError
      +- Retryable            do the same again later
      |    +- StoreUnavailable    the object store does not answer
      |    +- ServerGone          a state server does not answer
      +- UserError            a person must change something first
      |    +- StoreDenied         the store answers, and refuses
      |    +- NewerFormat         stored data of a newer or incompatible Moorage
      |    +- IllegalConfigurationError  a setting that is unknown or has a wrong value
      |    +- StateSizeExceeded   state that is to travel within a manifest is too much for it
      +- Fenced               another writer took over: end at once, write nothing more
      +- CorruptState         stored bytes are not what was written
      +- StaleLease           the run or lease that asks no longer owns the range
      +- VersionMismatch      the range is at another version than the one asked for
      +- VersionGone          a committed delta that is needed is not on this volume
      +- LocalDiskError       the local volume is full or refuses writes
      |    +- StateTooLarge       state kept in memory would be more than its limit
      +- ObjectNotFound       no object has this key
      +- AlreadyExists        an object with this key exists
      +- Bug                  a rule of the protocol was broken; only a change of code helps
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar


class MoorageError(Exception):
    """The base of all errors raised on purpose; `code` is stable across releases."""

    code: ClassVar[str] = "moorage_error"


class Retryable(MoorageError):
    """The same request may succeed later; nothing needs to change."""

    code: ClassVar[str] = "retryable"


class StoreUnavailable(Retryable):
    """The object store could not be reached or refused to serve; says nothing about its content."""

    code: ClassVar[str] = "store_unavailable"


class ServerGone(Retryable):
    """A state server went away or does not answer; what it was asked last may have happened."""

    code: ClassVar[str] = "server_gone"


class UserError(MoorageError):
    """A person must change something (a manifest, a directory, a permission) before going on."""

    code: ClassVar[str] = "user_error"


class StoreDenied(UserError):
    """The store answered and refuses: permissions, credentials, a bucket that does not exist."""

    code: ClassVar[str] = "store_denied"


class NewerFormat(UserError):
    """Stored data was written by a newer or incompatible Moorage."""

    code: ClassVar[str] = "newer_format"


class IllegalConfigurationError(UserError):
    """A setting is not known or has a value that cannot be used; the message names its key."""

    code: ClassVar[str] = "illegal_configuration"


class StateSizeExceeded(UserError):
    """A checkpoint would be more than what its storage keeps with the driver."""

    code: ClassVar[str] = "state_size_exceeded"


class Fenced(MoorageError):
    """Another writer claimed a higher fence: end at once and commit nothing."""

    code: ClassVar[str] = "fenced"


class CorruptState(MoorageError):
    """Stored bytes are not what was written.

    Attributes:
        path: the object or file that is damaged.
        advice: what the person who runs the job can do.
    """

    code: ClassVar[str] = "corrupt_state"

    def __init__(self, message: str, path: str = "", advice: str = "") -> None:
        super().__init__(message, path, advice)
        self.message = message
        self.path = path
        self.advice = advice

    def __str__(self) -> str:
        where = f": path={self.path}" if self.path else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.message}{where}{advice}"


class StaleLease(MoorageError):
    """The request comes from a run or lease that no longer owns the range."""

    code: ClassVar[str] = "stale_lease"


class VersionMismatch(MoorageError):
    """The range is at another version than the one asked for."""

    code: ClassVar[str] = "version_mismatch"


class VersionGone(MoorageError):
    """A committed delta needed to reach the asked version is not on this volume."""

    code: ClassVar[str] = "version_gone"


class LocalDiskError(MoorageError):
    """The local volume is full or cannot be written; committed state is not affected."""

    code: ClassVar[str] = "local_disk_error"


class StateTooLarge(LocalDiskError):
    """State kept in memory would be more than its limit; what is committed is not affected."""

    code: ClassVar[str] = "state_too_large"


class ObjectNotFound(MoorageError):
    """The store answered, and it has no object with this key."""

    code: ClassVar[str] = "object_not_found"


class AlreadyExists(MoorageError):
    """An object with this key exists, so it was not created."""

    code: ClassVar[str] = "already_exists"


class Bug(MoorageError):
    """A rule that this code must keep was broken; retrying or configuring does not help."""

    code: ClassVar[str] = "bug"


def error_to_wire(error: MoorageError) -> dict[str, object]:
    """Return `error` as plain data: `{"code": str, "args": [str, ...], "bases": [str, ...]}`.

    `bases` are the codes of what it is a kind of, the nearest first.
    """
    bases = [kind.code for kind in type(error).__mro__[1:] if issubclass(kind, MoorageError)]
    return {"code": error.code, "args": [str(arg) for arg in error.args], "bases": bases}


def error_from_wire(data: Mapping[str, object]) -> MoorageError:
    """Return the error that `error_to_wire` described.

    A code that is not known here (the peer is newer, or has imported what this process has not)
    becomes the nearest of its bases that is; without any, a plain `MoorageError` which still
    carries the text.
    """
    code, args, bases = str(data.get("code", "")), data.get("args", ()), data.get("bases", ())
    texts = [str(arg) for arg in args] if isinstance(args, list | tuple) else [str(args)]
    known = {kind.code: kind for kind in reversed([*_all_classes(MoorageError)])}
    for one in [code, *(bases if isinstance(bases, list | tuple) else ())]:
        if one in known:
            return known[one](*texts)
    return MoorageError(f"unknown error from peer: code={code} {' '.join(texts)}")


def _all_classes(base: type[MoorageError]) -> Iterator[type[MoorageError]]:
    yield base
    for child in base.__subclasses__():
        yield from _all_classes(child)


@contextmanager
def disk_errors(what: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `LocalDiskError` that says what failed where."""
    try:
        yield
    except OSError as error:
        raise LocalDiskError(
            f"could not {what}: path={path} error={error}; check space and health of this volume"
        ) from error
