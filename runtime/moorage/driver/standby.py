"""A driver that stands by: it runs beside the one that has the lineage, and nothing comes out.

Decides what a run is without that lineage: it begins from the newest checkpoint, keeps its log in
memory, takes no checkpoints, and its sinks drop what they get. So nothing of it is in the store,
where it could be in anybody's way or would have to be cleared up, however it ends. Called by
`run_job`, which goes on in the lineage with the same Spark, servers and graph when it is told to.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from uuid import uuid4

import pyarrow as pa

from moorage.api.graph import JobGraph, SinkNode
from moorage.api.sinks import Committable, Sink, SinkRestore, SinkWriter, StageId
from moorage.driver.lineage import seen_lineage
from moorage.driver.manifests import Boundary, CheckpointReport
from moorage.driver.output import check_sinks_beside
from moorage.driver.requests import (
    CheckpointRequest,
    JobRequest,
    PromoteRequest,
    Requests,
    SavepointRequest,
)
from moorage.driver.restore_point import Choice, choose
from moorage.driver.settings import JobSettings
from moorage_state.errors import CorruptState, UserError
from moorage_state.snapshots import (
    CheckpointStore,
    Entry,
    LogWriter,
    Owner,
    SnapshotRoot,
    current_owner,
    retained,
)
from moorage_state.stores import MemoryStore

FIRST_RUN = 1_000_000
"""The number of the first run of a driver that stands by.

Its fence is 1, that of whoever claims the lineage later 2 at least: its runs are older than theirs.
No run of the driver that had fence 1 has such a number: state is told apart by who wrote it.
"""


class StandbyRefused(UserError):
    """There is nothing that a driver could stand by for."""

    code = "standby_refused"


class Standby:
    """What a driver knows while it stands by.

    Attributes:
        lineage: the job's.
        promotions: who wants it to end; answers are due once the lineage is claimed.
    """

    def __init__(self, settings: JobSettings) -> None:
        policy = replace(settings.restore, mode="Latest", explicit=False)
        self._settings = replace(settings, restore=policy)
        self.promotions: list[PromoteRequest] = []
        _, entries = self.look()
        owner = current_owner(entries)
        if owner is None:
            raise _nothing_yet(settings)
        self.lineage = owner.lineage

    def look(self) -> tuple[CheckpointStore, Sequence[Entry]]:
        """The job's lineage as it is; nothing of it is claimed."""
        return seen_lineage(self._settings)

    def choose(self, damaged: Mapping[int, CorruptState] = MappingProxyType({})) -> Choice:
        """The newest checkpoint there is by now.

        Args:
            damaged: checkpoints that could not be restored, and why. Most will be gone by now.

        Raises StandbyRefused: there is none.
        """
        store, entries = self.look()
        choice = choose(store, entries, self._settings, damaged)
        if choice.manifest is None:
            raise _nothing_yet(self._settings)
        missed = damaged.keys() - {one.checkpoint_id for one in retained(entries)}
        if len(missed) < _OFTEN:
            return choice
        return replace(choice, warnings=(*choice.warnings, _too_slow(len(missed))))

    def check_sinks(self, graph: JobGraph) -> None:
        """Refuse what could not lead: its sinks cannot publish what the job's own staged.

        Raises as `output.check_sinks`.
        """
        check_sinks_beside(graph, self.lineage, self.look()[1], self.choose(), self.choose)

    def log(self) -> LogWriter:
        """A log in memory, of the job's lineage; its fence is 1, see `FIRST_RUN`."""
        ids = chain([self.lineage], iter(lambda: uuid4().hex, ""))
        of = self._settings
        owner = Owner(of.cluster, of.namespace, of.name, of.uid)
        return LogWriter.claim(MemoryStore("standby"), owner, "stands by", new_id=lambda: next(ids))

    def promote(self, request: PromoteRequest) -> None:
        """It is to end, and the driver to lead."""
        request.running()
        self.promotions.append(request)

    def is_over(self, requests: Requests) -> bool:
        """Whether somebody asked for its end by now; for any thread."""
        for request in requests.take_all(PromoteRequest):
            self.promote(request)
        return bool(self.promotions)


