"""Which error a failed file operation of a store becomes."""

import errno
from pathlib import Path

from moorage_state.errors import MoorageError, StoreDenied, StoreUnavailable

__all__ = ["store_error"]

_ADVICE = {
    errno.EACCES: "give this user read and write permission on it",
    errno.EPERM: "give this user permission, or use a file system with hard links",
    errno.EROFS: "mount the file system writable",
    errno.ENOTDIR: "a file is in the place of a directory: move it away",
    errno.EISDIR: "a directory is in the place of a file: move it away",
    errno.ELOOP: "remove the circular symbolic links",
    errno.ENAMETOOLONG: "use a shorter directory or operator uid",
    errno.EOPNOTSUPP: "use a file system with hard links",
    errno.EXDEV: "keep the whole store directory on one file system",
}
"""Failures that stay until a person acts."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def store_error(action: str, path: Path, error: OSError) -> MoorageError:
    """Return the error to raise `from` an OSError that a store met; never means 'not found'.

    StoreDenied when only a person can help, otherwise StoreUnavailable.
    """
    name = errno.errorcode.get(error.errno or 0, "unknown")
    where = f"cannot {action}: path={path} error={name} ({error.strerror})"
    if error.errno in _ADVICE:
        return StoreDenied(f"{where}; {_ADVICE[error.errno]}")
    if error.errno in _FULL:
        return StoreUnavailable(f"{where}; free space on the volume of the store")
    return StoreUnavailable(f"{where}; check the volume of the store")
