"""Which savepoints of schedule and upgrades go: what never does, and random histories."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from moorage_testing.snapshot_worlds import NOW, snapshot

from moorage_api.state import SavepointRetention
from moorage_operator.snapshots.retention import victims


def retention(count=2, age="168h"):
    return SavepointRetention.model_validate({"count": count, "maxAge": age})


def periodic(day, state="Completed", trigger="Periodic", **spec):
    status = {"state": state, "completedAt": NOW - timedelta(days=day)}
    return snapshot(f"clicks-p{day}", status=status, trigger=trigger, age=day * 86400.0, **spec)


def of(*in_use):
    return lambda one: one.meta.name in in_use


def names(found):
    return [one.meta.name for one in found]


def test_the_newest_stay_and_the_older_go():
    found = victims([periodic(day) for day in range(5)], retention(), NOW, of())
    assert names(found) == ["clicks-p4", "clicks-p3", "clicks-p2"]


def test_what_is_too_old_goes_although_there_are_few_but_never_the_newest():
    found = victims([periodic(8), periodic(9)], retention(10), NOW, of())
    assert names(found) == ["clicks-p9"]


def test_scenario_19_what_is_needed_under_way_or_a_persons_never_goes():
    kept = [
        periodic(20, pinned=True),
        periodic(21, trigger="Manual"),
        periodic(22, trigger="Final"),
        periodic(23, state="InProgress"),
        periodic(24, state="Deleting"),
        periodic(25, existingPath="s3://a/b"),
        periodic(26),
        replace(periodic(27), meta=replace(periodic(27).meta, deleted_at=NOW)),
    ]
    assert victims([periodic(0), *kept], retention(1), NOW, of("clicks-p26")) == ()


def test_upgrades_leave_as_many_and_are_counted_apart():
    upgrades = [periodic(day, trigger="Upgrade") for day in range(4)]
    failed = [periodic(day, state="Failed", trigger="Upgrade") for day in range(10, 13)]
    scheduled = [periodic(day) for day in range(20, 22)]
    found = victims([*upgrades, *failed, *scheduled], retention(2, "720h"), NOW, of("clicks-p3"))
    assert names(found) == ["clicks-p12", "clicks-p2"]


def test_those_that_came_to_nothing_do_not_pile_up():
    failed = [periodic(day, state="Failed") for day in range(4)]
    assert names(victims(failed, retention(3), NOW, of())) == ["clicks-p3"]


SNAPSHOTS = st.lists(
    st.builds(
        lambda day, state, trigger, pinned: periodic(day, state, trigger, pinned=pinned),
        st.integers(0, 40),
        st.sampled_from(["Completed", "Failed", "Pending", "InProgress", "Deleting"]),
        st.sampled_from(["Periodic", "Upgrade", "Manual", "Final"]),
        st.booleans(),
    ),
    max_size=30,
    unique_by=lambda one: one.meta.name,
)


@given(SNAPSHOTS, st.integers(1, 5), st.sampled_from(["24h", "240h"]), st.data())
def test_retention_keeps_its_promises_whatever_there_is(snapshots, count, age, data):
    in_use = data.draw(st.sets(st.sampled_from([s.meta.name for s in snapshots] or ["none"])))
    found = victims(snapshots, retention(count, age), NOW, of(*in_use))
    for one in found:
        assert one.meta.labels["moorage.dev/trigger"] in ("Periodic", "Upgrade")
        assert one.status.state in ("Completed", "Failed")
        assert not one.spec.pinned
        assert one.meta.name not in in_use
    left = [s for s in snapshots if s not in found]
    assert victims(left, retention(count, age), NOW, of(*in_use)) == ()
    for trigger in ("Periodic", "Upgrade"):
        same = [s for s in snapshots if s.meta.labels["moorage.dev/trigger"] == trigger]
        completed = [s for s in same if s.status.state == "Completed"]
        if completed:
            assert max(completed, key=lambda s: s.status.completed_at) not in found
        kept = [s for s in completed if s in left and not s.spec.pinned]
        assert len([s for s in kept if s.meta.name not in in_use]) <= count
