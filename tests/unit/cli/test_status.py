"""`moorage status`: of jobs that run on this machine, and of stores."""

import json
import re
import socket
import tempfile
import threading
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from moorage_testing.jobs import wait_until
from moorage_testing.page_samples import sample_run

from moorage.cli import savepoint, watch
from moorage.cli.output import SavepointFound
from moorage.cli.savepoint import waits_for
from moorage.driver.control import ControlServer, control_path
from moorage.driver.lookups import StateLookups
from moorage.driver.requests import Requests, SavepointRequest
from moorage.driver.run_status import run_status
from moorage.driver.settings import JobSettings
from moorage.driver.views import CheckpointView, SavepointView, WatermarkView
from moorage_api import load_manifest


@pytest.fixture
def sockets(monkeypatch):
    """An empty folder of sockets, with a path that is short enough."""
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture
def running(sockets, job_file, asked):  # noqa: ARG001 - they lie in that folder
    """A job that runs from the manifest, with everything in it."""
    where = JobSettings.of(load_manifest(job_file), job_file.parent).checkpoint_dir
    now = datetime.now(UTC)
    progress = sample_run().facts().progress
    newest = CheckpointView(9, 90, now - timedelta(seconds=90), 40 << 20, 0, 1.9)
    savepoint = SavepointView("before", "s3://s/before", 8, 80, 1 << 20, 1.0)
    marks = (WatermarkView("sessions", 5_000, "clicks"), WatermarkView("join", None, "payments"))
    progress = replace(progress, last_checkpoint=newest, last_savepoint=savepoint, watermarks=marks)
    progress = replace(progress, epoch_began=now - timedelta(seconds=75))
    found = run_status("clicks", where, progress, now)
    with ControlServer(control_path(where), asked, StateLookups(), lambda: found):
        yield found


@pytest.fixture
def asked():
    """What the job that runs was asked for; it does nothing of it."""
    return Requests()


@pytest.fixture
def willing(sockets, job_file):  # noqa: ARG001 - they lie in that folder
    """A job that runs, and does one thing that is asked for."""
    settings = JobSettings.of(load_manifest(job_file), job_file.parent)
    found = run_status("clicks", settings.checkpoint_dir, sample_run().facts().progress, MOMENT)
    requests, done = Requests(), threading.Event()

    def work():
        while not done.wait(0.01):
            for asked in requests.take():
                view = SavepointView("friday", "file:///s/friday", 8, 80, 1 << 20, 1.0)
                asked.answer(view if isinstance(asked, SavepointRequest) else None)

    thread = threading.Thread(target=work)
    thread.start()
    with ControlServer(
        control_path(settings.checkpoint_dir), requests, StateLookups(), lambda: found
    ):
        yield
    done.set()
    thread.join()


@pytest.mark.usefixtures("running")
def test_a_savepoint_that_is_only_ordered_is_not_waited_for(moorage, asked, job_file, monkeypatch):
    monkeypatch.setattr(savepoint, "_ORDER_SECONDS", 0.05)
    text = job_file.read_text()
    job_file.write_text(text.replace("state: {", 'state: {savepointDir: "file:///s", '))
    status, out, err = moorage("savepoint", job_file, "friday", "--no-wait")
    assert (status, out) == (0, "file:///s/friday\n")
    assert f"ordered: savepoint friday; look for it: moorage status {job_file}" in err
    # Nobody waited for it: it may get there a little later.
    [order] = wait_until(lambda: asked.take_all(SavepointRequest))
    assert (order.name, order.format, order.stop) == ("friday", "canonical", False)


@pytest.mark.parametrize(
    ("wait", "job", "done", "epoch"),
    [("--wait", "willing", True, 80), ("--no-wait", "running", False, None)],
)
def test_a_savepoint_has_one_form_for_programs(
    moorage, job_file, monkeypatch, request, wait, job, done, epoch
):
    """That of a job on a cluster, too: see test_cluster_jobs.py."""
    request.getfixturevalue(job)
    monkeypatch.setattr(savepoint, "_ORDER_SECONDS", 0.05)
    text = job_file.read_text()
    job_file.write_text(text.replace("state: {", 'state: {savepointDir: "file:///s", '))
    status, out, _ = moorage("savepoint", job_file, "friday", wait, "-o", "json")
    document = json.loads(out)
    assert status == 0
    assert document.keys() == {"format", "command", *(one.name for one in fields(SavepointFound))}
    assert (document["name"], document["url"]) == ("friday", "file:///s/friday")
    assert (document["done"], document["epoch"]) == (done, epoch)


