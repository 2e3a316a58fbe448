import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.main import get_group

from moorage.cli.app import _OTHERWISE, app, run_session
from moorage.cli.cluster_jobs import plugin
from moorage.cli.progress import PlainDisplay
from moorage.driver.types import JobProgress, RunOptions, RunOutcome, RunResult
from moorage.driver.views import CheckpointView, OddRows
from moorage_api import load_manifest
from moorage_state.errors import CorruptState, UserError

ROOT = Path(__file__).parents[3]


class Recorder:
    """A runner that notes what it is called with."""

    def __init__(self, end):
        self.end = end
        self.calls = []

    def __call__(self, job, job_dir, options, listener):
        self.calls.append((job, job_dir, options))
        listener(JobProgress(epoch=1, epochs=1, phase="running"))
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


FINISHED = RunResult(RunOutcome.FINISHED, epoch=12, rows_total=336_776, seconds=41.26)


def test_a_run_that_finishes_says_so_and_succeeds(moorage, job_file):
    runner = Recorder(FINISHED)
    status, out, err = moorage("run", job_file, runner=runner)
    assert status == 0
    assert out == (
        "clicks finished: 336,776 rows in 41.3 s, epoch 12, no checkpoint in file://./state\n"
    )
    assert "running: epoch 1" in err
    ((job, job_dir, _),) = runner.calls
    assert job.name == "clicks"
    assert job_dir == job_file.parent


def test_the_options_reach_the_driver(moorage, job_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = Recorder(FINISHED)
    arguments = ["--take-over", "--restore", "chk-7", "--local-dir", "work", "--cores", "2"]
    status, _, _ = moorage("run", job_file, *arguments, "--plain", runner=runner)
    assert status == 0
    ((_, _, options),) = runner.calls
    assert options == RunOptions(
        take_over=True, restore="chk-7", local_dir=tmp_path / "work", cores=2, control=True
    )


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ("chk-12", "chk-12"),
        ("file:///a/chk-3", "file:///a/chk-3"),
        ("state/chk-3", "file://{cwd}/state/chk-3"),
        ("/a/chk-3", "file:///a/chk-3"),
        ("../a/./chk-3", "file://{cwd.parent}/a/chk-3"),
        ("a b/50%25/chk-3", "file://{cwd}/a%20b/50%2525/chk-3"),
    ],
)
def test_a_restore_point_may_be_an_id_a_url_or_a_path(
    moorage, job_file, tmp_path, monkeypatch, given, passed
):
    monkeypatch.chdir(tmp_path)
    runner = Recorder(FINISHED)
    moorage("run", job_file, "--restore", given, runner=runner)
    assert runner.calls[0][2].restore == passed.format(cwd=tmp_path)


def test_a_bad_manifest_is_status_2_with_every_problem(moorage, job_file):
    job_file.write_text(job_file.read_text().replace("parallelism: 2", "parallelism: 0, x: 1"))
    status, out, err = moorage("run", job_file, runner=Recorder(FINISHED))
    assert (status, out) == (2, "")
    assert "spec.scaling.parallelism (line 6): 0 is too small; write 1 or more" in err
    assert "spec.scaling.x (line 6): is not a field" in err


def test_a_missing_job_file_is_found_before_spark_is_started(moorage, job_file):
    (job_file.parent / "job.py").unlink()
    runner = Recorder(FINISHED)
    status, _, err = moorage("run", job_file, runner=runner)
    assert status == 2
    assert "spec.application.mainFile (line 5): is not a file on this machine" in err
    assert runner.calls == []


def test_what_the_release_cannot_do_stops_the_run_and_what_it_ignores_is_named(moorage, job_file):
    text = job_file.read_text()
    job_file.write_text(text + "  image: registry/clicks:1\n")
    status, _, err = moorage("run", job_file, runner=Recorder(FINISHED))
    assert status == 0
    assert "ignored on this machine: spec.image\n" in err
    job_file.write_text(text + "  savepoint: {schedule: {cron: 0 3 * * *}}\n")
    status, _, err = moorage("run", job_file, runner=Recorder(FINISHED))
    assert status == 2
    assert "spec.savepoint.schedule (line 8): " in err


def test_an_error_of_the_run_is_printed_without_a_trace_and_gives_its_status(moorage, job_file):
    error = CorruptState("checkpoint is damaged", "s3://me:pw@b/chk-7", "restore chk-6")
    status, _, err = moorage("run", job_file, runner=Recorder(error))
    assert status == 5
    assert "moorage: checkpoint is damaged: path=s3://***@b/chk-7; restore chk-6" in err
    assert "Traceback" not in err


def test_an_error_nobody_expected_is_status_1_and_shows_its_trace(moorage, job_file):
    status, _, err = moorage("run", job_file, runner=Recorder(ZeroDivisionError("oops")))
    assert status == 1
    assert "internal error; please report it" in err
    assert "ZeroDivisionError: oops" in err


