"""What is shown of a run: its graph, what subtasks did, and where an epoch's time went."""

from dataclasses import astuple, replace
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from moorage.api.file_sink import FileSink
from moorage.api.foreach_sinks import ForeachCheckpoint
from moorage.api.functions import KeyedProcessFunction, OutputTag
from moorage.api.graph import Branch, InputNode, JobGraph, KeyedInput, OperatorNode, SinkNode
from moorage.api.streams import DataStream
from moorage.driver.figures import (
    Figures,
    earlier_of,
    graph_view,
    outputs_of,
    strange_times_of,
)
from moorage.driver.views import GraphView, NodeView
from moorage.engine.acks import Ack, EpochOutcome
from moorage.engine.event_time import InputClock, Watermarks
from moorage_state.server.operations import RangeSpec
from moorage_state.snapshots import (
    Checkpoint,
    Forgotten,
    Retire,
    Run,
    Savepoint,
    decode_snapshot,
    encode_manifest,
)

NOTHING: Any = None


class Count(KeyedProcessFunction):
    pass


def cleaned(frame):
    return frame


def stream(branches=(), operator=None, side=None):
    return DataStream(
        NOTHING, schema=NOTHING, branches=branches, operator=operator, side_output=side
    )


def operator_of(uid, upstream):
    return OperatorNode(uid, upstream, ("user",), ("string",), Count(), NOTHING, "fail")


def test_a_graph_shows_each_node_once_and_who_reads_what():
    clicks = InputNode("clicks", NOTHING, "s3a://user:secret@bucket/in", "json")
    views = InputNode("views", NOTHING)
    both = (Branch(clicks, (cleaned,)), Branch(views))
    count = operator_of("count", stream(both))
    top = operator_of("top", stream(operator=count))
    sink = FileSink("/out")
    late = stream(operator=count, side=OutputTag("late", "a long").name)
    sinks = [SinkNode("out", stream(operator=top), sink), SinkNode("late", late, sink)]
    sinks.append(SinkNode("raw", stream(both[:1]), sink))
    view = graph_view(JobGraph([clicks, views], [count, top], sinks))
    nodes = [(node.kind, node.uid, node.about) for node in view.nodes]
    assert nodes == [
        ("source", "clicks", "json s3a://***@bucket/in"),
        ("source", "views", ""),
        ("operator", "count", "Count by user"),
        ("transform", "clicks", "cleaned"),
        ("operator", "top", "Count by user"),
        ("sink", "out", "FileSink"),
        ("sink", "late", "FileSink"),
        ("sink", "raw", "FileSink"),
    ]
    names = [(nodes[a][1], nodes[b][1], label) for a, b, label in view.edges]
    assert names == [
        ("clicks", "clicks", ""),
        ("clicks", "count", ""),
        ("views", "count", ""),
        ("count", "top", ""),
        ("top", "out", ""),
        ("count", "late", "late"),
        ("clicks", "raw", ""),
    ]


def test_it_is_told_which_sinks_take_output_back_and_whether_two_do_so_from_one_place():
    upstream = stream((Branch(InputNode("clicks", NOTHING)),))
    sinks: dict[str, Any] = {
        "out": FileSink("/out"),
        "same": FileSink("file:///out"),
        "other": FileSink("s3://user:secret@bucket/out"),
        "call": ForeachCheckpoint(print),
    }
    nodes = [SinkNode(uid, upstream, sink) for uid, sink in sinks.items()]
    found = {one.uid: one.takes_back for one in outputs_of(JobGraph([], [], nodes))}
    assert found["out"] == found["same"] != found["other"] != ""
    assert found["call"] == ""
    assert "secret" not in str(found)


def test_both_streams_of_an_operator_over_two_are_drawn():
    orders, payments = InputNode("orders", NOTHING), InputNode("payments", NOTHING)
    joined = replace(
        operator_of("joined", stream((Branch(orders),))),
        second=KeyedInput(stream((Branch(payments),)), ("order",)),
    )
    view = graph_view(JobGraph([orders, payments], [joined], []))
    names = [(view.nodes[a].uid, view.nodes[b].uid) for a, b, _ in view.edges]
    assert names == [("orders", "joined"), ("payments", "joined")]


