"""The streams of keyed and of operator state, and deltas, have the bytes that they had.

To change a layout, raise its number, go on reading the old one, and add a file; none is ever
changed.
"""

import datetime
import hashlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from moorage_state.deltas import (
    DELTA_FORMAT_VERSION,
    DeltaHeader,
    DeltaReader,
    DeltaWriter,
    encode_frame,
)
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import CorruptState, UserError
from moorage_state.keyed.schema import StateSchema
from moorage_state.keyed.timers import TimeDomain
from moorage_state.operator_state.backend import OperatorStateBackend
from moorage_state.operator_state.snapshots import OPERATOR_STREAM_FORMAT
from moorage_state.state_backends import (
    DriverCheckpointStorage,
    HashMapStateBackend,
    KeyedStateHandle,
    heap_stream,
)
from moorage_state.state_backends.streams import StreamStateHandle
from moorage_state.timetolive import StateTtlConfig

GOLDEN = Path(__file__).parent / "golden"
DAY = StateTtlConfig(datetime.timedelta(days=1), cleanup_in_full_snapshot=True)
VALUE = ValueStateDescriptor("value", "struct<n:int,text:string>")
ITEMS = ListStateDescriptor("items", "double", DAY)
NAMES = MapStateDescriptor("names", "date", "array<string>")
TOTAL = ReducingStateDescriptor("total", "long", "sum")
FRAMES: list[Any] = [
    ([(b"\0\1a", b"\0\1b")], [b"\0\1a", b"\0\2b"], [b"1", None]),
    ([], [b"\0\3c"], [b""]),
]


def golden(name, made):
    path = GOLDEN / name
    if not path.exists():
        GOLDEN.mkdir(exist_ok=True)
        path.write_bytes(made)
        raise AssertionError(f"wrote {path}; look at it and run again")
    return path.read_bytes()


def stream_of(data):
    return StreamStateHandle(size=len(data), sha256=hashlib.sha256(data).hexdigest(), data=data)


def read(op):
    found = []
    for key in ("a", "\u00e9"):
        op.with_key(key)
        window = op.current.get_partitioned_state("w", "string", TOTAL).get()
        items, names = op.state(ITEMS).get(), op.state(NAMES).items()
        found.append((tuple(op.state(VALUE).value()), items, names, window))
    fired = []
    for one in op.made:
        for domain in TimeDomain:
            one.timers(domain).fire_due(9, lambda *timer: fired.append(timer))
    return found + sorted(fired)


SCHEMAS = (
    StateSchema("value", "value", "struct<n:int,text:string>"),
    StateSchema("items", "list", "double", ttl_ms=86_400_000, indexed_ms=86_400_000),
    StateSchema("names", "map", "array<string>", "date"),
    StateSchema("total", "reducing", "bigint", namespace_types=("string",)),
)
OFFSETS = (246,) * 5 + (388,) * 8 + (523,) * 4
"""Where the key groups of the golden file begin, of which 4 and 12 have something."""
FILLED = [
    ((1, "a"), [0.5, -1.0], [(datetime.date(2013, 1, 1), ["x", None])], 7),
    ((2, "\u00e9"), [0.5, -1.0], [(datetime.date(2013, 1, 1), ["x", None])], 7),
    (4, "a"),
    (4, "\u00e9"),
    (5, "a"),
    (5, "\u00e9"),
]


def heap_handle(data, **changed):
    """What an earlier release said of the golden file."""
    handle = KeyedStateHandle(
        backend="hashmap",
        job_id="job",
        operator="op",
        key_types=("string",),
        key_hash="spark-xxhash64",
        number_of_key_groups=16,
        start=0,
        end=15,
        checkpoint_id=1,
        states=SCHEMAS,
        sequence=1,
        stream=stream_of(data),
        offsets=OFFSETS,
    )
    return replace(handle, **changed)


HEAP = (GOLDEN / f"hashmap-stream-v{heap_stream.FORMAT}").read_bytes()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_stream_that_earlier_releases_wrote_of_state_in_memory_is_read(subtasks, parallelism):
    op = subtasks(HashMapStateBackend(), parallelism)
    op.restore([heap_handle(HEAP)])
    op.restore(op.take())
    assert read(op) == FILLED


