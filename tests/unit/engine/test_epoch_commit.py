"""What an epoch needs to be committed, and what one that is not leaves of itself."""

from types import SimpleNamespace
from typing import Any

import pytest

from moorage import CheckpointedFunction, KeyedProcessFunction
from moorage.api.graph import JobGraph, OperatorNode
from moorage.engine import epoch
from moorage.engine.acks import Ack, encode_ack
from moorage.engine.columns import ACK_COLUMN
from moorage.engine.epoch import EpochRunner, RunIdentity
from moorage.engine.event_time import MAX_VALUES, InputClock, Watermarks
from moorage.engine.operator_states import OperatorStates
from moorage.engine.plan import EpochFrame
from moorage_state.errors import UserError, VersionGone
from moorage_state.keyed.schema import StateSchema
from moorage_state.operator_state import OperatorStateSchema

SEEN = OperatorStateSchema("seen", "split", "struct<n:int>")
LATER = OperatorStateSchema("seen", "split", "struct<n:int,note:string>")
UNION = OperatorStateSchema("seen", "union", "struct<n:int>")


class Counts(KeyedProcessFunction, CheckpointedFunction):
    pass


class Played:
    """A planner and a fleet; the two subtasks of an operator acknowledge what the test says."""

    def __init__(self) -> None:
        self.told: list[tuple[OperatorStateSchema, ...]] = []
        self.says: Any = lambda _subtask, _changed: {}
        self.committed: list[int] = []
        self.refuse: Exception | None = None
        nothing: Any = None
        unread: Any = SimpleNamespace(operator=None, branches=())
        operator = OperatorNode("op", unread, ("k",), ("int",), Counts(), nothing, "fail")
        planner: Any = self
        fleet: Any = SimpleNamespace(leased=lambda _uid: (), commit=self.commit)
        self.runner = EpochRunner(
            JobGraph(operators=[operator]),
            planner,
            fleet,
            2,
            RunIdentity("l", "f1r0", "t"),
            epoch=7,
            watermarks=Watermarks({"in": InputClock()}, {"op": {"in"}}),
            schemas={},
            operator_states=OperatorStates({"op": (SEEN,)}),
        )

    def commit(self, epoch: int, _digests: Any) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.committed.append(epoch)

    def plan(self, spec: Any, _batch: Any) -> EpochFrame:
        changed = spec.operator_states["op"].changed
        self.told.append(changed)
        acks = [
            Ack(
                uid="op",
                subtask=i,
                run=spec.run,
                epoch=spec.epoch,
                max_event_time={"in": 50},
                **self.says(i, changed),
            )
            for i in range(2)
        ]
        rows = [{ACK_COLUMN: encode_ack(ack)} for ack in acks]
        frame: Any = SimpleNamespace(collect=lambda: rows)
        return EpochFrame(frame, ())

    def left(self) -> Any:
        """What the runner would begin the next epoch with."""
        runner, states = self.runner, self.runner.operator_states
        known = dict(runner.schemas), dict(states.schemas), set(states.restored)
        return runner.epoch, runner.watermarks, runner.next_timer, known


@pytest.fixture
def played():
    return Played()


def test_subtasks_that_did_not_ask_for_a_changed_state_are_told_in_another_attempt(played):
    played.says = lambda subtask, changed: {
        "operator_states": [LATER if subtask == 0 or changed else SEEN]
    }
    played.runner.run(None)
    assert played.told == [(), (LATER,)]
    assert played.committed == [8]
    assert played.runner.operator_states.schemas == {"op": (LATER,)}
    played.says = lambda *_: {"operator_states": [LATER]}
    played.runner.run(None)
    assert played.told[2:] == [()]


@pytest.mark.parametrize(
    ("began_ms", "source"),
    [((107_000, 105_000), 5.0), ((0, 0), 0.0), ((99_000, 107_000), 0.0)],
    ids=["the-first-that-began", "nobody-says", "another-clock"],
)
def test_sources_are_read_until_the_first_subtask_begins(played, monkeypatch, began_ms, source):
    clock = SimpleNamespace(time=lambda: 100.0, time_ns=lambda: 0, monotonic=lambda: 0.0)
    monkeypatch.setattr(epoch, "time", clock)
    played.says = lambda subtask, _changed: {"began_ms": began_ms[subtask]}
    played.runner.run(None)
    assert played.runner.phases["source"] == source


def test_a_clock_that_went_back_is_behind_until_it_has_caught_up(played):
    now = [1_000]
    played.runner._clock = lambda: now[0]
    seen = []
    for now[0] in (90_000_000, 1_000_000, 89_000_000, 90_000_001):
        played.runner.run(None)
        seen.append((played.runner.now_ms, played.runner.clock_behind_ms))
    stood = 90_000_000
    assert seen == [(stood, 0), (stood, 89_000_000), (stood, 1_000_000), (90_000_001, 0)]


def test_a_subtask_that_insists_on_the_type_before_fails_the_epoch(played):
    played.says = lambda subtask, _: {"operator_states": [LATER if subtask == 0 else SEEN]}
    with pytest.raises(UserError, match="'seen' of another subtask was registered as"):
        played.runner.run(None)
    assert (played.told, played.committed) == ([(), (LATER,)], [])


KINDS = [StateSchema("n", "value", "bigint"), StateSchema("n", "list", "bigint")]


@pytest.mark.parametrize(
    "says",
    [
        lambda subtask, _: {"schemas": [KINDS[subtask]]},
        lambda subtask, _: {"operator_states": [[UNION, LATER][subtask]]},
    ],
)
def test_an_epoch_whose_subtasks_contradict_each_other_is_not_committed(played, says):
    before = played.left()
    played.says = says
    with pytest.raises(UserError):
        played.runner.run(None)
    assert played.committed == []
    assert played.left() == before


def test_a_commit_that_fails_leaves_the_runner_at_the_epoch_before(played):
    before = played.left()
    played.says = lambda *_: {"schemas": KINDS[:1], "operator_states": [LATER]}
    played.refuse = VersionGone("a volume is gone")
    with pytest.raises(VersionGone):
        played.runner.run(None)
    assert played.left() == before
    played.refuse = None
    played.runner.run(None)
    assert played.left() != before


def test_an_epoch_with_too_many_values_to_keep_event_time_by_is_not_committed(played):
    played.runner.watermarks = Watermarks({"in": InputClock(per="part")}, {"op": {"in"}})
    halves = [{f"{half}-{i}": 5 for i in range(MAX_VALUES // 2 + 1)} for half in "ab"]
    played.says = lambda subtask, _changed: {"value_times": {"in": halves[subtask]}}
    before = played.left()
    with pytest.raises(UserError, match=f"input=in per=part values={MAX_VALUES + 2} most="):
        played.runner.run(None)
    assert (played.committed, played.left()) == ([], before)
