"""Rows without the event time that their input declares: never processed, counted, named."""

# ruff: noqa: ARG002 - functions have the signature that the API gives them

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from moorage_testing.engine import Collect

from moorage import (
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
)
from moorage.api.graph import Branch, InputNode, JobGraph, OperatorNode
from moorage.engine.acks import Ack, EpochOutcome, encode_ack
from moorage.engine.columns import ACK_COLUMN
from moorage.engine.epoch import EpochRunner, RunIdentity
from moorage.engine.event_time import InputClock, Watermarks
from moorage.engine.plan import EpochFrame
from moorage.engine.subtask_plan import OperatorStatePlan, SideOutputPlan, Upstream
from moorage_state.errors import UserError

STREAM = pa.schema([("user", pa.string()), ("n", pa.int64())])
RULES = MapStateDescriptor("rules", "string", "long")
AT: dict[str, Any] = {"time_columns": ("at",)}


class Judges(KeyedProcessFunction):
    """Judges as the docs do whether a row is late."""

    def process(self, row, ctx):
        if ctx.timestamp() <= ctx.timer_service().current_watermark():
            return
        yield row.user, row.n


class Tables(KeyedBatchFunction):
    def process_batch(self, keys, table, ctx):
        return table.select(["user", "n"])


@pytest.fixture(params=["rows", "columns", "batch"])
def how(request):
    """Ways of processing; each passes on what it gets."""
    function = Tables() if request.param == "columns" else Judges()
    return {"function": function, "batch": request.param == "batch"}


def attempt(operator, how, rows, **changes):
    plan = {"downstream": 1} | AT | changes
    return operator.attempt(how["function"], rows, batch=how["batch"], **plan)


def test_they_are_not_processed_and_the_first_one_is_named(operator, batch, how):
    rows = [batch(("a", 1, 10), ("a", 2, 11)), batch(("b", 3, None), ("c", 4, 5), ("d", 5))]
    done = attempt(operator, how, rows)
    assert sorted(done.rows) == [("a", 1), ("a", 2), ("c", 4)]
    assert (done.ack.bad_times, done.ack.rows_in, done.ack.keys) == (2, 3, 2)
    assert done.ack.bad_time == "input=clicks column=at key='b'"
    assert (done.ack.null_keys, done.ack.null_rows) == (0, 0)


def test_a_batch_of_such_rows_alone_is_nothing_to_process(operator, batch, how):
    done = attempt(operator, how, [batch(("a", 1), ("b", 2))])
    assert (done.rows, done.ack.bad_times, done.ack.max_event_time) == ([], 2, {})


def test_they_go_to_their_side_output_as_they_came(operator, batch, how):
    changes: dict[str, Any] = {
        "side_outputs": (SideOutputPlan("odd", STREAM, (("odd-out", Collect()),)),),
        "null_keys_to": "odd",
        "bad_times_to": "odd",
    }
    rows = [batch((None, 7, 3), ("a", 1, None), ("b", None, None), ("c", 2, 9))]
    done = attempt(operator, how, rows, **changes)
    staged = [tuple(row) for item in done.ack.committables["odd-out"] for row in item["rows"]]
    assert sorted(staged, key=str) == [("a", 1), ("b", None), (None, 7)]
    assert (done.rows, done.ack.null_keys, done.ack.bad_times) == ([("c", 2)], 1, 2)


def test_the_digest_covers_them(operator, batch):
    changes: dict[str, Any] = {
        "side_outputs": (SideOutputPlan("odd", STREAM, (), True),),
        "bad_times_to": "odd",
        "downstream": 1,
    }
    one, two = (
        operator.attempt(Judges(), [batch(("a", n), ("b", 1, 1))], **AT, **changes) for n in (7, 8)
    )
    assert one.ack.output != two.ack.output


def test_a_row_of_nulls_alone_has_a_null_key_first_of_all(operator, batch):
    done = operator.attempt(Judges(), [batch((None, None), (None, 1), ("a", 1, 1))], **AT)
    ack = done.ack
    assert (ack.null_keys, ack.null_rows, ack.bad_times, ack.rows_in) == (2, 1, 0, 1)


class Times(KeyedProcessFunction):
    def process(self, row, ctx):
        yield row.user, ctx.timestamp()


def test_an_input_that_declares_no_time_has_rows_without_one(operator, batch):
    """Beside one that does."""
    parts = [batch(("a", 1, 4), ("b", 2)), batch(("c", 3), source=1)]
    both = {"inputs": ("clicks", "views"), "time_columns": ("at", "")}
    done = operator.attempt(Times(), [pa.concat_batches(parts)], downstream=1, **both)
    assert done.rows == [("a", 4), ("c", None)]
    assert (done.ack.bad_times, done.ack.bad_time) == (1, "input=clicks column=at key='b'")
    swapped = both | {"time_columns": ("", "when")}
    done = operator.attempt(Times(), [pa.concat_batches(parts)], downstream=1, **swapped)
    assert done.ack.bad_time == "input=views column=when key='c'"


def test_an_operator_without_declared_time_is_as_ever(operator, batch):
    done = operator.attempt(Times(), [batch(("a", 1), ("b", 2))], downstream=1)
    assert done.rows == [("a", None), ("b", None)]
    assert done.ack.bad_times == 0


