"""Reading objects and slices of them: in one request, or in ranges at the same time.

Of every answer the length is checked, and that all ranges are of one version of the object. Where
the server keeps checksums they are compared too: of whole objects always, of ranges never, because
servers have none for them. Callers compare digests in any case.
"""

import base64
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from moorage_state.errors import CorruptState, LocalDiskError, StoreUnavailable, UserError
from moorage_state.progress import advance
from moorage_state.stores.base import check_slice, short_object
from moorage_state.stores.s3.calls import Attempt, Calls, status_of
from moorage_state.stores.s3.uploads import PARALLEL_FROM, WINDOW, part_size
from moorage_state.stores.transfers import run_windowed

_CHUNK_BYTES = 1 << 20
_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)")

Write = Callable[[int, bytes], None]
"""Takes bytes and where they belong, counted from the start of what is read."""


@dataclass(frozen=True, slots=True)
class _Object:
    """What an answer tells of a whole object: its size, its version, its checksum if any."""

    size: int
    version: str
    checksum: str | None


def read(calls: Calls, key: str, offset: int, length: int | None) -> bytes:
    """Return the slice. See `ObjectStore.get`."""
    check_slice(key, offset, length)
    if length == 0:
        _check_end(calls, key, offset)
        return b""

    def get(attempt: Attempt) -> bytes:
        chunks: list[bytes] = []
        _receive(attempt, key, offset, length, lambda _, chunk: chunks.append(chunk))
        return b"".join(chunks)

    return calls.run("get", key, get)


def download(calls: Calls, key: str, path: Path, offset: int, length: int | None) -> None:
    """Write the slice to `path`. See `ObjectStore.get_to_file`."""
    check_slice(key, offset, length)
    with _LocalFile.open(path) as target:
        if length == 0:
            _check_end(calls, key, offset)
        elif (offset or length is not None) and (length is None or length > PARALLEL_FROM):
            found = calls.run("head", key, _look)
            end = found.size if length is None else offset + length
            if end > found.size or offset > end:
                raise short_object(calls.address.url, key, found.size)
            _ranges(calls, key, found, (offset, end), target.write)
        else:
            _one_or_ranges(calls, key, offset, length, target)


def _one_or_ranges(
    calls: Calls, key: str, offset: int, length: int | None, target: "_LocalFile"
) -> None:
    """Read what is probably small: only the answer tells the size of a whole object."""
    most = PARALLEL_FROM if length is None else None

    def get(attempt: Attempt) -> _Object | None:
        target.clear()
        return _receive(attempt, key, offset, length, target.write, most)

    large = calls.run("get", key, get)
    if large is None:
        return
    for final in (False, True):
        checksum = _ranges(calls, key, large, (0, large.size), target.write)
        if large.checksum in {None, checksum} or not _is_comparable(large):
            return
        if final:
            raise CorruptState(
                f"object is not what was stored, by the store's own checksum: {calls.address.url}",
                path=key,
                advice="restore an older checkpoint, and have the store checked",
            )


