"""Two jobs, one directory: who is in the right."""

import pytest

from moorage_operator.directories import CheckpointDirectories


def job(
    name, directory, created="2026-03-01T12:00:00Z", uid="", endpoint=None, checkpoint="", **spec
):
    meta = {"name": name, "namespace": "n", "uid": uid or name, "creationTimestamp": created}
    state = {"checkpointDir": directory, "s3": {"endpoint": endpoint} if endpoint else {}}
    state |= spec.pop("state", {})
    return {
        "metadata": meta,
        "spec": {
            "image": "registry.example/clicks:1",
            "application": {"mainFile": "local:///app/job.py"},
            "scaling": {"parallelism": 1},
            "state": state,
            "upgrade": {"mode": "LastCheckpoint"},
            **spec,
        },
        "status": {"snapshots": {"lastCheckpoint": {"path": checkpoint}}} if checkpoint else {},
    }


def index(*jobs):
    found = CheckpointDirectories()
    for one in jobs:
        found.note(one)
    return found


LATER = "2026-03-01T13:00:00Z"


def test_the_older_object_is_in_the_right():
    found = index(job("old", "s3://bucket/jobs/k"), job("new", "s3://bucket/jobs/k", LATER))
    assert (found.rival("n/old"), found.rival("n/new")) == ("", "n/old")


def test_of_two_made_at_the_same_time_exactly_one_is_in_the_right():
    found = index(job("a", "s3://bucket/jobs/k"), job("b", "s3://bucket/jobs/k"))
    assert [found.rival("n/a"), found.rival("n/b")] == ["", "n/a"]


def test_a_directory_inside_anothers_is_a_rival_either_way():
    found = index(job("old", "s3://bucket/jobs/k/deep"), job("new", "s3://bucket/jobs/k", LATER))
    assert found.rival("n/new") == "n/old"
    found = index(job("old", "s3://bucket/jobs/k"), job("new", "s3://bucket/jobs/k/deep", LATER))
    assert found.rival("n/new") == "n/old"


def test_a_directory_with_a_longer_name_is_another_one():
    found = index(job("old", "s3://bucket/jobs/k"), job("new", "s3://bucket/jobs/k2", LATER))
    assert found.rival("n/new") == ""


def test_the_server_of_a_bucket_may_stand_in_a_profile():
    server = {"state": {"s3": {"endpoint": "https://minio.stores:9000"}}}
    values = {"named": {}, "usual": server, "elsewhere": {}}
    found = CheckpointDirectories(values=lambda body: values[body["metadata"]["name"]])
    found.note(job("named", "s3://bucket/k", endpoint="https://minio.stores:9000"))
    found.note(job("usual", "s3://bucket/k", LATER))
    found.note(job("elsewhere", "s3://bucket/k", LATER))
    assert (found.rival("n/usual"), found.rival("n/elsewhere")) == ("n/named", "")


def test_a_sibling_directory_is_another_one():
    found = index(job("old", "s3://bucket/jobs/k/one"), job("new", "s3://bucket/jobs/k/two", LATER))
    assert found.rival("n/new") == ""


def test_the_same_name_in_another_store_is_another_directory():
    found = index(job("old", "file:///b/k"), job("new", "s3://bucket/jobs/k", LATER))
    assert found.rival("n/new") == ""


def test_the_directory_is_free_when_the_other_is_gone_or_has_moved():
    found = index(job("old", "s3://bucket/jobs/k"), job("new", "s3://bucket/jobs/k", LATER))
    found.note(job("old", "s3://bucket/jobs/elsewhere"))
    assert found.rival("n/new") == ""
    found.note(job("old", "s3://bucket/jobs/k"))
    found.forget("n/old")
    found.forget("n/old")
    assert found.rival("n/new") == ""


def test_all_jobs_of_a_bucket_are_not_gone_through_for_each_of_them():
    found = index(*(job(f"j{n}", f"s3://bucket/jobs/j{n}") for n in range(30)))
    compared = []

    class Watched(dict):
        def __getitem__(self, who):
            compared.append(who)
            return super().__getitem__(who)

    found._claims = Watched(found._claims)
    found.note(job("deep", "s3://bucket/jobs/j7/deep", LATER))
    assert found.rival("n/deep") == "n/j7"
    assert set(compared) == {"n/j7"}
    compared.clear()
    assert found.rival("n/j3") == ""
    assert compared == []


