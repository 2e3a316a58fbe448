r"""Snapshots of state in memory: one file for a range, with the place of each key group in it.

Decides the bytes of the file. Called by the database, beside epochs when it writes. Layout (all
integers big-endian)::

    magic "MOORHEAP" (8) | format version (2) | block ...
    block:   kind (1) | payload length (4) | payload | xxh3_64 of kind and payload (8)
    blocks:  any number of "G" (entries of one key group), one "I" (index)
    group:   msgpack [[key, ...], [value, ...]], keys in order; a large group has several blocks
    index:   msgpack [[first two bytes of the keys, [offset of a block, ...], entries], ...]
    tail:    offset of the index (8) | xxh3_64 of that (8) | magic "MOORHEND" (8); nothing after it

A reader of some key groups reads only their blocks.
"""

import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import msgspec
import xxhash

from moorage_state.database import FileBytes
from moorage_state.errors import CorruptState, LocalDiskError, Retryable, disk_errors
from moorage_state.formats import UNREADABLE, require_known_format
from moorage_state.keylayout import METADATA
from moorage_state.memory.groups import Group
from moorage_state.stores.transfers import in_parallel

HEAP_FORMAT_VERSION = 1
SNAPSHOT_FILE = "state.heap"

_MAGIC, _END = b"MOORHEAP", b"MOORHEND"
_VERSION = struct.Struct(">H")
_BLOCK = struct.Struct(">cI")
_SUM = struct.Struct(">Q")
_TAIL = struct.Struct(">QQ8s")
_BLOCK_ENTRIES = 20_000
_BLOCK_BYTES = 4 << 20
_ADVICE = "restore an older checkpoint"

_END_BYTES = 64 << 10
"""Read at once from the end of a file, where its index is."""

_PIECE_BYTES = 8 << 20
"""Blocks are fetched together up to this size; as many pieces are held as there are transfers."""

_TRANSFERS = 4


class _Part(NamedTuple):
    """Where the entries of a key group lie."""

    name: bytes
    offsets: list[int]
    entries: int


_Entries = tuple[list[bytes], list[bytes]]
_pack = msgspec.msgpack.Encoder().encode
_unpack_entries = msgspec.msgpack.Decoder(_Entries).decode
_unpack_index = msgspec.msgpack.Decoder(list[_Part]).decode


def write_heap(
    groups: Iterable[tuple[bytes, Group]], directory: Path, stopped: Callable[[], bool]
) -> None:
    """Make `directory` with the file of these groups; what an error leaves is deleted.

    Raises:
        LocalDiskError: the volume refuses.
        Retryable: `stopped` says so.
    """
    try:
        directory.mkdir(parents=True)
        with (directory / SNAPSHOT_FILE).open("wb") as file:
            _write(file, groups, stopped)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise LocalDiskError(
            f"could not write a snapshot of state in memory: path={directory} error={error}; free "
            f"space on this volume"
        ) from error
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _write(
    file: BinaryIO, groups: Iterable[tuple[bytes, Group]], stopped: Callable[[], bool]
) -> None:
    file.write(_MAGIC + _VERSION.pack(HEAP_FORMAT_VERSION))
    index: list[_Part] = []
    for name, group in groups:
        offsets = []
        for page in _pages(group):
            if stopped():
                raise Retryable("a snapshot of state in memory was stopped; take another one")
            offsets.append(file.tell())
            _write_block(file, b"G", _pack(page))
        index.append(_Part(name, offsets, len(group.entries)))
    _write_end(file, index)


def _write_end(file: BinaryIO, index: Sequence[_Part]) -> None:
    place = file.tell()
    _write_block(file, b"I", _pack(index))
    packed = place.to_bytes(8, "big")
    file.write(_TAIL.pack(place, xxhash.xxh3_64_intdigest(packed), _END))


