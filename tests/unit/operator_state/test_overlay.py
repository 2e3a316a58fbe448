"""A range as an attempt has changed it: reads are those of a dict to which the same was done."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_state.database import Scan
from moorage_state.deltas import encode_frame
from moorage_state.errors import LocalDiskError
from moorage_state.keyed import visits
from moorage_state.keyed.visits import Overlay

PREFIXES = [bytes([n]) for n in (1, 2, 0xFF)]
KEYS = [prefix + bytes([n]) for prefix in PREFIXES[:2] for n in range(7)] + [b"\xfe\xff\x00"]
VALUES = st.binary(max_size=2)
# What is deleted as a range is all of a prefix, or its beginning.
RANGES = st.sampled_from([(b"\x01", b"\x02"), (b"\x01", b"\x01\x03"), (b"\x02", b"\x03")])
FRAMES = st.lists(
    st.tuples(
        st.lists(RANGES, max_size=2),
        st.dictionaries(st.sampled_from(KEYS), st.none() | VALUES, max_size=5),
    ),
    max_size=4,
)


def pages(overlay: Overlay, prefix: bytes, limit: int, first: Scan | None) -> Iterator[Any]:
    scan = first or overlay.scan_from(prefix, b"", limit)
    while True:
        assert len(scan.keys) <= limit
        yield from zip(scan.keys, scan.values, strict=True)
        if scan.complete:
            return
        scan = overlay.scan_from(prefix, scan.keys[-1] if scan.keys else b"", limit)
        assert scan.keys or scan.complete, "a page that is not the last one says where to go on"


@given(
    before=st.dictionaries(st.sampled_from(KEYS), VALUES),
    frames=FRAMES,
    limit=st.integers(1, 4),
)
def test_what_is_staged_is_read_as_if_it_were_committed(
    new_access: Callable[..., Any], before, frames, limit
):
    access = new_access(before)
    overlay, now = Overlay(access, [gettempdir()]), dict(before)
    overlay.recording = True
    for ranges, writes in frames:
        overlay.stage(encode_frame(ranges, list(writes), list(writes.values())))
        for start, end in ranges:
            now = {key: raw for key, raw in now.items() if not start <= key < end}
        now = {key: raw for key, raw in {**now, **writes}.items() if raw is not None}
    assert overlay.get_many(KEYS) == [now.get(key) for key in KEYS]
    for prefix in (b"\x01", b"\x02", b"\xfe\xff"):
        mine = [(key, now[key]) for key in sorted(now) if key.startswith(prefix)]
        assert list(pages(overlay, prefix, limit, None)) == mine
        first = overlay.scan_many([prefix], limit, 1 << 20)[0]
        if first.keys or first.complete:
            assert list(pages(overlay, prefix, max(3, limit), first)) == mine
    assert len(access.staged) == len(frames)
    overlay.close()


@pytest.mark.parametrize("recording", [True, False])
def test_what_is_not_recorded_is_only_passed_on(new_access, recording):
    access = new_access({b"\x01a": b"before"})
    overlay = Overlay(access, [gettempdir()])
    overlay.recording = recording
    overlay.stage(encode_frame([], [b"\x01a"], [b"after"]))
    assert overlay.get_many([b"\x01a"]) == [b"after" if recording else b"before"]
    assert len(access.staged) == 1
    overlay.close()
    overlay.close()


def test_what_was_changed_is_read_in_pages_of_bounded_bytes(new_access, monkeypatch):
    monkeypatch.setattr(visits, "_PAGE_BYTES", 1000)
    overlay = Overlay(new_access({}), [gettempdir()])
    overlay.recording = True
    keys = [prefix + bytes([n]) for prefix in (b"\x01", b"\x02", b"\x03") for n in range(9)]
    overlay.stage(encode_frame([], keys, [b"x" * 400] * len(keys)))
    scan = overlay.scan_from(b"\x01", b"", 100)
    assert (scan.keys, scan.complete) == (keys[:3], False)
    assert [key for key, _ in pages(overlay, b"\x01", 100, scan)] == keys[:9]
    scans = overlay.scan_many([b"\x01", b"\x02", b"\x03"], 100, 2000)
    assert [len(one.keys) for one in scans] == [3, 3, 0]
    assert [key for key, _ in pages(overlay, b"\x03", 100, scans[2])] == keys[18:]
    overlay.close()


# --- where it waits -------------------------------------------------------------------------------

MANY = 40_000


def open_files(directory: Path) -> list[os.stat_result]:
    """The files without a name that this process has open in a directory."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            target = entry.readlink()
            if target.is_relative_to(directory) and target.name.endswith(" (deleted)"):
                found.append(entry.stat())
    return found


def test_what_does_not_fit_in_memory_waits_in_a_file_without_a_name(new_access, tmp_path):
    overlay = Overlay(new_access({}), [str(tmp_path / "missing"), str(tmp_path)])
    overlay.recording = True
    overlay.stage(encode_frame([], [b"\x01a"], [b"small"]))
    assert list(tmp_path.iterdir()) == []
    assert [file.st_size for file in open_files(tmp_path)] == [0]
    keys = [b"\x02%06d" % n for n in range(MANY)]
    for at in range(0, MANY, 10_000):
        page = keys[at : at + 10_000]
        overlay.stage(encode_frame([], page, [key * 100 for key in page]))
    # 28 MB were changed, of which about 16 are in memory.
    assert open_files(tmp_path)[0].st_size > 8 << 20
    assert overlay.get_many(keys[::999]) == [key * 100 for key in keys[::999]]
    overlay.close()
    assert open_files(tmp_path) == []


def test_where_nothing_can_be_written_it_is_said_which_directories_were_tried(new_access, tmp_path):
    overlay = Overlay(new_access({}), [str(tmp_path / "one"), str(tmp_path / "two")])
    overlay.recording = True
    with pytest.raises(LocalDiskError, match=r"one \(No such file .*two \(.*spark.local.dir"):
        overlay.stage(encode_frame([], [b"\x01a"], [b"after"]))


@pytest.mark.parametrize(
    "use",
    [
        lambda overlay: overlay.get_many([b"\x01a"]),
        lambda overlay: overlay.scan_from(b"\x01", b"", 1),
        lambda overlay: overlay.scan_many([b"\x01"], 1, 1),
        lambda overlay: overlay.stage(encode_frame([], [], [])),
    ],
)
def test_who_catches_that_there_is_no_room_reads_and_writes_no_more(new_access, use):
    overlay = Overlay(new_access({b"\x01a": b"before"}), [])
    overlay.recording = True
    with pytest.raises(LocalDiskError):
        overlay.stage(encode_frame([], [b"\x01a"], [b"after"]))
    overlay.recording = False
    with pytest.raises(LocalDiskError, match="directories=none"):
        use(overlay)
