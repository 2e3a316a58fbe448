import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from moorage.cli.output import (
    one_line,
)
from moorage.cli.snapshots import _show_copied
from moorage.offline import savepoint_copy
from moorage.offline.savepoint_copy import Copied
from moorage.texts import age_text

ROOT = Path(__file__).parents[3]


def result(out):
    """The document that a command printed."""
    document = json.loads(out)
    assert list(document)[:2] == ["format", "command"]
    assert document["format"] == 1
    return document


def damage(directory):
    path = max((directory / "shared").iterdir())
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    return path


def test_the_list_is_aligned_text(moorage, directory):
    status, out, err = moorage("snapshots", "ls", directory)
    assert (status, err) == (0, "")
    header, older, newer = out.splitlines()
    assert header.split() == [
        *("CHECKPOINT", "STATE", "EPOCH", "COMPLETED", "AGE", "SIZE", "NEW", "FILES"),
    ]
    assert older.startswith("chk-2       retained           2  2026-01-02 03:06:05Z")
    assert newer.startswith("chk-3       restore point      3  2026-01-02 03:07:05Z")
    assert "\x1b" not in out


def test_the_list_as_json_has_times_and_bytes(moorage, directory):
    status, out, _ = moorage("snapshots", "ls", directory, "--all", "-o", "json")
    assert status == 0
    document = result(out)
    assert document["command"] == "snapshots ls"
    assert document["directory"] == f"file://{directory}"
    gone, _, newest = document["checkpoints"]
    assert gone["standing"] == "gone"
    assert newest["completed_at"] == "2026-01-02T03:07:05Z"
    assert isinstance(newest["bytes"], int)
    assert [row["seq"] for row in document["history"]] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.usefixtures("directory")
def test_a_jobs_manifest_names_both_directories(moorage, job_file):
    saves = job_file.parent / "saves"
    text = job_file.read_text().replace(
        '"file://./state"', '"file://./dir", savepointDir: "file://./saves"'
    )
    job_file.write_text(text)
    assert moorage("snapshots", "copy", job_file, saves / "sp-1")[0] == 0
    status, out, _ = moorage("snapshots", "ls", job_file)
    assert status == 0
    assert "chk-3" in out
    assert "sp-1" in out
    assert moorage("snapshots", "show", job_file, "sp-1")[0] == 0


def test_one_snapshot_is_shown(moorage, directory):
    status, out, _ = moorage("snapshots", "show", directory, "chk-2")
    assert status == 0
    assert f"path                       file://{directory}/chk-2\n" in out
    assert "taken by                   fence 1, run 0, moorage 0.1.0, pid 7\n" in out
    assert "operator visits: parallelism 2, key string" in out
    assert "  by_day  map date -> double\n" in out
    assert "  8-15        native" in out
    assert re.search(r"^lowest watermark +-$", out, re.MULTILINE)
    assert re.search(r"^newest event time of in +2013-01-01 10:00:00Z$", out, re.MULTILINE)
    document = result(moorage("snapshots", "show", directory / "chk-2", "-o", "json")[1])
    assert document["standing"] == "retained"
    assert document["operators"][0]["ranges"][1]["start"] == 8
    assert document["watermarks"] == {"": None, "idle": None, "in": "2013-01-01T10:00:00Z"}


def test_what_is_whole_has_status_0_and_what_is_damaged_status_5(moorage, directory):
    status, out, _ = moorage("snapshots", "verify", directory, "--full")
    assert status == 0
    assert "snapshots  chk-2, chk-3\n" in out
    path = damage(directory)
    assert moorage("snapshots", "verify", directory)[0] == 0
    status, out, _ = moorage("snapshots", "verify", directory, "--full")
    assert status == 5
    assert f"file://{path}" in out
    assert "does not match its checksum" in out
    status, out, _ = moorage("snapshots", "verify", directory, "--full", "-o", "json")
    assert status == 5
    assert [one["path"] for one in result(out)["damage"]] == [f"file://{path}"]


def test_two_checkpoints_are_compared(moorage, directory):
    status, out, _ = moorage("snapshots", "diff", directory / "chk-2", "chk-3")
    assert status == 0
    assert "source files.in        offset 2              offset 3\n" in out
    name = "visits/visit"
    status, out, _ = moorage(
        *("snapshots", "diff", directory / "chk-2", directory, "--state", name, "-o", "json")
    )
    document = result(out)
    assert document["state"] == {
        "uid": "visits",
        "state": "visit",
        "added": 1,
        "removed": 0,
        "changed": 0,
        "same": 40,
    }
    assert document["difference"]["files"]["both"] > 0


def test_garbage_is_only_deleted_on_request(moorage, directory):
    litter = directory / "shared" / "pack-c-1-3"
    litter.write_bytes(b"abc")
    old = time.time() - timedelta(days=2).total_seconds()
    os.utime(litter, (old, old))
    for options in ([], ["--dry-run"]):
        status, out, _ = moorage("snapshots", "gc", directory, *options)
        assert status == 0
        assert "shared/pack-c-1-3" in out
        assert "garbage  1 objects, 3 B, older than 24h00m; nothing was deleted\n" in out
    assert litter.exists()
    assert moorage("snapshots", "gc", directory, "--dry-run", "--delete")[0] == 2
    assert litter.exists()
    status, out, _ = moorage("snapshots", "gc", directory, "--delete", "-o", "json")
    assert (status, result(out)["deleted"]) == (0, 1)
    assert not litter.exists()


