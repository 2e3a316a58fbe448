"""What a status tells of a job's versions, and what it must not."""

import pytest
from moorage_testing.worlds import Stage, job_spec

from moorage_api.changes import described

IMAGE = "registry.example/clicks"


def test_no_more_versions_are_told_than_a_status_has_room_for():
    stage = Stage(spec=job_spec())
    stage.run()
    for number in range(2, 14):
        stage.edit(image=f"{IMAGE}:{number}")
        stage.settle()
        stage.stop_as_asked()
        stage.run()
    found = stage.status.revisions
    assert len(found) == 10
    assert found[-1].changed == (f"spec.image: {IMAGE}:12 -> {IMAGE}:13",)
    assert {one.outcome for one in found[:-1]} == {"Superseded"}


def test_a_restart_of_the_same_version_is_none():
    stage = Stage(spec=job_spec())
    stage.run()
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(20)
    assert [one.attempt for one in stage.status.revisions] == [1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scaling": {"parallelism": 7}}, "spec.scaling.parallelism: 4 -> 7"),
        ({"checkpoint": {"interval": "30s"}}, "spec.checkpoint.interval: 60s -> 30s"),
        ({"executor": {"memory": "3Gi"}}, "spec.executor.memory: "),
        ({"image": f"{IMAGE * 9}:2"}, ":2"),
    ],
)
def test_short_values_are_told(change, told):
    old = job_spec(scaling={"parallelism": 4}, checkpoint={"interval": "60s"})
    (found,) = described(old, job_spec(**{"scaling": {"parallelism": 4}, **change}))
    assert told in found
    assert len(found) < 160


def test_arguments_and_variables_may_have_secrets_in_them_and_are_named_only():
    secret = {"env": [{"name": "PASSWORD", "value": "hunter2"}], "args": ["hunter2"]}
    found = described(job_spec(), job_spec(application={**APPLICATION, **secret}))
    assert set(found) == {"spec.application.args", "spec.application.env"}


def test_what_needs_no_restart_makes_no_version_and_is_not_told():
    assert described(job_spec(), job_spec(upgrade={"preflight": True})) == ()


APPLICATION = job_spec().application.model_dump(mode="json", by_alias=True, exclude_none=True)
