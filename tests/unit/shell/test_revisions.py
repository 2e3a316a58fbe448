"""By which hash a spec is known, where another release made its revision."""

import pytest

from moorage_api import JobSpec
from moorage_api.changes import spec_hash
from moorage_operator.objects import same_hash
from moorage_operator.world import Revision


def spec(image="registry.example/clicks:1", **more):
    plain = {
        "image": image,
        "application": {"mainFile": "local:///app/job.py"},
        "scaling": {"parallelism": 2, "maxParallelism": 8},
        "state": {"checkpointDir": "s3://state/a", "savepointDir": "s3://savepoints/a"},
    }
    return JobSpec.model_validate({**plain, **more})


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