def test_a_copy_is_a_savepoint_and_never_replaces_anything(moorage, directory, tmp_path):
    status, out, _ = moorage("snapshots", "copy", directory / "chk-2", tmp_path / "sp")
    assert status == 0
    assert f"to      file://{tmp_path}/sp\n" in out
    assert moorage("snapshots", "verify", tmp_path / "sp", "--full")[0] == 0
    status, out, err = moorage("snapshots", "copy", directory / "chk-3", tmp_path / "sp")
    assert (status, out) == (2, "")
    assert "savepoint directory is not empty" in err
    assert "choose another name" in err


@pytest.mark.parametrize("more", [(), ("--full",)])
def test_an_interrupted_copy_says_which_command_goes_on(
    moorage, directory, tmp_path, monkeypatch, more
):
    """A directory may stand for another checkpoint by then."""

    def interrupted(*_, **_more):
        raise KeyboardInterrupt

    target = tmp_path / "a copy"
    with monkeypatch.context() as patch:
        patch.setattr(savepoint_copy, "bring", interrupted)
        status, _, err = moorage("snapshots", "copy", directory, target, *more)
    assert status == 130
    source = f"file://{directory}/chk-3"
    words = shlex.split(err.rpartition("to go on where it stopped: moorage ")[2])
    assert words == ["snapshots", "copy", source, str(target), *more]
    assert moorage(*words)[0] == 0


def test_a_copy_of_what_stands_in_the_manifest_does_not_look_empty(capsys):
    _show_copied(Copied("file:///dir/chk-2", "file:///sp", "sp", 0, 0, 0))
    _show_copied(Copied("file:///dir/chk-3", "file:///sp", "sp", 2, 4096, 1))
    out = capsys.readouterr().out
    assert "size    all of it stands in the manifest\n" in out
    assert "size    4.0 KiB in 2 files, 1 of them from before\n" in out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["ls", "{tmp}/gone"], 2, "does not exist"),
        (["show", "{tmp}/dir/chk-9"], 2, "retained are: chk-3, chk-2"),
        (["show", "{tmp}"], 2, "no checkpoint and no savepoint here"),
        (["show", "hdfs://x/y"], 2, "store address is not supported"),
        (["verify", "{tmp}"], 2, "no checkpoint and no savepoint here"),
        (["diff", "{tmp}/dir", "{tmp}/dir", "--state", "x/y"], 2, "no such operator"),
        (["gc", "{tmp}"], 2, "it has no log"),
        (["gc", "{tmp}/dir", "--age", "tomorrow"], 2, "such as 60s, 10m or 1h30m"),
        (["copy", "{tmp}/dir", "{tmp}/dir/sp"], 2, "outside of what it copies"),
        (["ls", "{tmp}/job.yaml"], 2, "job.yaml"),
    ],
)
@pytest.mark.usefixtures("directory")
def test_what_is_typed_wrong_is_answered_with_what_to_do(
    moorage, tmp_path, arguments, status, message
):
    filled = [argument.format(tmp=tmp_path) for argument in arguments]
    found, out, err = moorage("snapshots", *filled)
    assert (found, out) == (status, "")
    assert message in err
    assert "Traceback" not in err


def test_a_damaged_log_is_status_5_wherever_it_is_read(moorage, directory):
    (directory / "log" / f"{2:020d}.json").write_text("{}")
    for command in ("ls", "show", "gc", "verify"):
        assert moorage("snapshots", command, directory)[0] == 5


def test_an_empty_directory_is_said_to_be_empty(moorage, tmp_path):
    status, out, err = moorage("snapshots", "ls", tmp_path)
    assert (status, out) == (0, "")
    assert "nothing is stored here yet" in err


def test_what_a_store_holds_cannot_steer_the_terminal():
    assert one_line("a\x1b[2Jb\nc\u202ed") == "a\\x1b[2Jb\\nc\\u202ed"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (61, "1m01s"), (86_400, "24h00m"), (200_000, "2d07h"), (None, None)],
)
def test_ages_have_two_units(seconds, text):
    assert age_text(seconds) == text


def environment():
    paths = os.pathsep.join(str(ROOT / name) for name in ("backends", "operator", "runtime"))
    return {**os.environ, "PYTHONPATH": paths}


@pytest.mark.parametrize(
    "arguments",
    [
        ["snapshots", "ls", "{}"],
        ["snapshots", "verify", "{}", "--full"],
        ["snapshots", "copy", "{}", "{}-copy"],
        ["state", "ls", "{}"],
    ],
)
def test_what_only_reads_manifests_and_files_needs_no_spark_rocksdb_and_arrow(directory, arguments):
    program = (
        "import sys; sys.argv = ['moorage', *sys.argv[1:]]\n"
        "from moorage.cli.app import run_app; status = run_app()\n"
        "heavy = {'pyspark', 'rocksdict', 'pyarrow', 'pandas', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else status)\n"
    )
    filled = [argument.format(directory) for argument in arguments]
    subprocess.run(
        [sys.executable, "-c", program, *filled],
        check=True,
        env=environment(),
        stdout=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_says_what_is_left_and_has_its_own_status(directory, number):
    program = (
        "import os, sys; sys.argv = ['moorage', 'snapshots', 'verify', sys.argv[1]]\n"
        "from moorage.cli.app import run_app\n"
        "from moorage.offline import verification\n"
        f"verification.has_log = lambda store: os.kill(os.getpid(), {int(number)})\n"
        "sys.exit(run_app())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        check=False,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == "moorage: interrupted; nothing is known of what was not checked\n"


def test_times_are_iso_8601_in_utc(moorage, directory):
    document = result(moorage("snapshots", "show", directory, "-o", "json")[1])
    moment = datetime.fromisoformat(document["created_at"])
    assert document["created_at"].endswith("Z")
    assert moment.utcoffset() == timedelta(0)
