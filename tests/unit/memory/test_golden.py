"""The file of state in memory has the bytes that it had.

To change it, raise its number, go on reading the old one, and add a file; none is ever
changed.
"""

from pathlib import Path

import pytest

from moorage_state.errors import NewerFormat
from moorage_state.memory.files import HEAP_FORMAT_VERSION, SNAPSHOT_FILE, HeapFile, write_heap
from moorage_state.memory.groups import Group

GOLDEN = Path(__file__).parent / "golden" / f"heap-v{HEAP_FORMAT_VERSION}"
GROUPS = {
    b"\x00\x01": {b"\x00\x01\x01a": b"\x2a", b"\x00\x01\x01b": bytes(300)},
    b"\x00\x07": {b"\x00\x07\x01\xc3\xa9": b""},
}


def test_the_file_of_state_in_memory_is_that_of_the_golden_file(tmp_path: Path) -> None:
    groups = [(name, Group(0, dict(entries))) for name, entries in GROUPS.items()]
    write_heap(groups, tmp_path / "made", lambda: False)
    made = (tmp_path / "made" / SNAPSHOT_FILE).read_bytes()
    if not GOLDEN.exists():
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_bytes(made)
        raise AssertionError(f"wrote {GOLDEN}; look at it and run again")
    assert made == GOLDEN.read_bytes()
    with HeapFile(GOLDEN) as file:
        found = {
            name: dict(zip(keys, values, strict=True))
            for name, keys, values in file.groups(lambda _: True)
        }
    assert found == GROUPS


@pytest.mark.parametrize(
    ("number", "words"), [(0, "development version"), (HEAP_FORMAT_VERSION + 1, "upgrade moorage")]
)
def test_another_format_is_refused_with_what_to_do(tmp_path: Path, number: int, words: str) -> None:
    data = GOLDEN.read_bytes()
    at = data.index(HEAP_FORMAT_VERSION.to_bytes(2, "big"))
    path = tmp_path / "other"
    path.write_bytes(data[:at] + number.to_bytes(2, "big") + data[at + 2 :])
    with pytest.raises(NewerFormat, match=words):
        HeapFile(path)
