"""What ends a job whose runs end early, and what does not: executors come and go."""

import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.driver import runner
from moorage.driver.environment import NoExecutors, RangesMove, StoppedWaiting
from moorage.driver.refusals import RestorePointCorrupt
from moorage.driver.requests import Requests, StopRequest
from moorage.driver.types import JobProgress, RunOutcome
from moorage.engine.range_access import ExecutorLost
from moorage.engine.task_failures import SparkEnded
from moorage_state.errors import StoreUnavailable, VersionGone

LOST, GONE = ExecutorLost("executor=1"), VersionGone("a delta")


class Waits(list):
    """The seconds of each wait in a stop that nobody really waits for; `told` says to stop."""

    told = False

    def event(self):
        def wait(seconds):
            self.append(seconds)
            return self.told

        return SimpleNamespace(wait=wait, is_set=lambda: False)


@pytest.fixture
def waits():
    return Waits()


@pytest.fixture
def drive(monkeypatch):
    """`drive(*ends)`: runs end in this way, one after the other, with or without a checkpoint."""

    def go(*ends, stop=None, requests=None, asked=None, standby=None):
        left, asked = list(ends), [] if asked is None else asked

        class Run:
            def __init__(self, *_, must_restore):
                asked.append(must_restore)
                if isinstance(left[0], StoppedWaiting | NoExecutors | RestorePointCorrupt):
                    raise left.pop(0)
                end, checkpoint = left.pop(0)
                self.end, self.checkpointer = end, SimpleNamespace(last=checkpoint)

            def drive(self):
                if isinstance(self.end, RunOutcome):
                    return self.end
                raise self.end

        monkeypatch.setattr(runner, "StreamRun", Run)
        told: list[str] = []
        choice: Any = SimpleNamespace(manifest=None, explicit=False, path="", address="")
        reporter: Any = SimpleNamespace(
            message=told.append, phase=lambda phase, message="": told.extend([phase, message])
        )
        if standby is None:
            monkeypatch.setattr(runner, "_choose_again", lambda *_: choice)
        reporter.progress = JobProgress()
        requests = requests or Requests()
        context: Any = SimpleNamespace(
            standby=standby,
            graph=SimpleNamespace(operators=[]),
            reporter=reporter,
            stop=stop or threading.Event(),
            requests=requests,
            settings=SimpleNamespace(
                restore=SimpleNamespace(mode="Latest"),
                parallelism=2,
                declared_parallelism=2,
                changelog=None,
            ),
            writer=SimpleNamespace(entries=[]),
            completed=SimpleNamespace(begin_from=lambda *_, **__: None, latest=None),
            directories=(),
        )
        outcome, run = runner._drive(context, choice)
        assert not left
        return outcome, run, told

    return go


def test_after_its_first_checkpoint_no_run_may_begin_with_nothing(drive):
    asked: list[bool] = []
    drive((LOST, None), (LOST, "chk"), (LOST, None), (RunOutcome.FINISHED, None), asked=asked)
    assert asked == [False, False, True, True]


def test_lost_executors_never_end_a_job_that_makes_progress(drive):
    outcome, _, told = drive(*[(LOST, "chk")] * 12, (RunOutcome.FINISHED, None))
    assert outcome is RunOutcome.FINISHED
    assert told.count("rewinding") == 12


def pauses(told):
    return [int(seconds) for text in told for seconds in re.findall(r"begins in (\d+) s", text)]


@pytest.mark.scenario(41)
def test_lost_executors_never_end_a_job_that_makes_none_but_it_waits_longer_and_longer(
    drive, waits
):
    ends = [(LOST, None)] * 12
    outcome, _, told = drive(*ends, (RunOutcome.FINISHED, None), stop=waits.event())
    assert outcome is RunOutcome.FINISHED
    assert pauses(told) == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert sum(waits) == sum(pauses(told))
    assert "executors were lost 4 times without a checkpoint in between" in "".join(told)
    assert "take checkpoints more often" in "".join(told)


def test_after_a_checkpoint_lost_executors_are_made_good_at_once_again(drive, waits):
    ends = [(LOST, None)] * 4 + [(LOST, "chk")] + [(LOST, None)] * 3
    _, _, told = drive(*ends, (RunOutcome.FINISHED, None), stop=waits.event())
    assert (pauses(told), sum(waits)) == ([5], 5)


