"""Every place where a test may interrupt a checkpoint is listed, and every listed one is passed."""

import re
from pathlib import Path

import pytest

import moorage_state
from moorage_state import failpoints


def test_the_list_of_places_is_that_of_the_code() -> None:
    root = Path(moorage_state.__path__[0])
    calls = [
        name
        for path in root.rglob("*.py")
        for name in re.findall(r'failpoints\.hit\("([^"]+)"\)', path.read_text())
    ]
    assert sorted(calls) == sorted(failpoints.PLACES), "each place is passed in one line of code"


def test_a_watcher_sees_what_is_passed_and_only_while_it_watches() -> None:
    seen: list[str] = []
    with failpoints.watched(seen.append):
        failpoints.hit("log.before_put")
    failpoints.hit("log.after_put")
    assert seen == ["log.before_put"]


def test_what_a_watcher_raises_interrupts_the_place() -> None:
    def interrupt(_place: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), failpoints.watched(interrupt):
        failpoints.hit("log.before_put")
