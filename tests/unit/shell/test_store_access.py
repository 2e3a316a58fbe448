"""In which directory an inspection or a store task of a job ends up."""

from dataclasses import replace

import pytest
from moorage_testing.worlds import Stage, job_spec

from moorage_api import Problem
from moorage_operator.store_access import store_refs

OTHER = {"checkpointDir": "s3://state/other", "savepointDir": "s3://savepoints/clicks"}


@pytest.fixture
def moved():
    """A job that ran in one directory, and is to go on in another one."""
    stage = Stage(spec=job_spec())
    stage.run()
    left = spec_of(stage).state.checkpoint_dir
    stage.edit(state=OTHER, restore={"nonce": 1, "mode": "Empty", "acknowledgeStateLoss": True})
    return stage, left


def refs_of(world):
    refs = store_refs(world)
    assert refs is not None
    return refs


def spec_of(stage):
    spec = stage.world().spec
    assert spec is not None
    return spec


def directory(world):
    return refs_of(world).spec.state.checkpoint_dir


def test_a_deletion_goes_to_the_directory_that_the_job_used(moved):
    stage, left = moved
    stage.delete()
    assert directory(stage.world()) == left


def test_a_new_nonce_looks_where_the_job_is_to_go(moved):
    stage, _ = moved
    assert directory(stage.world()) == OTHER["checkpointDir"]


def test_an_edit_without_a_new_nonce_leads_nowhere_else():
    stage = Stage(spec=job_spec())
    stage.run()
    left = spec_of(stage).state.checkpoint_dir
    stage.edit(state=OTHER)
    assert directory(stage.world()) == left


def test_until_the_driver_has_ended_its_own_directory_tells_how_it_ended(moved):
    stage, left = moved
    stage.settle()
    operation = stage.status.operation
    assert operation is not None
    stage.status = stage.status.model_copy(
        update={"operation": operation.model_copy(update={"step": "Stopping"})}
    )
    assert directory(stage.world()) == left
    stage.status = stage.status.model_copy(
        update={"operation": operation.model_copy(update={"step": "Starting"})}
    )
    assert directory(stage.world()) == OTHER["checkpointDir"]


def test_new_credentials_are_used_for_the_directory_that_stays():
    stage = Stage(spec=job_spec())
    stage.run()
    same = spec_of(stage).state
    mended = {
        "checkpointDir": same.checkpoint_dir,
        "savepointDir": same.savepoint_dir,
        "credentialsSecretRef": {"name": "new-creds"},
    }
    stage.edit(state=mended)
    reference = refs_of(stage.world()).spec.state.credentials_secret_ref
    assert reference is not None
    assert reference.name == "new-creds"


def test_without_any_spec_there_is_no_way():
    world = Stage(spec=job_spec()).world()
    assert store_refs(replace(world, spec=None, revisions={})) is None


def test_a_job_that_is_refused_beside_the_operator_has_no_pod_sent_to_its_store(moved):
    """Of an image and under an account that its spec names, with the operator's within reach."""
    new = Stage(spec=job_spec()).world()
    refused = replace(new, problems=(Problem("metadata.namespace", "is the operator's own", "go"),))
    beside = replace(new.config, own_namespace=new.meta.namespace)
    assert store_refs(refused) is not None
    assert store_refs(replace(refused, config=beside)) is None
    stage, left = moved
    ran = replace(stage.world(), problems=refused.problems, config=beside)
    assert directory(ran) == left
