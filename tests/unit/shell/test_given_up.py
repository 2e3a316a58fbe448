"""What is read in place of a version that was given up."""

from datetime import UTC, datetime, timedelta

import pytest
from moorage_testing.manifests import spec_data

from moorage_api import JobSpec
from moorage_api.changes import spec_hash, version_hash
from moorage_api.status import JobStatus
from moorage_operator.objects import in_place_of
from moorage_operator.world import Revision

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
GOOD, BAD = "registry.example/clicks:1", "registry.example/clicks:2"


def spec(image=BAD, number=2, most=16, **more):
    scaling = {"parallelism": number, "maxParallelism": most, **more.pop("scaling", {})}
    return JobSpec.model_validate(spec_data("a", image=image, scaling=scaling, **more))


def revision(one):
    return Revision("r", 1, spec_hash(one), one)


REVISIONS = {"good": revision(spec(GOOD)), "bad": revision(spec())}


def status(attempt="good", parallelism=0, **more):
    done = {
        "rejectedSpecHash": version_hash(spec()),
        "rejectedParallelism": parallelism,
        "rejectedGeneration": 5,
        "currentRevision": attempt,
        "stableRevision": "good",
    }
    body = {"reconciliation": done, "attempt": {"revision": attempt}, **more}
    return JobStatus.model_validate(body)


def found(newest, known=None, generation=6, revisions=None):
    return in_place_of(newest, known or status(), revisions or REVISIONS, generation, NOW)


@pytest.mark.parametrize("number", [1, 2, 8])
def test_it_is_what_runs_with_the_newest_parallelism_and_the_newest_policies(number):
    newest = spec(number=number, ttlAfterFinished="9h", desiredState="Suspended")
    one, given_up = found(newest)
    assert (one.image, given_up) == (GOOD, newest)
    assert one.scaling.parallelism == number
    assert (one.desired_state, str(one.ttl_after_finished)) == ("Suspended", "9h")
    assert (spec_hash(one) == spec_hash(spec(GOOD))) == (number == 2)


def test_a_version_that_was_not_given_up_is_read_as_it_is():
    assert found(spec(number=3), JobStatus()) is None
    assert found(spec("registry.example/clicks:3", 3)) is None
    assert found(spec(number=3, executor={"instances": 2})) is None


def test_one_that_another_release_gave_up_is_known_by_the_generation():
    other = spec("registry.example/clicks:3")
    assert found(other, generation=5) is not None
    assert found(other, generation=6) is None


def test_a_version_that_was_given_up_goes_on_in_no_place():
    one, _ = found(spec(number=4), status("bad"))
    assert (one.image, one.scaling.parallelism) == (GOOD, 4)
    assert found(spec(number=4), status("bad"), revisions={"bad": REVISIONS["bad"]}) is None


def test_a_rollback_goes_back_to_what_there_was():
    when = "2026-03-01T11:00:00Z"
    step = {"id": "6-1", "type": "Rollback", "step": "Fencing"}
    operation = {**step, "startedAt": when, "stepStartedAt": when}
    assert found(spec(number=4), status(operation=operation)) is None


def test_a_number_that_it_cannot_have_is_not_followed():
    beyond = spec(number=32, most=64, ttlAfterFinished="9h")
    known = status()
    known = known.model_copy(
        update={
            "reconciliation": known.reconciliation.model_copy(
                update={"rejected_spec_hash": version_hash(beyond)}
            )
        }
    )
    one, _ = found(beyond, known)
    assert (one.scaling.parallelism, str(one.ttl_after_finished)) == (2, "9h")


def test_policies_that_it_cannot_have_leave_the_newest_to_the_pass_itself():
    scaling = {"autoscaler": {"enabled": True, "max": 64, "min": 1}}
    assert found(spec(most=64, scaling=scaling), generation=5) is None


def test_a_floor_and_a_cooldown_hold_as_for_any_edit():
    one, _ = found(spec(number=1, scaling={"floor": 3}))
    assert one.scaling.parallelism == 3
    changed = (NOW - timedelta(minutes=1)).isoformat()
    known = status(scaling={"changedAt": changed})
    one, given_up = found(spec(number=8, scaling={"cooldown": "5m"}), known)
    assert (one.scaling.parallelism, given_up.scaling.parallelism) == (2, 8)


def test_of_a_number_that_alone_was_given_up_another_one_is_another_try():
    one, _ = found(spec(number=8), status("bad", 8), revisions={"bad": REVISIONS["bad"]})
    assert (one.image, one.scaling.parallelism) == (BAD, 2)
    assert found(spec(number=4), status("bad", 8)) is None
