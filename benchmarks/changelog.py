"""What a changelog gives and costs: checkpoints over a slow link, and processor time by row.

    python -m benchmarks.changelog [--state-mb 2048] [--checkpoints 30] [--mb-s 20] [--store DIR]

One range of one state server, in this process, on a store in a directory whose uploads share a link
of so many megabytes a second. Epochs change random keys at a steady pace; a checkpoint is taken at
every interval, and its time is from its trigger until part, manifest and log entry are put. A store
that is behind such a link does not share the disk of the server: give `--store` another one, such
as memory. With
the changelog deltas go ahead of it and state is materialized meanwhile, over the same link.
Processor time is that of the server alone, in epochs of one small row for each key, with all it
uploads; a job's rows cost several times as much outside of it, so the share of a job is less.
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from moorage_state.deltas import encode_frame
from moorage_state.server import RangeHost, RangeSpec, UploadLimits, UploadRequest, Version
from moorage_state.server.open_range import OpenRange
from moorage_state.server.operations import SnapshotWay
from moorage_state.server.uploads import PartWriter, materialize, persist
from moorage_state.snapshots import PartRef
from moorage_state.snapshots.parts import PartCache
from moorage_state.state_backends import EmbeddedRocksDBStateBackend
from moorage_state.stores import ObjectStore, open_store

_SPEC = RangeSpec("bench", 0, 127)
_RUN = "f1r0"
_PIECE = 64 << 10
_AHEAD_BYTES = 5 << 20
_ROOT_BYTES = 4096
_MOST_SECONDS = 1.0
_MOST_RATIO = 1.15


class Link:
    """A store whose uploads share one link; pieces of those under way take turns."""

    def __init__(self, store: ObjectStore, bytes_per_second: float) -> None:
        self._store = store
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._free = 0.0
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, data: bytes) -> None:
        """Put the object after the time that its bytes take."""
        self._send(len(data))
        self._store.put(key, data)

    def put_file(self, key: str, path: Path) -> None:
        """The same of a file."""
        self._send(path.stat().st_size)
        self._store.put_file(key, path)

    def _send(self, size: int) -> None:
        self.bytes += size
        while size > 0 and self._rate:
            piece, size = min(size, _PIECE), size - _PIECE
            with self._lock:
                now = time.monotonic()
                self._free = max(self._free, now) + piece / self._rate
                wait = self._free - now
            time.sleep(max(0.0, wait))


class Server:
    """A range, its epochs and its checkpoints, as fleet and checkpointer drive them."""

    def __init__(self, home: Path, store: Path, *, changelog: bool) -> None:
        self.store = open_store(f"file://{store}")
        self._host = RangeHost(home / "local", EmbeddedRocksDBStateBackend())
        self._host.open_range(_SPEC, _RUN, None, [], self.store.url)
        self.range: OpenRange = self._host.range(_SPEC.lease(_RUN))
        self.version = Version(0, "")
        self._changelog = changelog
        self._parts = PartCache()
        self._base: list[PartRef] = []
        self._id = 0

    def epoch(self, keys: list[bytes], values: list[bytes]) -> None:
        """Write these keys."""
        epoch = self.version.epoch + 1
        pairs = sorted(zip(keys, values, strict=True))
        cut = max(1, len(pairs) // max(1, sum(map(len, values)) >> 23))
        frames = [pairs[at : at + cut] for at in range(0, len(pairs), cut)]
        for seq, some in enumerate(frames):
            frame = encode_frame([], [k for k, _ in some], [v for _, v in some])
            self.range.stage(epoch, "a", frame, seq)
        ready = self.range.prepare(epoch, "a", self.version.digest, len(frames))
        self.range.commit(epoch, ready.digest, True)
        self.version = Version(epoch, ready.digest)

    def checkpoint(self, link: Link, *, copies: bool = False) -> tuple[int, float]:
        """Take one; its id, and how long it took from the trigger to the log's entry."""
        began = time.monotonic()
        self._id += 1
        way: SnapshotWay = "copy"
        if self._changelog:
            way = "log and copy" if copies else "log"
        self.range.snapshot(self._id, self.version, way, self._id - 1)
        store = cast("ObjectStore", link)
        writer = PartWriter(store, _RUN, self._id, "rocksdb", self._parts)
        request = UploadRequest(_SPEC.uid, _SPEC.start, [])
        written = writer.write([self.range.snapshots], [request], UploadLimits(), self._base)
        for name in ("MANIFEST", "entry"):
            link.put(f"bench/{self._id}-{name}", bytes(_ROOT_BYTES))
        seconds = time.monotonic() - began
        self._base = [written.part.ref]
        self._host.notify_complete(self._id)
        return self._id, seconds

    def ahead(self, link: Link, least: int = _AHEAD_BYTES) -> None:
        """Upload deltas if there are enough."""
        new = self.range.unlisted()
        if new is not None and sum(path.stat().st_size for path in new.local) >= least:
            snapshots = [self.range.snapshots]
            persist(snapshots, [new], _RUN, cast("ObjectStore", link), UploadLimits())

    def materialize(self, link: Link, checkpoint_id: int) -> None:
        """Upload the copy that was taken with this checkpoint."""
        store = cast("ObjectStore", link)
        materialize([self.range.snapshots], _RUN, checkpoint_id, store, UploadLimits())

    def close(self) -> None:
        """End it."""
        self._host.close()


def key(number: int) -> bytes:
    """A stored key."""
    return (number % 128).to_bytes(2, "big") + b"\x01" + number.to_bytes(8, "big")


