"""The coordinator's parts put together, and what it looks like from outside."""

import random
from collections.abc import Callable, Iterable

from moorage_state.coordinator.completed import CompletedCheckpointStore
from moorage_state.coordinator.config import CheckpointConfig
from moorage_state.coordinator.decider import TriggerRequest
from moorage_state.coordinator.effects import Effect
from moorage_state.coordinator.failures import CheckpointFailureManager
from moorage_state.coordinator.identity import CheckpointIdCounter
from moorage_state.coordinator.launch import Launcher
from moorage_state.coordinator.lifecycle import Lifecycle
from moorage_state.coordinator.messages import TaskId
from moorage_state.coordinator.pending import PendingCheckpoint, Phase
from moorage_state.coordinator.reasons import CheckpointFailureReason
from moorage_state.coordinator.schedule import PeriodicTrigger
from moorage_state.coordinator.stats import CheckpointStatsTracker

__all__ = ["CoordinatorParts"]


class CoordinatorParts:
    """What a coordinator is made of. The arguments are described where it is documented."""

    def __init__(  # noqa: PLR0917 - the signature that people know
        self,
        job_id: str,
        config: CheckpointConfig,
        tasks_to_trigger: Iterable[TaskId],
        tasks_to_wait_for: Iterable[TaskId],
        tasks_to_commit_to: Iterable[TaskId],
        id_counter: CheckpointIdCounter,
        completed_store: CompletedCheckpointStore,
        failure_manager: CheckpointFailureManager,
        clock: Callable[[], float],
        *,
        wall_clock: Callable[[], float] | None = None,
        stats: CheckpointStatsTracker | None = None,
        next_time: Callable[[float], float] | None = None,
        ready: Callable[[], CheckpointFailureReason | None] = lambda: None,
        rng: random.Random | None = None,
    ) -> None:
        self._job_id = job_id
        self._config = config
        self._to_trigger = tuple(tasks_to_trigger)
        self._to_wait_for = frozenset(tasks_to_wait_for)
        self._clock = clock
        self._wall_clock = wall_clock or clock
        self.store = completed_store
        self.stats = stats or CheckpointStatsTracker()
        self._life = Lifecycle(
            tuple(tasks_to_commit_to),
            completed_store,
            failure_manager,
            self.stats,
            config.on_tolerance_exceeded,
            self._wall_clock,
        )
        self._periodic = PeriodicTrigger(
            config,
            clock,
            self._wall_clock,
            next_time,
            rng or random.Random(),  # noqa: S311 - it spreads load
        )
        self._launcher = Launcher(
            job_id,
            config,
            self._to_trigger,
            self._to_wait_for,
            id_counter,
            self._life,
            self._periodic,
            clock,
            self._wall_clock,
            ready,
        )

    # What it looks like from outside.

    @property
    def pending_ids(self) -> tuple[int, ...]:
        """The checkpoints that have not ended, oldest first."""
        return tuple(self._life.pending)

    @property
    def is_triggering(self) -> bool:
        """Whether a trigger waits for its boundary."""
        return self._life.triggering is not None

    @property
    def queued(self) -> tuple[TriggerRequest, ...]:
        """The requests that wait, the next one first."""
        return self._launcher.queued

    @property
    def pinned_ids(self) -> frozenset[int]:
        """The completed checkpoints whose files pending ones may reference: delete none of them."""
        return self._life.pinned

    @property
    def missed_ticks(self) -> int:
        """How many periodic checkpoints were left out, as the one before took too long."""
        return self._periodic.missed

    @property
    def is_periodic_checkpointing_started(self) -> bool:
        """Whether periodic checkpoints are taken."""
        return self._periodic.is_running

    @property
    def is_shut_down(self) -> bool:
        """Whether it has ended; the answer to a finalization is still taken."""
        return self._life.ended is not None

    @property
    def next_wake(self) -> float | None:
        """When `on_time` should be called, on the coordinator's clock."""
        if self._life.ended is not None:
            return None
        wakes = [_limit(one) for one in self._life.pending.values() if one.is_abortable]
        if self._periodic.due is not None:
            wakes.append(self._periodic.due)
        return min(wakes, default=None)

    def drain(self) -> list[Effect]:
        """Return what is to be done, in this order, and forget it."""
        return self._life.outbox.drain()


def _limit(checkpoint: PendingCheckpoint) -> float:
    """When a checkpoint is given up."""
    if checkpoint.phase is Phase.TRIGGERING:
        return min(checkpoint.deadline, checkpoint.boundary_deadline)
    return checkpoint.deadline
