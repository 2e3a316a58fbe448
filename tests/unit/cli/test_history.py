"""`moorage history` and `moorage restore`: what a job can go back to, and going back."""

import json
import os
import signal
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import typer
from moorage_testing.page_samples import sample_run

from moorage.driver.control import ControlServer, control_path
from moorage.driver.lookups import StateLookups
from moorage.driver.requests import Requests
from moorage.driver.run_status import run_status
from moorage.driver.settings import JobSettings
from moorage.driver.types import JobProgress, RunOptions, RunOutcome, RunResult
from moorage.driver.views import CheckpointView
from moorage_api import load_manifest
from moorage_state.snapshots import manifest_key

CONFIRM, CLOCK = "moorage.cli.restore.typer.confirm", "moorage.cli.restore.time"
NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
VIEW = CheckpointView(4, 4, NOW, 1, 1, 0.1)
STOPPED = RunResult(RunOutcome.STOPPED, 4, 100, 2.0, last_checkpoint=VIEW)


@pytest.fixture
def kept(job_file, directory):
    """The manifest of a job whose checkpoints are there."""
    job_file.write_text(job_file.read_text().replace("file://./state", f"file://{directory}"))
    return job_file


@pytest.fixture
def runs():
    """A runner that notes what it is asked for."""
    asked: list[RunOptions] = []

    def runner(_job, _folder, options, listener):
        asked.append(options)
        listener(JobProgress(epoch=4, epochs=1, phase="running"))
        return STOPPED

    return runner, asked


def test_what_there_is_to_go_back_to_is_listed_newest_first(moorage, kept, directory):
    status, out, _ = moorage("history", kept)
    assert status == 0
    header, *rows = out.splitlines()
    assert header.split()[:6] == ["NAME", "TYPE", "STATE", "EPOCH", "SIZE", "AGE"]
    assert [row.split()[:2] for row in rows] == [["chk-3", "Checkpoint"], ["chk-2", "Checkpoint"]]
    assert "restore point" in rows[0]
    assert rows[0].endswith(f"file://{directory}/chk-3")


def test_the_history_is_there_for_programs_in_the_form_of_a_clusters(moorage, directory):
    status, out, _ = moorage("history", directory, "-o", "json")
    document = json.loads(out)
    assert (status, document["format"], document["command"]) == (0, 1, "history")
    newest = document["snapshots"][0]
    assert (newest["name"], newest["type"], newest["state"]) == (
        *("chk-3", "Checkpoint", "restore point"),
    )
    assert (newest["checkpointId"], newest["epoch"], newest["message"]) == (3, 3, "")
    assert newest["completedAt"].startswith("2026-01-02T03:07:05")
    assert newest["sizeBytes"] > 0


def test_a_savepoint_is_in_the_history_by_its_name_and_can_be_gone_back_to(
    moorage, kept, directory, runs, tmp_path
):
    assert moorage("snapshots", "copy", directory / "chk-2", tmp_path / "saves" / "friday")[0] == 0
    text = kept.read_text().replace(
        "checkpointDir", 'savepointDir: "file://./saves", checkpointDir'
    )
    kept.write_text(text)
    _, out, _ = moorage("history", kept, "-o", "json")
    saved = {one["name"]: one for one in json.loads(out)["snapshots"]}["friday"]
    assert (saved["type"], saved["state"]) == ("Savepoint", "completed")
    assert saved["path"] == f"file://{tmp_path}/saves/friday"
    assert moorage("restore", kept, "friday", "--yes", runner=runs[0])[0] == 0
    assert runs[1][0].restore == "friday"


def test_that_there_are_no_savepoints_yet_is_a_part_of_the_answer(moorage, kept, tmp_path):
    text = kept.read_text().replace(
        "checkpointDir", 'savepointDir: "file://./saves", checkpointDir'
    )
    kept.write_text(text)
    for command in (("history", kept), ("snapshots", "ls", kept)):
        status, out, err = moorage(*command)
        assert (status, err) == (0, "")
        assert out.endswith(f"\n(no savepoints yet: savepointDir=file://{tmp_path}/saves)\n")
    assert moorage("history", kept, "-o", "json")[2] == ""


