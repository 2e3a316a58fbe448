"""Two jobs, one directory: who is in the right."""

from moorage_operator.directories import Directories


def job(name, directory, created="2026-03-01T12:00:00Z", uid=""):
    meta = {"name": name, "namespace": "n", "uid": uid or name, "creationTimestamp": created}
    return {"metadata": meta, "spec": {"state": {"checkpointDir": directory}}}


def index(*jobs):
    found = Directories()
    for one in jobs:
        found.note(one)
    return found


LATER = "2026-03-01T13:00:00Z"


def test_the_older_object_is_in_the_right():
    found = index(job("old", "s3://b/k"), job("new", "s3://b/k", LATER))
    assert (found.rival("n/old"), found.rival("n/new")) == ("", "n/old")


def test_of_two_made_at_the_same_time_exactly_one_is_in_the_right():
    found = index(job("a", "s3://b/k"), job("b", "s3://b/k"))
    assert [found.rival("n/a"), found.rival("n/b")] == ["", "n/a"]


def test_a_directory_inside_anothers_is_a_rival_either_way():
    found = index(job("old", "s3://b/k/deep"), job("new", "s3://b/k", LATER))
    assert found.rival("n/new") == "n/old"
    found = index(job("old", "s3://b/k"), job("new", "s3://b/k/deep", LATER))
    assert found.rival("n/new") == "n/old"


def test_a_directory_with_a_longer_name_is_another_one():
    found = index(job("old", "s3://b/k"), job("new", "s3://b/k2", LATER))
    assert found.rival("n/new") == ""


def test_a_sibling_directory_is_another_one():
    found = index(job("old", "s3://b/k/one"), job("new", "s3://b/k/two", LATER))
    assert found.rival("n/new") == ""


def test_the_same_name_in_another_store_is_another_directory():
    found = index(job("old", "file:///b/k"), job("new", "s3://b/k", LATER))
    assert found.rival("n/new") == ""


def test_the_directory_is_free_when_the_other_is_gone_or_has_moved():
    found = index(job("old", "s3://b/k"), job("new", "s3://b/k", LATER))
    found.note(job("old", "s3://b/elsewhere"))
    assert found.rival("n/new") == ""
    found.note(job("old", "s3://b/k"))
    found.forget("n/old")
    found.forget("n/old")
    assert found.rival("n/new") == ""


def test_a_spec_without_a_directory_has_no_rival():
    found = index(job("old", "s3://b/k"), job("odd", None), {"metadata": {"name": "x"}, "spec": []})
    assert found.rival("n/odd") == ""
