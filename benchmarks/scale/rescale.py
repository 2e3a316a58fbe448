"""What ranges of another parallelism fetch from the store, against how many they are.

The ranges are a state server's own, in this process; the store is in memory and counts. A state of
one range becomes k ranges, all on one server or each on a server of its own without any local file.
Then eight ranges become sixteen, of which more and more open on another server than the one that
has the files. Bytes are told as a multiple of the state: 1 is all of it once.

Last, processor time and time against the state's size, all ranges on other servers than before, one
after the other: the time of a job with a server for each is a part of it.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from moorage_testing.served_harness import ServedRange

from benchmarks.scale.curve import Curve
from moorage_state.deltas import encode_frame
from moorage_state.keygroups import range_of
from moorage_state.rocks import RocksOptions
from moorage_state.server import RangeHost, RangeSpec, RestoreBase, restore
from moorage_state.state_backends import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    StateBackend,
)
from moorage_state.stores import MemoryStore, ObjectStore, open_store

_GROUPS = 128
_URL = "memory://rescale"
_KEY_BYTES, _VALUE_BYTES = 11, 200
_EPOCHS = 40
_BASE = 8
"""Ranges before the second measurement, of which there are twice as many afterwards."""


class _Counted:
    """A store that counts what is read."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.requests = self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str, **part: Any) -> bytes:
        """See `ObjectStore`."""
        data = self._store.get(key, **part)
        self.requests += 1
        self.bytes += len(data)
        return data

    def get_to_file(self, key: str, path: Path, **part: Any) -> None:
        """See `ObjectStore`."""
        self._store.get_to_file(key, path, **part)
        self.requests += 1
        self.bytes += path.stat().st_size


def measure(*, quick: bool) -> list[Curve]:
    """Curves of bytes and requests."""
    entries = 40_000 if quick else 400_000
    factors = (1, 2, 4, 8) if quick else (1, 2, 4, 8, 16, 32)
    found = []
    for name, backend in _backends(entries).items():
        # State in memory is one file, of which each reads its blocks; small SST files go to all.
        asked = 0.6 if name == "rocksdb" else 0.05
        for place, together, most in (("one server", True, 0.05), ("k servers", False, asked)):
            points = [(k, *_wider(backend, entries, k, together=together)) for k in factors]
            found += _curves(f"{name}: 1 to k ranges on {place}", "k", points, most)
        moved = [(m, *_moved(backend, entries, m)) for m in (1, 2, 4, 8, 16)]
        found += _curves(f"{name}: {_BASE} to {2 * _BASE} ranges", "ranges that move", moved, 1.1)
        found += _by_size(name, entries)
    return found


