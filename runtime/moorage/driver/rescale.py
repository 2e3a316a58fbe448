"""Another number of subtasks for a job that runs on: when it may begin, and what decides it.

A rescale is another run, by the same driver and in the same Spark session, from a checkpoint that
was just taken: what is decided here is one entry of the log, the point of no return. Before it the
job has the number of subtasks that it had, whatever happens; from it on the new one. A start, the
rewind after a failure and the run that follows all ask the log (`in_force`). Called by the request
handler at epoch boundaries, and by the driver between runs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from moorage.driver.context import DriverContext
from moorage.driver.requests import CheckpointRequest, RescaleRefused, RescaleRequest, RestartNeeded
from moorage.driver.restore_point import Choice
from moorage.driver.settings import JobSettings
from moorage_state.errors import Bug
from moorage_state.snapshots import (
    Entry,
    LogWriter,
    Rescaled,
    parallelism_of,
    rescaled,
    restore_point,
)

EXECUTORS_SECONDS = 60.0
"""How long executors that were asked for with it are waited for, while the stream runs on."""


def check_rescale(request: RescaleRequest, settings: JobSettings) -> None:
    """Refuse a number of subtasks that the running job cannot have.

    Raises:
        RestartNeeded: a new start can have it.
        RescaleRefused: nothing can.
    """
    wanted, now = request.parallelism, settings.parallelism
    if wanted is None or wanted == now:
        return
    most = settings.max_parallelism
    if not 1 <= wanted <= most:
        raise RescaleRefused(
            f"there cannot be so many subtasks: asked={wanted} parallelism={now} "
            f"maxParallelism={most}; ask for 1 to {most}"
        )
    if not settings.rescales_live:
        raise RestartNeeded(
            f"the number of subtasks of this job changes by a restart: parallelism={now} "
            f"asked={wanted}; start the job anew, from its last checkpoint, or set scaling.mode: "
            f"InPlaceParallelism before it starts"
        )
    if settings.in_one_epoch:
        raise RestartNeeded(
            f"the backend batch takes all its input in one epoch: parallelism={now} "
            f"asked={wanted}; start the job anew"
        )


class Rescale:
    """One change of the number of subtasks, until it is decided or given up; see the module.

    Attributes:
        following: requests that came later, and wait until this one is done or given up.

    Args:
        request: what was asked for; it has its answer when the next run has begun.
        first: a checkpoint that is taken beside the epochs, so that little is left to do for the
            one with which the run ends.
    """

    def __init__(
        self,
        request: RescaleRequest,
        first: CheckpointRequest,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request = request
        self.first = first
        self.following: list[RescaleRequest] = []
        self._clock = clock
        self._began = clock()

    def may_begin(self, context: DriverContext, *, saves: bool) -> bool:
        """Whether the run may end for it now; until then the stream runs on.

        Args:
            saves: a savepoint is being taken, which the end of the run would undo.

        Raises MoorageError: the checkpoint before it failed.
        """
        if not self.first.done or saves:
            return False
        if self.first.error is not None:
            raise self.first.error
        if self.request.executors is None:
            return True
        executors = context.environment.executors()
        late = self._clock() - self._began >= EXECUTORS_SECONDS
        return late or executors.ready >= executors.desired

    def decide(self, context: DriverContext, run: int) -> None:
        """Write into the log what holds from now on, whatever happens.

        Args:
            run: the run that has ended, with a checkpoint.

        Raises:
            Fenced: another driver took over, and nothing was decided.
            StoreUnavailable: it may be in the log: the next append finds out, or writes it.
        """
        if self.request.parallelism is None:
            raise Bug("a rescale to no number of subtasks")
        newest = restore_point(context.writer.entries)
        if newest is None or newest.checkpoint is None:
            raise Bug(f"a rescale begins at a checkpoint, and there is none: found={newest}")
        begins = newest.checkpoint.checkpoint_id
        declared = self.request.declared or _declared(context)
        _log(context.writer, run + 1, begins, self.request.parallelism, declared)


def note_manifest(request: RescaleRequest, context: DriverContext) -> None:
    """Say in the log that the manifest by now says what the running job has.

    Else a manifest that is set back before the next start would seem never to have changed.
    """
    if request.parallelism is None or request.declared is None:
        return
    if request.declared == _declared(context):
        return
    writer, last, run, begins = context.writer, rescaled(context.writer.entries), 0, 0
    if last is not None and last.fence == writer.fence:
        # Runs before that one stay shut out.
        run, begins = last.run, last.checkpoint_id
    _log(writer, run, begins, request.parallelism, request.declared)


def _declared(context: DriverContext) -> int:
    """What the manifest says, as far as this driver knows: it was another when the job began."""
    last = rescaled(context.writer.entries)
    return last.declared if last is not None else context.settings.declared_parallelism


def in_force(settings: JobSettings, entries: Sequence[Entry]) -> JobSettings:
    """The settings of a start: the number of subtasks is that of the log, or of the manifest."""
    wanted = parallelism_of(entries, settings.declared_parallelism)
    if wanted > settings.max_parallelism:
        # Another number of key groups came with an empty start, or a savepoint of elsewhere.
        wanted = settings.declared_parallelism
    return settings if wanted == settings.parallelism else replace(settings, parallelism=wanted)


def resized(context: DriverContext) -> DriverContext:
    """What the next run has in its hands: cut as the log says by now."""
    last, settings = rescaled(context.writer.entries), context.settings
    if last is None or last.parallelism == settings.parallelism:
        return context
    # Whatever the manifest said when the job began: the start has seen that the log agrees with it.
    wanted = last.parallelism
    settings = replace(settings, parallelism=wanted)
    context.reporter.message(
        f"the job goes on with another number of subtasks: parallelism={wanted} "
        f"before={context.settings.parallelism}"
    )
    context.fleet.resize(wanted)
    context.reporter.job(wanted, settings.max_parallelism)
    return replace(context, settings=settings, planner=context.planner.resized(wanted))


def follow_manifest(settings: JobSettings, writer: LogWriter, choice: Choice) -> None:
    """Say in the log that the manifest counts again, if it does since the last live rescale.

    Else a manifest that is set back later would say what it said then, and that be followed.
    """
    last, declared = rescaled(writer.entries), settings.declared_parallelism
    if last is None or (last.declared, last.parallelism) == (declared, settings.parallelism):
        return
    own = choice.manifest is not None and not choice.address
    begins = choice.manifest.checkpoint_id if own and choice.manifest else 0
    _log(writer, 0, begins, settings.parallelism, declared)


def _log(writer: LogWriter, run: int, checkpoint_id: int, parallelism: int, declared: int) -> None:
    writer.append(Rescaled(writer.fence, run, checkpoint_id, parallelism, declared))
