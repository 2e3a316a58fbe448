"""What a shell is given that completes `moorage`, by the words of the shell's own protocol."""

import subprocess
import sys
import threading

import pytest

from moorage.cli import completion, history
from moorage.cli.app import app
from moorage_state.errors import StoreUnavailable


@pytest.fixture
def complete(monkeypatch, capsys):
    """What `moorage` answers a shell that asks for the last word of a line, a choice a line."""

    def ask(*words, by="bash"):
        line = " ".join(map(str, ["moorage", *words]))
        for name, value in {
            "_MOORAGE_COMPLETE": f"complete_{by}",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words)),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }.items():
            monkeypatch.setenv(name, value)
        # As a shell calls it, whatever runs the tests is called.
        with pytest.raises(SystemExit) as ended:
            app(prog_name="moorage")
        out, err = capsys.readouterr()
        assert (ended.value.code, err) == (0, "")
        return [line for line in out.splitlines() if line]

    return ask


@pytest.fixture
def job_with_state(job_file, directory):
    """A manifest whose checkpoint directory has chk-2 and chk-3."""
    text = job_file.read_text().replace("file://./state", f"file://{directory}")
    job_file.write_text(text)
    return job_file


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sav"], ["savepoint"]),
        (["sna"], ["snapshots"]),
        (["snapshots", "ver"], ["verify"]),
        (["status", "--ou"], ["--output"]),
        (["status", "-o", "j"], ["json"]),
        (["preflight", "job.yaml", "--for", "l"], ["local"]),
        (["nothing", "like"], []),
    ],
)
def test_commands_options_and_their_values_are_completed(complete, words, found):
    assert complete(*words) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_told_in_its_own_form(complete, shell):
    (line,) = complete("sav", by=shell)
    assert "savepoint" in line
    assert ("Take a savepoint" in line) == (shell != "bash")


@pytest.mark.parametrize(
    "words",
    [
        ("restore", "{job}", "{name}"),
        ("run", "{job}", "--restore", "{name}"),
        ("preflight", "{job}", "--restore", "{name}"),
        ("snapshots", "show", "{job}", "{name}"),
        ("snapshots", "verify", "{directory}", "{name}"),
    ],
)
def test_what_a_job_can_go_back_to_is_completed(complete, job_with_state, directory, words):
    def asked(name, **form):
        given = {"job": job_with_state, "directory": directory, "name": name}
        return complete(*(word.format(**given) for word in words), **form)

    assert asked("") == ["chk-3", "chk-2"]
    assert asked("chk-2") == ["chk-2"]
    assert asked("chk-1") == []
    assert any("Checkpoint, epoch" in line for line in asked("chk-3", by="fish"))


def test_where_nothing_is_known_nothing_is_said(complete, job_file, tmp_path, monkeypatch):
    assert complete("restore", job_file, "chk") == []  # it has not run yet
    assert complete("restore", tmp_path / "no.yaml", "chk") == []
    assert complete("run", "--restore", "chk") == []
    job_file.write_text("neither: a job\n")
    assert complete("restore", job_file, "chk") == []

    def away(*_):
        raise StoreUnavailable("the store does not answer")

    monkeypatch.setattr(history, "entries_of", away)
    assert complete("restore", job_file, "chk") == []


def test_a_store_that_is_silent_is_not_waited_for(complete, job_file, monkeypatch):
    asked, answered = threading.Event(), threading.Event()

    def silent(*_):
        asked.set()
        answered.wait()

    monkeypatch.setattr(history, "entries_of", silent)
    monkeypatch.setattr(completion, "_SECONDS", 0.05)
    try:
        assert complete("restore", job_file, "chk") == []
        assert asked.wait(60)
    finally:
        answered.set()


def test_a_shell_can_have_it_installed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "moorage.cli", "--show-completion", "bash"],
        # Else it goes by the shell that began these tests, whichever that is.
        env={
            "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin",
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "complete_bash" in done.stdout