def _pages(group: Group) -> Iterator[_Entries]:
    """The entries in order, a few megabytes at a time."""
    entries = group.entries
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for key in chain.from_iterable(group.ordered()):
        value = entries.get(key)
        if value is None:
            continue
        if len(keys) >= _BLOCK_ENTRIES or size >= _BLOCK_BYTES:
            yield keys, values
            keys, values, size = [], [], 0
        keys.append(key)
        values.append(value)
        size += len(key) + len(value)
    yield keys, values


def _write_block(file: BinaryIO, kind: bytes, payload: bytes) -> None:
    file.write(_BLOCK.pack(kind, len(payload)))
    file.write(payload)
    file.write(_sum(kind, payload))


def _sum(kind: bytes, payload: bytes) -> bytes:
    hasher = xxhash.xxh3_64(kind)
    hasher.update(payload)
    return _SUM.pack(hasher.intdigest())


class HeapReader:
    """Reads one file, wherever it lies.

    Raises (constructor and every method): `CorruptState` naming the file when it is torn or
    damaged; `NewerFormat` when a newer release wrote it; what `source.read` does.
    """

    def __init__(self, source: FileBytes) -> None:
        self._source = source
        self._kept = (0, b"")
        self.version = self._head()
        self._index = self._read_index()

    def groups(
        self, wanted: Callable[[bytes], bool]
    ) -> Iterator[tuple[bytes, list[bytes], list[bytes]]]:
        """The wanted key groups in order, a block at a time: name, keys, values."""
        for part in self._index:
            if not wanted(part.name):
                continue
            found = 0
            for offset in part.offsets:
                keys, values = self._entries(offset)
                self._check_entries(part, keys, values)
                found += len(keys)
                yield part.name, keys, values
            if found != part.entries:
                raise self._corrupt(
                    f"group {part.name.hex()} has {found} of {part.entries} entries"
                )

    def blocks(self, wanted: Callable[[bytes], bool]) -> tuple[list[_Part], list[range]]:
        """The index of the wanted key groups, and the bytes that each of their blocks takes."""
        parts = [part for part in self._index if wanted(part.name)]
        # Nothing lies between two blocks, or between the last one and the index.
        ends = dict(pairwise(sorted(o for part in self._index for o in part.offsets)))
        ranges = [range(o, ends.get(o, self._place)) for part in parts for o in part.offsets]
        return parts, ranges

    def read_blocks(self, ranges: Sequence[range]) -> bytes:
        """The bytes of blocks that follow one another, each with the right checksum."""
        first = ranges[0].start
        data = self._read(first, ranges[-1].stop - first)
        for each in ranges:
            begin = each.start - first
            payload = self._payload(data[begin : begin + len(each)], b"G")
            if _BLOCK.size + len(payload) + _SUM.size != len(each):
                raise self._corrupt("a block is not where the index says")
        return data

    def _entries(self, offset: int) -> _Entries:
        try:
            entries: _Entries = _unpack_entries(self._block(offset, b"G"))
        except UNREADABLE as error:
            raise self._corrupt(f"group: {error}") from error
        return entries

    def _check_entries(self, part: _Part, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        if len(keys) != len(values) or not all(key.startswith(part.name) for key in keys):
            raise self._corrupt(f"group {part.name.hex()} holds what is not its own")

    def _head(self) -> int:
        head = self._read(0, len(_MAGIC) + _VERSION.size)
        if not head.startswith(_MAGIC) or len(head) < len(_MAGIC) + _VERSION.size:
            raise self._corrupt("not a snapshot of state in memory")
        (number,) = _VERSION.unpack(head[len(_MAGIC) :])
        what = "snapshot of state in memory"
        require_known_format(what, number, HEAP_FORMAT_VERSION, self._source.place)
        return int(number)

    def _read_index(self) -> list[_Part]:
        size = self._source.size
        # With the tail comes what is before it: the index, most often, and the server's entries.
        begin = max(0, size - _END_BYTES)
        self._kept = begin, self._source.read(begin, size - begin)
        tail = self._read(max(0, size - _TAIL.size), _TAIL.size)
        if len(tail) < _TAIL.size:
            raise self._corrupt("torn")
        place, checksum, end = _TAIL.unpack(tail)
        if end != _END or checksum != xxhash.xxh3_64_intdigest(tail[:8]):
            raise self._corrupt("torn")
        self._place = place
        block = self._read(place, max(0, size - _TAIL.size - place))
        try:
            return _unpack_index(self._payload(block, b"I"))
        except UNREADABLE as error:
            raise self._corrupt(f"index: {error}") from error

    def _block(self, offset: int, expected: bytes) -> bytes:
        head = self._read(offset, _BLOCK.size)
        if len(head) < _BLOCK.size:
            raise self._corrupt("torn")
        _, length = _BLOCK.unpack(head)
        return self._payload(head + self._read(offset + _BLOCK.size, length + _SUM.size), expected)

    def _payload(self, block: bytes, expected: bytes) -> bytes:
        """What a block holds, of which these are the bytes."""
        if len(block) < _BLOCK.size:
            raise self._corrupt("torn")
        kind, length = _BLOCK.unpack_from(block)
        payload = block[_BLOCK.size : _BLOCK.size + length]
        checksum = block[_BLOCK.size + length : _BLOCK.size + length + _SUM.size]
        if kind != expected or checksum != _sum(kind, payload):
            raise self._corrupt("checksum does not match")
        return payload

    def _read(self, offset: int, size: int) -> bytes:
        begin, kept = self._kept
        if begin <= offset and offset + size <= begin + len(kept):
            return kept[offset - begin : offset - begin + size]
        return self._source.read(offset, size)

    def _corrupt(self, what: str) -> CorruptState:
        return CorruptState(
            f"snapshot of state in memory is damaged ({what})", self._source.place, _ADVICE
        )


class HeapFile(HeapReader):
    """A file on this machine; a context manager.

    Raises as `HeapReader`, and `LocalDiskError` when the volume cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("rb")
            size = self._file.seek(0, 2)
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            super().__init__(FileBytes(self._piece, size, str(path)))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()

    def _piece(self, offset: int, size: int) -> bytes:
        try:
            self._file.seek(offset)
            return self._file.read(size)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> LocalDiskError:
        return LocalDiskError(
            f"cannot read a snapshot of state in memory: path={self._path} error={error}; check "
            f"this volume's health"
        )


def wanted_groups(within: tuple[int, int] | None) -> Callable[[bytes], bool]:
    """Whether a group, by its name, is among these (first, last); the server's own always is."""
    if within is None:
        return lambda _: True
    first, last = (number.to_bytes(len(METADATA), "big") for number in within)
    return lambda name: first <= name <= last or name == METADATA


def write_part(path: Path, source: FileBytes, within: tuple[int, int]) -> None:
    """Write a file that has only some key groups of another one, which is read no further.

    Blocks are taken as they are, so that whoever opens the file checks them once more.

    Raises:
        CorruptState: what was read of the source is damaged.
        LocalDiskError: the volume refuses.
    """
    reader = HeapReader(source)
    parts, blocks = reader.blocks(wanted_groups(within))
    head = _MAGIC + _VERSION.pack(reader.version)
    places = accumulate(map(len, blocks), initial=len(head))
    moved = dict(zip((block.start for block in blocks), places, strict=False))
    place = len(head) + sum(map(len, blocks))
    with disk_errors("write a part of a copy", path), path.open("wb") as file:
        file.write(head)

        def bring(piece: Sequence[range]) -> None:
            os.pwrite(file.fileno(), reader.read_blocks(piece), moved[piece[0].start])

        in_parallel((partial(bring, piece) for piece in _pieces(blocks)), _TRANSFERS, "download")
        file.seek(place)
        _write_end(file, [p._replace(offsets=[moved[o] for o in p.offsets]) for p in parts])


def _pieces(blocks: Iterable[range]) -> Iterator[list[range]]:
    """Blocks without a gap between them, as many as one request brings."""
    piece: list[range] = []
    for block in blocks:
        if piece and (block.start != piece[-1].stop or block.stop - piece[0].start > _PIECE_BYTES):
            yield piece
            piece = []
        piece.append(block)
    if piece:
        yield piece
