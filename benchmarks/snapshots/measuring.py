"""The whole measurement: fill, the full checkpoint, the incremental ones, the restores."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.snapshots.figures import Measured, pauses, upload_share
from benchmarks.snapshots.job import Job, Taken
from benchmarks.snapshots.params import Size
from benchmarks.snapshots.records import Counts
from benchmarks.snapshots.restoring import measure_transfers
from moorage_state.server.group import ServerGroup
from moorage_state.snapshots import CheckpointStore, LineageLog, retained
from moorage_state.stores import open_store

__all__ = ["measure", "taken_line"]

_SEED = 2013

Say = Callable[[str], None]


def measure(size: Size, store_url: str, work: Path, say: Say) -> Measured:
    """Measure everything; `work` is an empty directory, and so is the store.

    Raises:
        WrongState: a restore brought something else than was written.
        MoorageError: what the servers or the store report.
    """
    store = CheckpointStore(open_store(store_url, create=True))
    writes = np.zeros(size.keys, np.uint16)
    local = work / "servers"
    local.mkdir()
    with ServerGroup(size.subtasks, local) as group, Job(group, store, size) as job:
        job.open()
        fill_seconds = _fill(job, size, writes, say)
        settle_seconds = job.settle()
        say(f"filled: keys={size.keys:,} in {fill_seconds:.0f} s, settled {settle_seconds:.0f} s")
        full = job.checkpoint()
        say(taken_line(full))
        incremental = tuple(_incremental(job, size, writes, say))
    objects = sorted(_newest_keys(store))
    transfers, checked = measure_transfers(store, objects, size, writes, work)
    return Measured(
        size.keys, fill_seconds, settle_seconds, full, incremental, tuple(transfers), checked
    )


def taken_line(taken: Taken) -> str:
    """A checkpoint in one line."""
    flush = max((sync.flush_seconds for sync in taken.syncs), default=0.0)
    return (
        f"checkpoint {taken.checkpoint_id}: flush {flush * 1e3:.0f} ms, beyond it "
        f"{max(pauses(taken)) * 1e3:.1f} ms; uploaded {taken.bytes_uploaded / 1e6:,.1f} of "
        f"{taken.bytes_total / 1e6:,.0f} MB, {upload_share(taken):.1%}, {taken.objects} objects, "
        f"{taken.upload_seconds:.1f} s"
    )


def _fill(job: Job, size: Size, writes: Counts, say: Say) -> float:
    """Write every key once, in random order."""
    began = time.monotonic()
    order = np.random.default_rng(_SEED).permutation(size.keys).astype(np.int64)
    tenth = max(1, -(-size.keys // 10))
    for at in range(0, size.keys, tenth):
        keys = order[at : at + tenth]
        writes[keys] += 1
        job.write(keys, writes[keys])
        say(f"filled {min(size.keys, at + tenth):,} of {size.keys:,} keys")
    return time.monotonic() - began


def _incremental(job: Job, size: Size, writes: Counts, say: Say) -> list[Taken]:
    """Change some keys, take a checkpoint, and again."""
    random = np.random.default_rng(_SEED + 1)
    count = max(1, round(size.keys * size.changed))
    taken = []
    for _ in range(size.checkpoints):
        keys = random.choice(size.keys, count, replace=False).astype(np.int64)
        writes[keys] += 1
        job.write(keys, writes[keys])
        taken.append(job.checkpoint())
        say(taken_line(taken[-1]))
    return taken


def _newest_keys(store: CheckpointStore) -> frozenset[str]:
    entries = [entry for _, entry in LineageLog.open(store.objects).read()]
    return store.load(retained(entries)[0]).keys
