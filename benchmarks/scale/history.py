"""A start of a lineage with a long past: requests, seconds and memory, against a new one.

The log is written by the real writer, put together as its driver would, over a store in memory:
first a new lineage, then ever longer ones, up to a day of commits at two a second and to five years
of checkpoints. Meanwhile drivers are replaced. What is measured is all that a start asks before it
restores: it claims, chooses its point, and finds the next free id.
"""

import math
import time
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from benchmarks.scale.curve import Curve
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    LogWriter,
    Owner,
    Retire,
    Run,
    restore_point,
)
from moorage_state.stores import MemoryStore

_OWNER = Owner("here", "default", "flights", "uid-1")
_AT = datetime(2026, 1, 2, tzinfo=UTC)
_RESTART_EVERY = 2_000
"""Checkpoints: every day and a half at one a minute."""

_PAGE = 1000

NEW = 1
"""The size of a lineage that has no past."""

SIZES = (NEW, 1_000, 10_000, 172_800, 1_051_200)
"""Entries: none, hours, days, a day at two a second, five years at a checkpoint in five minutes."""

_QUICK = (NEW, 100, 1_000, 10_000)


def measure(*, quick: bool) -> list[Curve]:
    """Curves of one start."""
    starts = dict(lineages(_QUICK if quick else SIZES, latency=0.02))

    def curve(name: str, unit: str, most: float) -> Curve:
        points = tuple((size, found[name]) for size, found in starts.items())
        return Curve("history", f"{name} of a start", unit, "entries", points, most)

    return [
        curve("requests", "requests", 0.1),
        curve("seconds", "s at 20 ms a request", 0.05),
        curve("memory", "kB", 0.2),
        curve("objects", "objects of the log", 0.8),
    ]


def lineages(
    sizes: tuple[int, ...], latency: float = 0.0
) -> Iterator[tuple[int, dict[str, float]]]:
    """What a start costs at each of these sizes of one growing lineage."""
    store = MemoryStore("history")
    entries, checkpoint_id = 0, 0
    for size in sizes:
        writer = None
        while entries < size - NEW:
            if writer is None or checkpoint_id % _RESTART_EVERY == 0:
                writer = LogWriter.claim(store, _OWNER, "driver")
                before = f"chk-{checkpoint_id}" if checkpoint_id else None
                writer.append(Run(writer.fence, 0, before))
            checkpoint_id += 1
            _complete(writer, checkpoint_id)
            entries = max(entries, writer.end)
        # The fastest of a few: a machine that is busy elsewhere says nothing of the log.
        yield size, min((_start(store, latency) for _ in range(3)), key=lambda one: one["seconds"])


def _complete(writer: LogWriter, checkpoint_id: int) -> None:
    key = f"chk-{checkpoint_id}/MANIFEST"
    digest = f"sha256:{checkpoint_id:064x}"
    writer.append(Checkpoint(writer.fence, 0, checkpoint_id, key, digest, checkpoint_id, _AT))
    if checkpoint_id > 1:
        writer.append(Retire(writer.fence, checkpoint_id - 1))
    writer.compact()


def _start(store: MemoryStore, latency: float) -> dict[str, float]:
    counted = _Counted(store, latency)
    tracemalloc.start()
    began = time.perf_counter()
    writer = LogWriter.claim(counted, _OWNER, "driver")
    restore_point(writer.entries)
    CheckpointStore(counted).next_id(writer.entries)
    seconds = time.perf_counter() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    objects = sum(1 for _ in store.list("log"))
    return {
        "requests": counted.requests,
        "seconds": seconds,
        "memory": peak / 1e3,
        "objects": objects,
    }


class _Counted:
    """A store that takes its time for each request, of which a listing makes one a page."""

    def __init__(self, inner: MemoryStore, latency: float) -> None:
        self._inner = inner
        self._latency = latency
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if not callable(call):
            return call

        def counted(*arguments: Any, **options: Any) -> Any:
            if name != "list":
                # Before the call: one for what is not there is a request like any other.
                self._ask(1)
                return call(*arguments, **options)
            infos = list(call(*arguments, **options))
            self._ask(max(1, math.ceil(len(infos) / _PAGE)))
            return iter(infos)

        return counted

    def _ask(self, times: int) -> None:
        self.requests += times
        time.sleep(self._latency * times)
