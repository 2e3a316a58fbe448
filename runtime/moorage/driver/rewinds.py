"""What lies between a run that ended early and the next one: how often, how long, from what.

Decides when a job that comes to nothing is given up, and how long is waited where another run may
do better. Called by `run_job`, run after run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from moorage.driver.context import DriverContext
from moorage.driver.environment import StoppedWaiting
from moorage.driver.restore_point import Choice
from moorage.driver.standby import Standby
from moorage.driver.stream_run import StreamRun
from moorage.engine.range_access import ExecutorLost
from moorage_state.errors import CorruptState, MoorageError, StoreUnavailable

_MAX_REWINDS = 3
_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 300.0
_POLL_SECONDS = 0.25
_STORE_POLLS = 20
"""Between two looks at a store that is away."""


@dataclass(frozen=True, slots=True)
class Rewinds:
    """Rewinds since a checkpoint was completed: by lost executors, and for other reasons."""

    losses: int = 0
    others: int = 0

    @property
    def pause(self) -> float:
        """Seconds until the next run: none at first, then twice as many with each loss."""
        late = max(self.losses, self.others) - _MAX_REWINDS
        if late <= 0:
            return 0.0
        return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * (1 << (late - 1)))


def counted(
    context: DriverContext, before: Rewinds, run: StreamRun | None, error: MoorageError
) -> Rewinds:
    """The rewinds in a row that came to nothing, with this one; raises it where it ends the job."""
    if context.stop.is_set():
        # No time for another run, whose end would hide that something was not saved.
        raise error
    lost = isinstance(error, ExecutorLost)
    if run is not None and run.checkpointer.last is not None:
        return Rewinds(losses=0, others=0 if lost else 1)
    if lost:
        # Spark counts those that go, and ends by itself when they are too many.
        return replace(before, losses=before.losses + 1)
    # One that stands by keeps nobody waiting: who made it says for how long it is tried.
    if before.others >= _MAX_REWINDS and context.standby is None:
        raise error
    return replace(before, others=before.others + 1)


def pause_before_next(context: DriverContext, rewinds: Rewinds, error: MoorageError) -> None:
    """Tell of a rewind and wait until the next run may begin. Raises as `poll`."""
    pause, text = rewinds.pause, f"{_goal(context)}: {error}"
    if pause and rewinds.others > _MAX_REWINDS:
        text = f"the next run begins in {pause:.0f} s: {error}"
    elif pause:
        text = (
            f"executors were lost {rewinds.losses} times without a checkpoint in between: the next "
            f"run begins in {pause:.0f} s; see why they go, or take checkpoints more often: {error}"
        )
    context.reporter.phase("rewinding", text)
    while pause > 0:
        if context.standby is not None and context.standby.is_over(context.requests):
            return  # the job stands still until it leads
        poll(context, error)
        pause -= _POLL_SECONDS


def _goal(context: DriverContext) -> str:
    """What the next run begins with, in words."""
    if context.settings.changelog is None:
        return "going back to the last checkpoint"
    return "going on from the last epoch that is committed for good"


def poll(context: DriverContext, error: Exception) -> None:
    """Wait a moment between two runs; raises why there is none, if the job is to stop."""
    if context.requests.stop_at_once is not None:
        raise StoppedWaiting
    if context.stop.wait(_POLL_SECONDS):
        raise error


def choose_beside(
    context: DriverContext,
    standby: Standby,
    before: Choice,
    damaged: Mapping[int, CorruptState] = MappingProxyType({}),
) -> Choice:
    """The job's newest checkpoint, once the store says which; `before` if none is wanted any more.

    To stand by again costs pods, Spark and what has been fetched: so a store is waited for.
    """
    while True:
        try:
            return standby.choose(damaged)
        except StoreUnavailable as error:
            context.reporter.message(f"waiting for the store: {error}")
            for _ in range(_STORE_POLLS):
                if standby.is_over(context.requests):
                    return before
                poll(context, error)
