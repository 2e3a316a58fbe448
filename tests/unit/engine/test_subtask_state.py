"""A subtask whose function has state of its own: when it is asked, and what it is told."""

from itertools import pairwise
from operator import itemgetter

import pyarrow as pa
import pytest
from moorage_testing.pages import run_python

from moorage import (
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage.engine.subtask_plan import OperatorStatePlan
from moorage.engine.task_failures import SubtaskFailure

BUFFER = ListStateDescriptor("buffer", "long")


class Buffers(KeyedProcessFunction, CheckpointedFunction):
    """Sends rows in threes; what is left over waits in operator state."""

    def initialize_state(self, ctx):
        self.checkpointed = ctx.operator_state_store.get_list_state(BUFFER)
        self.waiting = list(self.checkpointed) if ctx.is_restored else []
        self.total = ctx.keyed_state_store.get_state(ValueStateDescriptor("total", "long"))
        self.order = ["initialize"]

    def open(self, ctx):  # noqa: ARG002
        self.order.append("open")

    def process(self, row, ctx):
        self.total.update((self.total.value() or 0) + row.n)
        self.waiting.append(row.n)
        if len(self.waiting) == 3:
            sent, self.waiting = self.waiting, []
            yield ctx.key, sum(sent)

    def snapshot_state(self, ctx):  # noqa: ARG002
        assert self.order == ["initialize", "open"]
        self.checkpointed.update(self.waiting)


class Snoops(Buffers):
    """Uses keyed state where there is no key."""

    def snapshot_state(self, ctx):  # noqa: ARG002
        self.total.value()


class Fails(Buffers):
    def snapshot_state(self, ctx):
        super().snapshot_state(ctx)
        raise OSError("no")


class Forgetful(KeyedProcessFunction, CheckpointedFunction):
    """Declares nothing of what its mixin asks for."""


class Contexts(Buffers):
    """Tells what the contexts say, in its output."""

    def initialize_state(self, ctx):
        super().initialize_state(ctx)
        assert ctx.managed_initialization_context is ctx
        self.said = [ctx.is_restored, ctx.restored_checkpoint_id]

    def process(self, row, ctx):  # noqa: ARG002
        yield repr(self.said), 0

    def snapshot_state(self, ctx):
        self.checkpointed.update([ctx.checkpoint_id, ctx.checkpoint_timestamp])


def side(done=None, **changes):
    fields = {"restored": done is not None, "restored_checkpoint_id": None, "checkpoint_id": 4}
    schemas = tuple(done.ack.operator_states) if done else ()
    return OperatorStatePlan(**(fields | {"schemas": schemas} | changes))


def test_what_waits_at_the_end_of_an_epoch_is_there_in_the_next(operator, batch):
    first = operator.epoch(Buffers(), [batch(("a", 1), ("a", 2))], operator_state=side())
    assert first.rows == []
    second = operator.epoch(Buffers(), [batch(("b", 3), ("b", 4))], operator_state=side(first))
    assert second.rows == [("b", 6)]
    third = operator.epoch(Buffers(), [batch(("a", 5), ("a", 6))], operator_state=side(second))
    assert third.rows == [("a", 15)]
    assert [s.name for s in third.ack.operator_states] == ["buffer"]


def test_an_attempt_that_is_repeated_writes_the_same(operator, batch):
    first = operator.epoch(Buffers(), [batch(("a", 1), ("a", 2))], operator_state=side())
    attempts = [
        operator.attempt(Buffers(), [batch(("b", 3), ("b", 4))], operator_state=side(first))
        for _ in range(2)
    ]
    assert attempts[0].ack.digest == attempts[1].ack.digest
    assert attempts[0].ack.delta != first.ack.delta
    operator.commit(attempts[1])
    third = operator.epoch(Buffers(), [batch(("a", 5), ("a", 6))], operator_state=side(first))
    assert third.rows == [("a", 15)]


def test_an_attempt_that_fails_at_its_snapshot_leaves_nothing(operator, batch):
    first = operator.epoch(Buffers(), [batch(("a", 1), ("a", 2))], operator_state=side())
    with pytest.raises(SubtaskFailure, match="OSError: no"):
        operator.attempt(Fails(), [batch(("a", 9))], operator_state=side(first))
    second = operator.epoch(Buffers(), [batch(("b", 3))], operator_state=side(first))
    assert second.rows == [("b", 6)]


def test_the_contexts_tell_of_the_restore_and_of_the_checkpoint_to_come(operator, batch):
    first = operator.epoch(Contexts(), [batch(("a", 1))], operator_state=side(), now_ms=1234)
    assert first.rows == [("[False, None]", 0)]
    plan = side(first, restored_checkpoint_id=3)
    second = operator.epoch(Contexts(), [batch(("a", 1))], operator_state=plan)
    assert second.rows == [("[True, 3]", 0)]
    third = operator.attempt(Reads(), [batch(("a", 1))], operator_state=plan, downstream=1)
    assert third.rows == [("[4, 0]", 0)]


class Reads(Buffers):
    def process(self, row, ctx):  # noqa: ARG002
        yield repr(self.waiting), 0


def test_there_is_no_key_at_a_snapshot(operator, batch):
    with pytest.raises(SubtaskFailure, match="state belongs to a key and there is none"):
        operator.attempt(Snoops(), [batch(("a", 9))], operator_state=side())


def test_both_methods_must_be_defined(operator, batch):
    with pytest.raises(SubtaskFailure, match=r"Forgetful does not define initialize_state\(ctx\)"):
        operator.attempt(Forgetful(), [batch(("a", 9))], operator_state=side())


# --- broadcast rows -------------------------------------------------------------------------------

RULES = MapStateDescriptor("rules", "string", "long")


class Priced(KeyedBroadcastProcessFunction):
    """Multiplies, and passes on what broadcast rows and their context say."""

    def process_broadcast_element(self, row, ctx):
        ctx.get_broadcast_state(RULES).put(row.rule, row.factor)
        yield f"{row.rule} {ctx.timestamp()} {ctx.current_processing_time()}", row.factor

    def process_element(self, row, ctx):
        yield ctx.key, row.n * ctx.get_broadcast_state(RULES).get("factor", 1)


class UsesAnother(Priced):
    def process_element(self, row, ctx):  # noqa: ARG002
        ctx.get_broadcast_state(MapStateDescriptor("others", "string", "long"))


class UsesAKey(Priced):
    """Uses keyed state where there is none."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

    def process_broadcast_element(self, row, ctx):  # noqa: ARG002
        self.n.update(1)


def connected(done=None):
    return side(done, columns=("rule", "factor"), descriptors=(RULES,))


def test_broadcast_rows_come_before_keyed_ones_wherever_batches_are_cut(operator, mixed):
    whole = mixed([("factor", 2), ("factor", 10, 77)], ("a", 1), ("b", 2))
    for cuts in ([0], [0, 1, 3], [0, 2]):
        batches = [whole.slice(a, b - a) for a, b in pairwise([*cuts, whole.num_rows])]
        done = operator.attempt(
            Priced(), batches, operator_state=connected(), downstream=1, now_ms=5
        )
        assert done.rows == [
            ("factor None 5", 2),
            ("factor 77 5", 10),
            *sorted([("a", 10), ("b", 20)], key=itemgetter(0)),
        ]
        assert done.ack.rows_in == 4
        assert done.ack.max_event_time == {}


def test_broadcast_state_is_there_in_the_next_epoch(operator, mixed):
    first = operator.epoch(Priced(), [mixed([("factor", 3)])], operator_state=connected())
    second = operator.epoch(Priced(), [mixed([], ("a", 7))], operator_state=connected(first))
    assert second.rows == [("a", 21)]
    third = operator.epoch(Priced(), operator_state=connected(second))
    assert third.rows == []


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (UsesAnother(), r"'others' was not declared .*declared=\['rules'\]"),
        (UsesAKey(), "state belongs to a key and there is none"),
    ],
)
def test_what_is_not_there_is_said(operator, mixed, function, message):
    with pytest.raises(SubtaskFailure, match=message):
        operator.attempt(function, [mixed([("a", 1)], ("a", 7))], operator_state=connected())


# --- the page that explains it --------------------------------------------------------------------


def test_the_first_example_of_the_page_works(operator, batch):
    example = run_python("docs/operator-state.md").SendInThrees
    stream = pa.schema([("user", pa.string()), ("amount", pa.int64())])
    columns = {"columns": ("user", "amount")}
    rows = batch(("a", 1), ("a", 2), stream=stream)
    first = operator.epoch(example(), [rows], operator_state=side(), **columns)
    rows = batch(("a", 3), ("a", 4), stream=stream)
    second = operator.epoch(example(), [rows], operator_state=side(first), **columns)
    assert second.rows == [("a", 6)]
    rows = batch(("b", 5), ("b", 6), stream=stream)
    assert operator.epoch(example(), [rows], operator_state=side(second), **columns).rows == [
        ("b", 15)
    ]