_OFTEN = 2
"""Checkpoints that were gone before they were fetched: one of them may be chance."""


def _too_slow(missed: int) -> str:
    return (
        f"{missed} checkpoints were let go before all of them was fetched: give the running "
        f"version a larger spec.checkpoint.retain.count, with upgrade.strategy Restart, and then "
        f"upgrade again"
    )


def _nothing_yet(settings: JobSettings) -> StandbyRefused:
    return StandbyRefused(
        f"there is no checkpoint to stand by with: job={settings.name} "
        f"checkpointDir={settings.checkpoint_dir}; let the running version complete one first"
    )


def held(graph: JobGraph) -> JobGraph:
    """The graph with sinks that drop what they get."""
    sinks = [SinkNode(node.uid, node.upstream, HeldSink()) for node in graph.sinks]
    return JobGraph(graph.inputs, graph.operators, sinks)


class HeldSink(Sink):
    """Drops rows: neither staged nor published, and no function of the job is called."""

    def open_writer(self, stage: StageId, schema: pa.Schema) -> SinkWriter:
        """A writer that writes nothing."""
        del stage, schema
        return _HeldWriter()

    def publish(self, lineage: str, checkpoint_id: int, committables: list[Committable]) -> int:
        """Nothing was staged."""
        del lineage, checkpoint_id, committables
        return 0

    def restore(self, point: SinkRestore) -> list[str]:
        """Nothing was published."""
        del point
        return []


class _HeldWriter:
    def write(self, batch: pa.RecordBatch) -> None:
        """Drop it."""

    def finish(self) -> list[Committable]:
        """Nothing was staged."""
        return []

    def abort(self) -> None:
        """Nothing was staged."""


class NoCheckpoints:
    """In the place of a run's `Checkpointer`: none is taken."""

    last: CheckpointReport | None = None
    broken = False
    builds = False
    takes_savepoint = False

    def __init__(self, job: str, begins_from: SnapshotRoot | None) -> None:
        self._job = job
        self._begins_from = begins_from

    def restore(self, *, must_exist: bool) -> SnapshotRoot | None:
        """What the run begins from."""
        del must_exist
        return self._begins_from

    @property
    def next_id(self) -> int:
        """One that no checkpoint of the job has had yet, as far as this driver knows."""
        return self._begins_from.checkpoint_id + 1 if self._begins_from else 1

    def begin(self) -> None:
        """Nothing has to be begun."""

    def go_on(self) -> None:
        """Nothing was to stop."""

    def staged(self, epoch: int, committables: Mapping[str, list[Committable]]) -> None:
        """No checkpoint will cover it."""

    def poll(self, epoch: int, at: Callable[[], Boundary]) -> list[CheckpointReport]:
        """Nothing completed."""
        del epoch, at
        return []

    def within_epoch(self) -> None:
        """Nothing is uploaded."""

    def wait(
        self, at: Callable[[], Boundary], give_up: Callable[[], bool] = lambda: False
    ) -> Iterable[CheckpointReport]:
        """Nothing is under way."""
        del at, give_up
        return ()

    def finish(
        self, epoch: int, at: Callable[[], Boundary], *, finished: bool = False
    ) -> list[CheckpointReport]:
        """The run ends without a checkpoint: what it did is dropped."""
        del epoch, at, finished
        return []

    def finish_chores(self, *, job_finished: bool) -> None:
        """Nothing follows."""

    def abandon(self, *, job_ends: bool = False) -> None:
        """Nothing is under way."""

    def take_suspended(self) -> list[JobRequest]:
        """Nobody waits: what asks for a checkpoint is refused before."""
        return []

    def checkpoint(self, request: CheckpointRequest, at: Callable[[], Boundary]) -> None:
        """Refuse it."""
        del at
        request.answer(not_while_standing_by(self._job))

    def savepoint(self, request: SavepointRequest, at: Callable[[], Boundary]) -> None:
        """Refuse it."""
        del at
        request.answer(not_while_standing_by(self._job))


def not_while_standing_by(job: str) -> UserError:
    """What is asked of the wrong driver."""
    return UserError(
        f"this driver stands by, and the job is another one's: job={job}; ask that one"
    )
