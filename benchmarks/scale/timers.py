"""One key with very many timers: an epoch that sets one and fires one, against how many there are.

The range is a state server's own, in this process, with deltas, commits and its database; the epoch
is that of a subtask. Each epoch is measured by itself, and the median is told: what RocksDB does in
the background comes in bursts.
"""

import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from moorage_testing.served_harness import ServedRange

from benchmarks.scale.curve import Curve
from moorage_state.database import Scan
from moorage_state.keyed import KeyedStateStore, KeyTimers
from moorage_state.keylayout import key_prefix
from moorage_state.server import RangeHost, RangeSpec, RestoreBase
from moorage_state.state_backends import EmbeddedRocksDBStateBackend, HashMapStateBackend

_BACKENDS = {
    "hashmap": HashMapStateBackend,
    "rocksdb": EmbeddedRocksDBStateBackend,
}
_KEY = key_prefix(0, b"key")
_WARM = 10


class _Counted(ServedRange):
    """A range that counts what an epoch asks of it, and the bytes of entries read and staged."""

    requests = moved = 0

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See `RangeAccess`."""
        self.requests += 1
        return super().get_many(keys)

    def scan_from(self, prefix: bytes, after: bytes, limit: int) -> Scan:
        """See `RangeAccess`."""
        self.requests += 1
        found = super().scan_from(prefix, after, limit)
        self.moved += sum(map(len, found.keys))
        return found

    def stage(self, frame: bytes) -> None:
        """See `RangeAccess`."""
        self.requests += 1
        self.moved += len(frame)
        super().stage(frame)


def measure(*, quick: bool) -> list[Curve]:
    """Curves of processor time, requests and bytes of one epoch."""
    counts = (1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    return [curve for name in _BACKENDS for curve in _curves(name, counts, 20 if quick else 200)]


def _curves(name: str, counts: tuple[int, ...], epochs: int) -> list[Curve]:
    points: dict[str, list[tuple[float, float]]] = {"ms of CPU": [], "requests": [], "bytes": []}
    for count in counts:
        for unit, cost in _epoch_costs(name, count, epochs).items():
            points[unit].append((count, cost))
    return [
        Curve("timers", f"{name}: one set, one fired", unit, "timers of one key", tuple(p), 0.1)
        for unit, p in points.items()
    ]


def _epoch_costs(name: str, count: int, epochs: int) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory(prefix="moorage-bench-") as directory,
        RangeHost(Path(directory), _BACKENDS[name]()) as host,
    ):
        spec = RangeSpec("op", 0, 0)
        opened = host.open_range(spec, "f1r1", RestoreBase(0, 0, []), [], "memory://timers")
        counted = _Counted(host, spec, "f1r1", opened.version)
        _epoch(counted, 0, range(1, count + 1), fire=0)
        costs = []
        for n in range(1, epochs + 1):
            counted.requests = counted.moved = 0
            began = time.process_time()
            _epoch(counted, n, [count + n], fire=1)
            spent = time.process_time() - began
            costs.append((1000 * spent, counted.requests, counted.moved))
    # A column for each unit.
    milliseconds, requests, moved = (statistics.median(c) for c in zip(*costs[_WARM:], strict=True))
    return {"ms of CPU": milliseconds, "requests": requests, "bytes": moved}


def _epoch(counted: _Counted, number: int, times: Iterable[int], fire: int) -> None:
    store = KeyedStateStore(counted, number + 1)
    timers = KeyTimers(store)
    store.begin_chunk([_KEY])
    store.switch_to(0)
    for time_ms in times:
        timers.register(time_ms)
    for _ in range(fire):
        if timers.pop_due(number) != number:
            raise RuntimeError(f"another timer fired than the one that is due: epoch={number}")
    store.finish()
    counted.commit()
