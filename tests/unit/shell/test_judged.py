"""A spec is judged once a generation, and those of a whole list beside the loop."""

import threading

import pytest
from moorage_testing.manifests import spec_data

import moorage_operator.objects
from moorage_operator.directories import CheckpointDirectories
from moorage_operator.objects import JudgedSpecs, read_job_spec


@pytest.fixture
def judges(monkeypatch):
    """The threads in which specs were judged, in order."""
    threads = []

    def noted(body):
        threads.append(threading.current_thread())
        return read_job_spec(body)

    monkeypatch.setattr(moorage_operator.objects, "read_job_spec", noted)
    return threads


def job(name="clicks", generation=1, uid="u"):
    meta = {"name": name, "namespace": "n", "uid": uid, "generation": generation}
    return {"metadata": meta, "spec": spec_data(name)}


async def test_a_whole_list_is_judged_beside_the_loop(judges):
    specs, bodies = JudgedSpecs(), [job(f"j{number}") for number in range(70)]
    await specs.learn(bodies)
    assert len(judges) == 70
    assert threading.current_thread() not in judges
    found = CheckpointDirectories(specs)
    for body in bodies:
        found.note(body)
        assert specs.of(body).spec is not None
    assert len(judges) == 70, "what is known is not judged again"
    await specs.learn(bodies)
    assert len(judges) == 70


def test_a_spec_is_judged_anew_for_another_generation_and_another_object(judges):
    specs = JudgedSpecs()
    for body in (job(), job(), job(generation=2), job(generation=2, uid="v")):
        assert not specs.of(body).problems
    assert len(judges) == 3
    specs.forget("n/clicks")
    specs.of(job(generation=2, uid="v"))
    assert len(judges) == 4


def test_of_an_object_without_a_generation_nothing_is_taken_for_known(judges):
    specs, body = JudgedSpecs(), job()
    del body["metadata"]["generation"]
    for _ in range(2):
        specs.of(body)
    assert len(judges) == 2
