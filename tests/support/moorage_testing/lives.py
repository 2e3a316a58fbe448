"""A driver and its ranges, small enough for a thousand lives, on a store that fails.

Uploads, packs, manifests, log, retirement, sweep and fetching are the real ones; the database is a
stand-in. For tests of what is left after crashes and races.
"""

import json
import random
import shutil
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from moorage_state.errors import AlreadyExists, StoreUnavailable
from moorage_state.keygroups import range_of
from moorage_state.server import (
    RangeSpec,
    UploadLimits,
    UploadRequest,
    Version,
    WrittenPart,
)
from moorage_state.server.local_files import FileHashes, RangeDirectory, Snapshots
from moorage_state.server.restore import fetch_all
from moorage_state.server.uploads import PartWriter
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    OperatorParts,
    Owner,
    RangeEntry,
    Retirement,
    Root,
    Run,
    UnderWay,
    run_token,
    sweep,
)
from moorage_state.snapshots.parts import PartCache, with_files
from moorage_state.stores import ObjectStore
from moorage_testing.manifests import checkpoint_fields

__all__ = ["BadStore", "Crash", "Driver", "Expected", "State"]

OWNER = Owner("here", "default", "flights", "uid-1")
GROUPS = 8
LIMITS = [
    UploadLimits(),
    UploadLimits(inline_range=300, inline_file=40, merge_below=400, pack=1000),
    UploadLimits(inline_range=0, inline_file=-1, merge_below=1 << 20),
    UploadLimits(inline_range=0, inline_file=-1, merge_below=0),
]

State = dict[str, str]
CheckpointName = tuple[int, int]
"""Fence and checkpoint id: a writer that was fenced may use an id that its successor uses too."""


class Crash(BaseException):
    """The driver's process ends here."""


class BadStore:
    """Fails some calls, before or after they took effect, whenever its chance says so."""

    def __init__(self, inner: ObjectStore, rng: random.Random) -> None:
        self._inner = inner
        self._rng = rng
        self._lock = threading.Lock()
        self.rate = 0.0

    @property
    def url(self) -> str:
        return self._inner.url

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*args: Any, **options: Any) -> Any:
            with self._lock:
                chance = self._rng.random()
            if chance < self.rate / 2:
                raise StoreUnavailable(f"injected before {name}")
            result = method(*args, **options)
            if chance < self.rate:
                raise StoreUnavailable(f"injected after {name}")
            return result

        return call


