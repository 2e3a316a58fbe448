r"""Delta files: one subtask's writes in one epoch, checksummed; the write-ahead log of a range.

Decides the bytes on disk and the digest that names them. Called by the state server, which writes
one per attempt and applies the committed ones, and by tasks, which encode frames. Knows neither
RocksDB nor sockets. Layout of a file (all integers big-endian)::

    magic "MOORDLT\0" (8) | format version (2) | block ...
    block:   kind (1) | payload length (4) | payload | xxh3_64 of kind and payload (8)
    blocks:  one "H" (header), any number of "F" (frames), one "E" (end); nothing after it
    header:  msgpack [uid, start, end, run, epoch, parent digest]
    frame:   msgpack [[[range start, range end], ...], [key, ...], [value or nil, ...]]
    end:     msgpack [number of frames, number of operations, digest]

In a frame the ranges (end excluded) are deleted first, then keys are put, or deleted where the
value is nil, in order. The digest is the xxh3_128 of the header payload and of each frame payload
preceded by its length (8): it does not depend on the attempt that wrote it.
"""

import os
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import msgspec
import xxhash

from moorage_state.errors import Bug, CorruptState, LocalDiskError
from moorage_state.formats import UNREADABLE, require_known_format, unknown_name

DELTA_FORMAT_VERSION = 1

_MAGIC = b"MOORDLT\0"
_VERSION = struct.Struct(">H")
_BLOCK = struct.Struct(">cI")
_SUM = struct.Struct(">Q")
_LENGTH = struct.Struct(">Q")
_MAX_PAYLOAD = (1 << 32) - 1
_NAME = re.compile(r"(\d{20})-([0-9a-f]{32})\.delta\Z")
_ADVICE = "rewind the job to its last completed checkpoint"


class DeltaHeader(msgspec.Struct, frozen=True, array_like=True):
    """What a delta applies to. `parent` is the digest of the version it was computed from."""

    uid: str
    start: int
    end: int
    run: str
    epoch: int
    parent: str


class Frame(NamedTuple):
    """A batch of writes: `ranges` (end excluded) are deleted first; a value of None deletes."""

    ranges: list[tuple[bytes, bytes]]
    keys: list[bytes]
    values: list[bytes | None]

    @property
    def operations(self) -> int:
        """Number of writes, a range counting as one."""
        return len(self.ranges) + len(self.keys)


class _End(msgspec.Struct, frozen=True, array_like=True):
    frames: int
    operations: int
    digest: str


@dataclass(frozen=True, slots=True)
class DeltaSummary:
    """What a finished delta holds; `size` is the file's, in bytes."""

    digest: str
    frames: int
    operations: int
    size: int


_pack = msgspec.msgpack.Encoder().encode
_unpack_frame = msgspec.msgpack.Decoder(Frame).decode
_unpack_header = msgspec.msgpack.Decoder(DeltaHeader).decode
_unpack_end = msgspec.msgpack.Decoder(_End).decode


def encode_frame(
    ranges: Sequence[tuple[bytes, bytes]],
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
) -> bytes:
    """The payload of a frame. `keys` and `values` are of one length."""
    return _pack((ranges, keys, values))


def decode_frame(payload: bytes | bytearray | memoryview) -> Frame:
    """The frame that `encode_frame` made. Raises `Bug` when these are not the bytes of one."""
    try:
        frame = _unpack_frame(payload)
    except UNREADABLE as error:
        raise Bug(f"not the payload of a delta frame: {error}") from error
    if len(frame.keys) != len(frame.values):
        raise Bug(
            f"a delta frame has another number of keys than of values: "
            f"keys={len(frame.keys)} values={len(frame.values)}"
        )
    return frame


def delta_name(epoch: int, digest: str) -> str:
    """The file name of a finished delta; names sort by epoch."""
    return f"{epoch:020d}-{digest}.delta"


def parse_delta_name(name: str) -> tuple[int, str] | None:
    """Epoch and digest of a file name that `delta_name` made, None for any other name."""
    match = _NAME.match(name)
    return (int(match[1]), match[2]) if match else None


def is_delta_name(name: str) -> bool:
    """Whether `delta_name` made it."""
    return _NAME.match(name) is not None


class _Digest:
    def __init__(self, header: bytes) -> None:
        self._hash = xxhash.xxh3_128(header)

    def add(self, payload: bytes | bytearray | memoryview) -> None:
        self._hash.update(_LENGTH.pack(len(payload)))
        self._hash.update(payload)

    def hex(self) -> str:
        return self._hash.hexdigest()


def _sum(kind: bytes, payload: bytes | bytearray | memoryview) -> bytes:
    hasher = xxhash.xxh3_64(kind)
    hasher.update(payload)
    return _SUM.pack(hasher.intdigest())