def test_what_expires_in_a_stream_of_earlier_releases_is_swept(subtasks):
    op = subtasks(HashMapStateBackend())
    op.restore([heap_handle(HEAP)])
    op.now_ms += 86_400_000
    before = op.stored_entries()
    op.with_key("another")
    op.state(ITEMS)
    for n in range(3):
        op.with_key(f"other-{n}")
    assert op.stored_entries() == before - 4


def test_values_of_an_older_type_in_a_stream_are_brought_to_the_one_that_holds(subtasks):
    """One subtask had declared another field when the snapshot was taken, and the other not."""
    older, newer = "struct<n:int,text:string>", "struct<n:int,text:string,more:int DEFAULT 9>"
    value = replace(SCHEMAS[0], type=newer, earlier=(older,))
    first = heap_handle(HEAP, end=7, offsets=OFFSETS[:9])
    other = heap_handle(HEAP, start=8, offsets=OFFSETS[8:], states=(value, *SCHEMAS[1:]))
    op = subtasks(HashMapStateBackend())
    op.restore([first, other])
    op.with_key("\u00e9")
    assert tuple(op.state(ValueStateDescriptor("value", newer)).value()) == (2, "\u00e9", 9)


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_of_a_length_is_read(subtasks, bit):
    op = subtasks(HashMapStateBackend())
    for at in range(10, 18):
        data = bytearray(HEAP)
        data[at] ^= 1 << bit
        with pytest.raises(CorruptState):
            op.restore([heap_handle(bytes(data))])


def test_a_changed_byte_of_a_stream_is_found_wherever_it_is(subtasks):
    op = subtasks(HashMapStateBackend())
    for at in range(0, len(HEAP), 3):
        data = bytearray(HEAP)
        data[at] ^= 0x41
        stream = replace(heap_handle(HEAP).stream, data=bytes(data))
        with pytest.raises((CorruptState, UserError)):
            op.restore([heap_handle(HEAP, stream=stream)])
    with pytest.raises(CorruptState):
        op.restore([heap_handle(HEAP[:-7])])


def test_the_stream_of_operator_state_is_that_of_the_golden_file():
    backend = OperatorStateBackend("op")
    backend.get_list_state(ListStateDescriptor("list", "string")).add_all(["a", "\u00e9"])
    backend.get_union_list_state(ListStateDescriptor("union", "long")).add(7)
    rules = MapStateDescriptor("rules", "string", "array<long>")
    backend.get_broadcast_state(rules).put_all({"b": [1], "a": []})
    place = DriverCheckpointStorage().create_access("job").location_for_checkpoint(1)
    future = backend.snapshot(1, 0.0, place.stream_factory())
    future.run()
    handle: Any = future.result().handle
    data = golden(f"operator-stream-v{OPERATOR_STREAM_FORMAT}", handle.stream.data)
    assert handle.stream.data == data
    restored = OperatorStateBackend("op", [replace(handle, stream=stream_of(data))])
    assert restored.get_list_state(ListStateDescriptor("list", "string")).get() == ["a", "\u00e9"]
    assert restored.get_union_list_state(ListStateDescriptor("union", "long")).get() == [7]
    assert restored.get_broadcast_state(rules).items() == [("a", []), ("b", [1])]


def test_a_delta_is_that_of_the_golden_file(tmp_path):
    header = DeltaHeader("flights", 0, 63, "f3r0", 7, "0" * 32)
    writer = DeltaWriter(tmp_path / "made", header)
    for frame in FRAMES:
        writer.append(encode_frame(*frame), len(frame[0]) + len(frame[1]))
    writer.finish()
    made = (tmp_path / "made").read_bytes()
    data = golden(f"delta-v{DELTA_FORMAT_VERSION}", made)
    assert made == data
    (tmp_path / "golden").write_bytes(data)
    with DeltaReader(tmp_path / "golden") as reader:
        assert reader.header == header
        assert [tuple(frame) for frame in reader.frames()] == FRAMES
