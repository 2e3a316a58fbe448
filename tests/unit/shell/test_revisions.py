"""By which hash a spec is known, and which state backend it has where it names none."""

import pytest
from moorage_testing.manifests import spec_data

from moorage_api import JobSpec
from moorage_api.changes import spec_hash
from moorage_api.status import JobStatus
from moorage_operator.objects import read_revision, revision_body, same_hash, with_backend
from moorage_operator.world import Meta, Revision


def spec(image="registry.example/clicks:1", **more):
    return JobSpec.model_validate(spec_data("a", image=image, **more))


NEWEST = spec()
DIGEST = spec_hash(NEWEST)


def known(generation, *revisions):
    named = {f"r{number}": one for number, one in enumerate(revisions)}
    return same_hash(NEWEST, DIGEST, generation, named)


@pytest.mark.parametrize(
    ("revision", "generation", "found"),
    [
        (Revision("r", 3, DIGEST, NEWEST), 7, DIGEST),
        (Revision("r", 3, "older", NEWEST), 7, "older"),
        (Revision("r", 3, "older", spec(ttlAfterFinished="9h")), 7, "older"),
        (Revision("r", 7, "older", spec(checkpoint={"timeout": "9m"})), 7, "older"),
        (Revision("r", 3, "older", spec(checkpoint={"timeout": "9m"})), 7, DIGEST),
        (Revision("r", 3, "older", spec("registry.example/clicks:2")), 7, DIGEST),
    ],
    ids=["same hash", "same spec", "no restart", "unedited", "edited", "another image"],
)
def test_a_hash_is_that_of_the_revision_that_asks_for_the_same_job(revision, generation, found):
    assert known(generation, revision) == found


def test_a_revision_of_this_release_comes_before_all_others():
    older = Revision("old", 7, "older", NEWEST)
    assert known(7, older, Revision("new", 3, DIGEST, NEWEST)) == DIGEST


def test_without_revisions_it_is_the_specs_own():
    assert known(1) == DIGEST


def test_a_version_whose_output_can_never_be_compared_in_time_is_read_all_the_same():
    """What runs must never be unknown to its operator for what it says of its next upgrade."""
    standby = {"catchUpTimeout": "10m", "maxOutputDifferencePercent": 10}
    runs = spec(upgrade={"strategy": "WarmStandby", "standby": standby})
    body = revision_body(Meta("clicks", "jobs", "u-1", 3, ""), "clicks-3", 3, "d", runs)
    found = read_revision(body)
    assert found is not None
    assert found.spec == runs


def on(backend):
    return spec(state={**NEWEST.model_dump(by_alias=True)["state"], "backend": backend})


RAN = {"runningSince": "2026-03-01T11:00:00Z"}
KEPT = [
    ("nothing yet", {}, "hashmap"),
    ("on its way", {"attempt": {"revision": "r"}}, "rocksdb"),
    ("never ran", {"attempt": {"revision": "r", "outcome": "Failed"}}, "hashmap"),
    ("ran once", {"attempt": {"revision": "r", "outcome": "Failed", **RAN}}, "rocksdb"),
    ("ran", {"reconciliation": {"stateBackend": "a:B"}, "attempt": {"revision": "r"}}, "a:B"),
    (
        "ran on another since the record",
        {"reconciliation": {"stateBackend": "a:B"}, "attempt": {"revision": "r", **RAN}},
        "rocksdb",
    ),
    ("revision gone", {"attempt": {"revision": "s"}}, "hashmap"),
]


@pytest.mark.parametrize(("status", "found"), [c[1:] for c in KEPT], ids=[c[0] for c in KEPT])
def test_a_spec_without_a_backend_has_that_of_its_state_and_else_the_clusters(status, found):
    known_revisions = {"r": Revision("r", 1, DIGEST, on("rocksdb"))}
    state = with_backend(NEWEST, JobStatus.model_validate(status), known_revisions, "hashmap").state
    assert state.backend == found
    named = with_backend(
        on("filesystem"), JobStatus.model_validate(status), known_revisions, "hashmap"
    )
    assert named.state.backend == "filesystem"


def test_a_job_that_never_ran_is_another_one_under_another_default():
    failed = Revision("r", 7, spec_hash(on("a:B")), on("a:B"))
    digest = spec_hash(on("hashmap"))
    assert same_hash(on("hashmap"), digest, 7, {"r": failed}) == digest
    older = Revision("r", 7, "older", NEWEST)
    assert same_hash(on("rocksdb"), DIGEST, 7, {"r": older}) == "older"