def _by_size(name: str, most: int) -> list[Curve]:
    """What ranges of another parallelism cost against the state, all of them together."""
    changes = [(1, 2), (1, 4), (1, 8), (_BASE, 4), (_BASE, 2), (_BASE, 1)]
    points: dict[tuple[int, int], list[tuple[float, float, float]]] = {c: [] for c in changes}
    for entries in (most // 16, most // 4, most):
        backend = _backends(entries)[name]
        for before in (1, _BASE):
            with tempfile.TemporaryDirectory(prefix="moorage-bench-") as folder:
                with RangeHost(Path(folder, "before"), backend) as host:
                    base = _filled(host, before, entries)
                size = entries * (_VALUE_BYTES + _KEY_BYTES) / 1e6
                for change in changes:
                    if change[0] == before:
                        cost = _timed(Path(folder, f"to-{change[1]}"), backend, base, change[1])
                        points[change].append((size / 1e6, *cost))
            MemoryStore.forget("rescale")
    return [
        Curve("rescale", f"{name}: {a} to {b} ranges", unit, "MB of state", tuple(pairs), 1.1)
        for (a, b), costs in points.items()
        for unit, pairs in (
            ("s of CPU", [(size, cpu) for size, cpu, _ in costs]),
            ("s, one range after the other", [(size, seconds) for size, _, seconds in costs]),
        )
    ]


def _timed(
    folder: Path, backend: StateBackend, base: RestoreBase, after: int
) -> tuple[float, float]:
    """Processor time and time of so many ranges that open on a server each."""
    cpu = seconds = 0.0
    for subtask in range(after):
        with RangeHost(folder / f"{subtask}", backend) as host:
            began, before = time.perf_counter(), time.process_time()
            host.open_range(_spec(subtask, after), "f2r0", base, [], _URL)
            seconds += time.perf_counter() - began
            cpu += time.process_time() - before
    return cpu, seconds


def _curves(
    name: str, size: str, points: list[tuple[int, float, float]], most: float | None
) -> list[Curve]:
    read = tuple((x, share) for x, share, _ in points)
    asked = tuple((x, requests) for x, _, requests in points)
    return [
        Curve("rescale", name, "times the state", size, read, most),
        Curve("rescale", name, "requests", size, asked),
    ]


def _backends(entries: int) -> dict[str, StateBackend]:
    # As many files as a state of gigabytes has with the usual sizes.
    size = entries * _VALUE_BYTES // 100
    options = RocksOptions(
        block_cache_bytes=8 << 20,
        write_buffers_bytes=64 << 20,
        write_buffer_bytes=max(size, 64 << 10),
        target_file_bytes=size // 2,
    )
    return {
        "rocksdb": EmbeddedRocksDBStateBackend(tuned=options),
        "hashmap": HashMapStateBackend(memory_limit=1 << 30),
    }


def _wider(
    backend: StateBackend, entries: int, factor: int, *, together: bool
) -> tuple[float, float]:
    """Multiple of the state, and requests, where one range becomes `factor`."""

    def place(subtask: int) -> int:
        return 0 if together else subtask

    return _restored(backend, entries, 1, factor, place)


def _moved(backend: StateBackend, entries: int, moved: int) -> tuple[float, float]:
    """The same where so many of twice as many ranges open on a server without their files."""

    def place(subtask: int) -> int:
        return 1 if subtask < moved else 0

    return _restored(backend, entries, _BASE, 2 * _BASE, place, stay=True)


def _restored(
    backend: StateBackend,
    entries: int,
    before: int,
    after: int,
    place: Callable[[int], int],
    *,
    stay: bool = False,
) -> tuple[float, float]:
    """Of ranges that open on the server `place(subtask)`; 0 has the local files if they `stay`."""
    MemoryStore.forget("rescale")
    with tempfile.TemporaryDirectory(prefix="moorage-bench-") as folder, ExitStack() as stack:
        hosts: dict[int, RangeHost] = {}

        def host(number: int) -> RangeHost:
            if number not in hosts:
                hosts[number] = stack.enter_context(RangeHost(Path(folder, str(number)), backend))
            return hosts[number]

        base = _filled(host(0 if stay else -1), before, entries)
        counted = _Counted(open_store(_URL))
        with patch.object(restore, "open_store", lambda _: counted):
            for subtask in range(after):
                spec = _spec(subtask, after)
                host(place(subtask)).open_range(spec, "f2r0", base, [], _URL)
        size = sum(handle.bytes_total for handle in base.handles)
        MemoryStore.forget("rescale")
        return counted.bytes / size, counted.requests


def _spec(subtask: int, parallelism: int) -> RangeSpec:
    groups = range_of(subtask, parallelism, _GROUPS)
    return RangeSpec("op", groups.start, groups.end)


def _filled(host: RangeHost, parallelism: int, entries: int) -> RestoreBase:
    """A checkpoint of so many ranges, of entries that were written in many epochs."""
    rng = random.Random(1)  # noqa: S311  the same state each time
    handles = []
    for subtask in range(parallelism):
        spec = _spec(subtask, parallelism)
        opened = host.open_range(spec, "f1r0", RestoreBase(0, 0, []), [], _URL)
        served = ServedRange(host, spec, "f1r0", opened.version)
        for _ in range(_EPOCHS):
            for keys in _epoch_keys(rng, spec, entries // parallelism // _EPOCHS):
                served.stage(encode_frame([], keys, [rng.randbytes(_VALUE_BYTES) for _ in keys]))
            served.commit()
        handles.append(served.checkpoint(1, _URL))
    return RestoreBase(1, _EPOCHS, handles)


def _epoch_keys(rng: random.Random, spec: RangeSpec, count: int) -> Iterator[list[bytes]]:
    """Keys in any of the range's groups, in frames of some size."""
    for at in range(0, count, 5_000):
        keys = {
            rng.randint(spec.start, spec.end).to_bytes(2, "big") + b"\x01" + rng.randbytes(8)
            for _ in range(min(5_000, count - at))
        }
        yield sorted(keys)