def test_nothing_is_kept_of_jobs_that_are_gone():
    found = index(job("a", "s3://bucket/k"), job("b", "s3://bucket/k/deep"))
    for name in ("a", "b"):
        found.forget(f"n/{name}")
    assert (found._at, found._inside, found._claims, found._seen) == ({}, {}, {}, {})


def test_a_spec_without_a_directory_has_no_rival():
    found = index(
        job("old", "s3://bucket/jobs/k"),
        job("odd", "nowhere"),
        {"metadata": {"name": "x"}, "spec": []},
    )
    assert found.rival("n/odd") == ""


def test_a_bucket_of_the_same_name_on_another_server_is_another_one():
    old = job("old", "s3://bucket/jobs/k", endpoint="http://minio.team-a:9000")
    found = index(old, job("new", "s3://bucket/jobs/k", LATER, endpoint="http://minio.team-b:9000"))
    assert found.rival("n/new") == ""
    found = index(
        old, job("new", "s3://bucket/jobs/k", LATER, endpoint="http://minio.team-a:9000/")
    )
    assert found.rival("n/new") == "n/old"


def test_files_are_shared_only_where_they_are_the_nodes():
    found = index(job("old", "file:///b/k"), job("new", "file:///b/k", LATER))
    assert found.rival("n/new") == ""
    on_node = {"local": {"type": "HostPath", "path": "/mnt/moorage"}}
    both = [job(n, "file:///b/k", state=on_node) for n in ("new", "old")]
    assert index(*both).rival("n/old") == "n/new"


def test_a_spec_that_is_wrong_claims_nothing_new():
    found = index(job("old", "s3://bucket/jobs/old"), job("new", "s3://bucket/jobs/k", LATER))
    found.note(job("old", "s3://bucket/jobs/k", scaling={"parallelism": 0}))
    assert found.rival("n/new") == ""
    found.note(job("third", "s3://bucket/jobs/old", LATER))
    assert found.rival("n/third") == "n/old"


def test_a_job_with_a_checkpoint_there_is_in_the_right_against_an_older_one():
    new = job(
        "new",
        "s3://bucket/jobs/k",
        LATER,
        checkpoint="s3://bucket/jobs/k/chk-7?endpoint=http://minio:9000",
    )
    found = index(job("old", "s3://bucket/jobs/k"), new)
    assert (found.rival("n/old"), found.rival("n/new")) == ("n/new", "")


@pytest.mark.parametrize("directory", ["s3://bucket/jobs/k", "s3://bucket/jobs"])
def test_an_older_job_that_moves_in_is_in_the_wrong(directory):
    found = index(job("old", "s3://bucket/jobs/elsewhere"), job("new", "s3://bucket/jobs/k", LATER))
    found.note(job("old", directory, checkpoint="s3://bucket/jobs/elsewhere/chk-1"))
    assert (found.rival("n/old"), found.rival("n/new")) == ("n/new", "")
    found.note(
        job("old", "s3://bucket/jobs/elsewhere", checkpoint="s3://bucket/jobs/elsewhere/chk-1")
    )
    assert (found.rival("n/old"), found.rival("n/new")) == ("", "")


def test_a_job_that_sleeps_holds_only_what_it_has_a_checkpoint_in():
    new = job("new", "s3://bucket/jobs/k", LATER)
    asleep = job("old", "s3://bucket/jobs/k", desiredState="Suspended")
    assert index(asleep, new).rival("n/new") == ""
    used = job(
        "old", "s3://bucket/jobs/k", desiredState="Suspended", checkpoint="s3://bucket/jobs/k/chk-3"
    )
    assert index(used, new).rival("n/new") == "n/old"


def test_a_job_is_judged_once_a_generation():
    found = index()
    first = job("old", "s3://bucket/jobs/k")
    first["metadata"]["generation"] = 1
    found.note(first)
    again = job("old", "s3://bucket/jobs/other")
    again["metadata"]["generation"] = 1
    found.note(again)
    assert index(first).rival("n/old") == ""
    found.note(job("new", "s3://bucket/jobs/k", LATER))
    assert found.rival("n/new") == "n/old"
    again["metadata"]["uid"] = "another"
    found.note(again)
    assert found.rival("n/new") == ""
