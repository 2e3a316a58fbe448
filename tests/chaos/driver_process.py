"""A driver in a process of its own, as `moorage_testing.lives` has it, driven by the tests.

once URL FOLDER           restore, take checkpoints, retire, sweep
race URL FOLDER SECONDS   once a line arrives on stdin: the same as fast as it can, over and over;
                          claims anew when another process has taken over, and now and then so

Each says on stdout what it does, one line of JSON each:
{"did": what, "fence": number, "id": of a checkpoint, "state": keys and values, "digest": text}
"""

import json
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from moorage_testing.lives import Driver, Expected
from moorage_testing.whole_lives import takeovers

from moorage_state.errors import CorruptState, Fenced, ObjectNotFound, StoreUnavailable
from moorage_state.snapshots import (
    Checkpoint,
    LineageLog,
    encode_manifest,
    log,
    manifest_digest,
)
from moorage_state.snapshots.history import current_fence
from moorage_state.stores import ObjectStore, open_store

LONGEST_PAUSE = 0.05
"""How long a racer waits at most before it takes over, in seconds."""


def say(did: str, driver: Driver, checkpoint_id: int = 0, **more: object) -> None:
    fence = driver.writer.fence
    sys.stdout.write(json.dumps({"did": did, "fence": fence, "id": checkpoint_id, **more}) + "\n")
    sys.stdout.flush()


def begin(store: ObjectStore, folder: Path, rng: random.Random) -> Driver:
    driver = Driver(store, folder, rng, Expected())
    found = driver.base.checkpoint_id if driver.base else 0
    say("restored", driver, found, state=driver.state())
    return driver


def checkpoint(driver: Driver) -> None:
    """One checkpoint, whose state is said before it can exist and whose end when it is known."""
    driver.upload()
    if driver.pending is None:
        raise AssertionError("an upload without a result")
    name = (driver.writer.fence, driver.last_id)
    digest = manifest_digest(encode_manifest(driver.pending))
    say("taken", driver, driver.last_id, state=driver.expected.taken[name], digest=digest)
    driver.complete()
    if driver.expected.acknowledged == name:
        say("completed", driver, driver.last_id)


def once(url: str, folder: str) -> None:
    # A log this short would be let grow otherwise.
    log.COMPACT_EVERY, log.VIEW_EVERY = 2, 1
    driver = begin(open_store(url), Path(folder), random.Random(Path(folder).name))
    for _ in range(3):
        driver.write()
        driver.write()
        checkpoint(driver)
        driver.writer.compact()
    driver.retire(1)
    driver.writer.compact()
    for _ in range(2):
        driver.upload()
        driver.abandon()
        driver.sweep()
    driver.write()
    checkpoint(driver)
    driver.retire(1)
    say("ended", driver)


def race(url: str, folder: str, seconds: str) -> None:
    rng, store = random.Random(Path(folder).name), open_store(url)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    end = time.monotonic() + float(seconds)
    claims = 0
    while time.monotonic() < end or not have_met(store, float(seconds)):
        claims += 1
        own = Path(f"{folder}-{claims}")
        try:
            drive(begin(store, own, rng), rng, max(end, time.monotonic() + 1))
        except Fenced:
            time.sleep(rng.uniform(0, LONGEST_PAUSE))
        except (CorruptState, ObjectNotFound, StoreUnavailable):
            # A driver that took over may meanwhile have retired what is restored here, or have
            # swept what is uploaded here: `upload` looks for each object it has put.
            holder = current_fence([entry for _, entry in LineageLog.open(store).read()])
            if holder is None or holder.holder == own.name:
                raise
        finally:
            shutil.rmtree(own, ignore_errors=True)


def have_met(store: ObjectStore, seconds: float) -> bool:
    """Whether the log holds as much of a race as one of so many seconds must, to prove something.

    A machine that is busy with other things takes longer for that.
    """
    entries = [entry for _, entry in LineageLog.open(store).read()]
    completed = sum(isinstance(entry, Checkpoint) for entry in entries)
    return takeovers(entries) >= seconds / 4 and completed >= seconds


def drive(driver: Driver, rng: random.Random, end: float) -> None:
    """Take checkpoints until another driver takes over, or for as long as it likes."""
    while time.monotonic() < end and rng.random() > 0.02:
        driver.write()
        try:
            checkpoint(driver)
        except Fenced:
            say("fenced", driver, driver.last_id)
            raise
        if rng.random() < 0.2:
            driver.retire()
        if rng.random() < 0.05:
            driver.sweep()


if __name__ == "__main__":
    actions: dict[str, Callable[..., None]] = {"once": once, "race": race}
    actions[sys.argv[1]](*sys.argv[2:])
