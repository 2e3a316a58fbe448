"""When an epoch without input is due, and what is told of the end of a query."""

import logging
from typing import Any

import pytest

from moorage.api.graph import InputNode, JobGraph
from moorage.driver.query import FileBound, Halted, _is_news
from moorage.driver.stream_run import Ticking
from moorage.engine import event_time
from moorage.engine.event_time import Watermarks
from moorage.engine.subtask_plan import NEVER, UNKNOWN

TIME = Watermarks({"a": event_time.InputClock()}, {"op": {"a"}})
STILL = TIME.after_epoch({"a": 5000}).after_epoch({})
MOVED = STILL.after_epoch({"a": 9000})


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ticking(clock):
    return Ticking(timers=True, epoch_seconds=2.0, clock=clock)


def test_an_alarm_waits_for_the_epoch_interval_and_no_longer(ticking, clock):
    clock.now += 1.9
    assert not ticking.due(STILL, 500, 500)
    clock.now += 0.1
    assert ticking.due(STILL, 500, 500)
    assert not ticking.due(STILL, 501, 500)


def test_between_two_ticks_lies_the_epoch_interval(ticking, clock):
    clock.now += 50
    assert ticking.due(STILL, 500, 900)
    ticking.epoch_ended()
    assert not ticking.due(STILL, 500, 900)
    clock.now += 2
    assert ticking.due(STILL, 500, 900)


def test_even_without_an_interval_ticks_leave_room_for_other_things(clock):
    ticking = Ticking(timers=True, epoch_seconds=0.0, clock=clock)
    ticks = 0
    for _ in range(1000):
        clock.now += 0.01
        if ticking.due(STILL, 1, 2):
            ticks += 1
            ticking.epoch_ended()
    assert 40 <= ticks <= 50


def test_no_alarm_is_no_reason_to_tick(ticking, clock):
    clock.now += 1000
    assert not ticking.due(STILL, NEVER, NEVER)


def test_a_watermark_that_has_moved_waits_until_spark_brings_nothing(ticking, clock):
    clock.now += 2.9
    assert not ticking.due(MOVED, NEVER, 0)
    clock.now += 0.2
    assert ticking.quiet
    assert ticking.due(MOVED, NEVER, 0)
    assert not ticking.due(MOVED.after_epoch({}), NEVER, 0)


def test_after_a_restore_a_quiet_job_looks_once_what_alarms_there_are(ticking, clock):
    assert not ticking.due(STILL, UNKNOWN, 0)
    clock.now += 3.1
    assert ticking.due(STILL, UNKNOWN, 0)


def test_a_job_without_timers_never_ticks(clock):
    ticking = Ticking(timers=False, epoch_seconds=2.0, clock=clock)
    clock.now += 1000
    assert not ticking.due(MOVED, 1, 2)
    assert not ticking.due(MOVED, UNKNOWN, 2)


def test_of_what_py4j_tells_an_end_that_was_asked_for_is_no_news():
    records = []
    for error in (Halted(), ValueError("x"), None):
        told = (type(error), error, None) if error else None
        records.append(logging.LogRecord("py4j", 40, "f", 1, "m", (), told))
    assert [_is_news(record) for record in records] == [False, True, True]


@pytest.mark.parametrize(("nested", "total"), [(False, 4), (True, 5)])
def test_files_that_spark_passes_over_are_none_that_it_is_to_take(tmp_path, nested, total):
    files = (
        "a.json",
        "_metadata",
        "day=1/b.json",
        "day=1/_part=2/c.json",
        "plain/d.json",
        "_SUCCESS",
        ".a.json.crc",
        "e.json._COPYING_",
        "_spark_metadata/0",
        ".hidden/f.json",
        "day=1/_temporary/g.json",
    )
    for name in files:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("{}")
    log = tmp_path / "spark" / "sources" / "0"
    log.mkdir(parents=True)
    (log / "0").write_text("v1\n{}\n{}\n")
    frame: Any = None
    graph = JobGraph()
    graph.inputs.append(InputNode("in", frame, f"file://{tmp_path}/in", nested=nested))
    assert FileBound(graph, tmp_path / "spark").read() == (2, total)


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        # Held against what Spark's own source takes of such a folder.
        (None, 11),
        ("*.json", 9),
        ("{a,b}.json", 3),
        ("ab-[^1].json", 1),
        ("ab-[!1].json", 1),
        ("?.json", 3),
        ("*.{json,csv}", 10),
        (r"z\,*", 1),
        ("^q.json", 1),
        ("!r*", 1),
        (r"x\{*", 1),
        ("[ab]*.json", 5),
        ("day=1", 0),
        ("", 0),
        # Spark refuses these, and tells why.
        ("[abc", 0),
        ("{a", 0),
        ("[z-a]", 0),
    ],
)
def test_files_of_other_names_than_are_asked_for_are_none_of_a_bounded_run(
    tmp_path, pattern, taken
):
    names = "a.json b.json b.JSON c.csv day=1/a.json day=1/x{y.json ab-1.json ab-2.json z,1.json"
    for name in f"{names} ^q.json !r.json _h.json".split():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("{}")
    frame: Any = None
    graph = JobGraph()
    graph.inputs.append(InputNode("in", frame, f"file://{tmp_path}/in", name_filter=pattern))
    found = FileBound(graph, tmp_path / "spark").read()
    assert found == ((0, taken) if taken else None)


def test_where_one_input_cannot_be_counted_nothing_is_said_of_all(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("{}")
    frame: Any = None
    for other, found in (("s3://bucket/in", None), (f"file://{tmp_path}/in", (0, 2))):
        graph = JobGraph()
        graph.inputs.append(InputNode("in", frame, f"file://{tmp_path}/in"))
        graph.inputs.append(InputNode("other", frame, other))
        assert FileBound(graph, tmp_path / "spark").read() == found