def test_rows_of_another_operator_are_judged_by_the_time_that_is_declared_there(
    operator, batch, head
):
    upstream = encode_ack(Ack(uid="up", subtask=0, run="f1r0", epoch=1))
    rows = [head([0], [upstream]), batch(("a", 5, 1), ("b", 6))]
    changes = {"upstreams": (Upstream("up"),), "inputs": (), "start": False, "downstream": 1}
    done = operator.attempt(Judges(), rows, **AT, **changes)
    assert (done.rows, done.ack.bad_time) == ([("a", 5)], "column=at key='b'")


def test_a_key_of_several_columns_is_named_as_a_function_knows_it(operator, batch):
    keys = {"key_columns": ("user", "n"), "key_types": ("string", "bigint")}
    done = operator.attempt(Judges(), [batch(("a", 5), ("b", 6))], **AT, **keys)
    assert done.ack.bad_time == "input=clicks column=at key=('a', 5)"


# -- broadcast rows ---------------------------------------------------------------------------


class Prices(KeyedBroadcastProcessFunction):
    def process_broadcast_element(self, row, ctx):
        assert ctx.timestamp() is not None
        ctx.get_broadcast_state(RULES).put(row.rule, row.factor)

    def process_element(self, row, ctx):
        yield row.user, len(list(ctx.get_broadcast_state(RULES).keys()))


SIDE = OperatorStatePlan(
    restored=False,
    restored_checkpoint_id=None,
    checkpoint_id=1,
    columns=("rule", "factor"),
    inputs=("rules",),
    time_columns=("since",),
    descriptors=(RULES,),
)


def test_broadcast_rows_without_a_time_change_no_state_and_are_counted_apart(operator, mixed):
    rows = [mixed([("x", 1, 5), ("y", 2)], ("a", 1, 3), ("b", 2))]
    done = operator.attempt(Prices(), rows, operator_state=SIDE, downstream=1, **AT)
    assert done.rows == [("a", 1)]
    assert (done.ack.bad_times, done.ack.bad_broadcasts, done.ack.rows_in) == (1, 1, 2)
    assert done.ack.bad_broadcast == "input=rules column=since"


def test_keyed_rows_need_no_time_for_that_broadcast_rows_have_one(operator, mixed):
    rows = [mixed([("x", 1, 5)], ("a", 1), ("b", 2))]
    done = operator.attempt(Prices(), rows, operator_state=SIDE, downstream=1, time_columns=("",))
    assert done.rows == [("a", 1), ("b", 1)]
    assert (done.ack.bad_times, done.ack.bad_broadcasts) == (0, 0)


# -- what the driver makes of it --------------------------------------------------------------

BAD = {"bad_times": 2, "bad_time": "input=clicks column=at key='b'"}
RULE = {"bad_broadcasts": 1, "bad_broadcast": "input=rules column=since"}
TAG = OutputTag("odd")


def epoch(bad_time: Any, null_key: Any = "drop", /, **says: Any) -> EpochOutcome:
    """The outcome of an epoch in which subtask 1 says this."""
    nothing: Any = None
    stream: Any = SimpleNamespace(operator=None, branches=(Branch(InputNode("clicks", nothing)),))
    node = OperatorNode("op", stream, ("k",), ("int",), nothing, nothing, null_key)
    node.bad_time = bad_time
    acks = [
        Ack(uid="op", subtask=i, run="f1r0", epoch=1, delta="d", **(says if i else {}))
        for i in range(2)
    ]
    rows = [{ACK_COLUMN: encode_ack(ack)} for ack in acks]
    frame: Any = SimpleNamespace(collect=lambda: rows)
    planner: Any = SimpleNamespace(plan=lambda *_: EpochFrame(frame, ()))
    committed: list[int] = []
    fleet: Any = SimpleNamespace(
        leased=lambda _uid: (), commit=lambda number, _digests: committed.append(number)
    )
    runner = EpochRunner(
        JobGraph(operators=[node]),
        planner,
        fleet,
        2,
        RunIdentity("l", "f1r0", "t"),
        epoch=0,
        watermarks=Watermarks({"in": InputClock()}, {"op": {"in"}}),
        schemas={},
    )
    try:
        return runner.run(nothing)
    finally:
        assert committed == ([1] if runner.epoch else [])


@pytest.mark.parametrize("says", [BAD, RULE, BAD | RULE])
def test_the_epoch_fails_by_default_and_names_operator_column_key_and_a_way_out(says):
    with pytest.raises(UserError) as refusal:
        epoch("fail", **says)
    words = str(refusal.value)
    bad = says.get("bad_time") or says["bad_broadcast"]
    assert f"without an event time that can be read: operator=op {bad} rows=" in words
    assert "bad_time='drop'" in words
    assert ("in the call with uid='op', or give it the OutputTag" in words) == (says != RULE)


def test_dropped_and_sent_aside_rows_are_no_failure():
    assert epoch("drop", **BAD, **RULE).odd_rows()["op"].bad_times == 2
    assert epoch(TAG, **BAD).odd_rows()["op"].bad_times == 2


def test_a_side_output_takes_no_broadcast_rows():
    with pytest.raises(UserError, match="a side output takes rows of the keyed stream alone"):
        epoch(TAG, **RULE)


def test_rows_of_nulls_are_told_of_where_a_null_key_fails():
    with pytest.raises(UserError) as refusal:
        epoch("fail", "fail", null_feeds={0: 3}, null_rows=2)
    assert "input=clicks key=['k'] rows=3 rows_of_nulls=2; spark makes a row of nulls of a" in str(
        refusal.value
    )
    with pytest.raises(UserError) as refusal:
        epoch("fail", "fail", null_feeds={0: 3})
    assert "nulls" not in str(refusal.value)
