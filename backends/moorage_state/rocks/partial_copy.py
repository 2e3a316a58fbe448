"""A copy of a database without the files that some key groups have nothing in.

RocksDB opens no directory that lacks a file which its MANIFEST lists. So the MANIFEST gets one more
record: that those files are deleted, as a compaction would say. Called by the backend before the
files of a copy are fetched, for a range that takes only a part of it. The formats of log and record
are RocksDB's own and as old as it is (docs/rocksdict.md): no binding offers to write them.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

from moorage_state.errors import disk_errors
from moorage_state.keylayout import METADATA
from moorage_state.rocks.adapter import StoredFile, files_of

_BLOCK = 32 << 10
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_DELETED_FILE = 6
_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78


def leave_out(path: Path, first: int, last: int) -> frozenset[str]:
    """Leave out of the copy in `path` all files without an entry that is needed.

    Entries of the key groups `first` to `last` are, and the server's own. Of others any may come
    or go: delete them before they are read. None of the SST files needs to be there yet.

    Returns:
        The names of the SST files that the copy still consists of.

    Raises:
        CorruptState: this is no copy of a database.
        LocalDiskError: the volume refuses.
    """
    lower, upper = first.to_bytes(2, "big"), (last + 1).to_bytes(2, "big")
    files = files_of(path)
    useless = {
        file
        for file in files
        if file.last < METADATA and (file.last < lower or file.first >= upper)
    }
    if useless:
        with disk_errors("leave files out of a copy", path):
            name = (path / "CURRENT").read_text().strip()
            _append(path / name, _deletions(sorted(useless)))
    return frozenset(file.name for file in files if file not in useless)


def _deletions(files: Iterable[StoredFile]) -> bytes:
    """The record that says that `files` are deleted."""
    return b"".join(
        _varint(_DELETED_FILE) + _varint(file.level) + _varint(int(Path(file.name).stem))
        for file in files
    )


def _append(log: Path, record: bytes) -> None:
    """Append `record` to a log of RocksDB: in pieces that do not cross the bounds of blocks."""
    at = log.stat().st_size
    pieces = bytearray()
    rest, begun = memoryview(record), False
    while rest or not begun:
        room = _BLOCK - (at + len(pieces)) % _BLOCK
        if room < _HEADER.size:
            pieces += bytes(room)
            continue
        piece, rest = rest[: room - _HEADER.size], rest[room - _HEADER.size :]
        kind = (_MIDDLE if rest else _LAST) if begun else (_FIRST if rest else _FULL)
        pieces += _HEADER.pack(_masked(_crc32c(bytes([kind]) + piece)), len(piece), kind) + piece
        begun = True
    with log.open("ab") as file:
        file.write(pieces)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _table() -> list[int]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        found.append(value)
    return found


_TABLE = _table()


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
