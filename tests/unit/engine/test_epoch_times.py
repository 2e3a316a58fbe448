"""The processing time of epochs, and what the runner knows of the next timer."""

from types import SimpleNamespace
from typing import Any

import pytest

from moorage.api.graph import JobGraph, OperatorNode
from moorage.engine.acks import Ack, encode_ack
from moorage.engine.columns import ACK_COLUMN
from moorage.engine.epoch import EpochRunner, RunIdentity
from moorage.engine.event_time import InputClock, Watermarks
from moorage.engine.plan import EpochFrame
from moorage.engine.subtask_plan import NEVER, UNKNOWN
from moorage_state.errors import Retryable


class Played:
    """A planner, a fleet and a clock; subtasks acknowledge what the test says."""

    def __init__(self, *, restored: bool = False, now_ms: int = 0) -> None:
        self.now = 1000
        self.specs: list[Any] = []
        self.failing = 0
        self.timers = [NEVER, NEVER]
        nothing: Any = None
        unread: Any = SimpleNamespace(operator=None, branches=())
        operator = OperatorNode("op", unread, ("k",), ("int",), nothing, nothing, "fail")
        graph = JobGraph(operators=[operator])
        played: Any = self
        fleet: Any = SimpleNamespace(
            leased=lambda _uid: (), recover=lambda: None, commit=lambda *_args: None
        )
        self.runner = EpochRunner(
            graph,
            played,
            fleet,
            2,
            RunIdentity("l", "f1r0", "t"),
            epoch=0,
            watermarks=Watermarks({"in": InputClock()}, {"op": {"in"}}),
            schemas={},
            now_ms=now_ms,
            restored=restored,
            clock=lambda: played.now,
        )

    def plan(self, spec: Any, _batch: Any) -> EpochFrame:
        self.specs.append(spec)
        self.now += 10
        frame: Any = self
        return EpochFrame(frame, ())

    def collect(self) -> list[Any]:
        if self.failing:
            self.failing -= 1
            raise Retryable("a task was lost")
        spec = self.specs[-1]
        acks = [
            Ack(uid="op", subtask=i, run=spec.run, epoch=spec.epoch, next_timer=self.timers[i])
            for i in range(2)
        ]
        return [{ACK_COLUMN: encode_ack(ack)} for ack in acks]


@pytest.fixture
def played():
    return Played()


def test_all_attempts_of_an_epoch_have_one_time_and_the_next_has_the_clocks(played):
    played.failing = 2
    played.runner.run(None)
    assert [spec.now_ms for spec in played.specs] == [1000, 1000, 1000]
    played.runner.run(None)
    assert played.specs[-1].now_ms == 1030


def test_time_does_not_go_back_when_the_clock_does(played):
    played.runner.run(None)
    played.now = 5
    played.runner.run(None)
    assert played.runner.now_ms == 1000
    played.now = 2000
    played.runner.run(None)
    assert [spec.now_ms for spec in played.specs] == [1000, 1000, 2000]


def test_time_does_not_go_back_after_a_restore_by_a_machine_whose_clock_is_behind():
    played = Played(restored=True, now_ms=7000)
    assert played.runner.processing_time() == 7000
    played.runner.run(None)
    assert (played.specs[0].now_ms, played.runner.now_ms) == (7000, 7000)


def test_the_earliest_timer_of_all_subtasks_is_known_once_they_acknowledged(played):
    assert played.runner.next_timer == NEVER
    played.timers = [4000, 3000]
    played.runner.run(None)
    assert played.runner.next_timer == 3000
    played.runner.run(None)
    assert played.specs[-1].next_timers == {"op": (4000, 3000)}


def test_after_a_restore_nobody_knows_of_timers_before_the_first_epoch():
    played = Played(restored=True)
    assert played.runner.next_timer == UNKNOWN
    played.runner.run(None)
    assert played.specs[0].next_timers == {"op": (UNKNOWN, UNKNOWN)}
    assert played.runner.next_timer == NEVER
