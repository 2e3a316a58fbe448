"""The store in a directory: `file://` addresses, for one machine or a shared mount.

An object is a file. New bytes are written to a file under `.tmp`, synced, and then given their name
in one step (`rename` to replace, `link` to create), so a reader or a crash never meets half an
object. Names that start with a dot (`.tmp`, the lock of a checkpoint directory) are not objects:
keys cannot reach them and listings do not show them, so what a killed writer leaves behind costs
space and nothing else. Symbolic links below the root are refused: whoever may write into a store
would else have others read, or delete, what lies elsewhere.
"""
# ruff: noqa: D102  `ObjectStore` documents the methods

import errno
import os
import stat
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from moorage_state.errors import (
    AlreadyExists,
    LocalDiskError,
    MoorageError,
    ObjectNotFound,
    StoreDenied,
    StoreUnavailable,
    UserError,
)
from moorage_state.progress import advance
from moorage_state.stores.base import (
    ObjectInfo,
    check_key,
    check_prefix,
    check_slice,
    delete_each,
    short_object,
)

_ADVICE = {
    errno.EACCES: "give this user read and write permission on it",
    errno.EPERM: "give this user permission, or use a file system with hard links",
    errno.EROFS: "mount the file system writable",
    errno.ENOTDIR: "a file is in the place of a directory: move it away",
    errno.EISDIR: "a directory is in the place of a file: move it away",
    errno.ELOOP: "put what the symbolic link leads to into its place",
    errno.ENAMETOOLONG: "use a shorter directory or operator uid",
    errno.EOPNOTSUPP: "use a file system with hard links",
    errno.EXDEV: "keep the whole store directory on one file system",
}
"""Failures that stay until a person acts."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

Place = Callable[[Path, Path], None]
"""Gives the first file the name of the second: `os.replace`, or `os.link`, which never replaces."""

TEMPORARY = ".tmp"
"""The directory below the root for files that are still being written."""

_ATTEMPTS = 20
"""How often a directory that a concurrent delete emptied and removed is made anew."""

_CHUNK_BYTES = 1 << 20
_SEND_BYTES = 1 << 30


def store_error(action: str, path: Path, error: OSError) -> MoorageError:
    """Return the error to raise `from` an OSError that a store met; never means 'not found'."""
    name = errno.errorcode.get(error.errno or 0, "unknown")
    where = f"cannot {action}: path={path} error={name} ({error.strerror})"
    # Only a person can help; all else may pass.
    if error.errno in _ADVICE:
        return StoreDenied(f"{where}; {_ADVICE[error.errno]}")
    if error.errno in _FULL:
        return StoreUnavailable(f"{where}; free space on the volume of the store")
    return StoreUnavailable(f"{where}; check the volume of the store")


def place_file(root: Path, target: Path, chunks: Iterable[bytes], place: Place) -> None:
    """Write a new file below `root` and let `place` name it `target`.

    When this returns, the bytes, the name and the directories down from the root are synced. The
    root itself is never made. Raises OSError, FileExistsError only where `place` does.
    """
    temporary = _temporary(root)
    try:
        _make_folders(root, temporary.parent)
        with temporary.open("xb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        _name(root, temporary, target, place)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    for folder in target.parents:
        with suppress(FileNotFoundError):  # deleted again by somebody: nothing to keep
            _sync(folder)
        if folder == root:
            break


def present_time(root: Path) -> float:
    """Return the seconds since 1970 that a file written now below `root` is dated with."""
    temporary = _temporary(root)
    try:
        _make_folders(root, temporary.parent)
        with temporary.open("xb") as file:
            return os.fstat(file.fileno()).st_mtime
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _temporary(root: Path) -> Path:
    return root / TEMPORARY / f"{os.getpid()}-{uuid.uuid4().hex}"


def _name(root: Path, temporary: Path, target: Path, place: Place) -> None:
    for attempt in range(_ATTEMPTS):
        _make_folders(root, target.parent)
        try:
            place(temporary, target)
        except FileNotFoundError:
            if attempt == _ATTEMPTS - 1 or not temporary.exists():
                raise
        else:
            return


def _make_folders(root: Path, folder: Path) -> None:
    """Make the directories from below the root down to `folder`."""
    missing: deque[Path] = deque()
    while folder != root and not folder.is_dir():
        missing.appendleft(folder)
        folder = folder.parent
    for path in missing:
        try:
            path.mkdir(exist_ok=True)
        except FileNotFoundError:
            return
        except FileExistsError as error:
            if path.is_file():
                text = os.strerror(errno.ENOTDIR)
                raise NotADirectoryError(errno.ENOTDIR, text, str(path)) from error
            return


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LocalStore:
    """Objects as files below a directory that must exist.

    Durability: every write syncs the file, the directory that names it, and the directories above
    up to the root, before it returns.
    """

    def __init__(self, root: Path, *, create: bool = False) -> None:
        """Open the directory `root` (absolute); with `create`, missing directories are made."""
        if not root.is_absolute():
            raise UserError(f"store directory must be an absolute path: path={root}")
        self._root = root
        try:
            if create:
                root.mkdir(parents=True, exist_ok=True)
            with os.scandir(root):
                pass
        except FileNotFoundError as error:
            raise UserError(
                f"store directory does not exist: path={root}; create it, or mount its volume"
            ) from error
        except OSError as error:
            raise store_error("open store directory", root, error) from error

    @property
    def root(self) -> Path:
        """The directory."""
        return self._root

    @property
    def url(self) -> str:
        return f"file://{quote(str(self._root))}"

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        with self._open_slice(key, offset, length) as (source, left):
            return b"".join(_chunks(source, self._path(key), left))

    def get_to_file(
        self, key: str, path: Path, *, offset: int = 0, length: int | None = None
    ) -> None:
        with self._open_slice(key, offset, length) as (source, left):
            try:
                with path.open("wb") as target:
                    sent = _sent(source, target, left)
                    target.writelines(_chunks(source, self._path(key), left - sent))
            except OSError as error:
                path.unlink(missing_ok=True)
                raise LocalDiskError(
                    f"cannot write local file: path={path} error={error}"
                ) from error
            except BaseException:
                path.unlink(missing_ok=True)
                raise

    def put(self, key: str, data: bytes) -> None:
        self._write(key, iter((data,)), os.replace)

    def put_file(self, key: str, path: Path) -> None:
        check_key(key)
        try:
            source = path.open("rb")
        except OSError as error:
            raise LocalDiskError(f"cannot read local file: path={path} error={error}") from error
        with source:
            self._write(key, _local_chunks(source, path), os.replace)

    def put_if_absent(self, key: str, data: bytes) -> None:
        try:
            self._write(key, iter((data,)), os.link)
        except FileExistsError as error:
            raise AlreadyExists(f"object exists: store={self.url} key={key}") from error

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            status = path.lstat()
        except FileNotFoundError:
            self._check_root()
            return None
        except OSError as error:
            raise store_error("look up object", path, error) from error
        if stat.S_ISLNK(status.st_mode):
            raise _link(path)
        return None if stat.S_ISDIR(status.st_mode) else _info(key, status)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        return self._walk(f"{folder}/" if folder else "", prefix, start_after)

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            path.unlink()
        except FileNotFoundError:
            self._check_root()
            return
        except IsADirectoryError:
            return
        except OSError as error:
            raise store_error("delete object", path, error) from error
        # Directories that become empty go as well: a listing would walk through all of them for
        # ever.
        for folder in path.parents:
            if folder == self._root:
                break
            try:
                folder.rmdir()
            except OSError:
                break

    def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
        return delete_each(self.delete, keys)

    def now(self) -> datetime:
        self._check_root()
        try:
            # A file server may have a clock of its own, so it takes a file to know.
            return datetime.fromtimestamp(present_time(self._root), UTC)
        except OSError as error:
            if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
                # Where none may be written nothing can be deleted either: then this machine's time
                # will do.
                return datetime.now(UTC)
            raise store_error("write temporary file", self._root / TEMPORARY, error) from error

    def _path(self, key: str) -> Path:
        path = self._root / check_key(key)
        for folder in path.parents:
            if folder == self._root:
                break
            if folder.is_symlink():
                raise _link(folder)
        return path

    def _check_root(self) -> None:
        """Raise StoreUnavailable when 'not found' means that the whole directory is gone."""
        if not self._root.is_dir():
            raise StoreUnavailable(
                f"store directory is gone: path={self._root}; mount its volume again"
            )

    def _open(self, key: str) -> BinaryIO:
        path = self._path(key)
        try:
            return open(path, "rb", opener=_not_a_link)
        except (FileNotFoundError, IsADirectoryError) as error:
            self._check_root()
            raise ObjectNotFound(f"no such object: store={self.url} key={key}") from error
        except OSError as error:
            raise store_error("open object", path, error) from error

    @contextmanager
    def _open_slice(
        self, key: str, offset: int, length: int | None
    ) -> Iterator[tuple[BinaryIO, int]]:
        """Open an object at `offset`; also give how many bytes are to be read."""
        check_slice(key, offset, length)
        with self._open(key) as source:
            try:
                size = os.fstat(source.fileno()).st_size
                source.seek(offset)
            except OSError as error:
                raise store_error("read object", self._path(key), error) from error
            end = size if length is None else offset + length
            if offset > size or end > size:
                raise short_object(self.url, key, size)
            yield source, end - offset

    def _write(self, key: str, chunks: Iterator[bytes], place: Place) -> None:
        """Write an object; a FileExistsError of `place` passes."""
        target = self._path(key)
        self._check_root()
        try:
            place_file(self._root, target, chunks, place)
        except FileExistsError:
            raise
        except OSError as error:
            raise store_error("write object", target, error) from error

    def _walk(self, folder: str, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Yield the objects below `folder` ("" or ending in "/") in the order of their keys."""
        # Directories sort with their slash, since that is how the keys inside them sort.
        for name, is_folder in self._entries(folder, prefix):
            key = folder + name
            if is_folder:
                if (key.startswith(prefix) or prefix.startswith(key)) and (
                    key > start_after or start_after.startswith(key)
                ):
                    yield from self._walk(key, prefix, start_after)
            elif key.startswith(prefix) and key > start_after:
                info = self.head(key)
                if info is not None:
                    yield info

    def _entries(self, folder: str, prefix: str) -> Sequence[tuple[str, bool]]:
        try:
            with os.scandir(self._root / folder) as entries:
                shown = [entry for entry in entries if not entry.name.startswith(".")]
        except FileNotFoundError:
            self._check_root()
            return []
        except OSError as error:
            raise store_error("list directory", self._root / folder, error) from error
        for entry in shown:
            if entry.is_symlink() and (folder + entry.name).startswith(prefix):
                raise _link(Path(entry.path))
        return sorted(
            (f"{entry.name}/", True) if entry.is_dir() else (entry.name, False) for entry in shown
        )


