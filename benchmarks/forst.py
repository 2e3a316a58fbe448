"""`forst` beside `rocksdb`: a start, the first read, and batches with more or less of a cache.

    python -m benchmarks.forst [millions of keys]

Both on a local directory, without the time that a store far away takes: what is shown is the work
that fetching costs. Prints a table of one row each.
"""

import random
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from moorage_state.deltas import encode_frame
from moorage_state.server import (
    RangeHost,
    RangeSpec,
    RestoreBase,
    UploadLimits,
    UploadRequest,
    Version,
)
from moorage_state.server.operations import WrittenPart
from moorage_state.snapshots import RangeHandle
from moorage_state.snapshots.parts import read_part
from moorage_state.state_backends import (
    EmbeddedRocksDBStateBackend,
    ForStStateBackend,
    StateBackend,
)
from moorage_state.stores import open_store

_SPEC = RangeSpec("bench", 0, 63)
_BATCH, _BATCHES = 20_000, 8
_LIMITS = UploadLimits(inline_range=0, inline_file=-1)


def _key(number: int, keys: int) -> bytes:
    return (number * 64 // keys).to_bytes(2, "big") + b"\x01" + number.to_bytes(6, "big")


class _Driven:
    def __init__(self, host: RangeHost, url: str, run: str) -> None:
        self.host, self.url, self.run = host, url, run
        self.version = Version(0, "")

    def open(self, base: RestoreBase | None) -> float:
        began = time.perf_counter()
        self.version = self.host.open_range(_SPEC, self.run, base, [], self.url).version
        return time.perf_counter() - began

    def epoch(self, keys: list[bytes], values: list[bytes | None]) -> None:
        held = self.host.range(_SPEC.lease(self.run))
        epoch = self.version.epoch + 1
        held.stage(epoch, "a", encode_frame([], keys, values), 0)
        prepared = held.prepare(epoch, "a", self.version.digest, 1)
        held.commit(epoch, prepared.digest, True)
        self.version = Version(epoch, prepared.digest)

    def read(self, keys: list[bytes]) -> list[bytes | None]:
        return self.host.range(_SPEC.lease(self.run)).get_many(self.version, keys)

    def checkpoint(self, number: int) -> RestoreBase:
        self.host.range(_SPEC.lease(self.run)).snapshot(number, self.version)
        request = UploadRequest(_SPEC.uid, _SPEC.start, [])
        written = self.host.upload_many(self.run, number, self.url, [request], _LIMITS)
        self.host.notify_complete(number)
        return RestoreBase(number, self.version.epoch, [self._handle(written)])

    def _handle(self, written: WrittenPart) -> RangeHandle:
        part = read_part(open_store(self.url), written.part.ref)
        return next(iter(part.handles))


def _measure(folder: Path, name: str, backend: StateBackend, keys: int, share: float) -> None:
    """One row: fill, start elsewhere, read one key, then batches of uniform and of near keys."""
    rng = random.Random(1)  # noqa: S311  the same in every run
    place = folder / name
    (place / "store").mkdir(parents=True)
    url = f"file://{place}/store"
    with RangeHost(place / "first", backend) as host:
        driven = _Driven(host, url, "f1r0")
        driven.open(None)
        for low in range(0, keys, 100_000):
            some = [_key(n, keys) for n in range(low, min(keys, low + 100_000))]
            driven.epoch(some, [rng.randbytes(100) for _ in some])
        base = driven.checkpoint(1)
    size = base.handles[0].bytes_total
    if isinstance(backend, ForStStateBackend) and share < 1:
        backend = replace(backend, cache_limit=int(size * share))
    with RangeHost(place / "second", backend) as host:
        driven = _Driven(host, url, "f2r0")
        start = driven.open(base)
        began = time.perf_counter()
        driven.read([_key(keys // 3, keys)])
        first = time.perf_counter() - began
        window = _batches(driven, rng, keys, keys // 20)
        uniform = _batches(driven, rng, keys, keys)
    print(
        f"| {name} | {size >> 20} MiB | {start * 1000:.0f} ms | {first * 1000:.1f} ms "
        f"| {window * 1000:.0f} ms | {uniform * 1000:.0f} ms |",
        flush=True,
    )
    shutil.rmtree(place)


def _batches(driven: _Driven, rng: random.Random, keys: int, width: int) -> float:
    """The median seconds of a batch that reads and writes keys of a window, which moves."""
    taken = []
    for number in range(2 * _BATCHES):
        low = (number * width // 10) % (keys - width + 1)
        some = sorted({_key(low + rng.randrange(width), keys) for _ in range(_BATCH)})
        began = time.perf_counter()
        driven.read(some)
        driven.epoch(some, [rng.randbytes(100) for _ in some])
        taken.append(time.perf_counter() - began)
    return sorted(taken[_BATCHES:])[_BATCHES // 2]


def main() -> None:
    """Print the table."""
    keys = int(float(sys.argv[1]) * 1_000_000) if len(sys.argv) > 1 else 1_000_000
    forst = ForStStateBackend(cache_reserve=0)
    print("| backend, cache | state | start | first read | batch, 5 % window | batch, uniform |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        _measure(Path(folder), "rocksdb", EmbeddedRocksDBStateBackend(), keys, 1)
        _measure(Path(folder), "forst, all", forst, keys, 1)
        _measure(Path(folder), "forst, half", forst, keys, 0.5)
        _measure(Path(folder), "forst, a tenth", forst, keys, 0.1)


if __name__ == "__main__":
    main()
