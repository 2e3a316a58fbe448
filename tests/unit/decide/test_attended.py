"""Time in which nobody saw to a job, or that has not passed, is no version's and no start's."""

from dataclasses import replace
from datetime import timedelta

import pytest
from moorage_testing.worlds import Stage, checkpoint, job_spec

from moorage_operator.world import StoreView, Unreadable

MINUTE = timedelta(minutes=1)


class Trying(Stage):
    """Takes new versions' pods for good, and makes none of them once `slow` is set."""

    slow = False

    def world(self):
        return replace(super().world(), refused_pods=())

    def _start(self, effect):
        if not self.slow:
            super()._start(effect)

    def go_on_for(self, length):
        """The old version's driver is well meanwhile."""
        self.now += length
        self.be_well()
        self.settle()

    def be_well(self):
        last = checkpoint(900, self.now)
        moved = {"last_move_time": self.now, "last_progress_time": self.now}
        self.say(**moved, answered_at=self.now, last_checkpoint=last, last_checkpoint_time=self.now)


@pytest.mark.parametrize(
    ("upgrade", "limit", "refused"),
    [
        ({"preflight": True}, 10 * MINUTE, "PreflightFailed"),
        (
            {"strategy": "WarmStandby", "standby": {"catchUpTimeout": "30m"}},
            30 * MINUTE,
            "StandbyFailed",
        ),
    ],
)
def test_a_version_has_its_time_while_somebody_tries_it(upgrade, limit, refused):
    stage = Trying(spec=job_spec(upgrade=upgrade))
    stage.run()
    stage.go_on_for(3 * MINUTE)
    stage.slow = True
    stage.edit(image="registry.example/clicks:2")
    stage.pass_(crash="status")
    stage.be_away(limit + MINUTE)
    stage.go_on_for(limit - MINUTE)
    assert stage.told(refused) == []
    assert stage.status.operation is not None
    stage.go_on_for(2 * MINUTE)
    assert len(stage.told(refused)) == 1


def on_trial(**edit):
    """Another version has just been begun."""
    stage = Stage(spec=job_spec(upgrade={"rollback": {"enabled": True}, "mode": "LastCheckpoint"}))
    stage.run()
    stage.go_on(200)
    stage.edit(**(edit or {"image": "registry.example/clicks:2"}))
    stage.settle()
    stage.stop_as_asked()
    stage.settle()
    assert stage.status.reconciliation.trial is not None
    return stage


def test_a_version_on_trial_is_not_late_for_what_passed_while_no_operator_ran():
    stage = on_trial()
    stage.be_away(12 * MINUTE)
    stage.settle()
    stage.wait(9.5 * 60)
    assert stage.told("RollbackStarted") == []
    stage.wait(60)
    assert len(stage.told("RollbackStarted")) == 1


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_a_clock_that_is_put_forward_makes_no_version_late_or_stable(checkpoints):
    stage = on_trial()
    began = stage.now
    stage.say_running(checkpoints=checkpoints, answered_at=began, running_since=began)
    stage.settle()
    # As an operator sees it that goes on from one whose clock was right.
    stage.be_away(15 * MINUTE)
    there = began + timedelta(seconds=20)
    stage.say(answered_at=there, last_move_time=there, last_progress_time=there)
    stage.settle()
    assert stage.told("RollbackStarted") == []
    assert stage.condition("Stable") == "False/NotYet"
    stage.now += 3 * MINUTE
    there += 3 * MINUTE
    stage.say(answered_at=there, last_move_time=there, last_progress_time=there)
    stage.settle()
    assert stage.condition("Stable") == ("True/Stable" if checkpoints else "False/NotYet")


def end_for_the_store(stage, minutes):
    until = stage.now + minutes * MINUTE
    while stage.now < until and not stage.told("RollbackStarted"):
        if not stage.driver.terminal:
            stage.wait(5)
            stage.end(code="store_unavailable")
            stage.settle()
        stage.wait(30)


def test_a_version_on_trial_is_not_late_while_the_store_is_away():
    stage = on_trial()
    well, stage.store = stage.store, Unreadable("StoreUnavailable", "no answer", stage.now)
    end_for_the_store(stage, 40)
    assert stage.told("RollbackStarted") == []
    stage.store = well
    while stage.driver.terminal:
        stage.wait(30)
    stage.wait(9 * 60)
    assert stage.told("RollbackStarted") == []
    stage.wait(2 * 60)
    assert len(stage.told("RollbackStarted")) == 1


@pytest.mark.parametrize(
    "edit",
    [
        {"serviceAccountName": "other"},
        {"state": {"checkpointDir": "s3://state/clicks", "credentialsSecretRef": {"name": "keys"}}},
    ],
)
def test_a_version_that_goes_another_way_to_the_store_is_rolled_back(edit):
    stage = on_trial(**edit)
    stage.store = Unreadable("StoreUnavailable", "no answer", stage.now)
    end_for_the_store(stage, 40)
    assert len(stage.told("RollbackStarted")) == 1


def test_a_version_that_alone_does_not_reach_the_store_is_rolled_back():
    stage = on_trial()
    assert isinstance(stage.store, StoreView)
    end_for_the_store(stage, 40)
    assert len(stage.told("RollbackStarted")) == 1