def _not_a_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _link(path: Path) -> MoorageError:
    """The error for a link, which to pass over would make a store look emptier than it is."""
    loop = OSError(errno.ELOOP, "a symbolic link is no object and no folder of a store")
    return store_error("follow link", path, loop)


def _chunks(source: BinaryIO, path: Path, left: int) -> Iterator[bytes]:
    while left:
        try:
            chunk = source.read(min(left, _CHUNK_BYTES))
        except OSError as error:
            raise store_error("read object", path, error) from error
        if not chunk:
            raise StoreUnavailable(f"object shrank while it was read: path={path}")
        left -= len(chunk)
        advance()
        yield chunk


def _sent(source: BinaryIO, target: BinaryIO, size: int) -> int:
    """Let the kernel copy up to `size` bytes; how many it did, where `source` then stands."""
    begin = source.tell()
    done = 0
    with suppress(OSError):
        while done < size:
            count = min(size - done, _SEND_BYTES)
            sent = os.sendfile(target.fileno(), source.fileno(), begin + done, count)
            if not sent:
                break
            done += sent
            advance()
    source.seek(begin + done)
    return done


def _local_chunks(source: BinaryIO, path: Path) -> Iterator[bytes]:
    while True:
        try:
            chunk = source.read(_CHUNK_BYTES)
        except OSError as error:
            raise LocalDiskError(f"cannot read local file: path={path} error={error}") from error
        if not chunk:
            return
        advance()
        yield chunk


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
