"""A small job's checkpoint directory with real state, made without Spark: by a range host alone."""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from moorage_state.canonical import key_groups
from moorage_state.database import Scan
from moorage_state.deltas import encode_frame
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keyed import KeyedStateStore, KeyTimers
from moorage_state.keylayout import key_prefix
from moorage_state.keys import KeyCodec
from moorage_state.rocks import RocksOptions
from moorage_state.server import (
    RangeHost,
    RangeSpec,
    UploadLimits,
    UploadRequest,
    Version,
    WrittenPart,
)
from moorage_state.server.operations import SnapshotWay
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    Manifest,
    OperatorParts,
    Owner,
    RangeEntry,
    Root,
    Run,
    StateMeta,
)
from moorage_state.state_backends import EmbeddedRocksDBStateBackend, StateBackend
from moorage_state.stores import open_store
from moorage_testing.manifests import checkpoint_fields

__all__ = ["APART", "INLINE", "PACKED", "START", "SmallJob", "build"]

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GROUPS = 16
APART = UploadLimits(inline_range=0, inline_file=-1, merge_below=0)
PACKED = UploadLimits(inline_range=0, inline_file=-1)
INLINE = UploadLimits()
STATES = [
    StateMeta(name="visit", kind="value", type="struct<n:bigint,at:timestamp,note:string>"),
    StateMeta(name="pages", kind="list", type="string"),
    StateMeta(name="by_day", kind="map", type="double", key_type="date"),
]
_MIB = 1 << 20
_SMALL = EmbeddedRocksDBStateBackend(
    tuned=RocksOptions(
        block_cache_bytes=16 * _MIB, write_buffers_bytes=16 * _MIB, write_buffer_bytes=4 * _MIB
    )
)