def test_a_manifest_has_the_graph_as_it_is_shown(made_at):
    view = GraphView((NodeView("source", "clicks", "json"), NodeView("sink", "out")), ((0, 1, ""),))
    made = decode_snapshot(encode_manifest(made_at(Watermarks({}, {}), view)), "it")
    assert msgspec.convert(made.extra["graph"], GraphView) == view
    assert "graph" not in made_at(Watermarks({}, {})).extra


class Fleet:
    """Two ranges of one operator, as the fleet tells of them."""

    def look(self):
        return {
            ("count", i): (RangeSpec("count", 64 * i, 64 * i + 63), "host:1", 100 + i)
            for i in range(2)
        }


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def figures(clock):
    return Figures(cast("Any", Fleet()), clock)


def outcome_of(first, second, sink=0.0, waits=0.0):
    acks = {
        ("count", i): Ack(
            uid="count",
            subtask=i,
            run="r",
            epoch=1,
            rows_in=10,
            late_rows=i,
            seconds=seconds + waits,
            wait_seconds=waits,
            state_seconds=seconds / 4,
            sink_seconds=seconds / 8,
        )
        for i, seconds in enumerate((first, second))
    }
    raw = Ack(uid="raw", subtask=0, run="r", epoch=1, seconds=sink, sink_seconds=sink)
    return EpochOutcome(acks, (raw,))


def test_subtasks_are_added_up_and_told_of_at_most_once_a_second(figures, clock):
    assert len(figures.take(outcome_of(0.1, 0.2)) or ()) == 3
    clock.now = 0.9
    assert figures.take(outcome_of(0.1, 0.3)) is None
    clock.now = 1.1
    told = figures.take(outcome_of(0.1, 0.4, sink=0.5))
    assert told is not None
    first, second, sink = told
    assert (first.rows_in, first.late, second.late) == (30, 0, 3)
    assert (second.key_groups, second.place, second.state_bytes) == ((64, 127), "host:1", 101)
    assert (second.busy_seconds, second.last_seconds) == (pytest.approx(0.9), 0.4)
    assert (sink.uid, sink.key_groups, sink.last_seconds) == ("raw", None, 0.5)


def test_the_phases_of_an_epoch_are_all_of_its_time(figures, clock):
    clock.now = 10.0
    timed = {"plan": 0.5, "run": 3.0, "source": 0.5, "commit": 1.0}
    # What subtasks wait for rows is Spark's time.
    outcome = outcome_of(1.0, 2.0, sink=0.25, waits=0.1)
    phases = figures.phases(outcome, timed, began=4.0, committed=9.0)
    assert phases.wait == 4.0
    # Of the slowest of each operator, one after the other.
    assert (phases.function, phases.state, phases.sink) == (1.25, 0.5, 0.25 + 0.25)
    assert (phases.source, phases.shuffle) == (0.5, 0.25)
    assert (phases.commit, phases.output) == (1.0, 1.0)
    assert sum(astuple(phases)) == pytest.approx(10.0)


def test_subtasks_side_by_side_are_no_longer_than_the_job_they_are_of(figures, clock):
    clock.now = 3.0
    timed = {"plan": 0.0, "run": 1.0, "source": 0.2, "commit": 0.0}
    phases = figures.phases(outcome_of(0.9, 0.8, sink=0.7), timed, began=0.0, committed=1.0)
    assert phases.function + phases.state + phases.sink == pytest.approx(1.0)
    assert (phases.source, phases.shuffle) == (0.0, 0.0)


