"""A job with a changelog by chance, on real ranges, and all that its checkpoints need is there.

Epochs, checkpoints, copies and deltas that go ahead come in any order; ranges are opened again in
the middle of a checkpoint, uploads are repeated and given up, notifications are lost and told
twice, and runs of other parallelisms follow. After each retirement every object of every retained
checkpoint is in the store, and what is restored is what was committed.
"""

import random
from collections import Counter
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime

import pytest
from moorage_testing.manifests import checkpoint_fields

from moorage_state.deltas import encode_frame
from moorage_state.errors import (
    AlreadyExists,
    CorruptState,
    Fenced,
    Retryable,
    StaleLease,
    VersionGone,
    VersionMismatch,
)
from moorage_state.keygroups import range_of
from moorage_state.server import (
    RangeHost,
    RangeSpec,
    RestoreBase,
    UploadLimits,
    UploadRequest,
    Version,
)
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    OperatorParts,
    Owner,
    RangeEntry,
    Root,
    Run,
)
from moorage_state.snapshots.history import retained
from moorage_state.snapshots.parts import references_of
from moorage_state.state_backends import HashMapStateBackend
from moorage_state.stores import open_store

GROUPS = 12
OWNER = Owner("here", "default", "flights", "uid-1")
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LIMITS = [UploadLimits(), UploadLimits(inline_range=0, inline_file=-1, merge_below=0)]