def test_the_trace_of_an_internal_error_shows_no_local_values(moorage, job_file, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "hunter22secret")

    def runner(*_arguments):
        password = os.environ["DB_PASSWORD"]
        raise RuntimeError(f"cannot log in with {password}")

    _, _, err = moorage("run", job_file, runner=runner)
    assert "hunter22secret" not in err


@pytest.mark.parametrize("kind", [UserError, RuntimeError])
def test_what_ends_a_run_shows_no_secrets_of_its_manifest(moorage, job_file, kind):
    manifest = yaml.safe_load(job_file.read_text())
    manifest["spec"]["sparkConf"] = {"spark.my.password": "opensesame99"}
    job_file.write_text(yaml.safe_dump(manifest))
    runner = Recorder(kind("a sink failed: KeyError: opensesame99"))
    _, _, err = moorage("run", job_file, runner=runner)
    assert "a sink failed: KeyError: ***" in err
    assert "opensesame99" not in err


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["run", "job.yaml", "--cores", "0"], ["run", "--no-such"], ["fly"], ["validate"]],
)
def test_wrong_arguments_are_status_2(moorage, arguments):
    status, out, err = moorage(*arguments)
    assert (status, out) == (2, "")
    assert "Error" in err


def test_help_is_no_error_and_lists_the_commands(moorage):
    status, out, _ = moorage("--help")
    assert status == 0
    for command in ("run", "validate", "version"):
        assert command in out


def test_validate_starts_nothing_and_names_the_job(moorage, job_file):
    status, out, _ = moorage("validate", job_file)
    assert status == 0
    assert out == f"{job_file} is valid: job clicks, parallelism 2 of 128 key groups\n"


def test_validate_can_apply_the_rules_of_a_place(moorage, job_file):
    status, _, err = moorage("validate", job_file, "--for", "cluster")
    assert status == 2
    assert "spec.image (line 4): is missing" in err
    assert moorage("validate", job_file, "--for", "local")[0] == 0


@pytest.mark.parametrize(
    ("state", "status", "said"),
    [
        (
            'options: {"state.backend.sqlite.cache": "1"}',
            0,
            "keys=state.backend.sqlite.cache; the op",
        ),
        ('options: {"state.backend.rocksdb.threads": "1"}', 2, "rocksdb.threads"),
        ('backend: rocksdb, options: {"state.backend.sqlite.cache": "1"}', 2, "sqlite.cache"),
        ('backend: "m:C", options: {"state.backend.sqlite.cache": "1"}', 0, ""),
        ('options: {"state.backend.rocksdb.thread.num": "4"}', 0, ""),
    ],
)
def test_settings_that_a_default_of_the_cluster_may_have_are_told_and_not_refused(
    moorage, tmp_path, state, status, said
):
    manifest = tmp_path / "job.yaml"
    manifest.write_text(
        "apiVersion: moorage.dev/v1alpha1\nkind: StatefulSparkJob\nmetadata: {name: clicks}\n"
        "spec:\n  image: example/clicks:1\n  application: {mainFile: local:///app/job.py}\n"
        "  scaling: {parallelism: 2}\n"
        "  upgrade: {mode: LastCheckpoint}\n"
        f"  state: {{checkpointDir: s3://bucket/clicks, {state}}}\n"
    )
    found, _, err = moorage("validate", manifest, "--for", "cluster")
    assert (found, said in err, bool(err)) == (status, True, bool(said)), err


def test_version_names_what_is_installed(moorage):
    status, out, _ = moorage("version")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "moorage",
        "python",
        "pyspark",
        "rocksdict",
    ]


def test_the_version_alone_is_printed_for_programs(moorage):
    import moorage as package

    assert moorage("--version") == (0, f"moorage {package.__version__}\n", "")


def test_a_job_that_had_finished_says_so_and_shows_no_zeros(moorage, job_file):
    def runner(_job, _job_dir, _options, listener):
        listener(JobProgress(epoch=9, phase="finished", restored_from="chk-3"))
        return RunResult(RunOutcome.FINISHED, 9, 0, 0.1, restored_from="chk-3", already=True)

    status, out, err = moorage("run", job_file, runner=runner)
    assert status == 0
    assert out == (
        "clicks has finished already, with chk-3 at epoch 9: nothing is left to do of what it was "
        "to read; take out spec.bounded to go on with input that came since; to run it again name "
        "another checkpointDir, or go back with --restore chk-<id>\n"
    )
    assert err == ""