def test_sinks_without_an_operator_read_the_sources_themselves(figures):
    raw = Ack(uid="raw", subtask=0, run="r", epoch=1, seconds=0.25, sink_seconds=0.25)
    timed = {"plan": 0.0, "run": 1.0, "source": 0.0, "commit": 0.0}
    phases = figures.phases(EpochOutcome({}, (raw,)), timed, began=0.0, committed=1.0)
    assert (phases.source, phases.shuffle, phases.sink) == (0.75, 0.0, 0.25)


NOW_S = 1_795_000_000
"""In November 2026."""
YEAR_S = 366 * 86_400


@pytest.mark.parametrize(
    ("newest", "words"),
    [
        (NOW_S, ("in seconds, taken", "newest=1970-01-21 18:36:40Z;", "timestamp_seconds of")),
        (NOW_S * 10**6, ("in microseconds, taken", "does not come back", "timestamp_micros of")),
        (NOW_S * 10**9, ("in nanoseconds, taken", "does not come back", "divide a long by")),
        (
            (NOW_S + YEAR_S) * 1000 + 1,
            ("a year ahead of the clock", "newest=2027-11", "leave such"),
        ),
        # What Spark makes of 1764000000000000 and 1795000000000000 in JSON, declared as timestamp.
        (5_665_824_850_173_493, ("a year ahead of the clock", "declare as long what is a number")),
        (-6_887_431_076_116_955, ("before the year 1", "declare as long what is a number")),
    ],
)
def test_a_time_in_another_unit_is_told_with_its_input_and_what_to_do(newest, words):
    clocks = {"clicks": InputClock(), "views": InputClock(), "none": InputClock()}
    marks = Watermarks(clocks, {"op": {*clocks}})
    heard = marks.after_epoch({"clicks": newest, "views": NOW_S * 1000})
    ((name, told),) = strange_times_of(heard, NOW_S * 1000).items()
    assert name == "clicks"
    assert " input=clicks " in told
    assert [word for word in words if word not in told] == []


@pytest.mark.parametrize("newest", [0, 5_400_000, -5, NOW_S * 1000, (NOW_S + YEAR_S) * 1000])
def test_a_time_that_may_be_meant_is_not_worth_a_word(newest):
    heard = Watermarks({"in": InputClock()}, {"op": {"in"}}).after_epoch({"in": newest})
    assert strange_times_of(heard, NOW_S * 1000) == {}


# -- what earlier drivers left -----------------------------------------------------------------

AT = datetime(2026, 11, 23, 12, tzinfo=UTC)


def kept(number):
    return Checkpoint(1, 0, number, f"chk-{number}/MANIFEST", f"sha256:{number}", number, AT)


def saved(number):
    return Savepoint(1, 0, number, f"s3://saved/{number}", f"sha256:{number}", number, AT)


def names(entries, claimed=""):
    return [(one.checkpoint_id, one.kind, one.url) for one in earlier_of(entries, claimed)]


def test_what_is_left_of_a_lineage_is_told_newest_first_and_what_is_gone_is_not():
    entries = [kept(1), saved(2), kept(3), saved(4), kept(5), Retire(1, 1), Forgotten(1, 2)]
    assert names(entries) == [
        (5, "Checkpoint", ""),
        (3, "Checkpoint", ""),
        (4, "Savepoint", "s3://saved/4"),
    ]
    newest = earlier_of(entries)[0]
    assert (newest.state, newest.epoch, newest.completed_at) == ("Completed", 5, AT)
    assert names([]) == []


def test_a_savepoint_that_the_job_deletes_is_nobodys_to_restore():
    entries = [saved(2), saved(4)]
    run = Run(2, 0, "s3://saved/2", explicit=True, claimed="sha256:2")
    assert [one for one, *_ in names([*entries, run])] == [4]
    assert [one for one, *_ in names([*entries, run], claimed="sha256:4")] == []


def test_however_many_there_are_twenty_of_each_are_told_of():
    found = names([kept(n) if n % 2 else saved(n) for n in range(1, 1001)])
    assert [one for one, *_ in found] == [*range(999, 959, -2), *range(1000, 960, -2)]