class Table:
    """A stand-in for a database: immutable `.sst` files and a CURRENT that names them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        current = root / "CURRENT"
        self.names: list[str] = json.loads(current.read_text()) if current.exists() else []
        self.changes: dict[str, str | None] = {}
        self.made = max((int(name.partition(".")[0]) for name in self.names), default=0)

    def read(self) -> State:
        found: dict[str, str | None] = {}
        for name in self.names:
            found |= json.loads((self.root / name).read_text())
        return {key: value for key, value in (found | self.changes).items() if value is not None}

    def compact(self) -> None:
        self.flush()
        self.changes = dict(self.read())
        self.names = []

    def flush(self) -> None:
        if self.changes:
            self.made += 1
            name = f"{self.made:06}.sst"
            (self.root / name).write_text(json.dumps(self.changes))
            self.names.append(name)
            self.changes = {}
        (self.root / "CURRENT").write_text(json.dumps(self.names))

    def checkpoint(self, target: Path) -> None:
        target.mkdir()
        for name in [*self.names, "CURRENT"]:
            shutil.copyfile(self.root / name, target / name)


@dataclass
class Expected:
    """What a restore must find.

    Attributes:
        taken: the state at each snapshot.
        acknowledged: the last checkpoint that somebody was told of.
        attempted: later ones of which nobody knows whether they exist.
    """

    taken: dict[CheckpointName, State] = field(default_factory=dict)
    acknowledged: CheckpointName | None = None
    attempted: set[CheckpointName] = field(default_factory=set)


class Driver:
    """One process that writes the lineage, with its ranges on its own volume."""

    def __init__(self, store: Any, folder: Path, rng: random.Random, expected: "Expected") -> None:
        self.store, self.folder, self.rng, self.expected = store, folder, rng, expected
        self.writer = LogWriter.claim(store, OWNER, folder.name)
        self.run = run_token(self.writer.fence, 0)
        self.checkpoints = CheckpointStore(store)
        loaded = self.checkpoints.load_latest(self.writer.entries)
        base = loaded.manifest if loaded else None
        assert base is None or isinstance(base, Root)
        self.base = base
        self.last_id = self.checkpoints.next_id(self.writer.entries) - 1
        self.pending: Root | None = None
        self.parallelism = rng.randint(1, 4)
        self.ranges = [self._restored(n) for n in range(self.parallelism)]
        self.writer.append(Run(self.writer.fence, 0, self._restored_from()))

    def _restored_from(self) -> str | None:
        return f"chk-{self.base.checkpoint_id}" if self.base else None

    def _restored(self, number: int) -> tuple[Table, Snapshots]:
        groups = range_of(number, self.parallelism, GROUPS)
        directory = RangeDirectory(self.folder, RangeSpec("op", groups.start, groups.end))
        directory.checkpoints.mkdir(parents=True)
        table = Table(directory.root / "work")
        known = []
        for handle in with_files(self.store, self.base).handles if self.base else ():
            if handle.start > groups.end or handle.end < groups.start:
                continue
            known += handle.files
            arrival = directory.root / f"import-{handle.start}"
            arrival.mkdir()
            fetch_all(self.store, handle.files, arrival)
            found = Table(arrival).read()
            if (handle.start, handle.end) == (groups.start, groups.end):
                shutil.rmtree(table.root)
                arrival.rename(table.root)
                table = Table(table.root)
            else:
                table.changes |= {k: v for k, v in found.items() if group_of(k) in groups}
        hashes = FileHashes(known if table.names else ())
        backend = f"{self.folder.name}x{number}"
        return table, Snapshots(directory.spec, directory, backend, hashes)

    def state(self) -> State:
        return {key: value for table, _ in self.ranges for key, value in table.read().items()}

    def write(self) -> None:
        for _ in range(self.rng.randrange(6)):
            group = self.rng.randrange(GROUPS)
            key = f"{group}-{self.rng.randrange(5)}"
            value = self.rng.choice([None, "x" * self.rng.randrange(300) + str(self.rng.random())])
            for table, snapshots in self.ranges:
                if snapshots.spec.start <= group <= snapshots.spec.end:
                    table.changes[key] = value
        if self.rng.random() < 0.3:
            self.rng.choice(self.ranges)[0].compact()

    def upload(self) -> None:
        """The first part of a checkpoint; `complete` may come much later, or never."""
        if self.pending is not None:
            return
        self.last_id += 1
        self.expected.taken[self.writer.fence, self.last_id] = self.state()
        for table, snapshots in self.ranges:
            snapshots.take(table, self.last_id, Version(self.last_id, "d"))  # type: ignore[arg-type]  # no version of a server
        written = [
            self._uploaded([snapshots for _, snapshots in self.ranges[server::2]])
            for server in range(min(2, self.parallelism))
        ]
        self.pending = self._root(written)

    def _uploaded(self, mine: list[Snapshots]) -> WrittenPart:
        """What one server does."""
        ranges = self.base.ranges("op") if self.base else []
        parts = {
            one.part
            for one in ranges
            for s in mine
            if one.start <= s.spec.end and one.end >= s.spec.start
        }
        requests = [UploadRequest("op", s.spec.start, []) for s in mine]
        writer = PartWriter(self.store, self.run, self.last_id, "rocksdb", PartCache())
        base = sorted(parts, key=lambda ref: ref.key)
        return writer.write(mine, requests, self.rng.choice(LIMITS), base)

    def _root(self, written: list[WrittenPart]) -> Root:
        entries = [
            RangeEntry(start=one.start, end=one.end, bytes_total=one.bytes_total, part=place)
            for place, some in enumerate(written)
            for one in some.ranges
        ]
        operator = OperatorParts(
            parallelism=self.parallelism,
            key_types=[],
            states=[],
            subtasks=sorted(entries, key=lambda one: one.start),
            backend="rocksdb",
        )
        fields = checkpoint_fields(
            self.writer.lineage,
            self.last_id,
            fence=self.writer.fence,
            created_at=datetime.now(UTC),
            max_parallelism=GROUPS,
            operators={"op": operator},
            parts=[one.part for one in written],
            base_id=self.base.checkpoint_id if self.base else 0,
        )
        return Root(**fields)

    def complete(self) -> None:
        if self.pending is None:
            return
        manifest = self.pending
        name = (manifest.fence, manifest.checkpoint_id)
        self.expected.attempted.add(name)
        try:
            self.checkpoints.complete(self.writer, manifest, datetime.now(UTC))
        except StoreUnavailable:
            # It may exist: what it holds stays pending until it is known.
            return
        except AlreadyExists:
            self.abandon()
            return
        self.expected.acknowledged = name
        self.expected.attempted.clear()
        for _, snapshots in self.ranges:
            snapshots.complete(manifest.checkpoint_id)
        self.base, self.pending = manifest, None

    def abandon(self) -> None:
        """Give a checkpoint up, unless its entry may be in the log."""
        if self.pending is None or self.writer._in_doubt is not None:
            return
        manifest = self.pending
        self.pending = None
        self.expected.attempted.discard((manifest.fence, manifest.checkpoint_id))
        for _, snapshots in self.ranges:
            snapshots.aborted(manifest.checkpoint_id)

    def retire(self, keep: int | None = None) -> Retirement:
        pinned = [self.base.checkpoint_id] if self.base else []
        keep = keep or self.rng.randint(1, 3)
        return self.checkpoints.retire(self.writer, keep, pinned=pinned)

    def sweep(self) -> None:
        under_way = UnderWay()
        if self.pending is not None:
            under_way = UnderWay([self.pending.checkpoint_id], self._pinned())
        sweep(self.store, self.writer, age_floor=timedelta(0), under_way=lambda: under_way)

    def sweep_all(self) -> None:
        """Leave no garbage: of a hundred objects one sweep passes over one or two, by chance."""
        for _ in range(4):
            self.sweep()

    def _pinned(self) -> list[int]:
        return [self.base.checkpoint_id] if self.base else []


def group_of(key: str) -> int:
    return int(key.partition("-")[0])