class SmallJob:
    """The operator `visits` with two subtasks, its states keyed by a user's name.

    User `user-<n>` has `visit`, `n % 4` elements of `pages`, entries of `by_day` if n is divisible
    by three, and one timer if n is even.
    """

    def __init__(
        self,
        directory: Path,
        scratch: Path,
        limits: UploadLimits = APART,
        backend: StateBackend = _SMALL,
    ) -> None:
        self.store = open_store(f"file://{directory}", create=True)
        self.writer = LogWriter.claim(
            self.store, Owner("here", "default", "flights", "uid-1"), "pid 7", clock=lambda: START
        )
        self.writer.append(Run(self.writer.fence, 0))
        self.run = f"f{self.writer.fence}r0"
        self.limits = limits
        self.way: SnapshotWay = "copy"
        self.epochs = 0
        self.checkpoints: list[Manifest] = []
        self._written: list[WrittenPart] = []
        self._host = RangeHost(scratch / "local", backend)
        self._ranges = [RangeSpec("visits", 0, 7), RangeSpec("visits", 8, GROUPS - 1)]
        self._versions = [Version(0, ""), Version(0, "")]
        for spec in self._ranges:
            self._host.open_range(spec, self.run, None, [], self.store.url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._host.close()

    def visit(self, numbers: Iterable[int], note: str = "") -> None:
        """One epoch, in which these users visit."""
        self.epochs += 1
        users = [(f"user-{n}",) for n in numbers]
        codec, groups = KeyCodec(["string"]), key_groups(["string"], GROUPS)(users)
        for at, spec in enumerate(self._ranges):
            mine = {
                key_prefix(group, codec.encode(user)): int(user[0].removeprefix("user-"))
                for group, user in zip(groups, users, strict=True)
                if spec.start <= group <= spec.end
            }
            staged = _Staged()
            _write(staged, self.epochs, mine, note)
            opened = self._host.range(spec.lease(self.run))
            for ordinal, frame in enumerate(staged.frames):
                opened.stage(self.epochs, "a", frame, ordinal)
            before = self._versions[at].digest
            ready = opened.prepare(self.epochs, "a", before, len(staged.frames))
            opened.commit(self.epochs, ready.digest, True)
            self._versions[at] = Version(self.epochs, ready.digest)

    def checkpoint(self, **changes: Any) -> Manifest:
        """Snapshot, upload and complete the next checkpoint."""
        number = len(self.checkpoints) + 1
        base, self._written = self._written, []
        for at in range(len(self._ranges)):
            self._upload(number, at, base[at : at + 1])
        fields: dict[str, Any] = {
            "lineage": self.writer.lineage,
            "checkpoint_id": number,
            "fence": self.writer.fence,
            "epoch": self.epochs,
            "created_at": START + timedelta(minutes=number),
            "job_name": "flights",
            "moorage_version": "0.1.0",
            "max_parallelism": GROUPS,
            "operators": {"visits": _operator(self._written)},
            "parts": [written.part for written in self._written],
            "base_id": number - 1,
            "source": {"files": {"in": f"offset {self.epochs}"}},
            "watermarks": {"in": 1357034400000, "idle": None, "": -(1 << 63)},
            "sinks": {"out": [{"path": "part-1", "rows": 3}]},
        }
        root = Root(**{**checkpoint_fields(**fields), **changes})
        completed_at = START + timedelta(minutes=number)
        checkpoints = CheckpointStore(self.store)
        manifest = checkpoints.load(checkpoints.complete(self.writer, root, completed_at))
        self._host.notify_complete(number)
        self.checkpoints.append(manifest)
        return manifest

    def materialize(self) -> None:
        """Bring the copies of the newest checkpoint, which listed a log, to the store."""
        number = len(self.checkpoints)
        self._host.materialize_many(self.run, number, self.store.url, self._ranges, self.limits)

    def retire(self, keep: int) -> None:
        """Retire all but the newest checkpoints, and delete what only they need."""
        CheckpointStore(self.store).retire(self.writer, keep)

    def _upload(self, number: int, at: int, base: Sequence[WrittenPart]) -> None:
        spec = self._ranges[at]
        opened, version = self._host.range(spec.lease(self.run)), self._versions[at]
        opened.snapshot(number, version, self.way, number - 1)
        request, parts = UploadRequest(spec.uid, spec.start, []), [one.part.ref for one in base]
        self._written.append(
            self._host.upload_many(self.run, number, self.store.url, [request], self.limits, parts)
        )


class _Staged:
    """A range that is only written to."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def stage(self, frame: bytes) -> None:
        self.frames.append(frame)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [None for _ in keys]

    def scan_many(self, prefixes: list[bytes], limit_entries: int, limit_bytes: int) -> list[Scan]:
        raise NotImplementedError

    def scan_from(self, prefix: bytes, after: bytes, limit: int) -> Scan:
        raise NotImplementedError

    def due_timers(self, up_to_ms: int, limit: int, after: bytes) -> list[bytes]:
        raise NotImplementedError


def _operator(written: Sequence[WrittenPart]) -> OperatorParts:
    ranges = [one.ranges[0] for one in written]
    return OperatorParts(
        parallelism=len(written),
        key_types=["string"],
        states=STATES,
        subtasks=[
            RangeEntry(start=one.start, end=one.end, bytes_total=one.bytes_total, part=at)
            for at, one in enumerate(ranges)
        ],
        backend=written[0].backend,
    )


def _write(staged: _Staged, epoch: int, users: dict[bytes, int], note: str) -> None:
    store = KeyedStateStore(staged, epoch)  # type: ignore[arg-type]  # as much of a range as is asked for
    visit = store.value_state(ValueStateDescriptor("visit", STATES[0].type))
    pages = store.list_state(ListStateDescriptor("pages", "string"))
    by_day = store.map_state(MapStateDescriptor("by_day", "date", "double"))
    timers = KeyTimers(store)
    store.begin_chunk(list(users))
    for at, n in enumerate(users.values()):
        store.switch_to(at)
        visit.update({"n": n, "at": START, "note": note})
        pages.add_all([f"page-{i}" for i in range(n % 4)])
        if n % 3 == 0:
            by_day.put(date(2026, 1, 1 + n % 20), n + 0.5)
            by_day.put(date(1969, 12, 31), float("nan"))
        if n % 2 == 0:
            timers.register(n * 1000)
    store.finish()
    if not staged.frames:
        staged.stage(encode_frame([], [], []))


def build(directory: Path, scratch: Path, limits: UploadLimits = APART) -> None:
    """Three checkpoints, the first of them retired; 41 users in the last."""
    with SmallJob(directory, scratch, limits) as job:
        job.visit(range(40))
        job.checkpoint()
        job.visit([1, 3], note="again")
        job.checkpoint()
        job.visit([100])
        job.checkpoint()
        job.retire(keep=2)
