"""Visits of all keys that are made more than once: twins, retries, and a rescale amid them."""

from typing import Any

import pyarrow as pa
import pytest
from moorage_testing.parts import handles_of

from moorage import KeyedBroadcastProcessFunction, MapStateDescriptor, ValueStateDescriptor
from moorage.engine.columns import BROADCAST, GROUP_COLUMN, KIND_COLUMN, START
from moorage.engine.range_access import LeasedRange, ServerDoor
from moorage.engine.subtask_plan import OperatorStatePlan
from moorage.engine.task_failures import SubtaskFailure
from moorage_state.keyed import visits
from moorage_state.server import RangeSpec, RestoreBase, UploadLimits, UploadRequest, Version

RULES = MapStateDescriptor("rules", "string", "long")
COUNT = ValueStateDescriptor("count", "long")
KEYS = ["!", "#", "a", "b"]
"""Two in each half of the key groups."""

SIDE = OperatorStatePlan(
    restored=True,
    restored_checkpoint_id=None,
    checkpoint_id=1,
    schemas=(),
    columns=("rule", "factor"),
    descriptors=(RULES,),
)


class Adds(KeyedBroadcastProcessFunction):
    """A broadcast row adds to what every key has; rows put it and tell it.

    Args:
        meanwhile: called once, when the second key is visited.
    """

    def __init__(self, meanwhile: Any = lambda: None) -> None:
        self.meanwhile = meanwhile
        self.visits = 0

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(COUNT)

    def process_broadcast_element(self, row: Any, ctx: Any) -> Any:
        def add(_key: Any, state: Any) -> None:
            self.visits += 1
            if self.visits == 2:
                self.meanwhile()
            state.update(state.value() + row.factor)

        ctx.apply_to_keyed_state(COUNT, add)

    def process_element(self, row: Any, ctx: Any) -> Any:
        if row.n:
            self.count.update(row.n)
        yield ctx.key, self.count.value()


@pytest.fixture(autouse=True)
def page_of_one_key(monkeypatch):
    """A subtask asks the server again for each key that it visits."""
    monkeypatch.setattr(visits, "_KEYS", 1)


@pytest.fixture
def op(operator, mixed):
    """An operator in which each key has 1."""
    operator.epoch(Adds(), [mixed([], *[(key, 1) for key in KEYS])], operator_state=SIDE)
    return operator


@pytest.fixture
def rules(mixed):
    return [mixed([("add", 10), ("add", 5)])]


@pytest.fixture
def look(mixed):
    return [mixed([], *[(key, 0) for key in KEYS])]


def test_a_twin_that_visits_at_the_same_time_makes_the_same_delta(op, rules, look):
    twins = []
    first = op.attempt(
        Adds(lambda: twins.append(op.attempt(Adds(), rules, operator_state=SIDE))),
        rules,
        operator_state=SIDE,
    )
    assert twins[0].ack.digest == first.ack.digest
    assert twins[0].ack.delta == first.ack.delta
    op.commit(twins[0])
    assert op.epoch(Adds(), look, operator_state=SIDE).rows == [(key, 16) for key in KEYS]


def test_a_twin_that_is_late_for_its_epoch_fails_and_changes_nothing(op, rules, look):
    late = Adds(lambda: op.epoch(Adds(), rules, operator_state=SIDE))
    with pytest.raises(SubtaskFailure, match="range is at another version"):
        op.attempt(late, rules, operator_state=SIDE)
    assert late.visits == 2
    assert op.epoch(Adds(), look, operator_state=SIDE).rows == [(key, 16) for key in KEYS]


def test_a_retry_after_an_attempt_that_died_amid_its_visits_visits_every_key_once(op, rules, look):
    class Dies(Exception):
        pass

    def die():
        raise Dies

    with pytest.raises(SubtaskFailure, match="Dies"):
        op.attempt(Adds(die), rules, operator_state=SIDE)
    retry = Adds()
    op.epoch(retry, rules, operator_state=SIDE)
    assert retry.visits == 2 * len(KEYS)
    assert op.epoch(Adds(), look, operator_state=SIDE).rows == [(key, 16) for key in KEYS]


def rows_of(subtask, rows):
    """The start row of one of two subtasks, and what comes to it: broadcast rows and its own."""
    start = {KIND_COLUMN: START, GROUP_COLUMN: subtask}
    mine = [
        row
        for row in rows.to_pylist()
        if row[KIND_COLUMN] == BROADCAST or row[GROUP_COLUMN] // 64 == subtask
    ]
    return pa.RecordBatch.from_pylist([start, *mine], schema=rows.schema)


def test_a_rescale_amid_visits_ends_them_and_each_key_is_visited_by_its_new_subtask(
    op, rules, look, tmp_path
):
    url, run, client = f"file://{tmp_path}", "f1r1", op.client
    client.range(op.lease).snapshot(1, op.version)
    request = UploadRequest(op.uid, 0, [])
    handles = handles_of(url, client.upload_many("f1r0", 1, url, [request], UploadLimits()))
    client.notify_complete(1)
    base = RestoreBase(1, op.version.epoch, handles)
    ranges: list[LeasedRange] = []

    def rescale():
        for start, end in ((0, 63), (64, 127)):
            spec = RangeSpec(op.uid, start, end)
            version = client.open_range(spec, run, base, [], url).version
            ranges.append(LeasedRange(spec.lease(run), ServerDoor(op.address), version))

    with pytest.raises(SubtaskFailure, match="lease"):
        op.attempt(Adds(rescale), rules, operator_state=SIDE)

    def epoch(batches):
        visited, rows = [], []
        for subtask, leased in enumerate(ranges):
            function = Adds()
            done = op.attempt(
                function,
                [rows_of(subtask, one) for one in batches],
                start=False,
                operator_state=SIDE,
                run=run,
                parallelism=2,
                ranges=tuple(ranges),
                epoch=leased.version.epoch + 1,
                downstream=1,
            )
            visited.append(function.visits)
            rows += done.rows
            version = Version(done.ack.epoch, done.ack.delta)
            client.range(leased.lease).commit(*version)
            ranges[subtask] = LeasedRange(leased.lease, leased.door, version)
        return visited, rows

    assert epoch(rules) == ([4, 4], [])
    assert epoch(look)[1] == [(key, 16) for key in KEYS]
    for leased in ranges:
        client.release_range(leased.lease)
