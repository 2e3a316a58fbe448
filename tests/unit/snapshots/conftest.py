"""A lineage to write to, made of whole and plausible parts, and a store that fails on request."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from moorage_state.errors import StoreUnavailable
from moorage_state.snapshots import (
    CheckpointStore,
    FileRef,
    LogWriter,
    Manifest,
    OperatorState,
    Owner,
    RangeHandle,
    StateMeta,
)
from moorage_state.stores import LocalStore, MemoryStore, ObjectStore

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def start() -> datetime:
    return START


@pytest.fixture
def owner() -> Owner:
    return Owner("here", "default", "flights", "uid-1")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryStore]:
    name = f"snapshots-{tmp_path.name}"
    yield MemoryStore.named(name)
    MemoryStore.forget(name)


@pytest.fixture
def directory(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def _file(store: ObjectStore | None, name: str, key: str, *, shared: bool) -> FileRef:
    data = f"bytes of {key}".encode()
    if store is not None:
        store.put(key, data)
    digest = hashlib.sha256(data).hexdigest()
    return FileRef(name=name, key=key, size=len(data), sha256=digest, shared=shared)


@pytest.fixture
def new_manifest() -> Callable[..., Manifest]:
    """Make a complete manifest of one operator with two subtasks, and upload its files."""

    def make(
        checkpoint_id: int,
        shared: Sequence[str] = ("a",),
        *,
        writer: LogWriter | None = None,
        store: ObjectStore | None = None,
        **changes: Any,
    ) -> Manifest:
        def handle(start: int, end: int) -> RangeHandle:
            private = f"chk-{checkpoint_id}/f1r0/counts/{start}-{end}/CURRENT"
            files = [
                _file(store, "CURRENT", private, shared=False),
                *(
                    _file(store, f"{n}.sst", f"shared/b{start}-{n}.sst-0123", shared=True)
                    for n in shared
                ),
            ]
            return RangeHandle(
                uid="counts",
                start=start,
                end=end,
                epoch=checkpoint_id * 10,
                digest="d1",
                backend_uuid=f"b{start}",
                files=files,
                bytes_total=sum(file.size for file in files),
            )

        operator = OperatorState(
            parallelism=2,
            key_types=["string"],
            states=[
                StateMeta(name="seen", kind="value", type="bigint"),
                StateMeta(name="by_day", kind="map", type="double", key_type="date"),
            ],
            subtasks=[handle(0, 63), handle(64, 127)],
        )
        fields: dict[str, Any] = {
            "lineage": writer.lineage if writer else "lineage-1",
            "checkpoint_id": checkpoint_id,
            "epoch": checkpoint_id * 10,
            "fence": writer.fence if writer else 1,
            "run": 0,
            "created_at": START + timedelta(minutes=checkpoint_id),
            "job_name": "flights",
            "moorage_version": "0.1.0",
            "max_parallelism": 128,
            "operators": {"counts": operator},
            "source": {"query_id": "q-1", "batch_id": 7, "files": {"in": '{"offset":1}'}},
            "watermarks": {"in": 1357034400000, "idle": None},
            "sinks": {"out": [{"path": "part-1", "rows": 3}]},
        }
        return Manifest(**(fields | changes))

    return make


@pytest.fixture
def writer(store: MemoryStore, owner: Owner) -> LogWriter:
    return LogWriter.claim(store, owner, "me")


@pytest.fixture
def take(
    store: MemoryStore, writer: LogWriter, new_manifest: Callable[..., Manifest]
) -> Callable[..., Manifest]:
    """Complete a checkpoint; it is completed as many minutes after the start as its id says."""

    def take(checkpoint_id: int, *shared: str) -> Manifest:
        manifest = new_manifest(checkpoint_id, shared or ("a",), writer=writer, store=store)
        completed_at = START + timedelta(minutes=checkpoint_id)
        CheckpointStore(store).complete(writer, manifest, completed_at)
        return manifest

    return take


@pytest.fixture
def keys(store: MemoryStore) -> Callable[..., set[str]]:
    """What lies in a store beside the log."""

    def keys(of: ObjectStore = store) -> set[str]:
        return {info.key for info in of.list("") if not info.key.startswith("log/")}

    return keys


class FaultyStore:
    """A store of which the next put-if-absent fails, before or after it took effect."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.fail: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put_if_absent(self, key: str, data: bytes) -> None:
        fail, self.fail = self.fail, None
        if fail != "before":
            self.inner.put_if_absent(key, data)
        if fail:
            raise StoreUnavailable(f"injected: {fail}")


@pytest.fixture
def faulty(store: MemoryStore) -> FaultyStore:
    return FaultyStore(store)
