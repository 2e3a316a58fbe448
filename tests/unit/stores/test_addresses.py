import pytest

from moorage_state.stores.addresses import address, child, parent_and_name, same_or_below

S3 = "s3://bucket/jobs?endpoint=http://host:1&path_style=true"


def test_a_path_becomes_a_quoted_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert address("a dir/chk-1") == f"file://{tmp_path}/a%20dir/chk-1"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("file:///a/b/", "file:///a/b"),
        ("file:///", "file:///"),
        ("s3://bucket/a/", "s3://bucket/a"),
        ("s3://bucket/a/?region=x", "s3://bucket/a?region=x"),
    ],
)
def test_a_slash_at_the_end_means_nothing(typed, meant):
    assert address(typed) == meant


def test_options_of_a_bucket_stay_behind_what_is_added_and_taken_away():
    below = "s3://bucket/jobs/chk-7?endpoint=http://host:1&path_style=true"
    assert child(S3, "chk-7") == below
    assert parent_and_name(below) == (S3, "chk-7")


@pytest.mark.parametrize("name", ["sp 1", "näme", "100%"])
def test_a_name_comes_back_as_it_was_given(name):
    assert parent_and_name(child("file:///a", name)) == ("file:///a", name)


@pytest.mark.parametrize("url", ["s3://bucket", "memory://name", "file:///"])
def test_the_top_of_a_store_lies_in_no_directory(url):
    assert parent_and_name(url) is None


@pytest.mark.parametrize(
    ("url", "directory", "is_inside"),
    [
        ("file:///a/b", "file:///a", True),
        ("file:///a", "file:///a", True),
        ("file:///ab", "file:///a", False),
        ("file:///a%20b/c", "file:///a b", True),
        ("s3://b/p/x?endpoint=http://one", "s3://b/p?endpoint=http://one/&region=r", True),
        ("s3://b/p/x?endpoint=http://one", "s3://b/p?endpoint=http://two", False),
    ],
)
def test_a_place_inside_of_another_is_known(url, directory, is_inside):
    assert same_or_below(url, directory) is is_inside