def test_everything_but_a_run_works_without_spark_rocksdb_and_arrow(job_file):
    program = (
        "import sys; sys.argv = ['moorage', 'validate', sys.argv[1]]\n"
        "from moorage.cli.app import run_app; status = run_app()\n"
        "heavy = {'pyspark', 'rocksdict', 'pyarrow', 'pandas', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else status)\n"
    )
    paths = os.pathsep.join(str(ROOT / name) for name in ("backends", "operator", "runtime"))
    subprocess.run(
        [sys.executable, "-c", program, str(job_file)],
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


def test_an_error_in_the_driver_thread_reaches_the_caller_unchanged(job_file):
    error = UserError("null keys: count=3")
    with pytest.raises(UserError) as caught:
        run_session(
            Recorder(error),
            load_manifest(job_file),
            job_file.parent,
            RunOptions(),
            PlainDisplay(io.StringIO()),
        )
    assert caught.value is error


def test_the_summary_counts_what_was_odd_about_rows(moorage, job_file):
    finished = replace(FINISHED, odd=OddRows(late=3, null_keys=2))
    _, out, _ = moorage("run", job_file, runner=Recorder(finished))
    assert (
        "finished: 336,776 rows (3 late) and 2 not processed (2 with a null key) in 41.3 s, " in out
    )


def test_the_rows_of_a_restored_run_are_said_to_be_those_of_this_run_alone(moorage, job_file):
    restored = replace(FINISHED, restored_from="chk-3")
    _, out, _ = moorage("run", job_file, runner=Recorder(restored))
    assert "finished: 336,776 rows in the 41.3 s of this run, epoch 12, " in out


def test_how_a_run_ended_is_there_for_programs(moorage, job_file):
    _, out, _ = moorage("run", job_file, "-o", "json", runner=Recorder(FINISHED))
    found = json.loads(out)
    assert (found["command"], found["run"]["outcome"]) == ("run", "finished")
    assert found["run"]["rows_total"] == FINISHED.rows_total


def test_a_checkpoint_is_named_in_the_summary(moorage, job_file):
    from datetime import UTC, datetime

    view = CheckpointView(9, 12, datetime(2026, 11, 20, tzinfo=UTC), 1, 1, 0.1)
    stopped = RunResult(RunOutcome.STOPPED, 12, 100, 2.0, last_checkpoint=view)
    _, out, _ = moorage("run", job_file, runner=Recorder(stopped))
    assert "checkpoint 9 in file://./state; the same command goes on from there" in out
    at_once = RunResult(RunOutcome.STOPPED, 0, 0, 2.0)
    _, out, _ = moorage("run", job_file, runner=Recorder(at_once))
    assert "no checkpoint in file://./state; the same command begins with the start" in out
    elsewhere = replace(at_once, restored_from="file:///initial")
    _, out, _ = moorage("run", job_file, runner=Recorder(elsewhere))
    assert "no checkpoint in file://./state; the same command begins from file:///initial" in out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("checkpoints", "moorage history JOB.yaml (on a cluster: kubectl moorage history JOB)"),
        ("start", "moorage run JOB.yaml"),
        ("stop", "moorage savepoint JOB.yaml NAME --stop"),
        ("ps", "moorage status"),
        ("deploy", "kubectl apply -f JOB.yaml"),
        ("logs", "on a cluster: kubectl logs POD"),
        ("staus", "Did you mean 'status'"),
    ],
)
def test_a_command_that_is_not_there_is_told_what_to_call(moorage, monkeypatch, name, said):
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    status, out, err = moorage(name)
    assert (status, out) == (2, "")
    assert said in " ".join(err.replace("│", " ").split())


def test_no_name_of_another_command_hides_one_of_ours():
    assert not set(_OTHERWISE) & set(get_group(app).commands)


def test_a_verdict_on_a_manifest_is_there_for_programs_right_or_wrong(moorage, job_file):
    status, out, _ = moorage("validate", job_file, "-o", "json")
    document = json.loads(out)
    assert (status, document["valid"], document["problems"]) == (0, True, [])
    assert document["job"] == "clicks"
    job_file.write_text(job_file.read_text().replace("parallelism: 2", "parallelism: 2, x: 1"))
    status, out, err = moorage("validate", job_file, "-o", "json")
    document = json.loads(out)
    assert (status, document["valid"], err) == (2, False, "")
    (problem,) = document["problems"]
    assert (problem["field"], problem["reason"]) == ("spec.scaling.x", "is not a field")
    assert problem["line"] > 1
    assert problem["fix"].startswith("remove it; known here")


HELP = "Text for people, or one document for programs."


def commands_of(command, name):
    for sub, found in getattr(command, "commands", {}).items():
        yield from commands_of(found, f"{name} {sub}")
    if not hasattr(command, "commands"):
        yield name, command


@pytest.mark.parametrize("which", [app, plugin], ids=["moorage", "kubectl moorage"])
def test_every_command_prints_what_it_found_for_programs(which):
    name = "moorage" if which is app else "kubectl moorage"
    for told, command in commands_of(get_group(which), name):
        said = [one.help for one in command.params if "-o" in one.opts]
        assert said == [HELP], told


def test_versions_are_there_for_programs(moorage):
    status, out, _ = moorage("version", "-o", "json")
    assert status == 0
    assert json.loads(out).keys() == {
        *("format", "command", "moorage", "python", "pyspark", "rocksdict")
    }
