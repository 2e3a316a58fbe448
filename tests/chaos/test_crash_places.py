"""A driver in a process of its own, killed at every place that a checkpoint's life passes."""

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from moorage_testing.lives import Driver, Expected
from moorage_testing.processes import Processes, said
from moorage_testing.whole_lives import check_nothing_left_over

from moorage_state.failpoints import PLACES
from moorage_state.stores import open_store

pytestmark = pytest.mark.chaos

# Those of one backend are met by `test_forst_places`.
PASSED = [place for place in PLACES if not place.startswith(("forst.", "recover."))]
DRIVER = Path(__file__).with_name("driver_process.py")


# Each place on one of the two stores, and in soak on the other one too.
TURN = {"file": 0, "s3": 1}


@pytest.mark.parametrize(
    ("place", "kind", "nth"),
    [
        pytest.param(place, kind, nth, marks=[pytest.mark.soak] if number % 2 == TURN[kind] else [])
        for number, place in enumerate(PASSED)
        for kind, nth in (("file", 1), ("s3", 2))
    ],
)
def test_what_a_killed_driver_leaves_is_restored_right_and_tidied_up(
    processes: Processes,
    new_place: Callable[[str], str],
    tmp_path: Path,
    place: str,
    kind: str,
    nth: int,
) -> None:
    url = new_place(kind)
    killed = processes.start(
        DRIVER, "once", url, str(tmp_path / "killed"), failpoint=f"{place}:kill:{nth}"
    )
    output, _ = killed.communicate(timeout=100)
    assert killed.returncode == -signal.SIGKILL, f"it never came to this place: {output}"
    lines = said(output)
    taken = {line["id"]: line["state"] for line in lines if line["did"] == "taken"}
    completed = max((line["id"] for line in lines if line["did"] == "completed"), default=0)

    store = open_store(url)
    successor = Driver(store, tmp_path / "successor", random.Random(1), Expected())
    found = successor.base.checkpoint_id if successor.base else 0
    assert found in {completed, max(taken, default=0)}
    assert successor.state() == (taken[found] if found else {})
    successor.write()
    successor.upload()
    successor.complete()
    successor.retire(1)
    successor.sweep_all()
    check_nothing_left_over(store)
    last = Driver(store, tmp_path / "last", random.Random(2), Expected())
    assert last.state() == successor.state()