def test_who_waits_is_told_what_is_waited_for(running):
    idle = replace(running, epoch_began=None)
    assert waits_for(idle, idle) == ("taken between two epochs", "")
    busy = replace(running, epoch_began=datetime.now(UTC) - timedelta(seconds=65))
    what, how_long = waits_for(busy, busy)
    assert (what, how_long[:-2]) == ("waiting for epoch 41 to end", ", under way for 1m0")
    # The next one is under way: this one is taken, and not yet on its way to the store.
    assert waits_for(busy, replace(busy, epoch=41)) == ("taken between two epochs", "")
    assert waits_for(busy, replace(busy, saving=(1, 3))) == ("state servers write it", "")
    assert (
        waits_for(busy, replace(busy, phase="rewinding"))[0] == "waiting for the end of rewinding"
    )


def test_how_many_servers_have_written_a_savepoint_is_known_while_it_is_under_way():
    progress = sample_run().facts().progress
    first, *others = progress.checkpoints
    assert run_status("clicks", "file:///s", progress, MOMENT).saving is None
    writing = replace(progress, checkpoints=(replace(first, servers=(1, 3)), *others))
    assert run_status("clicks", "file:///s", writing, MOMENT).saving == (1, 3)
    done = replace(first, servers=(3, 3), state="Completed")
    over = replace(progress, checkpoints=(done, *others))
    assert run_status("clicks", "file:///s", over, MOMENT).saving is None


MOMENT = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_what_a_job_was_asked_for_is_there_for_programs(moorage, willing, job_file, form):  # noqa: ARG001
    text = job_file.read_text()
    job_file.write_text(text.replace("state: {", 'state: {savepointDir: "file:///s", '))
    status, out, err = moorage("savepoint", job_file, "friday", "-o", form)
    document = yaml.safe_load(out)
    assert (status, document["command"]) == (0, "savepoint")
    assert document["url"] == "file:///s/friday"
    assert "savepoint friday: as of the end of epoch 80, 1.0 MiB, 1.0 s" in err
    status, out, _ = moorage("rescale", job_file, "3", "-o", form)
    document = yaml.safe_load(out)
    assert (status, document["job"], document["parallelism"]) == (0, "clicks", 3)


def test_a_job_that_runs_is_shown_as_a_tree(moorage, running, job_file):
    status, out, _ = moorage("status", job_file)
    assert status == 0
    # Of 75 and of 90 seconds: on a slow machine some more have passed until it is looked at.
    out = re.sub(r" 1m[1-5]\ds", " 1m..s", re.sub(r"05Z, \S+ behind", "05Z, .. behind", out))
    subtask = "80,000 rows in, 36,000 out, last epoch 300 ms, state 1.0 MiB"
    assert out.splitlines()[:13] == [
        "clicks  running",
        "! going back to the last checkpoint: an executor was lost",
        "! last failure of a checkpoint: CHECKPOINT_EXPIRED: Checkpoint expired before completing.",
        (
            "├── stream: epoch 40, 200,000 rows, 5,000 rows/s, 160 late, 8 with a null key, "
            "state 20.0 MiB"
        ),
        "├── epoch 41 under way for 1m..s",
        "├── watermark of sessions: 1970-01-01 00:00:05Z, .. behind the clock, waits for clicks",
        "├── watermark of join: none yet, waits for payments",
        "├── 4 subtasks of 128 key groups",
        f"├── driver: process {running.pid}, began from chk-7",
        "│   ├── state server 1: 10.0.0.0:7077",
        f"│   │   ├── sessions 0: key groups 0 to 31, {subtask}",
        (
            "│   │   ├── sessions 2: key groups 64 to 95, 40,000 rows in, 36,000 out, "
            "last epoch 300 ms, state 3.0 MiB"
        ),
        f"│   │   ├── join 0: key groups 0 to 31, {subtask}",
    ]
    assert out.splitlines()[-3:] == [
        "├── rewinds: 1; checkpoints of this run: 9 completed, 1 failed",
        "├── checkpoint: 9, 1m..s ago, epoch 90, 40.0 MiB",
        "└── savepoint: before, epoch 80, 1.0 MiB",
    ]


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
@pytest.mark.usefixtures("running")
def test_for_programs_it_is_one_document(moorage, job_file, form, read):
    status, out, _ = moorage("status", job_file, "-o", form)
    document = read(out)
    assert (status, document["format"], document["command"]) == (0, 1, "status")
    assert (document["running"], document["run"]["job"]) == (True, "clicks")
    assert document["run"]["subtasks"][1]["key_groups"] == [32, 63]


