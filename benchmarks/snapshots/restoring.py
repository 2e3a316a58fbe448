"""A restore beside a plain parallel copy of the same objects, in the same run.

The copy has as many threads as the servers together have for a restore. Before a cold pair's
halves everything dirty is written out and the store's files are dropped from the page cache; the
order alternates, so that neither half always finds what the other left.
"""

import os
import shutil
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.snapshots.figures import Transfer
from benchmarks.snapshots.job import Job
from benchmarks.snapshots.params import Size
from benchmarks.snapshots.records import Counts, values_of
from moorage_state.server.group import ServerGroup
from moorage_state.snapshots import CheckpointStore
from moorage_state.stores import LocalStore, ObjectStore
from moorage_state.stores.transfers import in_parallel

__all__ = ["WrongState", "measure_transfers"]

_THREADS_PER_SERVER = 4
"""What a state server restores with."""

_CACHES = ("cold", "warm")


class WrongState(Exception):
    """What was restored is not what was written."""


def measure_transfers(
    store: CheckpointStore, keys: Collection[str], size: Size, writes: Counts, work: Path
) -> tuple[list[Transfer], int]:
    """Every round, and how many keys were right after the restore of each.

    Args:
        keys: the objects of the newest checkpoint.
        writes: how often each key was written.

    Raises:
        WrongState: a value is not the one that was written last.
    """
    objects = store.objects
    local = isinstance(objects, LocalStore)
    transfers = []
    pairs = [(cache, first) for cache in _CACHES for first in ("copy", "restore") * size.rounds]
    for cache, first in pairs if local else pairs[: len(pairs) // 2]:
        halves: list[tuple[str, Callable[[], tuple[int, float]]]] = [
            ("copy", partial(_copy, objects, keys, size, work / "copy")),
            ("restore", partial(_restore, store, size, writes, work / "restored")),
        ]
        found: dict[str, tuple[int, float]] = {}
        for name, half in halves if first == "copy" else halves[::-1]:
            _prepare(objects, keys, cache)
            found[name] = half()
        known = cache if local else "unknown"
        transfers.append(Transfer(known, first, *found["restore"], *found["copy"]))
    return transfers, min(size.samples, size.keys)


def _prepare(objects: ObjectStore, keys: Collection[str], cache: str) -> None:
    """Write out what is dirty; then put the objects into the page cache or out of it."""
    os.sync()
    if not isinstance(objects, LocalStore):
        return
    for key in keys:
        with (objects.root / key).open("rb") as file:
            if cache == "cold":
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(1 << 20):
                    pass


def _copy(
    objects: ObjectStore, keys: Collection[str], size: Size, target: Path
) -> tuple[int, float]:
    """Bytes, and the seconds it took to copy them."""
    target.mkdir()
    try:
        paths = [target / str(number) for number in range(len(keys))]
        tasks = [partial(_copy_one, objects, k, p) for k, p in zip(keys, paths, strict=True)]
        began = time.monotonic()
        in_parallel(tasks, _THREADS_PER_SERVER * size.subtasks)
        seconds = time.monotonic() - began
        return sum(path.stat().st_size for path in paths), seconds
    finally:
        shutil.rmtree(target)


def _copy_one(objects: ObjectStore, key: str, path: Path) -> None:
    if isinstance(objects, LocalStore):
        shutil.copyfile(objects.root / key, path)
    else:
        objects.get_to_file(key, path)


def _restore(store: CheckpointStore, size: Size, writes: Counts, target: Path) -> tuple[int, float]:
    """Bytes, and the seconds from the request until all ranges can be read.

    The servers are new, run already, and have an empty directory.
    """
    target.mkdir()
    try:
        with ServerGroup(size.subtasks, target) as group, Job(group, store, size) as job:
            began = time.monotonic()
            opened = job.open()
            seconds = time.monotonic() - began
            if any(result.source != "store" for result in opened):
                raise WrongState(f"not restored from the store: {opened}")
            _check(job, size, writes)
            return sum(result.bytes_restored for result in opened), seconds
    finally:
        shutil.rmtree(target)


def _check(job: Job, size: Size, writes: Counts) -> None:
    """Read some keys back, and one that was never written."""
    random = np.random.default_rng(7)
    count = min(size.samples, size.keys)
    chosen = random.choice(size.keys, count, replace=False).astype(np.int64)
    keys, values = job.read(np.append(chosen, size.keys))
    known = keys < size.keys
    expected = iter(values_of(keys[known], writes[keys[known]]))
    wrong = [
        key
        for key, is_known, value in zip(keys.tolist(), known.tolist(), values, strict=True)
        if value != (next(expected) if is_known else None)
    ]
    if wrong:
        raise WrongState(f"restored values are wrong: wrong={len(wrong)} first={wrong[:5]}")
