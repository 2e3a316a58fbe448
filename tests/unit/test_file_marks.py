"""Whether files have changed."""

from pathlib import Path

from moorage_state.file_marks import marks


def test_a_file_that_comes_changes_is_replaced_or_goes_has_another_mark(tmp_path):
    file, other = tmp_path / "token", tmp_path / "other"
    seen = [marks([file])]
    file.write_text("a")
    seen.append(marks([file]))
    file.write_text("longer")
    seen.append(marks([file]))
    other.write_text("longer")
    other.replace(file)
    seen.append(marks([file]))
    assert len(set(seen)) == len(seen)
    assert marks([file]) == seen[-1]
    file.unlink()
    assert marks([file]) == seen[0]


def test_a_link_that_leads_elsewhere_is_another_file(tmp_path):
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "key").write_text("same")
    data, link = tmp_path / "data", tmp_path / "key"
    data.symlink_to("first")
    link.symlink_to(Path("data", "key"))
    before = marks([link, tmp_path / "absent"])
    data.unlink()
    data.symlink_to("second")
    assert marks([link, tmp_path / "absent"]) != before