@pytest.mark.usefixtures("running")
def test_without_a_name_all_jobs_of_the_machine_are_listed(moorage):
    path = control_path("file:///of/a/run/that/was/killed")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    status, out, err = moorage("status")
    assert (status, err) == (0, "")
    header, row = out.splitlines()
    assert header.split()[:6] == ["NAME", "PHASE", "SUBTASKS", "EPOCH", "ROWS/S", "CHECKPOINT"]
    assert row.split()[:7] == ["clicks", "running", "4", "40", "5,000", "1m30s", "1"]


@pytest.mark.usefixtures("sockets")
def test_where_no_job_runs_it_says_so(moorage):
    status, out, _ = moorage("status")
    assert (status, "no job runs on this machine" in out) == (0, True)
    assert json.loads(moorage("status", "-o", "json")[1])["jobs"] == []


@pytest.mark.usefixtures("sockets")
def test_of_a_job_that_does_not_run_its_store_says_what_it_would_go_on_from(moorage, directory):
    status, out, _ = moorage("status", directory)
    assert status == 0
    assert "does not run on this machine as this user" in out
    assert "├── it would go on from chk-3" in out
    document = json.loads(moorage("status", directory, "-o", "json")[1])
    assert document["running"] is False
    assert document["restore_point"]["checkpoint_id"] == 3


@pytest.mark.usefixtures("sockets")
def test_of_a_job_that_never_ran_there_is_nothing_and_no_trace(moorage, job_file):
    status, out, err = moorage("status", job_file)
    assert (status, "└── nothing to go on from: no checkpoint yet: " in out, err) == (0, True, "")
    assert "moorage run starts it" in out


@pytest.mark.usefixtures("running")
def test_a_folder_stands_for_the_job_in_it(moorage, job_file, monkeypatch):
    monkeypatch.chdir(job_file.parent)
    _, out, _ = moorage("status", ".", "-o", "json")
    assert json.loads(out)["run"]["job"] == "clicks"


@pytest.mark.usefixtures("sockets")
def test_what_is_no_manifest_is_a_clear_error(moorage, tmp_path):
    status, _, err = moorage("status", tmp_path / "none.yaml")
    assert (status, "none.yaml" in err, "Traceback" in err) == (2, True, False)


@pytest.mark.usefixtures("sockets")
def test_what_is_watched_is_a_block_for_each_look_until_the_run_is_over(
    moorage, job_file, monkeypatch
):
    monkeypatch.setattr(watch, "_EVERY_SECONDS", 0.0)
    where = JobSettings.of(load_manifest(job_file), job_file.parent).checkpoint_dir
    found = run_status("clicks", where, sample_run().facts().progress, MOMENT)
    asked = []

    def how_it_is():
        asked.append(found)
        if len(asked) == 2:
            server.close()
        return found

    with ControlServer(control_path(where), Requests(), StateLookups(), how_it_is) as server:
        status, out, err = moorage("status", job_file, "--watch")
    heads = [block.splitlines()[1] for block in out.split("-- ")[1:]]
    stored = f"{job_file}  does not run on this machine as this user"
    assert (status, heads) == (0, ["clicks  running", "clicks  running", stored])
    assert err == f"moorage: clicks runs no more: job={job_file}\n"


@pytest.mark.usefixtures("sockets")
def test_what_does_not_run_is_not_watched(moorage, job_file):
    status, out, err = moorage("status", job_file, "--watch", "-o", "json")
    assert (status, json.loads(out)["running"]) == (0, False)
    assert err == f"moorage: there is no run to watch: job={job_file}\n"


@pytest.mark.usefixtures("sockets")
@pytest.mark.parametrize("command", [("history",), ("snapshots", "ls"), ("report",), ("ui",)])
def test_every_command_says_of_a_job_that_never_ran_how_to_start_it(moorage, job_file, command):
    status, out, err = moorage(*command, job_file)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"moorage: no checkpoint yet: job={job_file} path=")
    assert "moorage run starts it" in err


def test_a_savepoint_is_misspelt_also_where_there_is_none_yet(moorage, job_file):
    text = job_file.read_text()
    job_file.write_text(text.replace("state: {", 'state: {savepointDir: "file://./saves", '))
    status, _, err = moorage("snapshots", "show", job_file, "fridy")
    assert status == 2
    assert f"no checkpoint and no savepoint of this name: path={job_file} name=fridy; " in err
