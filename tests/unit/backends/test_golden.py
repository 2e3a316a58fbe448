"""The streams of keyed and of operator state, and deltas, have the bytes that they had.

To change a layout, raise its number, go on reading the old one, and add a file; none is ever
changed.
"""

import datetime
import hashlib
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from moorage_state.backends import DriverCheckpointStorage, HashMapStateBackend
from moorage_state.backends.hashmap import format as heap
from moorage_state.backends.streams import StreamStateHandle
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
from moorage_state.keyed.timers import TimeDomain
from moorage_state.operator_state.backend import DefaultOperatorStateBackend
from moorage_state.operator_state.snapshots import OPERATOR_STREAM_FORMAT
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


def write(op):
    for key in ("a", "\u00e9"):
        op.with_key(key)
        op.state(VALUE).update((len(key.encode()), key))
        op.state(ITEMS).add_all([0.5, -1.0])
        op.state(NAMES).put(datetime.date(2013, 1, 1), ["x", None])
        op.current.get_partitioned_state("w", "string", TOTAL).add(7)
        for domain in TimeDomain:
            op.current.timers(domain).register(5 - domain)


def read(op):
    found = []
    for key in ("a", "\u00e9"):
        op.with_key(key)
        window = op.current.get_partitioned_state("w", "string", TOTAL).get()
        items, names = op.state(ITEMS).get(), op.state(NAMES).items()
        found.append((tuple(op.state(VALUE).value()), items, names, window))
    fired = []
    for domain in TimeDomain:
        op.current.timers(domain).fire_due(9, lambda *timer: fired.append(timer))
    return found + sorted(fired)


def test_the_stream_of_state_in_memory_is_that_of_the_golden_file(subtasks):
    op = subtasks(HashMapStateBackend(), storage=DriverCheckpointStorage())
    write(op)
    (handle,) = op.take()
    data = golden(f"hashmap-stream-v{heap.FORMAT}", handle.stream.data)
    assert handle.stream.data == data
    op.restore([replace(handle, stream=stream_of(data))])
    assert read(op) == [
        ((1, "a"), [0.5, -1.0], [(datetime.date(2013, 1, 1), ["x", None])], 7),
        ((2, "\u00e9"), [0.5, -1.0], [(datetime.date(2013, 1, 1), ["x", None])], 7),
        (4, "a"),
        (4, "\u00e9"),
        (5, "a"),
        (5, "\u00e9"),
    ]


def test_the_stream_of_operator_state_is_that_of_the_golden_file():
    backend = DefaultOperatorStateBackend("op")
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
    restored = DefaultOperatorStateBackend("op", [replace(handle, stream=stream_of(data))])
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