def _is_comparable(large: _Object) -> bool:
    """Whether the checksum is one over the checksums of parts as long as the ranges are."""
    parts = -(-large.size // part_size(large.size))
    return large.checksum is not None and large.checksum.endswith(f"-{parts}")


def _ranges(calls: Calls, key: str, found: _Object, span: tuple[int, int], write: Write) -> str:
    """Read `span` of the object in ranges; return the checksum over those of the ranges."""
    start, end = span
    step, stop = part_size(end - start), threading.Event()

    def fetch(at: int) -> int:
        def get(attempt: Attempt) -> int:
            crc = 0

            def put(position: int, chunk: bytes) -> None:
                nonlocal crc
                crc = zlib.crc32(chunk, crc)
                write(at - start + position, chunk)

            _receive(attempt, key, at, min(step, end - at), put, version=found.version)
            return crc

        return calls.run("get", key, get, stop)

    pool = calls.connection.pool
    crcs = run_windowed((partial(fetch, at) for at in range(start, end, step)), pool, WINDOW, stop)
    over = zlib.crc32(b"".join(crc.to_bytes(4, "big") for crc in crcs))
    return f"{base64.b64encode(over.to_bytes(4, 'big')).decode()}-{len(crcs)}"


def _receive(
    attempt: Attempt,
    key: str,
    offset: int,
    length: int | None,
    write: Write,
    most: int | None = None,
    version: str | None = None,
) -> _Object | None:
    """Read one answer to the end; or return at once what it tells of more than `most` bytes."""
    wanted = {"IfMatch": version} if version else {}
    if offset or length is not None:
        wanted["Range"] = f"bytes={offset}-{'' if length is None else offset + length - 1}"
    try:
        reply = attempt.client.get_object(**attempt.target, **wanted)
    except Exception as error:
        if status_of(error) == 412:
            raise StoreUnavailable(f"object was replaced while it was read: key={key}") from error
        if status_of(error) != 416:
            raise
        found = _look(attempt)
        if length is None and offset == found.size:
            return None
        raise short_object(attempt.bucket, attempt.key, found.size) from error
    with closing(reply["Body"]) as body:
        size = int(reply["ContentLength"])
        if most is not None and size > most:
            return _Object(size, reply["ETag"], reply.get("ChecksumCRC32"))
        if "Range" in wanted:
            _check_range(attempt, reply, offset, length)
        _read_body(attempt, body, size, write)
    return None


def _read_body(attempt: Attempt, body: Any, size: int, write: Write) -> None:
    position = 0
    # Read until the end is seen, not until enough has come: the checksum is compared there.
    while chunk := body.read(_CHUNK_BYTES):
        write(position, chunk)
        position += len(chunk)
        advance()
    if position != size:
        raise StoreUnavailable(f"answer was cut short: key={attempt.key} bytes={position}")


def _check_range(attempt: Attempt, reply: Any, offset: int, length: int | None) -> None:
    match = _RANGE.fullmatch(reply.get("ContentRange", ""))
    if not match:
        raise UserError(
            f"s3 store does not answer requests for ranges: bucket={attempt.bucket}; use a server "
            "that does, and no proxy that takes the Range header out"
        )
    first, last, size = (int(group) for group in match.groups())
    if length is not None and last - first + 1 < length and last == size - 1:
        raise short_object(attempt.bucket, attempt.key, size)
    end = size if length is None else offset + length
    if (first, last) != (offset, end - 1):
        raise StoreUnavailable(f"answer has another range: key={attempt.key} range={match[0]}")


def _look(attempt: Attempt) -> _Object:
    reply = attempt.client.head_object(**attempt.target)
    return _Object(int(reply["ContentLength"]), reply["ETag"], None)


def _check_end(calls: Calls, key: str, offset: int) -> None:
    """Raise what reading nothing at `offset` must raise."""
    found = calls.run("head", key, _look)
    if offset > found.size:
        raise short_object(calls.address.url, key, found.size)


@dataclass(frozen=True, slots=True)
class _LocalFile:
    """A local file that takes bytes at any place, from several threads."""

    path: Path
    descriptor: int

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["_LocalFile"]:
        """Open `path`, empty; after an error in the block it does not exist."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise _disk_error(path, error) from error
        try:
            yield cls(path, descriptor)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        """Take out what an earlier attempt wrote, perhaps of a longer version of the object."""
        try:
            os.ftruncate(self.descriptor, 0)
        except OSError as error:
            raise _disk_error(self.path, error) from error

    def write(self, position: int, chunk: bytes) -> None:
        """Write all of `chunk` at `position`."""
        rest = memoryview(chunk)
        try:
            while rest:
                written = os.pwrite(self.descriptor, rest, position)
                rest, position = rest[written:], position + written
        except OSError as error:
            raise _disk_error(self.path, error) from error


def _disk_error(path: Path, error: OSError) -> LocalDiskError:
    return LocalDiskError(f"cannot write local file: path={path} error={error}")
