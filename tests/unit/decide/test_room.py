"""What a start that waits for room asks the cluster to delete."""

from moorage_testing.worlds import Stage

from moorage_operator.plan import TidyAttempt
from moorage_operator.world import Room

FULL = "ResourceQuota compute has no room for configmaps 2 of 2"


def starting_again():
    """A job that is to be started anew, for which a quota of what attempts leave has no room."""
    stage = Stage()
    stage.run()
    stage.room = Room(start=FULL, left=True)
    stage.annotate(restart="1")
    stage.settle()
    stage.stop_as_asked()
    stage.settle()
    return stage


def tidied(stage, seconds, every=10):
    """How many passes of so many seconds ask for it."""
    asked = 0
    for _ in range(0, seconds, every):
        stage.wait(every)
        asked += any(isinstance(one, TidyAttempt) for one in stage.decide().effects)
    return asked


def test_what_an_ended_driver_has_left_is_deleted_while_its_pod_is_there():
    stage = starting_again()
    assert stage.status.operation.step == "Fencing"
    assert tidied(stage, 60) == 6


def test_where_no_driver_is_left_it_is_looked_for_now_and_again():
    stage = starting_again()
    stage.drivers.clear()
    assert TidyAttempt(below=2, keep=0) in stage.decide().effects
    # An operator that died while it tidied may have left what no pod tells of.
    for every in (10, 13):
        for _ in range(3):
            assert 1 <= tidied(stage, 60, every) <= 2
    assert stage.condition("Progressing") == "False/QuotaExceeded"
    assert stage.status.attempt.number == 1


def test_nothing_is_looked_for_where_no_attempt_left_what_is_lacked():
    stage = starting_again()
    stage.drivers.clear()
    stage.room = Room(start=FULL, left=False)
    assert tidied(stage, 180) == 0
