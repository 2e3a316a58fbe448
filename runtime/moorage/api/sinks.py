"""What a sink is: the contract between sinks, the subtasks that write and the driver.

Two phases: a subtask stages what an attempt produced, the staged output of the attempt that was
acknowledged becomes part of the next checkpoint, and only a completed checkpoint makes it visible.
Implemented by the sinks beside this module and by users.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

Committable = dict[str, Any]
"""What a subtask staged, as JSON; it travels in acknowledgements and manifests."""


@dataclass(frozen=True, slots=True)
class StageId:
    """Names one subtask's output of one epoch of one run of a lineage."""

    lineage: str
    run: str
    epoch: int
    producer: str
    subtask: int


@dataclass(frozen=True, slots=True)
class EpochInfo:
    """Names an epoch: never twice the same in all lineages."""

    lineage: str
    run: str
    epoch: int


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """Names a completed checkpoint: never twice the same in all lineages."""

    lineage: str
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Where a sink is in the job, for sinks that have a method `bind`.

    Attributes:
        base_dir: the job file's directory; "" where there is none.
        staging: the address of the checkpoint directory; "" where there is none.
        schema: of the rows that come.
    """

    uid: str
    base_dir: str
    staging: str
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class LiveOutput:
    """A checkpoint or savepoint that can still be restored, as far as one sink goes.

    Attributes:
        history: the checkpoints it descends from, oldest first, itself last.
        committables: what it covers beyond the one before it.
    """

    history: Sequence[int]
    committables: list[Committable]


@dataclass(frozen=True, slots=True)
class SinkOrigin:
    """A point of another lineage that this one begins from: its run's token, its last epoch."""

    lineage: str
    run: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SinkRestore:
    """Where a sink goes back to, or forward again.

    Attributes:
        run: the token `f<fence>r<run>` of the run that restores.
        history: the checkpoints that the restored state descends from, oldest first, the restored
            one last; empty for an empty start.
        committables: what the restored checkpoint covers; empty for a sink without `takes_back` if
            that is a copy of a checkpoint that was let go: it has published all of it.
        live: all that can still be restored, this point included: what they cover and is staged
            must be kept. None when that is not known: then nothing that is staged is dropped.
        left_behind: checkpoints that the run before this one had and this one has not.
    """

    lineage: str
    run: str
    history: Sequence[int]
    committables: list[Committable]
    live: tuple[LiveOutput, ...] | None = ()
    left_behind: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkRetire:
    """What a sink may forget once a checkpoint completed and old ones were retired.

    Attributes:
        run: the token of the running run.
        epoch: the newest epoch that a completed checkpoint of this run covers. What this run
            staged up to it is covered by a checkpoint, or was staged by an attempt that lost.
        checkpoint_id: that checkpoint.
        live: all that can still be restored, that checkpoint included.
    """

    lineage: str
    run: str
    epoch: int
    checkpoint_id: int
    live: tuple[LiveOutput, ...]


class SinkWriter(Protocol):
    """Takes the output of one attempt of one subtask in one epoch."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Stage a batch of output rows."""
        ...

    def finish(self) -> list[Committable]:
        """Finish staging; an attempt without rows returns nothing to publish."""
        ...

    def abort(self) -> None:
        """Drop what was staged."""
        ...


class Sink(Protocol):
    """A picklable description of a sink; it holds configuration only.

    A sink may also have any of

    - `bind(context: SinkContext) -> Sink`: called once when it is attached to a stream; the
      returned sink takes its place;
    - `admit(lineage: str, origin: SinkOrigin | None) -> list[str]`: called on the driver before
      anything else, when a run of the lineage begins with nothing or with a point of another one:
      it raises where that would show rows twice, and returns sentences for people;
    - `check_covered(lineage: str, committables) -> None`: called on the driver, and by preflights
      beside a job that runs, with what a restore point of the lineage covers: it raises where this
      sink has not got it, and changes nothing;
    - `commit_epoch(info: EpochInfo, committables) -> None`: called on the driver when an epoch is
      committed, before a checkpoint covers it;
    - `retire(point: SinkRetire) -> None`: called on the driver after checkpoints were retired;
    - `takes_back() -> str`: names the place, such as a folder, from which `restore` takes back what
      checkpoints outside its history published. A sink without it leaves its output there.
    """

    def open_writer(self, stage: StageId, schema: pa.Schema) -> SinkWriter:
        """A writer for one attempt; called on an executor."""
        ...

    def publish(self, lineage: str, checkpoint_id: int, committables: list[Committable]) -> int:
        """Make staged output visible; idempotent. Returns the number of rows published."""
        ...

    def restore(self, point: SinkRestore) -> list[str]:
        """Make visible what the checkpoints in `point.history` published, and nothing else.

        Publishes what the restored checkpoint holds, takes back what checkpoints outside its
        history published, drops what older runs staged. What is taken back must be there again
        when a later restore goes to a checkpoint that covers it. A driver may wake up in here
        after another took over: what newer runs staged or published is not its to touch.

        Returns sentences for the person who restores, one for each kind of change.
        """
        ...


class TwoPhaseCommitSink(ABC):
    """The base class of sinks of your own: stage on executors, publish on the driver.

    An instance is pickled and sent to executors, so it holds configuration and no connections.
    Every attempt of every subtask stages under a name of its own (tasks are retried, and some run
    twice at the same time); what the acknowledged attempt staged comes to `publish` when the
    checkpoint that covers it has completed, and again after every restore of that checkpoint.
    Nothing else that was staged is ever published.

    What was published cannot be taken back by this class: going back to an older checkpoint says
    so, and rows since then come again under new checkpoint ids.
    """

    @abstractmethod
    def open_writer(self, stage: StageId, schema: pa.Schema) -> SinkWriter:
        """A writer for one attempt; called on an executor. See `SinkWriter`."""

    @abstractmethod
    def publish(self, lineage: str, checkpoint_id: int, committables: list[Committable]) -> int:
        """Make staged output visible and return the number of rows; called on the driver.

        It is called again with the same id and committables after a crash, so publishing twice
        must come to the same as once. An error ends the run, and the next one calls again.
        """

    def discard(self, lineage: str, run: str, live: list[Committable]) -> None:
        """Drop what runs before `run` staged, except for `live`, which may still be published.

        Called on the driver at every start of a run. Nothing here by default: whoever keeps
        staged output somewhere cleans up here.
        """
        del lineage, run, live

    def restore(self, point: SinkRestore) -> list[str]:
        """Publish what the restored checkpoint covers, then discard; see `Sink.restore`."""
        if point.history and point.committables:
            self.publish(point.lineage, point.history[-1], point.committables)
        if point.live is not None:
            live = [item for output in point.live for item in output.committables]
            self.discard(point.lineage, point.run, [*live, *point.committables])
        if not point.left_behind:
            return []
        return [already_published(type(self).__name__, point.left_behind)]


def already_published(what: str, left_behind: tuple[int, ...]) -> str:
    """The warning for output that cannot be taken back."""
    return (
        f"OutputAlreadyPublished: output of checkpoints after the restore point cannot be taken "
        f"back, and comes again under new ids: sink={what} "
        f"checkpoints={', '.join(f'chk-{i}' for i in left_behind)}"
    )