class DeltaWriter:
    """Writes one delta file at `path` (overwritten). Not thread-safe.

    Raises (every method): `LocalDiskError` when the volume refuses the write.
    """

    def __init__(self, path: Path, header: DeltaHeader) -> None:
        self.path = path
        self.header = header
        self.frames = 0
        self._operations = 0
        payload = _pack(header)
        self._digest = _Digest(payload)
        try:
            self._file: BinaryIO = path.open("wb", buffering=0)
        except OSError as error:
            raise _disk_error("create", path, error) from error
        self._write(_MAGIC + _VERSION.pack(DELTA_FORMAT_VERSION))
        self._block(b"H", payload)

    def append(self, payload: bytes | bytearray | memoryview, operations: int) -> None:
        """Add one encoded frame of `operations` writes."""
        self._digest.add(payload)
        self._block(b"F", payload)
        self.frames += 1
        self._operations += operations

    def finish(self, *, sync: bool = False) -> DeltaSummary:
        """Write the end block and close; with `sync` the bytes survive a loss of power."""
        digest = self._digest.hex()
        self._block(b"E", _pack(_End(self.frames, self._operations, digest)))
        size = self._file.tell()
        try:
            if sync:
                os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            raise _disk_error("close", self.path, error) from error
        return DeltaSummary(digest, self.frames, self._operations, size)

    def discard(self) -> None:
        """Close and delete the file."""
        self._file.close()
        with suppress(OSError):
            self.path.unlink()

    def _block(self, kind: bytes, payload: bytes | bytearray | memoryview) -> None:
        if len(payload) > _MAX_PAYLOAD:
            raise Bug(f"a delta frame is too large: bytes={len(payload)} limit={_MAX_PAYLOAD}")
        self._write(_BLOCK.pack(kind, len(payload)))
        self._write(payload)
        self._write(_sum(kind, payload))

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise _disk_error("write", self.path, error) from error


class DeltaReader:
    """Reads one finished delta; a context manager.

    Raises (constructor and iteration): `CorruptState` naming the file when it is torn, damaged or
    not the one that its name says; `UserError` when a newer release wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
            self.size = path.stat().st_size
        except OSError as error:
            raise _disk_error("open", path, error) from error
        try:
            self._check_version()
            payload = self._first_block()
            self._digest = _Digest(payload)
            self.header: DeltaHeader = _unpack_header(payload)
        except UNREADABLE as error:
            self._file.close()
            raise self._corrupt(f"header: {error}") from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()

    def frames(self) -> Iterator[Frame]:
        """Every frame in order. Only when it ends without an error is the delta proven whole."""
        count = operations = 0
        while True:
            kind, payload = self._known_block()
            if kind == b"E":
                break
            self._digest.add(payload)
            try:
                frame = decode_frame(payload)
            except Bug as error:
                raise self._corrupt(str(error)) from error
            count, operations = count + 1, operations + frame.operations
            yield frame
        self._check_end(payload, count, operations)

    def require_whole(self) -> None:
        """Read it to its end, and decode nothing of it."""
        count = 0
        while (block := self._known_block())[0] != b"E":
            self._digest.add(block[1])
            count += 1
        self._check_end(block[1], count)

    def _first_block(self) -> bytes:
        kind, payload = self._block()
        if kind != b"H":
            raise self._corrupt("no header")
        return payload

    def _known_block(self) -> tuple[bytes, bytes]:
        """Return the next frame or the end; optional blocks of other kinds are passed over."""
        while True:
            kind, payload = self._block()
            if kind in {b"F", b"E"}:
                return kind, payload
            if not kind.islower():
                raise unknown_name("delta file", f"block={kind!r}", str(self.path))

    def _check_version(self) -> None:
        magic, version = self._file.read(len(_MAGIC)), self._file.read(_VERSION.size)
        if magic != _MAGIC or len(version) < _VERSION.size:
            raise self._corrupt("not a delta file")
        (number,) = _VERSION.unpack(version)
        require_known_format("delta file", number, DELTA_FORMAT_VERSION, str(self.path))

    def _block(self) -> tuple[bytes, bytes]:
        head = self._file.read(_BLOCK.size)
        if len(head) < _BLOCK.size:
            raise self._corrupt("torn")
        kind, length = _BLOCK.unpack(head)
        if length > self.size:  # before memory for it is taken
            raise self._corrupt("torn")
        payload = self._file.read(length)
        checksum = self._file.read(_SUM.size)
        if len(payload) < length or len(checksum) < _SUM.size:
            raise self._corrupt("torn")
        if checksum != _sum(kind, payload):
            raise self._corrupt("checksum does not match")
        return kind, payload

    def _check_end(self, payload: bytes, frames: int, operations: int | None = None) -> None:
        try:
            end = _unpack_end(payload)
        except UNREADABLE as error:
            raise self._corrupt(f"end block: {error}") from error
        named = parse_delta_name(self.path.name)
        counted = end.operations if operations is None else operations
        seen = _End(frames, counted, self._digest.hex())
        if end != seen or named not in (None, (self.header.epoch, end.digest)):
            raise self._corrupt(f"digest or counts do not match: digest={seen.digest}")
        if self._file.read(1):
            raise self._corrupt("bytes after the end")

    def _corrupt(self, what: str) -> CorruptState:
        return CorruptState(f"delta file is damaged ({what})", str(self.path), _ADVICE)


def _disk_error(verb: str, path: Path, error: OSError) -> LocalDiskError:
    return LocalDiskError(
        f"could not {verb} a delta file: path={path} error={error}; free space on this volume"
    )
