"""A range and its driver: what the engine does with a state server, in a few calls."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from moorage_testing.parts import handles_of

from moorage_state.deltas import encode_frame
from moorage_state.rocks import RocksOptions
from moorage_state.server import (
    Lease,
    Prepared,
    RangeApi,
    RangeHost,
    RangeSpec,
    RestoreBase,
    ServerGroup,
    StateApi,
    UploadLimits,
    UploadRequest,
    Version,
)
from moorage_state.server.operations import OpenResult, SnapshotWay
from moorage_state.snapshots import FileRef, RangeHandle
from moorage_state.state_backends import (
    EmbeddedRocksDBStateBackend,
    ForStStateBackend,
    HashMapStateBackend,
    StateBackend,
)

MIB = 1 << 20
SMALL = EmbeddedRocksDBStateBackend(
    tuned=RocksOptions(
        block_cache_bytes=16 * MIB, write_buffers_bytes=16 * MIB, write_buffer_bytes=4 * MIB
    )
)
BACKENDS: dict[str, StateBackend] = {
    "rocksdb": SMALL,
    "hashmap": HashMapStateBackend(memory_limit=64 * MIB),
    "forst": ForStStateBackend(tuned=SMALL.tuned, cache_reserve=0),
}
APART = UploadLimits(inline_range=0, inline_file=-1, merge_below=0)
"""Every file is an object of its own, as it is with large state."""


def key(group: int, number: int) -> bytes:
    """A stored key of keyed state."""
    return group.to_bytes(2, "big") + b"\x01" + number.to_bytes(6, "big")


class Driven:
    """One range and run, driven as the engine would; `version` is what was committed last."""

    def __init__(self, api: StateApi, url: str, spec: RangeSpec, run: str = "f1r0") -> None:
        self.api = api
        self.url = url
        self.spec = spec
        self.run = run
        self.version = Version(0, "")
        self.committed: list[Version] = []
        self.base: RestoreBase | None = None
        self.limits = APART

    @property
    def lease(self) -> Lease:
        return self.spec.lease(self.run)

    @property
    def range(self) -> RangeApi:
        return self.api.range(self.lease)

    def open(self, base: RestoreBase | None = None, run: str = "") -> OpenResult:
        """Open empty or from `base`; another run begins without committed deltas."""
        if run:
            self.run, self.committed = run, []
        self.base = base or self.base
        result = self.api.open_range(self.spec, self.run, self.base, self.committed, self.url)
        self.version = result.version
        return result

    def open_anew(self, base: RestoreBase | None = None, *, run: str) -> OpenResult:
        """Let the range go first, so that the next run does not find it open."""
        self.api.release_range(self.lease)
        return self.open(base, run)

    def prepare(
        self,
        writes: Mapping[bytes, bytes | None],
        ranges: Sequence[tuple[bytes, bytes]] = (),
        attempt: str = "a",
        epoch: int = 0,
    ) -> Prepared:
        epoch = epoch or self.version.epoch + 1
        frame = encode_frame(ranges, list(writes), list(writes.values()))
        self.range.stage(epoch, attempt, frame, 0)
        return self.range.prepare(epoch, attempt, self.version.digest, 1)

    def commit(self, prepared: Prepared, *, wait: bool = False) -> Version:
        version = Version(self.version.epoch + 1, prepared.digest)
        self.range.commit(version.epoch, version.digest, wait)
        self.committed.append(version)
        self.version = version
        return version

    def commit_decided(self, prepared: Prepared) -> None:
        """The epoch counts from here on, whether or not the server hears of it."""
        self.version = Version(self.version.epoch + 1, prepared.digest)
        self.committed.append(self.version)
        self.range.commit(*self.version)

    def epoch(
        self, writes: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = ()
    ) -> Version:
        return self.commit(self.prepare(writes, ranges))

    def read(self) -> dict[bytes, bytes]:
        """All keyed state of the range."""
        prefixes = [g.to_bytes(2, "big") for g in range(self.spec.start, self.spec.end + 1)]
        found: dict[bytes, bytes] = {}
        for scan in self.range.scan_many(self.version, prefixes, 1 << 30, 1 << 40):
            assert scan.complete
            found.update(zip(scan.keys, scan.values, strict=True))
        return found

    def upload(self, checkpoint_id: int, base: Sequence[FileRef] = ()) -> RangeHandle:
        request = UploadRequest(self.spec.uid, self.spec.start, list(base))
        uploaded = self.api.upload_many(self.run, checkpoint_id, self.url, [request], self.limits)
        (handle,) = handles_of(self.url, uploaded)
        return handle

    def log(self, checkpoint_id: int, way: SnapshotWay = "log") -> RangeHandle:
        """Take a checkpoint that lists a log, upload and complete it."""
        self.begin(checkpoint_id, way)
        return self.finish(checkpoint_id)

    def begin(self, checkpoint_id: int, way: SnapshotWay = "log") -> None:
        """Take a checkpoint that lists a log, and builds on the last one."""
        base_id = self.base.checkpoint_id if self.base and self.base.builds else 0
        self.range.snapshot(checkpoint_id, self.version, way, base_id)

    def finish(self, checkpoint_id: int) -> RangeHandle:
        """Upload what was taken, and complete it."""
        return self.finished(checkpoint_id, self.upload(checkpoint_id))

    def finished(self, checkpoint_id: int, handle: RangeHandle) -> RangeHandle:
        """The checkpoint exists."""
        self.base = RestoreBase(checkpoint_id, handle.epoch, [handle], builds=True)
        self.committed = [v for v in self.committed if v.epoch > handle.epoch]
        self.api.notify_complete(checkpoint_id)
        return handle

    def checkpoint(self, checkpoint_id: int, base: Sequence[FileRef] = ()) -> RangeHandle:
        """Snapshot, upload and complete."""
        self.range.snapshot(checkpoint_id, self.version)
        handle = self.upload(checkpoint_id, base)
        epochs = self.version.epoch
        # As in a job: it is complete by its manifest, before the server hears of it and drops
        # the deltas that it contains. A server that is killed in that call must not be asked
        # for them again.
        self.base = RestoreBase(checkpoint_id, epochs, [handle])
        self.committed = [version for version in self.committed if version.epoch > epochs]
        self.api.notify_complete(checkpoint_id, self.run)
        return handle


Drive = Callable[..., Driven]


@pytest.fixture
def url(tmp_path: Path) -> str:
    store = tmp_path / "store"
    store.mkdir()
    return f"file://{store}"


@pytest.fixture(scope="session", params=list(BACKENDS))
def small(request: pytest.FixtureRequest) -> StateBackend:
    """Options of either backend, for little memory: what is shown holds for both."""
    return BACKENDS[request.param]


@pytest.fixture
def is_heap(small: StateBackend) -> bool:
    """Whether state is in memory."""
    return isinstance(small, HashMapStateBackend)


@pytest.fixture
def host(tmp_path: Path, small: StateBackend) -> Iterator[RangeHost]:
    with RangeHost(tmp_path / "local", small) as host:
        yield host


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory, small: StateBackend) -> Iterator[ServerGroup]:
    """Two real server processes, for tests that leave them alive."""
    with ServerGroup(2, tmp_path_factory.mktemp("servers"), backend=small) as group:
        yield group


@pytest.fixture(params=["in process", "over a socket"])
def api(request: pytest.FixtureRequest, small: StateBackend) -> Iterator[StateApi]:  # noqa: ARG001
    """The interface, of a host in this process and of a real server, over each backend."""
    if request.param == "in process":
        yield request.getfixturevalue("host")
        return
    with request.getfixturevalue("servers").connect(0) as client:
        yield client


@pytest.fixture
def drive(url: str) -> Drive:
    """Makes a driven range of an operator that no other test uses."""
    uid = f"op-{uuid.uuid4().hex[:8]}"

    def make(api: StateApi, start: int = 0, end: int = 63, run: str = "f1r0") -> Driven:
        return Driven(api, url, RangeSpec(uid, start, end), run)

    return make


@pytest.fixture(name="key")
def key_of() -> Callable[[int, int], bytes]:
    """The stored key of (key group, number)."""
    return key
