"""`moorage init`: what each template writes can be run, and nothing that is there is touched."""

import errno
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from moorage_testing.pages import blocks
from moorage_testing.processes import run_tests_of

from moorage.cli.exit_codes import ExitCode
from moorage.cli.init import TEMPLATES, job_name
from moorage_api import load_manifest
from moorage_state.errors import UserError

ROOT = Path(__file__).parents[3]
RUNS = [name for name in TEMPLATES if name != "kafka-to-parquet"]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_new_job_is_valid_and_can_be_imported(moorage, tmp_path, template):
    folder = tmp_path / "My_Clicks"
    status, out, err = moorage("init", folder, "-t", template)
    assert (status, err) == (0, "")
    assert f"cd {folder} && moorage run job.yaml" in out
    assert moorage("validate", folder / "job.yaml")[0] == 0
    job = load_manifest(folder / "job.yaml")
    assert job.name == "my-clicks"
    made = runpy.run_path(str(folder / "job.py"))
    assert callable(made["build"])
    # As many arguments as the job takes, and input where it is looked for.
    (taken,) = re.findall(r"^    (.+) = env\.args$", (folder / "job.py").read_text(), re.MULTILINE)
    args = job.spec.application.args
    assert len(taken.split(", ")) == len(args)
    if template in RUNS:
        assert all((folder / one / "1.json").is_file() for one in args[:-1])
    readme = (folder / "README.md").read_text()
    assert "$" not in readme
    assert TEMPLATES[template].text in readme
    pages = re.findall(r"`([\w/-]+\.md)`", readme)
    assert len(pages) > 3
    assert all((ROOT / page).is_file() for page in pages)


def test_the_tests_of_new_jobs_pass(moorage, tmp_path):
    for template in RUNS:
        moorage("init", tmp_path / template, "-t", template)
        done = run_tests_of(tmp_path / template)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_quickstart_shows_the_windowed_join_as_it_is_written(moorage, tmp_path):
    moorage("init", tmp_path / "new", "-t", "join")
    shown = [block.code for block in blocks("docs/quickstart.md", "python")]
    assert shown[-2:] == [(tmp_path / "new" / n).read_text() for n in ("job.py", "test_job.py")]


def test_every_file_is_told_and_none_of_them_is_a_template_still(moorage, tmp_path):
    _, out, _ = moorage("init", tmp_path / "new", "--name", "a-b")
    found = {str(p.relative_to(tmp_path / "new")) for p in (tmp_path / "new").rglob("*.*")}
    assert found == {".gitignore", "README.md", "in/1.json", "job.py", "job.yaml", "test_job.py"}
    assert all(name in out for name in (*found, "Dockerfile"))
    assert "name: a-b" in (tmp_path / "new/job.yaml").read_text()
    assert "FROM ${RUNTIME}" in (tmp_path / "new/Dockerfile").read_text()


def test_what_was_made_is_there_for_programs(moorage, tmp_path):
    status, out, _ = moorage("init", tmp_path / "new", "-t", "dedup", "-o", "json")
    found = json.loads(out)
    assert (status, found["job"], found["template"]) == (0, "new", "dedup")
    assert str(tmp_path / "new" / "job.yaml") in found["files"]


def test_files_that_are_there_are_named_and_nothing_is_written(moorage, tmp_path):
    (tmp_path / "job.py").write_text("mine")
    status, _, err = moorage("init", tmp_path, "--name", "x")
    assert status == 2
    assert "job.py" in err
    assert [p.name for p in tmp_path.iterdir()] == ["job.py"]
    assert (tmp_path / "job.py").read_text() == "mine"


@pytest.mark.parametrize("below", ["", "deeper/new"])
def test_a_path_that_is_a_file_is_named(moorage, tmp_path, below):
    (tmp_path / "notes").write_text("mine")
    status, _, err = moorage("init", tmp_path / "notes" / below, "--name", "x")
    assert status == ExitCode.LOCAL_DISK
    assert f"cannot write a new job: folder={tmp_path / 'notes' / below} error=" in err
    assert "internal" not in err
    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize("template", ["counting", "join"])
def test_what_was_written_before_a_disk_was_full_is_removed(
    moorage, tmp_path, monkeypatch, template
):
    write = Path.write_text

    def full(path, text, **how):
        write(path, text[:1], **how)
        if path.name in {"test_job.py", "job.py"}:  # a template has folders that come later
            raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "mine").touch()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        status, _, err = moorage("init", tmp_path / "deep" / "new", "-t", template)
        assert (status, "No space left" in err) == (ExitCode.LOCAL_DISK, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert moorage("init", tmp_path / "deep" / "new")[0] == 0


def test_what_to_do_next_may_be_copied_whatever_the_folder_is_called(moorage, tmp_path):
    folder = tmp_path / "my job"
    _, out, _ = moorage("init", folder)
    assert f"next: cd '{folder}' && moorage run job.yaml" in out


def test_a_template_that_is_not_there_is_refused_with_those_that_are(moorage, tmp_path):
    status, _, err = moorage("init", tmp_path / "new", "-t", "other")
    assert status == 2
    assert all(name in re.sub(r"[│\s]+", " ", err) for name in ("counting", "sessions"))
    assert "did you mean" not in err
    assert not (tmp_path / "new").exists()
    _, _, err = moorage("init", tmp_path / "new", "-t", "joins")
    assert "no template 'joins'; did you mean join?" in re.sub(r"[│\s]+", " ", err)


@pytest.mark.parametrize(
    ("folder", "name"), [("clicks", "clicks"), ("My Clicks.2", "my-clicks-2"), ("-a--b-", "a-b")]
)
def test_a_job_is_called_as_its_folder(tmp_path, folder, name):
    assert job_name(tmp_path / folder) == name


@pytest.mark.parametrize("folder", ["1st", "--", "日"])
def test_a_folder_that_gives_no_name_asks_for_one(moorage, tmp_path, folder):
    with pytest.raises(UserError, match="--name"):
        job_name(tmp_path / folder)
    assert moorage("init", tmp_path / folder, "--name", "No")[0] == 2


ROWS = {
    "counting": [["ann", 1], ["ann", 2], ["bob", 1]],
    "sessions": [["ann", 1], ["ann", 2], ["bob", 1]],
    "dedup": [["a", "one"], ["b", "two"]],
    "join": [["ann", "/", 7.0], ["ann", "/cart", 12.5]],
    "connect": [["a", 12.5], ["c", 7.0]],
}
COLUMNS = {
    "sessions": ["user", "clicks"],
    "join": ["user", "page", "amount"],
    "connect": ["order", "amount"],
}


@pytest.mark.soak
@pytest.mark.parametrize("template", RUNS)
def test_a_new_job_gives_what_its_input_says(moorage, tmp_path, template):
    moorage("init", tmp_path, "-t", template, "--name", "new")
    manifest = tmp_path / "job.yaml"
    manifest.write_text(manifest.read_text().replace("spec:", "spec:\n  bounded: true", 1))
    command = [sys.executable, "-m", "moorage.cli", "run", str(manifest), "--plain"]
    subprocess.run(command, check=True, timeout=300, capture_output=True, cwd=tmp_path)
    found = pd.read_parquet(tmp_path / "out")
    rows = found[COLUMNS.get(template, list(found.columns))]
    assert sorted(rows.to_numpy().tolist()) == ROWS[template]
