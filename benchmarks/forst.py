"""`forst` beside `rocksdb`: a start, the first read, and batches with more or less of a cache.

    python -m benchmarks.forst [--keys 1000000] [--value 100] [--start] [--work DIR]

Both on a local directory, without the time that a store far away takes: what is shown is the work
that fetching costs. Prints a table of one row each, and what is held against a limit: a start up
to the first epoch that is committed, beside one of a job without state; the first read, which comes
right after the range is opened; and a batch, by that of `rocksdb`.
"""

import argparse
import random
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
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
_FRAME_BYTES = 10 << 20
_MORE_SECONDS, _FIRST_READ_SECONDS = 5.0, 0.25
_ALL_RATIO, _HALF_RATIO = 1.1, 1.3
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


@dataclass(frozen=True, slots=True)
class _Row:
    """Seconds, of one backend and cache."""

    size: int
    start: float
    first_read: float
    first_epoch: float
    window: float = 0.0
    uniform: float = 0.0


def _measure(
    folder: Path, name: str, backend: StateBackend, asked: argparse.Namespace, share: float
) -> _Row:
    """One row: fill, start elsewhere, read one key, then batches of uniform and of near keys."""
    rng, keys = random.Random(1), asked.keys  # noqa: S311  the same in every run
    place = folder / name
    (place / "store").mkdir(parents=True)
    url = f"file://{place}/store"
    frame = max(1, _FRAME_BYTES // asked.value)
    with RangeHost(place / "first", backend) as host:
        driven = _Driven(host, url, "f1r0")
        driven.open(None)
        for low in range(0, keys, frame):
            chosen = [_key(n, keys) for n in range(low, min(keys, low + frame))]
            driven.epoch(chosen, [rng.randbytes(asked.value) for _ in chosen])
        base = driven.checkpoint(1) if keys else None
    shutil.rmtree(place / "first")
    size = base.handles[0].bytes_total if base else 0
    if isinstance(backend, ForStStateBackend) and share < 1:
        backend = replace(backend, cache_limit=int(size * share))
    with RangeHost(place / "second", backend) as host:
        driven = _Driven(host, url, "f2r0")
        began = time.perf_counter()
        start = driven.open(base)
        read = time.perf_counter()
        wanted = _key(keys // 3, keys or 1)
        driven.read([wanted])
        first = time.perf_counter() - read
        driven.epoch([wanted], [rng.randbytes(asked.value)])
        row = _Row(size, start, first, time.perf_counter() - began)
        if keys and not asked.start:
            window = _batches(driven, rng, asked, keys // 20)
            row = replace(row, window=window, uniform=_batches(driven, rng, asked, keys))
    print(
        f"| {name} | {size >> 20} MiB | {row.start * 1000:.0f} ms | {row.first_read * 1000:.1f} ms "
        f"| {row.first_epoch * 1000:.0f} ms | {row.window * 1000:.0f} ms "
        f"| {row.uniform * 1000:.0f} ms |",
        flush=True,
    )
    shutil.rmtree(place)
    return row


def _batches(driven: _Driven, rng: random.Random, asked: argparse.Namespace, width: int) -> float:
    """The median seconds of a batch that reads and writes keys of a window, which moves."""
    keys, taken = asked.keys, []
    for number in range(2 * _BATCHES):
        low = (number * width // 10) % (keys - width + 1)
        some = sorted({_key(low + rng.randrange(width), keys) for _ in range(_BATCH)})
        began = time.perf_counter()
        driven.read(some)
        driven.epoch(some, [rng.randbytes(asked.value) for _ in some])
        taken.append(time.perf_counter() - began)
    return sorted(taken[_BATCHES:])[_BATCHES // 2]


def main() -> int:
    """Print the table; 0 if every limit is kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forst")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value", type=int, default=100, help="bytes of each")
    parser.add_argument("--start", action="store_true", help="no batches")
    parser.add_argument("--work", type=Path, help="has room for three times the state")
    asked = parser.parse_args()
    forst = ForStStateBackend(cache_reserve=0)
    print("| backend, cache | state | start | first read | first epoch | window | uniform |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=asked.work) as folder:
        place = Path(folder)
        none = argparse.Namespace(**{**vars(asked), "keys": 0})
        empty = _measure(place, "forst, no state", forst, none, 1)
        whole = _measure(place, "forst, all", forst, asked, 1)
        held = [
            _held(
                "first epoch more than without state, s",
                whole.first_epoch - empty.first_epoch,
                _MORE_SECONDS,
            ),
            _held("first read, s", whole.first_read, _FIRST_READ_SECONDS),
        ]
        if asked.start:
            return 0 if all(held) else 1
        rocks = _measure(place, "rocksdb", EmbeddedRocksDBStateBackend(), asked, 1)
        half = _measure(place, "forst, half", forst, asked, 0.5)
        _measure(place, "forst, a tenth", forst, asked, 0.1)
    held += [
        _held("window, all, by rocksdb", whole.window / rocks.window, _ALL_RATIO),
        _held("window, half, by rocksdb", half.window / rocks.window, _HALF_RATIO),
    ]
    print(f"uniform keys, half, by rocksdb: {half.uniform / rocks.uniform:.2f} (no limit)")
    return 0 if all(held) else 1


def _held(what: str, found: float, most: float) -> bool:
    """Tell whether a limit is kept."""
    print(f"{what}: {found:.3f} (at most {most:g}): {'kept' if found <= most else 'not kept'}")
    return found <= most


if __name__ == "__main__":
    raise SystemExit(main())