class Life:
    """The job; `expected` has the state of each checkpoint."""

    def __init__(self, folder, seed):
        self.rng = random.Random(seed)
        self.folder, self.limits = folder, self.rng.choice(LIMITS)
        self.store = open_store(f"file://{folder}/store", create=True)
        self.checkpoints = CheckpointStore(self.store)
        self.writer = LogWriter.claim(self.store, OWNER, "pid 7", clock=lambda: START)
        self.host = self._host("local")
        self.runs = self.id = self.epoch = self.copied = 0
        self.base: Root | None = None
        self.state: dict[bytes, bytes] = {}
        self.expected: dict[int, dict[bytes, bytes]] = {0: {}}
        self.run_anew()

    def _host(self, name):
        return RangeHost(self.folder / name, HashMapStateBackend(memory_limit=64 << 20))

    def run_anew(self):
        """A run that begins with the newest checkpoint, mostly at another parallelism."""
        self.run = f"f{self.writer.fence}r{self.runs}"
        self.writer.append(Run(self.writer.fence, self.runs))
        self.runs, self.copied = self.runs + 1, 0
        self.epoch = self.base.epoch if self.base else 0
        self.state = dict(self.expected[self.base.checkpoint_id if self.base else 0])
        count = self.rng.randint(1, 3)
        groups = [range_of(at, count, GROUPS) for at in range(count)]
        self.specs = [RangeSpec("op", one.start, one.end) for one in groups]
        self.committed: dict[RangeSpec, list[Version]] = {spec: [] for spec in self.specs}
        self.began = self.base
        self.versions = {}
        self.open()

    def open(self):
        """Open all ranges, or again."""
        for spec in self.specs:
            base = restore_base(self.began, spec) if self.began else None
            given = spec, self.run, base, self.committed[spec], self.store.url, 0
            self.versions[spec] = self.host.open_range(*given).version
        assert self.read(self.host, self.specs, self.run, self.versions) == self.state

    def open_again(self):
        """As after the end of their server."""
        for spec in self.specs:
            self.host.release_range(spec.lease(self.run))
        self.open()

    def read(self, host, specs, run, versions):
        found: dict[bytes, bytes] = {}
        for spec in specs:
            prefixes = [group.to_bytes(2, "big") for group in range(spec.start, spec.end + 1)]
            for scan in host.range(spec.lease(run)).scan_many(versions[spec], prefixes):
                found.update(zip(scan.keys, scan.values, strict=True))
        return found

    def write(self):
        """An epoch."""
        self.epoch += 1
        for spec in self.specs:
            keys = {self._key(spec) for _ in range(self.rng.randrange(6))}
            size = self.rng.choice([10, 400, 3000])
            values = {key: self.rng.choice([None, self.rng.randbytes(size)]) for key in keys}
            opened = self.host.range(spec.lease(self.run))
            opened.stage(self.epoch, "a", encode_frame([], list(values), list(values.values())), 0)
            ready = opened.prepare(self.epoch, "a", self.versions[spec].digest, 1)
            opened.commit(self.epoch, ready.digest)
            self.versions[spec] = Version(self.epoch, ready.digest)
            self.committed[spec].append(self.versions[spec])
            self.state = {k: v for k, v in {**self.state, **values}.items() if v is not None}

    def _key(self, spec):
        group = self.rng.randint(spec.start, spec.end)
        return group.to_bytes(2, "big") + b"\x01" + self.rng.randbytes(1)

    def checkpoint(self):
        """One that may be given up on the way."""
        self.id += 1
        built_on, epoch, state = self.base, self.epoch, self.state
        base_id = built_on.checkpoint_id if built_on else 0
        copies = base_id and not self.copied and self.rng.random() < 0.4
        for spec in self.specs:
            opened = self.host.range(spec.lease(self.run))
            way = "log and copy" if copies else "log"
            opened.snapshot(self.id, self.versions[spec], way, base_id)
        try:
            written = self._upload(built_on)
        except Retryable:
            self._tell(self.host.notify_aborted)
            return
        fields = checkpoint_fields(
            lineage=self.writer.lineage,
            checkpoint_id=self.id,
            fence=self.writer.fence,
            epoch=epoch,
            max_parallelism=GROUPS,
            operators={"op": operator_of(written)},
            parts=[written.part],
            base_id=base_id,
        )
        root = Root(**fields)
        self.checkpoints.complete(self.writer, root, START)
        self.base = self.began = root
        self.expected[self.id] = state
        for spec, some in self.committed.items():
            self.committed[spec] = [version for version in some if version.epoch > epoch]
        self._tell(self.host.notify_complete)
        if copies:
            self.copied = self.id

    def _upload(self, base):
        chance = self.rng.random()
        if chance < 0.1:
            self.open_again()
        requests = [UploadRequest("op", spec.start, [], "op") for spec in self.specs]
        parts = [part.ref for part in base.parts] if base else []
        for _ in range(self.rng.choice([1, 1, 1, 2])):
            given = self.run, self.id, self.store.url, requests, self.limits, parts
            written = self.host.upload_many(*given)
        if self.rng.random() < 0.3:
            self.write()
        if 0.1 < chance < 0.3:
            self.open_again()
        if chance > 0.9:
            raise Retryable("given up")
        return written

    def _tell(self, notify):
        for _ in range(self.rng.choice([0, 1, 1, 1, 1, 2])):
            notify(self.id, self.run)

    def persist(self):
        """Bring deltas to the store ahead."""
        self.host.persist_many(self.run, self.store.url, self.specs, self.limits, 1)

    def materialize(self):
        """Bring the copies of a checkpoint there; that may fail elsewhere."""
        if not self.copied:
            return
        copied, self.copied = self.copied, 0
        given = self.run, copied, self.store.url, self.specs, self.limits
        failed = self.rng.random() < 0.2  # on another server
        try:
            self.host.materialize_many(*given)
        except Retryable:
            failed = True
        if failed:
            self.host.notify_aborted(copied, self.run)

    def retire(self):
        """Let old checkpoints go; what the others need is there."""
        self.checkpoints.retire(self.writer, self.rng.randint(1, 3))
        there = {info.key for info in self.store.list("")}
        for entry in retained(self.writer.entries):
            root = self.checkpoints.load_root(entry)
            needed = {key for keys in references_of(self.store, root) for key in keys}
            assert needed <= there, entry.checkpoint_id

    def restore(self):
        """The newest checkpoint elsewhere, as one range."""
        assert self.base
        spec, run = RangeSpec("op", 0, GROUPS - 1), "f9r9"
        with self._host(f"elsewhere-{self.id}") as host:
            base = restore_base(self.base, spec)
            version = host.open_range(spec, run, base, [], self.store.url).version
            found = self.read(host, [spec], run, {spec: version})
        assert found == self.expected[self.base.checkpoint_id]


