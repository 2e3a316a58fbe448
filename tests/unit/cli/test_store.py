"""`moorage store check`: what it prints, and its exit status."""

import json

from moorage.offline import store_check


def test_a_directory_is_checked_and_left_as_it_was(moorage, tmp_path):
    status, out, err = moorage("store", "check", tmp_path)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["CHECK", "RESULT", "TIME"]
    assert [line.split("  ")[0] for line in lines[1:6]] == [name for name, _ in store_check._TRIES]
    assert all(" ok " in line for line in lines[1:6])
    assert lines[6].startswith("this machine's clock before the store's  ")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_store_that_cannot_be_used_is_refused_with_what_is_wrong(moorage, tmp_path, monkeypatch):
    monkeypatch.setattr(
        store_check, "_TRIES", (("create once", lambda _store, _root: "two of them won"),)
    )
    status, out, err = moorage("store", "check", tmp_path, "-o", "json")
    document = json.loads(out)
    assert (status, document["ok"]) == (2, False)
    assert (document["checks"][0]["ok"], document["checks"][0]["problem"]) == (
        False,
        "two of them won",
    )
    status, _, err = moorage("store", "check", tmp_path)
    assert (status, err) == (2, "moorage: create once: two of them won\n")
    status, _, err = moorage("store", "check", tmp_path / "none")
    assert status == 2
    assert "store directory does not exist" in err