def fill(server: Server, keys: int, value: int, rng: random.Random) -> None:
    """Write every key once."""
    some = max(1, (64 << 20) // value)
    for first in range(0, keys, some):
        numbers = range(first, min(keys, first + some))
        server.epoch([key(n) for n in numbers], [rng.randbytes(value) for _ in numbers])


def checkpoints(
    server: Server, asked: argparse.Namespace, rng: random.Random, *, changelog: bool
) -> dict[str, float]:
    """Take checkpoints under load; how long they took, in seconds."""
    keys = (asked.state_mb << 20) // asked.value
    server.checkpoint(Link(server.store, 0))
    link = Link(server.store, asked.mb_s * 1e6)
    rows = max(1, int(asked.change_mb_s * 1e6 * asked.epoch / asked.value))
    took: list[float] = []
    background: list[Future[None]] = []
    with ThreadPoolExecutor(2) as pool:
        for number in range(asked.checkpoints):
            due = time.monotonic() + asked.interval
            while time.monotonic() < due:
                began = time.monotonic()
                chosen = rng.sample(range(keys), rows)
                server.epoch([key(n) for n in chosen], [rng.randbytes(asked.value) for _ in chosen])
                if changelog and all(one.done() for one in background):
                    background = [pool.submit(server.ahead, link)]
                time.sleep(max(0.0, asked.epoch - (time.monotonic() - began)))
            copies = changelog and number == asked.checkpoints // 3
            checkpoint_id, seconds = server.checkpoint(link, copies=copies)
            took.append(seconds)
            if copies:
                background.append(pool.submit(server.materialize, link, checkpoint_id))
        for one in background:
            one.result()
    took.sort()
    return {
        "median": took[len(took) // 2],
        "p99": took[min(len(took) - 1, int(0.99 * len(took)))],
        "uploaded_mb": link.bytes / 1e6,
    }


def processor_time(server: Server, rng: random.Random, *, changelog: bool) -> float:
    """Microseconds of this process for each row, of epochs of 50,000 keys with 100 bytes."""
    link = Link(server.store, 0)
    rows, epochs = 50_000, 20
    made = [
        ([key(n) for n in rng.sample(range(1_000_000), rows)], [rng.randbytes(100)] * rows)
        for _ in range(epochs)
    ]
    server.checkpoint(link)
    began = time.process_time()
    for number, (keys, values) in enumerate(made):
        server.epoch(keys, values)
        if changelog:
            server.ahead(link)
        if number % 5 == 4:
            server.checkpoint(link)
    return (time.process_time() - began) / (rows * epochs) * 1e6


def _measured(
    asked: argparse.Namespace, measure: Callable[..., Any], *, changelog: bool, filled: bool
) -> Any:
    home = Path(tempfile.mkdtemp(prefix="moorage-changelog-", dir=asked.work))
    store = Path(tempfile.mkdtemp(prefix="moorage-changelog-", dir=asked.store or home))
    rng = random.Random(20130101)  # noqa: S311  the same data each time
    try:
        server = Server(home, store, changelog=changelog)
        try:
            if filled:
                fill(server, (asked.state_mb << 20) // asked.value, asked.value, rng)
            return measure(server, rng, changelog=changelog)
        finally:
            server.close()
    finally:
        shutil.rmtree(store)
        shutil.rmtree(home)


def main() -> int:
    """Measure and print; 0 if the goals were reached."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--state-mb", type=int, default=2048)
    parser.add_argument("--value", type=int, default=10_240)
    parser.add_argument("--checkpoints", type=int, default=30)
    parser.add_argument("--interval", type=float, default=5.0)
    parser.add_argument("--epoch", type=float, default=0.5)
    parser.add_argument("--mb-s", type=float, default=20.0)
    parser.add_argument("--change-mb-s", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="for the server's volume")
    parser.add_argument("--store", type=Path, help="for the store: one that is elsewhere")
    parser.add_argument("--only", choices=("checkpoints", "rows"), help="one of the two figures")
    asked = parser.parse_args()

    def taken(server: Server, rng: random.Random, *, changelog: bool) -> dict[str, float]:
        return checkpoints(server, asked, rng, changelog=changelog)

    found: dict[str, Any] = {"without": {}, "with": {}}
    for name, changelog in (("without", False), ("with", True)):
        if asked.only != "rows":
            found[name] |= _measured(asked, taken, changelog=changelog, filled=True)
    for number in range(asked.rounds if asked.only != "checkpoints" else 0):
        # In turns, and now the one first, now the other.
        for name in ("without", "with")[:: 1 - 2 * (number % 2)]:
            took = _measured(asked, processor_time, changelog=name == "with", filled=False)
            found[name].setdefault("microseconds_per_row", []).append(round(took, 3))
    for name, figures in found.items():
        print(f"{name} changelog: {json.dumps(figures)}")
    kept = True
    if asked.only != "rows":
        kept = found["with"]["p99"] < _MOST_SECONDS
        print(f"p99 of a checkpoint: {found['with']['p99']:.2f} s (below {_MOST_SECONDS:g} s)")
    if asked.only != "checkpoints":
        rows = [found[name]["microseconds_per_row"] for name in ("with", "without")]
        cost = statistics.median(a / b for a, b in zip(*rows, strict=True))
        print(f"processor time of the server for a row: {cost:.2f}x (at most {_MOST_RATIO:g}x)")
        kept = kept and cost <= _MOST_RATIO
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
