"""That a chaos which sees no promotion, no rollback or no refusal is found out."""

from moorage_testing.version_ends import VersionEnds


def event(reason, uid):
    return {"reason": reason, "metadata": {"uid": uid}}


def ends(*reasons):
    found = VersionEnds()
    found.note(event(reason, str(number)) for number, reason in enumerate(reasons))
    return found


def test_an_event_that_is_seen_again_and_again_counts_once():
    found = ends("StandbyPromoted", "Restored")
    found.note([event("StandbyPromoted", "0"), event("StandbyPromoted", "7")])
    assert found.seen() == {"promotion": 2, "rollback": 0, "refusal": 0}


def test_a_rollback_that_is_held_for_a_person_counts_as_one():
    assert ends("RollbackBlocked", "RolledBack").seen()["rollback"] == 2


def test_what_was_tried_and_never_came_of_it_is_named_whatever_others_gave():
    found = ends("StandbyPromoted", "PreflightFailed")
    assert found.missed(all_of_them=False) == []
    found.tried("promotion", came=False)
    found.tried("promotion", came=True)
    found.tried("refusal", came=False)
    assert found.missed(all_of_them=False) == ["refusal: 1 tried"]


def test_where_there_was_time_for_each_what_was_not_even_tried_is_named_as_well():
    found = ends("PreflightFailed")
    found.tried("refusal", came=True)
    assert found.missed(all_of_them=True) == ["promotion: 0 tried", "rollback: 0 tried"]