def test_what_is_no_loss_of_executors_ends_a_job_that_makes_no_progress(drive):
    with pytest.raises(VersionGone, match="a delta"):
        drive(*[(LOST, None)] * 3, *[(GONE, None)] * 4)


class Beside:
    """What is stood by for; its store is away for so many looks, and then others want to lead."""

    def __init__(self, away, over=99):
        self.away, self.over, self.looks = away, over, 0

    def choose(self, _damaged):
        self.looks += 1
        if self.looks <= self.away:
            raise StoreUnavailable("no answer")
        path = f"chk-{self.looks}"
        return SimpleNamespace(manifest=None, explicit=False, path=path, address="")

    def is_over(self, _requests):
        return self.looks >= self.over


def test_one_that_stands_by_is_tried_for_as_long_as_who_made_it_says(drive, waits):
    ends = [(GONE, None)] * 6
    outcome, _, told = drive(
        *ends, (RunOutcome.STOPPED, None), stop=waits.event(), standby=Beside(away=0)
    )
    assert outcome is RunOutcome.STOPPED
    assert pauses(told) == [5, 10, 20]
    assert "executors" not in "".join(told)


def test_one_that_stands_by_waits_for_a_store_that_is_away(drive, waits):
    standby = Beside(away=3)
    drive((GONE, None), (RunOutcome.STOPPED, None), stop=waits.event(), standby=standby)
    assert (standby.looks, sum(waits)) == (4, 15.0)


def test_one_that_stands_by_follows_a_job_that_lets_its_checkpoints_go(drive):
    gone = [RestorePointCorrupt("an object is missing", f"chk-{n}", "") for n in range(9)]
    standby = Beside(away=0)
    outcome, _, _ = drive(*gone, (RunOutcome.STOPPED, None), standby=standby)
    assert (outcome, standby.looks) == (RunOutcome.STOPPED, 9)


def test_one_that_is_to_lead_meanwhile_does_not_wait(drive, waits):
    standby = Beside(away=9, over=2)
    outcome, _, told = drive((GONE, None), stop=waits.event(), standby=standby)
    assert outcome is RunOutcome.PROMOTED
    assert (standby.looks, sum(waits)) == (2, 5.0)
    assert "waiting for the store: no answer" in told


def test_a_job_that_is_told_to_stop_in_such_a_wait_ends(drive, waits):
    waits.told = True
    with pytest.raises(ExecutorLost):
        drive(*[(LOST, None)] * 4, stop=waits.event())


def test_a_job_that_is_to_stop_at_once_does_not_wait_for_another_run(drive, waits):
    requests = Requests()
    request = requests.ask(StopRequest("None"))
    outcome, _, _ = drive(*[(LOST, None)] * 4, stop=waits.event(), requests=requests)
    assert (outcome, request.state, waits) == (RunOutcome.STOPPED, "Completed", [])


def test_progress_forgives_what_came_before_it(drive):
    ends = [(LOST, None)] * 3 + [(LOST, "chk")] + [(GONE, None)] * 3
    assert drive(*ends, (RunOutcome.STOPPED, None))[0] is RunOutcome.STOPPED


def test_moves_are_no_rewinds(drive):
    ends = [(RangesMove("subtasks move to other executors"), "chk")] * 9
    outcome, _, told = drive(*ends, (RunOutcome.FINISHED, None))
    assert outcome is RunOutcome.FINISHED
    assert told == ["subtasks move to other executors"] * 9


def test_a_job_that_is_stopped_while_it_waits_for_executors_has_stopped(drive):
    assert drive((LOST, "chk"), StoppedWaiting())[:2] == (RunOutcome.STOPPED, None)


@pytest.mark.parametrize("error", [NoExecutors("none came"), SparkEnded("too many failed")])
def test_without_executors_and_without_spark_the_job_ends(drive, error):
    with pytest.raises(type(error)):
        drive(error if isinstance(error, NoExecutors) else (error, "chk"))


def test_a_job_that_was_told_to_stop_begins_no_other_run(drive):
    stop = threading.Event()
    stop.set()
    with pytest.raises(ExecutorLost):  # not "stopped": the last checkpoint is not there
        drive((LOST, "chk"), stop=stop)
    assert drive((RangesMove(), "chk"), stop=stop)[0] is RunOutcome.STOPPED


def test_a_stop_at_once_is_answered_though_no_run_began(drive):
    requests = Requests()
    request = requests.ask(StopRequest("None"))
    assert drive(StoppedWaiting(), requests=requests)[0] is RunOutcome.STOPPED
    assert request.state == "Completed"