def test_what_is_damaged_is_in_the_history_with_the_reason(moorage, directory):
    (directory / manifest_key(3)).write_bytes(b"no manifest")
    status, out, _ = moorage("history", directory)
    (row,) = [line for line in out.splitlines() if line.startswith("chk-3")]
    assert status == 0
    assert "damaged" in row
    assert "file://" not in row.split("damaged")[1].split()[0]


def test_a_job_that_does_not_run_is_run_from_there_once_it_is_agreed_to(
    moorage, kept, runs, monkeypatch
):
    said = []
    monkeypatch.setattr(CONFIRM, lambda text, **_: said.append(text))
    status, out, _ = moorage("restore", kept, "chk-2", "--cores", "1", runner=runs[0])
    assert status == 0
    assert runs[1] == [RunOptions(restore="chk-2", cores=1, control=True)]
    assert said == ["clicks goes back to chk-2, as of epoch 2; what it did since is undone. Go on?"]
    # `moorage restore` once more would go back once more.
    assert f"; moorage run {kept} goes on from there" in out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["chk-9", "--yes"], "chk-9"),
        (["chk-1", "--yes"], "chk-1"),
        (["friday", "--yes"], "friday"),
        (["chk-2", "-o", "json"], "nobody is asked where a program reads: output=json; add --yes"),
    ],
)
def test_nothing_is_run_where_there_is_nothing_to_go_back_to_or_nobody_agreed(
    moorage, kept, runs, arguments, why
):
    status, _, err = moorage("restore", kept, *arguments, runner=runs[0])
    assert (status, runs[1]) == (2, [])
    assert why in err


def test_who_does_not_agree_changes_nothing(moorage, kept, runs, monkeypatch):
    def no(_text, **_how):
        raise typer.Abort

    monkeypatch.setattr(CONFIRM, no)
    assert (moorage("restore", kept, "chk-2", runner=runs[0])[0], runs[1]) == (1, [])


def test_a_run_that_goes_on_ends_with_a_last_checkpoint_before(moorage, kept, runs, monkeypatch):
    where = JobSettings.of(load_manifest(kept), kept.parent).checkpoint_dir
    found = replace(
        run_status("clicks", where, sample_run().facts().progress, NOW), pid=os.getpid()
    )
    signals, asked = [], []
    server = ControlServer(control_path(where), Requests(), StateLookups(), lambda: found)

    def slowly(_seconds):  # it answers for a while still
        asked.append("looked")
        if len(asked) == 3:
            server.close()

    monkeypatch.setattr(os, "kill", lambda *one: signals.append(one))
    monkeypatch.setattr(CLOCK, SimpleNamespace(monotonic=lambda: 0, sleep=slowly))
    said = []
    monkeypatch.setattr(CONFIRM, lambda text, **_: said.append(text))
    with server:
        status, _, err = moorage("restore", kept, "chk-2", runner=runs[0])
    assert (status, signals, len(asked)) == (0, [(os.getpid(), signal.SIGTERM)], 3)
    assert f" Its run ends: process {os.getpid()}. Go on?" in said[0]
    assert "takes a last checkpoint and ends" in err
    assert not runs[1][0].take_over
    # One that does not end is left alone.
    server = ControlServer(control_path(where), Requests(), StateLookups(), lambda: found)
    moments = iter(range(100))
    clock = SimpleNamespace(monotonic=lambda: next(moments), sleep=lambda _: None)
    monkeypatch.setattr(CLOCK, clock)
    with server:
        status, _, err = moorage(
            "restore", kept, "chk-2", "--yes", "--timeout", "3", runner=runs[0]
        )
    assert (status != 0, len(runs[1])) == (True, 1)
    assert "the run has not ended in 3 s" in err
