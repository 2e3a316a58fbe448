"""What a person sees who waits for a savepoint: a bar on a terminal, and lines elsewhere."""

import os
import re
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from moorage.cli.output import waiting_bar
from moorage.cli.savepoint import taken, waits_for
from moorage.driver import control
from moorage.driver.requests import SavepointRequest
from moorage.driver.run_status import run_status
from moorage.driver.types import JobProgress
from moorage.driver.views import SavepointView
from moorage_state.errors import UserError

AT = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\r]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ERASED = "\x1b[2K"


class Terminal:
    """A terminal of 120 columns as standard error, and all that was written to it."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self._ours, theirs = os.openpty()
        self.file = os.fdopen(theirs, "w", encoding="utf-8")
        self._read: list[bytes] = []
        self._reader = threading.Thread(target=self._drain)
        self._reader.start()

    def __enter__(self):
        # With the test, and not before: pytest sets it between the parts of a test, too.
        self._monkeypatch.setattr(sys, "stderr", self.file)

    def __exit__(self, *_):
        self._monkeypatch.undo()

    def _drain(self):
        while True:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # what a terminal says once nobody writes to it any more
                return
            if not piece:
                return
            self._read.append(piece)

    def close(self):
        if not self.file.closed:
            self.file.close()
            self._reader.join()
            os.close(self._ours)

    def written(self):
        """All of it, as it came."""
        self.close()
        return b"".join(self._read).decode()

    def shown(self):
        """The lines that were to be read on it at any time."""
        plain = CONTROLS.sub("\n", COLOURS.sub("", self.written()))
        return [line.strip() for line in plain.splitlines() if line.strip()]


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.MonkeyPatch.context() as stderr:
        one = Terminal(stderr)
        yield one
        one.close()


def test_on_a_terminal_a_bar_says_what_is_done_of_how_much(terminal):
    with terminal, waiting_bar() as show:
        show("savepoint friday: state servers write it", 3, 8, ", under way for 4s")
    (line,) = [line for line in terminal.shown() if "3/8" in line]
    assert "savepoint friday: state servers write it, under way for 4s" in line
    assert line.endswith("0:00:00")
    assert "━" in line


def test_the_bar_is_gone_when_nobody_waits_any_more(terminal):
    with terminal, waiting_bar() as show:
        show("savepoint friday: state servers write it", 8, 8)
    _, _, after = terminal.written().rpartition("8/8")
    assert ERASED in after
    assert not CONTROLS.sub("", after.partition(ERASED)[2]).strip()


def test_without_numbers_no_number_is_made_up(terminal):
    with terminal, waiting_bar() as show:
        show("savepoint friday: waiting for epoch 7 to end")
    lines = [line for line in terminal.shown() if "epoch 7 to end" in line]
    assert lines
    assert not [line for line in lines if re.search(r"\d/\d", line)]


def test_what_somebody_else_says_brings_no_control_characters_onto_the_terminal(terminal):
    with terminal, waiting_bar() as show:
        show("savepoint [red]x[/red]\x1b]0;title\x07", 1, 2)
    assert "savepoint [red]x[/red]\\x1b]0;title\\x07" in "".join(terminal.shown())
    assert "\x1b]0" not in terminal.written()


def test_elsewhere_each_new_text_is_a_line(capsys):
    with waiting_bar() as show:
        show("waiting for epoch 7 to end", 0, None, ", for 1s")
        show("waiting for epoch 7 to end", 0, None, ", for 2s")
        show("state servers write it", 1, 8)
        show("state servers write it", 2, 8)
    assert capsys.readouterr().err.splitlines() == [
        "moorage: waiting for epoch 7 to end",
        "moorage: state servers write it",
    ]


def status(phase="running", epoch=6, saving=None, **more):
    now = JobProgress(phase=phase, epoch=epoch, **more)
    return replace(run_status("clicks", "file:///x", now, AT), saving=saving)


BEGAN = {"epoch_began": datetime.now(UTC) - timedelta(seconds=4)}


@pytest.mark.parametrize(
    ("before", "now", "said", "more"),
    [
        ({}, {"phase": "restoring"}, "waiting for the end of restoring", ""),
        ({}, BEGAN, "waiting for epoch 7 to end", r", under way for .+"),
        ({}, {"epoch": 7} | BEGAN, "taken between two epochs", ""),
        ({}, {}, "taken between two epochs", ""),
        ({}, {"saving": (3, 8)} | BEGAN, "state servers write it", ""),
    ],
)
def test_it_is_said_what_a_savepoint_waits_for(before, now, said, more):
    told, added = waits_for(status(**before), status(**now))
    assert told == said
    assert re.fullmatch(more, added)


class Job:
    """A job that is asked for a savepoint, and says how it is until it has said so often enough."""

    def __init__(self, answer, *statuses):
        self._answer, self._statuses = answer, list(statuses)
        self._told = threading.Event()

    def ask_for_savepoint(self, _door, _request, _timeout):
        assert self._told.wait(60)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def ask_for_status(self, _door, _timeout):
        now = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        if len(self._statuses) == 1:
            self._told.set()
        return now


FRIDAY = SavepointView("friday", "file:///x/friday", 9, 41, 5, 1.0)


def taken_of(job, monkeypatch) -> Any:
    for name in ("ask_for_savepoint", "ask_for_status"):
        monkeypatch.setattr(control, name, getattr(job, name))
    monkeypatch.setattr("moorage.cli.savepoint._LOOK_SECONDS", 0.2)
    return taken(Path("door"), SavepointRequest("friday"), 60)


def test_who_waits_for_a_savepoint_sees_how_it_gets_on(terminal, monkeypatch):
    job = Job(FRIDAY, status(**BEGAN), status(saving=(1, 8)), status(saving=(6, 8)))
    with terminal:
        assert taken_of(job, monkeypatch) == FRIDAY
    shown = terminal.shown()
    assert any("savepoint friday: waiting for epoch 7 to end, under way" in line for line in shown)
    assert any("state servers write it" in line and "1/8" in line for line in shown)


def test_elsewhere_it_is_told_in_lines_and_what_went_wrong_is_raised(capsys, monkeypatch):
    job = Job(UserError("no room"), status(**BEGAN), status(saving=(1, 8)), status(saving=(6, 8)))
    with pytest.raises(UserError, match="no room"):
        taken_of(job, monkeypatch)
    assert capsys.readouterr().err.splitlines() == [
        "moorage: savepoint friday: waiting for epoch 7 to end",
        "moorage: savepoint friday: state servers write it",
    ]
