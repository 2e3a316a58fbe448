"""What a job asks for by annotation and by schedule."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from moorage_testing.snapshot_worlds import CONFIG, NOW, job_meta, job_spec, job_status, snapshot

from moorage_operator.plan import DeleteObject, KeepSnapshot
from moorage_operator.snapshots.naming import (
    TRIGGER_ANNOTATION,
    directory_name,
    is_directory_name,
    object_name,
    object_names,
    periodic_name,
    request_id,
    trigger_id,
)
from moorage_operator.snapshots.triggers import wanted
from moorage_operator.world import JobWorld, Unreadable

NIGHTLY = {"schedule": {"cron": "0 3 * * *", "startingDeadline": "1h"}}


def job_world(annotations=None, *, savepoint=None, views=(), now=NOW, **status):
    meta = job_meta(
        annotations={f"moorage.dev/{name}": value for name, value in (annotations or {}).items()}
    )
    spec = job_spec(savepoint=savepoint or {})
    return JobWorld(now, CONFIG, meta, spec, "h", (), job_status(**status), snapshots=views)


def kept(found) -> list[KeepSnapshot]:
    """The effects; each of them makes a snapshot."""
    snapshots = [effect for effect in found.effects if isinstance(effect, KeepSnapshot)]
    assert snapshots == list(found.effects)
    return snapshots


def made(effect, **changes):
    """The object as the API server has it after the effect."""
    view = snapshot(effect.name, trigger=effect.trigger, age=0, **effect.spec | changes)
    notes = {TRIGGER_ANNOTATION: effect.trigger_value}
    return replace(view, meta=replace(view.meta, annotations=notes))


def handled(savepoint="", checkpoint=""):
    return {"snapshots": {"lastTrigger": {"savepoint": savepoint, "checkpoint": checkpoint}}}


def test_scenario_12_a_new_value_of_the_annotation_is_one_savepoint_of_that_name():
    found = wanted(job_world({"savepoint": "before-friday"}))
    (effect,) = kept(found)
    assert (effect.name, effect.trigger) == ("clicks-before-friday", "Manual")
    assert effect.spec == {
        "jobRef": {"name": "clicks"},
        "type": "Savepoint",
        "name": "before-friday",
    }


def test_what_a_person_asks_for_stays_when_its_object_goes_and_what_a_schedule_takes_does_not():
    (asked,) = kept(wanted(job_world({"savepoint": "before-friday"})))
    assert made(asked).spec.deletion_policy == "Retain"
    assert snapshot("clicks-by-hand").spec.deletion_policy == "Retain"
    (tick,) = kept(wanted(scheduled(AT_THREE - timedelta(hours=5), AT_THREE)))
    assert made(tick).spec.deletion_policy == "Delete"


def test_a_trigger_counts_as_handled_when_its_object_is_seen_and_not_before():
    asking = job_world({"savepoint": "a"})
    first = wanted(asking)
    assert first.triggers.savepoint == ""
    seen = wanted(replace(asking, snapshots=(made(first.effects[0]),)))
    assert (seen.triggers.savepoint, seen.effects, seen.events) == ("a", (), ())


def test_what_names_are_made_of_stays_from_release_to_release():
    """An operator may end between what it makes and what it writes, and a newer one go on."""
    assert trigger_id("uid-1", "Savepoint", "", "before") == "617fce27"
    assert request_id("uid-2") == "ssnap-uid-2"
    assert directory_name("the one before") == "the-one-before-fccfc0ba"
    assert object_names("clicks", "final") == ("clicks-final", "clicks-final-dd41c2de")
    assert object_name("clicks", "Final") == "clicks-final-f4ed8fa6"
    assert periodic_name(datetime(2026, 3, 1, 12, 30, tzinfo=UTC)) == "periodic-20260301-1230"


def test_an_object_that_was_not_made_for_the_annotation_is_a_conflict():
    """One of a former job of this name, or that somebody made by its name."""
    asking = job_world({"savepoint": "a"})
    (effect,) = kept(wanted(asking))
    former = replace(asking, meta=replace(asking.meta, uid="former"))
    (old,) = kept(wanted(former))
    for there in (made(old), snapshot(effect.name)):
        found = wanted(replace(asking, snapshots=(there,)))
        assert [event.reason for event in found.events] == ["SavepointNameConflict"]
        assert (found.triggers.savepoint, found.effects) == ("a", ())


def test_scenario_13_a_value_that_was_handled_is_asked_for_no_more():
    found = wanted(job_world({"savepoint": "a"}, **handled("a")))
    assert (found.effects, found.triggers.savepoint) == ((), "a")


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_value_asks_for_nothing_and_forgets_nothing(value):
    found = wanted(job_world({"savepoint": value}, **handled("a")))
    assert (found.effects, found.triggers.savepoint) == ((), "a")


def test_scenario_14_going_back_to_an_earlier_value_is_told_and_takes_nothing():
    first = made(wanted(job_world({"savepoint": "a"})).effects[0])
    again = wanted(job_world({"savepoint": "a"}, views=(first,), **handled("b")))
    assert (again.effects, again.triggers.savepoint) == ((), "a")
    assert [event.reason for event in again.events] == ["SavepointNameConflict"]
    assert "'a' was asked for before" in again.events[0].message


def annotated(world, value, annotation="savepoint"):
    """The job once a value of its annotation was handled, and the reasons of what was told."""
    asked = replace(world, meta=job_meta(annotations={f"moorage.dev/{annotation}": value}))
    there = (*world.snapshots, *map(made, kept(wanted(asked))))
    found = wanted(replace(asked, snapshots=there))
    snapshots = asked.status.snapshots.model_copy(update={"last_trigger": found.triggers})
    status = asked.status.model_copy(update={"snapshots": snapshots})
    return replace(asked, snapshots=there, status=status), [one.reason for one in found.events]


@pytest.mark.parametrize("annotation", ["savepoint", "checkpoint"])
def test_values_that_alternate_are_told_each_time_and_never_taken_for_done(annotation):
    world, told = job_world(), []
    for value in "ababacb":
        world, reasons = annotated(world, value, annotation)
        told.append(reasons)
    conflict = [f"{annotation.capitalize()}NameConflict"]
    assert told == [[], [], conflict, conflict, conflict, [], conflict]
    assert len(world.snapshots) == 3


def test_values_that_alternate_are_told_where_the_object_of_one_was_deleted_and_made_again():
    world, _ = annotated(job_world(), "a")
    world, _ = annotated(world, "b")
    world, told = annotated(replace(world, snapshots=world.snapshots[1:]), "a")
    assert (told, len(world.snapshots)) == ([], 2)
    world, told = annotated(world, "b")
    assert told == ["SavepointNameConflict"]


def test_a_status_from_before_there_were_marks_knows_the_object_that_was_made_by_it():
    former = job_world({"savepoint": "b"}, **handled("a"))
    (effect,) = kept(wanted(former))
    assert effect.trigger_value == trigger_id(former.meta.uid, "Savepoint", "a", "b")
    seen = wanted(replace(former, snapshots=(made(effect),)))
    assert (seen.triggers.savepoint, seen.events) == ("b", ())


def test_scenario_16_both_annotations_at_once_are_two_objects():
    found = wanted(job_world({"savepoint": "a", "checkpoint": "2026-11-20T10:00Z"}))
    first, second = kept(found)
    assert (first.spec["type"], second.spec["type"]) == ("Savepoint", "Checkpoint")
    assert "name" not in second.spec
    assert first.name != second.name


@pytest.mark.parametrize("value", ["2026-11-20T10:00Z", "a b", "ä", "x" * 200, "../up", "-", ".a"])
def test_a_value_that_is_no_name_becomes_one(value):
    name = directory_name(value)
    assert is_directory_name(name)
    assert name != directory_name(f"{value}!")
    assert len(object_name("c" * 45, name)) <= 63


def test_names_that_differ_never_share_an_object():
    names = ["foo", "Foo", "FOO", "foo-", "foo_", "foo."]
    assert len({object_name("clicks", name) for name in names}) == len(names)


@pytest.mark.parametrize("annotation", ["savepoint", "checkpoint"])
def test_what_waits_until_snapshots_can_be_read_is_told_and_taken_then(annotation):
    blind = job_world({annotation: "a"}, views=Unreadable("Forbidden", "403: forbidden"))
    found = wanted(blind)
    assert [event.reason for event in found.events] == ["SnapshotsUnreadable"]
    assert f"moorage.dev/{annotation}: 'a' waits" in found.events[0].message
    assert "403: forbidden" in found.events[0].message
    assert found.next_at == NOW + timedelta(seconds=CONFIG.resync)
    assert len(kept(wanted(replace(blind, snapshots=())))) == 1
    done = replace(blind, status=job_status(**handled("a", "a")))
    assert wanted(done).events == ()


def test_nothing_is_asked_for_while_it_is_unknown_what_is_there():
    blind = job_world({"savepoint": "a"}, views=Unreadable("ApiUnavailable", "429"))
    assert wanted(blind).effects == ()
    paused = job_world({"savepoint": "a", "paused": "true"})
    assert wanted(paused).effects == ()
    going = job_world({"savepoint": "a"})
    assert wanted(replace(going, meta=replace(going.meta, deleted_at=NOW))).effects == ()


# -- the schedule ------------------------------------------------------------------------------


def scheduled(last, now=NOW, **changes):
    status = {"snapshots": {"lastScheduledTime": last}, **changes}
    return job_world(savepoint=NIGHTLY, now=now, **status)


AT_THREE = NOW.replace(hour=3)


def test_a_schedule_begins_when_it_is_first_seen():
    found = wanted(job_world(savepoint=NIGHTLY, now=AT_THREE + timedelta(minutes=1)))
    assert found.effects == ()
    assert found.last_scheduled_time == AT_THREE + timedelta(minutes=1)
    assert found.next_at == AT_THREE + timedelta(days=1)


def test_a_schedule_that_is_put_in_again_begins_with_its_next_tick():
    out = replace(scheduled(AT_THREE - timedelta(days=1)), spec=job_spec())
    found = wanted(out)
    assert (found.effects, found.last_scheduled_time, found.next_at) == ((), None, None)
    back = wanted(scheduled(found.last_scheduled_time, AT_THREE + timedelta(minutes=10)))
    assert (back.effects, back.next_at) == ((), AT_THREE + timedelta(days=1))


def test_a_schedule_goes_on_while_nobody_can_read_a_spec():
    found = wanted(replace(scheduled(AT_THREE), spec=None))
    assert (found.effects, found.last_scheduled_time) == ((), AT_THREE)


def test_a_tick_is_one_savepoint_named_after_it_and_handled_once_it_is_seen():
    due = scheduled(AT_THREE - timedelta(hours=5), AT_THREE + timedelta(minutes=10))
    found = wanted(due)
    (effect,) = kept(found)
    assert (effect.name, effect.trigger) == ("clicks-periodic-20260504-0300", "Periodic")
    assert effect.spec["startDeadline"] == "3000s"
    assert found.last_scheduled_time == AT_THREE - timedelta(hours=5)
    seen = wanted(replace(due, snapshots=(made(effect),)))
    assert (seen.last_scheduled_time, seen.effects) == (AT_THREE, ())


def test_scenario_11_missed_ticks_coalesce_to_the_newest():
    found = wanted(scheduled(AT_THREE - timedelta(days=5), AT_THREE + timedelta(minutes=10)))
    assert [effect.name for effect in found.effects] == ["clicks-periodic-20260504-0300"]


def test_scenario_11_a_tick_that_is_too_late_is_told_and_passed_over():
    found = wanted(scheduled(AT_THREE - timedelta(days=1), AT_THREE + timedelta(hours=2)))
    assert (found.effects, found.last_scheduled_time) == ((), AT_THREE)
    assert [event.reason for event in found.events] == ["SavepointMissed"]


def test_scenario_11_a_clock_that_goes_back_brings_no_tick_twice():
    found = wanted(scheduled(AT_THREE, AT_THREE - timedelta(minutes=5)))
    assert (found.effects, found.last_scheduled_time) == ((), AT_THREE)


def test_a_suspended_job_needs_no_periodic_savepoints():
    found = wanted(scheduled(AT_THREE - timedelta(days=1), AT_THREE, phase="Suspended"))
    assert (found.effects, found.events, found.last_scheduled_time) == ((), (), AT_THREE)


def test_a_time_zone_that_is_not_known_here_is_told():
    zone = {"schedule": {"cron": "0 3 * * *", "timeZone": "Europe/Atlantis"}}
    found = wanted(job_world(savepoint=zone))
    assert [event.reason for event in found.events] == ["ScheduleInvalid"]
    assert "Europe/Atlantis" in found.events[0].message


def test_retention_deletes_the_objects_whose_data_may_go():
    old = [
        snapshot(
            f"clicks-p{day}",
            trigger="Periodic",
            status={"state": "Completed", "completedAt": NOW - timedelta(days=day)},
        )
        for day in range(4)
    ]
    found = wanted(job_world(savepoint={"retain": {"count": 2}}, views=tuple(old)))
    assert found.effects == (
        DeleteObject("StatefulSparkSnapshot", "clicks-p2", "uid-clicks-p2"),
        DeleteObject("StatefulSparkSnapshot", "clicks-p3", "uid-clicks-p3"),
    )
