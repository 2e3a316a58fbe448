"""Which inputs of a job have a clock, and which operators go by it."""

from types import SimpleNamespace
from typing import Any

import pytest

from moorage.api.functions import NO_WATERMARK
from moorage.api.graph import Branch, InputNode, JobGraph, KeyedInput, OperatorNode
from moorage.engine.event_time import InputClock, Watermarks, job_clocks
from moorage_state.errors import UserError

NOTHING: Any = None
CLICKS, VIEWS, PLAIN = (InputNode(uid, NOTHING) for uid in ("clicks", "views", "plain"))


def operator(uid, *branches, after=None):
    upstream: Any = SimpleNamespace(branches=branches, operator=after)
    return OperatorNode(uid, upstream, ("k",), ("int",), NOTHING, NOTHING, "fail")


def clocks(*operators):
    return job_clocks(JobGraph(operators=list(operators)))


def timed(node, column="at", delay=0, idle=None):
    return Branch(node, (), column, delay, idle)


def test_an_input_with_event_time_has_a_clock_of_its_name():
    job = clocks(operator("op", timed(CLICKS, delay=7, idle=100), Branch(PLAIN)))
    assert job.clocks == {"clicks": InputClock(7, 100)}
    assert job.feeds == {"op": ("clicks", "")}
    assert job.readers == {"op": {"clicks"}}


def test_readers_of_one_input_share_its_clock_with_the_longest_delay():
    job = clocks(
        operator("a", timed(CLICKS, delay=5, idle=100)),
        operator("b", timed(CLICKS, delay=9, idle=50)),
        operator("c", timed(VIEWS, idle=10), timed(VIEWS)),
    )
    assert job.clocks == {"clicks": InputClock(9, 100), "views": InputClock(0, None)}


def test_an_input_read_by_two_columns_has_two_clocks():
    job = clocks(operator("a", timed(CLICKS)), operator("b", timed(CLICKS, "seen", 5)))
    assert job.clocks == {"clicks:at": InputClock(), "clicks:seen": InputClock(5)}
    marks = Watermarks.at_first(job).after_epoch({"clicks:at": 100, "clicks:seen": 700})
    assert (marks.of("a"), marks.of("b")) == (99, 694)


def test_a_broadcast_stream_has_no_clock():
    one = operator("op", timed(CLICKS))
    one.broadcast = SimpleNamespace(stream=SimpleNamespace(branches=(timed(VIEWS),)))
    assert clocks(one).readers == {"op": {"clicks"}}
    assert clocks(one).within_keys("op") == 0


def test_event_time_of_an_output_needs_event_time_on_an_input_of_its_own_chain():
    plain, other = operator("plain", Branch(PLAIN)), operator("other", timed(CLICKS))
    second = operator("second", after=plain)
    for one in (plain, other):
        one.upstream.event_time = None
    second.upstream.event_time = "at"
    graph = JobGraph(inputs=[PLAIN, CLICKS], operators=[plain, other, second])
    words = r"on none of its inputs.*operator=second inputs=\['plain'\]; declare it on an input"
    with pytest.raises(UserError, match=words):
        graph.check()


def test_an_operator_after_another_goes_by_the_inputs_of_that_one():
    first = operator("first", timed(CLICKS), timed(VIEWS))
    second = operator("second", after=first)
    job = clocks(first, second, operator("third", after=second), operator("else", timed(VIEWS)))
    assert job.readers["third"] == job.readers["second"] == {"clicks", "views"}
    marks = Watermarks.at_first(job).after_epoch({"clicks": 100, "views": 700})
    assert [marks.of(uid) for uid in ("first", "second", "third", "else")] == [99, 99, 99, 699]


def test_time_moves_within_keys_by_the_delay_of_the_only_clock():
    first = operator("first", timed(CLICKS, delay=3), timed(CLICKS), Branch(PLAIN))
    job = clocks(
        first,
        operator("after", after=first),
        operator("two", timed(CLICKS), timed(VIEWS)),
        operator("none", Branch(PLAIN)),
    )
    found = {uid: job.within_keys(uid) for uid in job.readers}
    assert found == {"first": 3, "after": None, "two": None, "none": None}


def test_a_new_operator_begins_with_what_its_inputs_have_shown():
    known = operator("known", timed(CLICKS))
    marks = Watermarks.at_first(clocks(known)).after_epoch({"clicks": 5000}).after_epoch({})
    job = clocks(known, operator("new", timed(VIEWS)), operator("more", timed(CLICKS)))
    again = Watermarks.from_json(job, marks.to_json(), operators=["known"])
    assert [again.of(uid) for uid in ("known", "new", "more")] == [4999, NO_WATERMARK, 4999]


def test_a_manifest_from_before_operators_had_watermarks_holds_for_all_of_its_operators():
    job = clocks(operator("a", timed(CLICKS)), operator("b", timed(VIEWS)))
    again = Watermarks.from_json(job, {"clicks": 10, "views": 90, "": 50}, operators=["a", "b"])
    assert (again.of("a"), again.of("b")) == (50, 89)


def two_streams(uid, first, second, *, after=None, event_time=None):
    """An operator over inputs, and over inputs or the output of another."""
    one = operator(uid, first)
    branches = (second,) if second else ()
    other: Any = SimpleNamespace(branches=branches, operator=after, event_time=event_time)
    one.second = KeyedInput(other, ("k",))
    return one


def test_an_operator_over_two_streams_goes_by_all_that_both_hang_on():
    before = operator("before", timed(VIEWS))
    both = two_streams("both", timed(CLICKS), None, after=before)
    after = operator("after", after=both)
    job = clocks(before, both, after)
    assert job.feeds["both"] == ("clicks", None)
    assert job.readers["both"] == job.readers["after"] == {"clicks", "views"}
    assert job.readers["before"] == {"views"}


def test_rows_tell_of_time_within_a_key_where_both_streams_are_of_one_clock_and_no_operator():
    before = operator("before", timed(CLICKS))
    job = clocks(
        before,
        two_streams("same", timed(CLICKS), timed(CLICKS)),
        two_streams("mixed", timed(CLICKS), None, after=before),
        two_streams("two", timed(CLICKS), timed(VIEWS)),
    )
    found = {uid: job.within_keys(uid) for uid in ("same", "mixed", "two")}
    assert found == {"same": 0, "mixed": None, "two": None}


def test_event_time_of_a_second_stream_needs_event_time_on_an_input_of_its_own_chain():
    plain = operator("plain", Branch(PLAIN))
    both = two_streams("both", timed(CLICKS), None, after=plain, event_time="at")
    graph = JobGraph(inputs=[PLAIN, CLICKS], operators=[plain, both])
    with pytest.raises(
        UserError, match=r"operator=both inputs=\['plain'\]; declare it on an input"
    ):
        graph.check()
