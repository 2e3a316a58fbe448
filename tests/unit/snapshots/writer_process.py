"""A writer in a process of its own, driven by the tests.

claim URL HOLDER          claim, append one Run entry, and say how that ended
complete URL HOLDER       claim, complete a checkpoint without files, and say how that ended
race URL HOLDER ENTRIES   once a line arrives on stdin: claim and append, again whenever another
                          process takes over, until the log has that many entries
"""

import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from moorage_state.errors import AlreadyExists, Fenced
from moorage_state.snapshots import (
    CheckpointStore,
    LineageLog,
    LogWriter,
    Manifest,
    OperatorState,
    Owner,
    RangeHandle,
    Run,
)
from moorage_state.stores import open_store

OWNER = Owner("here", "default", "flights", "uid-1")


def claim(url: str, holder: str) -> None:
    writer = LogWriter.claim(open_store(url), OWNER, holder)
    sys.stdout.write(f"claimed {writer.fence}\n")
    try:
        writer.append(Run(writer.fence, 0))
    except Fenced as error:
        sys.stdout.write(f"fenced: {error}\n")
    else:
        sys.stdout.write("appended\n")


def complete(url: str, holder: str) -> None:
    store = open_store(url)
    writer = LogWriter.claim(store, OWNER, holder)
    checkpoints = CheckpointStore(store)
    handle = RangeHandle(
        uid="op", start=0, end=0, epoch=1, digest="", backend_uuid="b", files=[], bytes_total=0
    )
    operator = OperatorState(parallelism=1, key_types=[], states=[], subtasks=[handle])
    manifest = Manifest(
        lineage=writer.lineage,
        checkpoint_id=checkpoints.next_id(writer.entries),
        epoch=1,
        fence=writer.fence,
        run=0,
        created_at=datetime.now(UTC),
        job_name=holder,
        moorage_version="0",
        max_parallelism=1,
        operators={"op": operator},
        source={},
    )
    try:
        checkpoints.complete(writer, manifest, datetime.now(UTC))
    except (Fenced, AlreadyExists) as error:
        sys.stdout.write(f"{error.code}: checkpoint={manifest.checkpoint_id}\n")
    else:
        sys.stdout.write(f"completed {manifest.checkpoint_id}\n")


def race(url: str, holder: str, entries: str) -> None:
    chance = random.Random(holder)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    store = open_store(url)
    appended = fenced = 0
    while len(LineageLog.open(store).read()) < int(entries):
        writer = LogWriter.claim(store, OWNER, holder)
        # Until it was fenced once with pauses: on a busy machine each could be through before the
        # other has its turn, and one that never pauses leaves no gap to claim in.
        pause = 0.0 if fenced else 0.01
        try:
            for run in range(chance.randint(1, 30)):
                time.sleep(pause)
                writer.append(Run(writer.fence, run))
                appended += 1
        except Fenced:
            fenced += 1
    sys.stdout.write(f"{appended} {fenced}\n")


if __name__ == "__main__":
    actions: dict[str, Callable[..., None]] = {"claim": claim, "complete": complete, "race": race}
    actions[sys.argv[1]](*sys.argv[2:])