class Succession(Life):
    """Drivers that take over from one another, with the volume or without; those of before go on.

    Attributes:
        late: how often one of before got through with something, by what it was.
    """

    def __init__(self, folder, seed):
        self.before: list[Succession] = []
        self.late: Counter[str] = Counter()
        super().__init__(folder, seed)
        self.hosts = [self.host]

    def checkpoint(self):
        try:
            super().checkpoint()
        except AlreadyExists:
            # One of before has the number: the next one is free.
            self.host.notify_aborted(self.id, self.run)

    def take_over(self):
        """Another driver claims the lineage, while this one is stopped."""
        if self.base is None:
            return
        old = copy(self)
        old.expected, old.versions = dict(self.expected), dict(self.versions)
        old.committed = {spec: [*some] for spec, some in self.committed.items()}
        self.before.append(old)
        if self.rng.random() < 0.3:
            self.hosts.append(self._host(f"local{len(self.hosts)}"))
        self.host, self.runs = self.rng.choice(self.hosts), 0
        self.writer = LogWriter.claim(self.store, OWNER, "another", clock=lambda: START)
        self.checkpoints = CheckpointStore(self.store)
        found = self.checkpoints.load_latest(self.writer.entries)
        assert found is not None
        assert found.manifest.checkpoint_id == self.base.checkpoint_id
        self.id = self.checkpoints.next_id(self.writer.entries) - 1
        self.run_anew()

    def go_on_late(self):
        """One of before does something: it writes no entry, and deletes nothing."""
        if not self.before:
            return
        old = self.rng.choice(self.before)
        actions = [
            old.write,
            old.checkpoint,
            old.persist,
            old.materialize,
            old.retire,
            old.run_anew,
        ]
        action = self.rng.choice([*actions, old.open_again])
        there = {info.key for info in self.store.list("")}
        # What it would build on, or reads, its successor may have let go.
        with suppress(Fenced, Retryable, StaleLease, VersionGone, VersionMismatch, CorruptState):
            action()
            self.late[action.__name__] += 1
        after = {info.key for info in self.store.list("")}
        assert there <= after
        assert not [key for key in after - there if key.startswith("log/")]


def restore_base(root, spec):
    ranges = root.operators["op"].subtasks
    parts = [root.parts[r.part].ref for r in ranges if r.start <= spec.end and r.end >= spec.start]
    parts = list(dict.fromkeys(parts))
    return RestoreBase(root.checkpoint_id, root.epoch, [], parts, "", builds=True)


def operator_of(written):
    found = sorted(written.ranges, key=lambda one: one.start)
    return OperatorParts(
        parallelism=len(found),
        key_types=["string"],
        states=[],
        subtasks=[
            RangeEntry(start=one.start, end=one.end, bytes_total=one.bytes_total, part=0)
            for one in found
        ],
        backend=written.backend,
    )


def live(folder, seed, steps, kind=Life):
    life = kind(folder, seed)
    chances = {
        life.write: 35,
        life.checkpoint: 35,
        life.materialize: 10,
        life.retire: 10,
        life.persist: 8,
        life.run_anew: 2,
    }
    if isinstance(life, Succession):
        chances |= {life.take_over: 4, life.go_on_late: 25}
    try:
        for one in life.rng.choices(list(chances), list(chances.values()), k=steps):
            one()
        while life.base is None or life.base.checkpoint_id < life.id:
            life.checkpoint()
        life.retire()
        life.restore()
    finally:
        for host in getattr(life, "hosts", [life.host]):
            host.close()
    return life


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_nothing_that_a_retained_checkpoint_needs_is_ever_deleted(tmp_path, seed):
    live(tmp_path, seed, 100)


def test_drivers_of_before_delete_nothing_and_write_no_entry(tmp_path):
    life = live(tmp_path, 4, 150, Succession)
    assert len(life.before) > 2
    assert life.late["materialize"]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_drivers_of_before_do_no_harm_in_many_lives(tmp_path, seed):
    live(tmp_path, seed, 300, Succession)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_nothing_is_deleted_in_many_lives(tmp_path, seed):
    live(tmp_path, seed, 300)
