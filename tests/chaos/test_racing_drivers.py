"""Live drivers that take one lineage from each other: who was overtaken commits nothing."""

import random
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from moorage_testing.lives import Driver, Expected
from moorage_testing.processes import Processes, said
from moorage_testing.whole_lives import check_nothing_left_over, existing, takeovers

from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    Entry,
    Fence,
    LineageLog,
    manifest_digest,
    verify_files,
)
from moorage_state.stores import ObjectStore, open_store

pytestmark = pytest.mark.chaos

NewPlace = Callable[[str], str]

DRIVER = Path(__file__).with_name("driver_process.py")


def race(
    processes: Processes, url: str, home: Path, drivers: int, seconds: float
) -> list[dict[str, Any]]:
    """Let drivers race from one moment on; return what all of them said."""
    racers = [
        processes.start(DRIVER, "race", url, str(home / f"racer{n}"), str(seconds))
        for n in range(drivers)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"

    def run(racer: "subprocess.Popen[str]") -> list[dict[str, Any]]:
        output, _ = racer.communicate("go\n", timeout=seconds + 120)
        assert racer.returncode == 0, output[-2000:]
        return said(output)

    with ThreadPoolExecutor(drivers) as pool:
        return [line for lines in pool.map(run, racers) for line in lines]


def check_order(entries: Sequence[Entry]) -> None:
    """Fences and ids only grow, and nobody writes whose fence was overtaken."""
    fences = [entry for entry in entries if isinstance(entry, Fence)]
    assert [fence.fence for fence in fences] == list(range(1, len(fences) + 1))
    holding = 0
    for entry in entries[1:]:
        assert hasattr(entry, "fence")
        assert isinstance(entry, Fence) or entry.fence == holding
        holding = entry.fence
    ids = [entry.checkpoint_id for entry in entries if isinstance(entry, Checkpoint)]
    assert all(one < next_one for one, next_one in pairwise(ids))


def check_manifests(
    store: ObjectStore, entries: Sequence[Entry], lines: Sequence[dict[str, Any]]
) -> None:
    """Of each checkpoint there is the manifest that the log names, or none once it was retired.

    Where a retired one's was deleted there may be another one in its stead: that of a driver that
    had been overtaken before it put it. It makes nothing exist, and the next sweep takes it.
    """
    live = {entry.checkpoint_id for entry in existing(store)}
    stored = {info.key for info in store.list("chk-")}
    checkpoints = CheckpointStore(store)
    taken = {line["digest"]: line for line in lines if line["did"] == "taken"}
    for entry in entries:
        if not isinstance(entry, Checkpoint):
            continue
        if entry.checkpoint_id in live:
            verify_files(store, checkpoints.load(entry), full=True)
        elif entry.manifest_key in stored:
            digest = manifest_digest(store.get(entry.manifest_key))
            if digest != entry.manifest_digest:
                left = taken[digest]
                assert (left["id"], left["fence"] < entry.fence) == (entry.checkpoint_id, True), (
                    f"manifest of fence {left['fence']} in the place of {entry}"
                )


def check_the_next_driver_cleans_up(store: ObjectStore, folder: Path) -> None:
    driver = Driver(store, folder, random.Random(0), Expected())
    driver.write()
    driver.upload()
    driver.complete()
    driver.retire(1)
    driver.sweep_all()
    check_nothing_left_over(store)


def check_what_was_said(entries: Sequence[Entry], lines: Sequence[dict[str, Any]]) -> None:
    """What was acknowledged exists, what was refused does not; restores found what was taken."""
    logged = [(e.fence, e.checkpoint_id) for e in entries if isinstance(e, Checkpoint)]
    names = {what: _names(lines, what) for what in ("taken", "completed", "fenced")}
    assert names["completed"] <= set(logged) <= names["taken"]
    assert not names["fenced"] & set(logged)
    taken = {(line["fence"], line["id"]): line for line in lines if line["did"] == "taken"}
    last_before: dict[int, tuple[int, int]] = {}
    last = (0, 0)
    for entry in entries:
        if isinstance(entry, Fence):
            last_before[entry.fence] = last
        elif isinstance(entry, Checkpoint):
            last = (entry.fence, entry.checkpoint_id)
            assert entry.manifest_digest == taken[last]["digest"]
    for line in lines:
        if line["did"] == "restored":
            expected = last_before[line["fence"]]
            assert line["id"] == expected[1]
            assert line["state"] == (taken[expected]["state"] if expected[1] else {})


def _names(lines: Sequence[dict[str, Any]], what: str) -> set[tuple[int, int]]:
    return {(line["fence"], line["id"]) for line in lines if line["did"] == what}


def check_race(
    store: ObjectStore, home: Path, lines: Sequence[dict[str, Any]], seconds: float
) -> bool:
    """Check all that happened; whether the drivers met, else it proves nothing."""
    records = LineageLog.open(store).read_records()
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    entries = [record.entry for record in records]
    check_order(entries)
    check_manifests(store, entries, lines)
    check_what_was_said(entries, lines)
    check_the_next_driver_cleans_up(store, home / "last")
    fenced, completed = _names(lines, "fenced"), _names(lines, "completed")
    fought = takeovers(entries) >= seconds / 4 and len(fenced) >= seconds / 10
    return fought and len(completed) >= seconds


@pytest.mark.parametrize(("kind", "drivers"), [("file", 2), ("s3", 3)])
@pytest.mark.scenario(35)
def test_drivers_that_race_for_five_seconds_never_write_after_a_higher_fence(
    processes: Processes, new_place: NewPlace, tmp_path: Path, kind: str, drivers: int
) -> None:
    # On a busy machine five seconds may pass without a meeting.
    for number in range(6):
        url, home = new_place(kind), tmp_path / f"race-{number}"
        home.mkdir()
        lines = race(processes, url, home, drivers, 5)
        if check_race(open_store(url), home, lines, 5):
            return
    pytest.fail("the drivers never met")


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("drivers", [2, 3])
@pytest.mark.parametrize("kind", ["file", "s3"])
def test_drivers_that_race_for_a_minute_never_write_after_a_higher_fence(
    processes: Processes, new_place: NewPlace, tmp_path: Path, kind: str, drivers: int
) -> None:
    url = new_place(kind)
    lines = race(processes, url, tmp_path, drivers, 60)
    assert check_race(open_store(url), tmp_path, lines, 60)
