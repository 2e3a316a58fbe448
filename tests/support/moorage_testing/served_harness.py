"""The contract suite's harness for the ranges that jobs have: those of a state server's host.

The store is the same as in `keyed_harness`; below it are deltas that are prepared and committed,
databases, checkpoints in a store, and ranges that another run opens from them.
"""

from typing import Any
from uuid import uuid4

from moorage.engine.range_access import BoundRange, LeasedRange, ServerDoor
from moorage_state.database import Scan
from moorage_state.keygroups import range_of
from moorage_state.keylayout import EVENT_TIMERS
from moorage_state.server import (
    Lease,
    RangeHost,
    RangeSpec,
    RestoreBase,
    UploadLimits,
    UploadRequest,
    Version,
)
from moorage_state.snapshots import RangeHandle
from moorage_testing.keyed_harness import MAX_PARALLELISM, KeyedStoreHarness
from moorage_testing.parts import handles_of

__all__ = ["ServedHarness"]

_DOOR = ServerDoor("in process")


class ServedRange:
    """Implements `RangeAccess` for one epoch after the other; `commit` begins the next one."""

    def __init__(self, host: RangeHost, spec: RangeSpec, run: str, version: Version) -> None:
        self._host = host
        self.spec = spec
        self.run = run
        self.version = version
        self._begin()

    @property
    def _lease(self) -> Lease:
        return self.spec.lease(self.run)

    def _begin(self) -> None:
        leased = LeasedRange(self._lease, _DOOR, self.version)
        self._bound = BoundRange(self._host, leased, self.version.epoch + 1, "a")

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return self._bound.get_many(keys)

    def scan_many(self, prefixes: list[bytes], limit_entries: int, limit_bytes: int) -> list[Scan]:
        return self._bound.scan_many(prefixes, limit_entries, limit_bytes)

    def scan_from(self, prefix: bytes, after: bytes, limit: int) -> Scan:
        return self._bound.scan_from(prefix, after, limit)

    def due_timers(
        self, up_to_ms: int, limit: int, after: bytes, kind: int = EVENT_TIMERS
    ) -> list[bytes]:
        return self._bound.due_timers(up_to_ms, limit, after, kind)

    def stage(self, frame: bytes) -> None:
        self._bound.stage(frame)

    def commit(self) -> None:
        self.version = Version(self.version.epoch + 1, self._bound.prepare())
        self._host.range(self._lease).commit(*self.version)
        self._begin()

    def checkpoint(self, checkpoint_id: int, url: str) -> RangeHandle:
        self._host.range(self._lease).snapshot(checkpoint_id, self.version)
        request = UploadRequest(self.spec.uid, self.spec.start, [])
        limits = UploadLimits()
        written = self._host.upload_many(self.run, checkpoint_id, url, [request], limits)
        (handle,) = handles_of(url, written)
        return handle

    def count(self) -> int:
        """How many entries are stored, of every kind."""
        groups = [g.to_bytes(2, "big") for g in range(self.spec.start, self.spec.end + 1)]
        return sum(len(scan.keys) for scan in self.scan_many(groups, 1 << 30, 1 << 40))

    def release(self) -> None:
        self._host.release_range(self._lease)


class ServedHarness(KeyedStoreHarness):
    """Implements `StateHarness` by `KeyedStateStore` on the ranges of a host.

    Args:
        url: the store that checkpoints go to.
    """

    def __init__(self, host: RangeHost, url: str, parallelism: int = 1) -> None:
        super().__init__(parallelism)
        self._host = host
        self._url = url
        self._uid = f"op-{uuid4().hex[:8]}"
        self._runs = 0
        self._taken = 0
        self._served: list[ServedRange] = []

    def open(self) -> None:
        self._open(RestoreBase(0, 0, []))

    def snapshot(self) -> Any:
        self._commit()
        found = self._checkpoint()
        self._begin()
        return found

    def restore(self, snapshot: Any) -> None:
        base, self._schemas = snapshot
        self.epoch = base.epoch
        self._open(base)

    def rescale(self, parallelism: int) -> None:
        self._commit()
        taken = self._checkpoint()
        self._parallelism = parallelism
        self.restore(taken)

    def stored_entries(self) -> int | None:
        return sum(one.count() for one in self._served)

    def close(self) -> None:
        for one in self._served:
            one.release()
        self._served = []
        super().close()

    def _checkpoint(self) -> Any:
        self._taken += 1
        handles = [one.checkpoint(self._taken, self._url) for one in self._served]
        return RestoreBase(self._taken, self.epoch, handles), list(self._schemas)

    def _open(self, base: RestoreBase) -> None:
        for one in self._served:
            one.release()
        self._runs += 1
        run = f"f1r{self._runs}"
        self._served = [self._opened(n, run, base) for n in range(self._parallelism)]
        self._ranges = list(self._served)
        self._begin()

    def _opened(self, subtask: int, run: str, base: RestoreBase) -> ServedRange:
        groups = range_of(subtask, self._parallelism, MAX_PARALLELISM)
        spec = RangeSpec(self._uid, groups.start, groups.end)
        mine = [h for h in base.handles if h.start <= spec.end and spec.start <= h.end]
        own = RestoreBase(base.checkpoint_id, base.epoch, mine)
        version = self._host.open_range(spec, run, own, [], self._url).version
        return ServedRange(self._host, spec, run, version)
