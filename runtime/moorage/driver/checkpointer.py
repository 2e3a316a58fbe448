"""Periodic checkpoints of a running job: when, what goes into them, and what follows.

Decides when a checkpoint is due and drives one through its two parts: the synchronous part at an
epoch boundary (hard links, capture of offsets) and the upload beside running epochs, ended by the
manifest and its entry in the lineage's log. Called by the driver under its epoch lock. One is
under way at a time.
"""

import datetime
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage import __version__
from moorage.driver.restore import UID_MAPPING
from moorage.driver.settings import JobSettings
from moorage.engine.fleet import RangeFleet
from moorage.engine.watermarks import Watermarks
from moorage.graph import JobGraph
from moorage.sinks import Committable
from moorage_state.errors import Bug, MoorageError, Retryable
from moorage_state.keyed.store import StateSchema
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    Manifest,
    OperatorState,
    RangeHandle,
    StateMeta,
)

__all__ = ["Boundary", "CheckpointReport", "Checkpointer"]

_log = logging.getLogger(__name__)

_EXPIRED = (
    "the checkpoint took longer than checkpoint.timeout or its run ended: checkpoint={}; the next "
    "one covers what it would have"
)


@dataclass(frozen=True, slots=True)
class Boundary:
    """The job between two epochs: all that a checkpoint holds beside the state itself."""

    epoch: int
    source: dict[str, Any]
    watermarks: Watermarks
    schemas: Mapping[str, tuple[StateSchema, ...]]
    finished: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A checkpoint that was completed."""

    checkpoint_id: int
    epoch: int
    bytes_total: int
    bytes_uploaded: int
    pause_seconds: float
    seconds: float
    completed_at: datetime.datetime


@dataclass(slots=True)
class _Pending:
    """A checkpoint under way."""

    checkpoint_id: int
    boundary: Boundary
    committables: dict[str, list[Committable]]
    pause_seconds: float
    started: float
    handles: dict[str, list[RangeHandle]] = field(default_factory=dict)
    abandoned: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    report: CheckpointReport | None = None
    error: BaseException | None = None


class Checkpointer:
    """Checkpoints of one run.

    Args:
        run: the number of the run under the writer's fence.
        base: the checkpoint the run was restored from, if any: what it holds is not uploaded
            again.
        staged: output that the restored checkpoint covers is published already, so none.
        clock: seconds on a clock that only goes forward.
    """

    def __init__(
        self,
        settings: JobSettings,
        graph: JobGraph,
        store: CheckpointStore,
        writer: LogWriter,
        fleet: RangeFleet,
        run: int,
        base: Manifest | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._graph = graph
        self._store = store
        self._writer = writer
        self._fleet = fleet
        self._run = run
        self._clock = clock
        self._base = _handles(base) if base is not None else {}
        self._pinned = [base.checkpoint_id] if base is not None else []
        self._staged: dict[str, list[Committable]] = {}
        self._pending: _Pending | None = None
        self._last_trigger = self._last_end = clock()
        self._covered_epoch = base.epoch if base is not None else 0
        self._last_id = -1
        self._last_error: MoorageError | None = None
        self.failures = 0
        self.last: CheckpointReport | None = None

    def staged(self, committables: Mapping[str, list[Committable]]) -> None:
        """Take note of what a committed epoch staged; the next checkpoint covers it."""
        for uid, items in committables.items():
            self._staged.setdefault(uid, []).extend(items)

    def due(self, epoch: int) -> bool:
        """Whether a periodic checkpoint should start at the boundary after `epoch`."""
        now = self._clock()
        return (
            self._pending is None
            and epoch > self._covered_epoch
            and now - self._last_trigger >= self._settings.interval_seconds
            and now - self._last_end >= self._settings.min_pause_seconds
        )

    def needed(self, boundary_epoch: int, *, finished: bool = False) -> bool:
        """Whether anything happened since the last completed checkpoint."""
        return finished or boundary_epoch > self._covered_epoch

    def start(self, boundary: Boundary) -> None:
        """Take the synchronous part and leave the rest to a thread.

        Raises:
            MoorageError: a range cannot be snapshot.
        """
        if self._pending is not None:
            raise Bug("a checkpoint is under way")
        self._last_id = self._last_id + 1 or self._store.next_id(self._writer.entries)
        checkpoint_id = self._last_id
        self._last_trigger = self._clock()
        try:
            pause = self._fleet.snapshot(checkpoint_id)
        except MoorageError:
            self._fleet.aborted(checkpoint_id)
            raise
        staged, self._staged = self._staged, {}
        pending = _Pending(checkpoint_id, boundary, staged, pause, self._last_trigger)
        self._pending = pending
        threading.Thread(
            target=self._upload, args=(pending,), name=f"checkpoint-{checkpoint_id}", daemon=True
        ).start()

    def poll(self) -> CheckpointReport | None:
        """Finish a checkpoint whose upload ended; returns its report when it completed.

        Publishes what it covers. A failed one is counted and its staged output is kept for the
        next.

        Raises:
            Fenced: another driver took over.
            UserError: more failures in a row than the job tolerates, where it says so.
        """
        pending = self._pending
        if pending is None:
            return None
        if not pending.done.is_set():
            if self._clock() - pending.started > self._settings.timeout_seconds:
                self._cancel(pending)
            return None
        self._pending = None
        self._last_end = self._clock()
        if pending.error is not None:
            self._failed(pending, pending.error)
            return None
        report = pending.report
        if report is None:
            raise Bug(f"a checkpoint ended without a result: checkpoint={pending.checkpoint_id}")
        self.failures = 0
        self.last = report
        self._covered_epoch = report.epoch
        self._fleet.complete(report.checkpoint_id, report.epoch, pending.handles)
        self._base = pending.handles
        self._pinned = [report.checkpoint_id]
        for uid, items in pending.committables.items():
            self._sink(uid).publish(self._writer.lineage, report.checkpoint_id, items)
        self._retire()
        return report

    def abandon(self) -> None:
        """The run ends without this checkpoint: when this returns it completes now or never."""
        pending = self._pending
        if pending is not None:
            self._cancel(pending)
            pending.done.wait()

    def _cancel(self, pending: _Pending) -> None:
        """Make the upload of a checkpoint end soon, unless it is in the log already."""
        if not pending.abandoned.is_set():
            pending.abandoned.set()
            self._fleet.aborted(pending.checkpoint_id)

    def _retire(self) -> None:
        """Let go of old checkpoints; what cannot be deleted now is taken up the next time."""
        try:
            self._store.retire(self._writer, self._settings.retain, pinned=self._pinned)
        except Retryable as error:
            _log.warning("old checkpoints could not be retired, will try again: %s", error)

    def wait(self, timeout: float | None = None) -> CheckpointReport | None:
        """Wait for the checkpoint under way, then `poll`."""
        if self._pending is not None:
            self._pending.done.wait(timeout)
        return self.poll()

    def failure(self) -> MoorageError:
        """Why the last checkpoint that was waited for did not complete."""
        if self._pending is not None:
            return Retryable(
                f"the checkpoint did not complete in time: checkpoint="
                f"{self._pending.checkpoint_id} timeout={self._settings.timeout_seconds:g}s; the "
                f"next run continues from the one before"
            )
        return self._last_error or Retryable("the checkpoint did not complete")

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint is being uploaded."""
        return self._pending is not None

    def _sink(self, uid: str) -> Any:
        return next(node.sink for node in self._graph.sinks if node.uid == uid)

    def _upload(self, pending: _Pending) -> None:
        try:
            base = self._base if self._settings.incremental else {}
            pending.handles = self._fleet.upload(pending.checkpoint_id, base)
            pending.report = self._complete(pending)
        except BaseException as exc:  # noqa: BLE001 - carried to the driver's thread and raised there
            pending.error = exc
        finally:
            pending.done.set()

    def _complete(self, pending: _Pending) -> CheckpointReport:
        if pending.abandoned.is_set():
            raise Retryable(_EXPIRED.format(pending.checkpoint_id))
        manifest = self._manifest(pending)
        now = datetime.datetime.now(datetime.UTC)
        entry = self._store.complete(self._writer, manifest, now)
        known = {f.key for handles in self._base.values() for h in handles for f in h.files}
        files = manifest.files
        return CheckpointReport(
            checkpoint_id=entry.checkpoint_id,
            epoch=entry.epoch,
            bytes_total=sum(f.size for f in files),
            bytes_uploaded=sum(f.size for f in files if f.key not in known),
            pause_seconds=pending.pause_seconds,
            seconds=self._clock() - pending.started,
            completed_at=entry.completed_at,
        )

    def _manifest(self, pending: _Pending) -> Manifest:
        settings, boundary, handles = self._settings, pending.boundary, pending.handles
        return Manifest(
            lineage=self._writer.lineage,
            checkpoint_id=pending.checkpoint_id,
            epoch=boundary.epoch,
            fence=self._writer.fence,
            run=self._run,
            created_at=datetime.datetime.now(datetime.UTC),
            job_name=settings.name,
            moorage_version=__version__,
            max_parallelism=settings.max_parallelism,
            key_hash=settings.key_hash,
            operators={
                o.uid: OperatorState(
                    parallelism=settings.parallelism,
                    key_types=list(o.key_types),
                    states=[_meta(s) for s in boundary.schemas.get(o.uid, ())],
                    subtasks=sorted(handles[o.uid], key=lambda h: h.start),
                )
                for o in self._graph.operators
            },
            source=boundary.source,
            watermarks=dict(boundary.watermarks.to_json()),
            sinks=pending.committables,
            extra={
                "finished": boundary.finished,
                UID_MAPPING: dict(settings.restore.uid_mapping),
            },
        )

    def _failed(self, pending: _Pending, error: BaseException) -> None:
        self._fleet.aborted(pending.checkpoint_id)
        for uid, items in pending.committables.items():
            self._staged[uid] = items + self._staged.get(uid, [])
        if not isinstance(error, MoorageError) or error.code in {"fenced", "bug"}:
            raise error
        self.failures += 1
        self._last_error = error
        _log.error(
            "checkpoint failed: checkpoint=%d in_a_row=%d: %s",
            pending.checkpoint_id,
            self.failures,
            error,
        )
        if self._settings.fail_on_tolerance and self.failures > self._settings.tolerable_failures:
            raise error


def _handles(manifest: Manifest) -> dict[str, list[RangeHandle]]:
    return {uid: list(state.subtasks) for uid, state in manifest.operators.items()}


def _meta(schema: StateSchema) -> StateMeta:
    return StateMeta(
        name=schema.name, kind=schema.kind, type=schema.type, key_type=schema.key_type or None
    )
