"""A version on trial whose driver ended without a word, and a store that cannot be read."""

import pytest
from moorage_testing.worlds import Stage, job_spec, store_of

from moorage_api.driver import RestoredFrom
from moorage_operator.world import Unreadable

RULES = {"rollback": {"enabled": True, "readinessTimeout": "5m"}, "mode": "LastCheckpoint"}
NEW = "registry.example/clicks:2"


def _on_trial(**policy):
    """A job whose new version has begun, and a store that nobody can read from then on."""
    stage = Stage(spec=job_spec(upgrade=RULES, failurePolicy=policy))
    stage.run()
    stage.go_on(200)
    stage.edit(image=NEW)
    stage.settle()
    stage.stop_as_asked()
    stage.settle()
    assert stage.status.reconciliation.trial is not None
    stage.change_driver(phase="Running", node="node-1", ip="10.0.0.1")
    stage.settle()
    stage.store = Unreadable("StoreUnavailable", "no route to the store", stage.now)
    return stage


def _published(stage, count=0):
    """The store can be read again, and has so many checkpoints more than the upgrade left."""
    stage.store = store_of(stage.uid, stage.status.reconciliation.trial.checkpoint_id + count)


def _late(stage):
    """Time passes until a version that is not stable has had its own; its drivers get nowhere."""
    for _ in range(30):
        stage.wait(20)


def test_what_cannot_be_read_does_not_prove_that_nothing_was_published():
    stage = _on_trial()
    stage.end_pod(137)
    stage.settle()
    _late(stage)
    assert not stage.told("RollbackStarted")
    assert stage.started() == [1, 2, 3], "it is tried again meanwhile"
    assert stage.condition("Stable") == "False/RollbackWaits"
    said = stage.status.condition("Stable").message
    assert "once the store shows" in said
    assert "no route to the store" in said


def test_a_job_that_a_person_suspends_waits_for_no_rollback():
    stage = _on_trial()
    stage.end_pod(137)
    stage.settle()
    _late(stage)
    stage.edit(desiredState="Suspended")
    stage.settle()
    _late(stage)
    assert stage.status.phase == "Suspended"
    assert stage.condition("Stable") == "False/NotRunning"


def test_once_it_can_be_read_and_shows_nothing_the_version_makes_room():
    stage = _on_trial()
    stage.end_pod(137)
    stage.settle()
    _late(stage)
    _published(stage)
    stage.settle()
    assert stage.told("RollbackStarted")


def test_and_once_it_shows_a_checkpoint_a_person_decides():
    stage = _on_trial()
    stage.end_pod(137)
    stage.settle()
    _late(stage)
    _published(stage, 1)
    stage.settle()
    assert not stage.told("RollbackStarted")
    assert stage.condition("Stable") == "False/RollbackBlocked"
    assert stage.told("RollbackBlocked")


def test_a_driver_that_left_a_word_has_said_what_it_published():
    stage = _on_trial()
    stage.end("Failed", "user_function")
    stage.settle()
    assert stage.status.reconciliation.trial.unread == 0
    _late(stage)
    assert stage.told("RollbackStarted")


def test_a_driver_that_is_silent_while_it_runs_may_publish():
    stage = _on_trial()
    stage.report = Unreadable("EndpointUnreachable", "no answer", stage.now)
    _late(stage)
    assert not stage.told("RollbackStarted")
    _published(stage)
    stage.settle()
    assert stage.told("RollbackStarted")


def test_one_that_never_began_has_published_nothing():
    stage = _on_trial()
    stage.change_driver(phase="Pending", waiting="ImagePullBackOff")
    _late(stage)
    assert stage.told("RollbackStarted")


def test_a_later_driver_that_tells_what_it_restored_knows_as_well():
    stage = _on_trial()
    stage.end_pod(137)
    stage.settle()
    assert stage.status.reconciliation.trial.unread == 2
    stage.wait(30)
    last = stage.status.snapshots.last_checkpoint
    found = RestoredFrom(path=last.path, checkpoint_id=last.id, completed_at=last.completed_at)
    stage.say_running(checkpoints=0, restored_from=found, running_since=None, phase="restoring")
    stage.store = Unreadable("StoreUnavailable", "no route to the store", stage.now)
    stage.settle()
    assert stage.status.reconciliation.trial.unread == 0
    _late(stage)
    assert stage.told("RollbackStarted")


@pytest.mark.parametrize("count", [0, 1])
def test_no_job_is_given_up_while_its_store_is_being_read_for_that(count):
    stage = _on_trial(maxRestarts=0)
    stage.store = None
    stage.end_pod(137)
    stage.settle()
    assert (stage.status.blocked_reason, stage.started()) == ("", [1, 2])
    assert not stage.told("RollbackStarted")
    _published(stage, count)
    stage.settle()
    assert bool(stage.told("RollbackStarted")) == (count == 0)
    assert (stage.status.phase == "Failed") == (count == 1)
    assert stage.status.restarts.total == 0


def test_nor_while_it_cannot_be_read_and_the_version_is_tried_again_after_a_wait():
    stage = _on_trial(maxRestarts=0)
    stage.end_pod(137)
    stage.settle()
    assert (stage.status.blocked_reason, stage.status.phase) == ("", "BackOff")
    stage.wait(30)
    assert stage.started() == [1, 2, 3]
    _published(stage)
    stage.end_pod(137)
    stage.settle()
    assert stage.told("RollbackStarted")


def test_a_person_may_go_back_all_the_same():
    stage = _on_trial()
    stage.end_pod(137)
    stage.settle()
    stage.annotate(rollback=stage.status.reconciliation.stable_revision)
    stage.settle()
    assert stage.told("RollbackStarted")
