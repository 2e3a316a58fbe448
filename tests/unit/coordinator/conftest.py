"""A coordinator with a clock of its own and a driver that does what a test says."""

import random

import pytest

from moorage_state.coordinator import (
    AcknowledgeCheckpoint,
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointFailureManager,
    CheckpointFailureReason,
    CheckpointMetrics,
    CheckpointProperties,
    CheckpointRetentionPolicy,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    CountingIdCounter,
    DeclineCheckpoint,
    FinalizeCheckpoint,
    TaskId,
)

JOB = "flights"
TASKS = (TaskId("count", 0), TaskId("count", 1))
WALL = 1_000_000.0


class Harness:
    """The coordinator under test. Time stands still unless a test moves it."""

    def __init__(
        self,
        *,
        retain=1,
        tolerable=0,
        tasks=TASKS,
        ids=None,
        next_time=None,
        ready=lambda: None,
        recovered=(),
        **config,
    ):
        self.now = 100.0
        self.tasks = tasks
        self.effects = []
        self.config = CheckpointConfig(tolerable_failures=tolerable, **config)
        self.store = CompletedCheckpointStore(retain, recovered=recovered)
        self.failures = CheckpointFailureManager(tolerable)
        self.coordinator = CheckpointCoordinator(
            JOB,
            self.config,
            tasks,
            tasks,
            tasks,
            ids or CountingIdCounter(),
            self.store,
            self.failures,
            lambda: self.now,
            wall_clock=lambda: WALL + self.now,
            next_time=next_time,
            ready=ready,
            rng=random.Random(1),
        )

    def drain(self):
        new = self.coordinator.drain()
        self.effects.extend(new)
        return new

    def all(self, kind):
        """Every effect of a kind so far."""
        self.drain()
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def ids(self, kind):
        return [effect.checkpoint_id for effect in self.all(kind)]

    def forget(self):
        """Let `all` begin anew."""
        self.drain()
        self.effects = []

    def ack(self, checkpoint_id, task=TASKS[0], state="", shared=None, metrics=None):
        return self.coordinator.receive_acknowledge_message(
            AcknowledgeCheckpoint(
                JOB,
                task,
                checkpoint_id,
                metrics or CheckpointMetrics(),
                state or f"{task.operator}-{task.subtask}@{checkpoint_id}",
                shared or {},
            )
        )

    def ack_all(self, checkpoint_id):
        return [self.ack(checkpoint_id, task) for task in self.tasks]

    def decline(self, checkpoint_id, reason=None, task=TASKS[0]):
        reason = reason or CheckpointFailureReason.CHECKPOINT_DECLINED
        return self.coordinator.receive_decline_message(
            DeclineCheckpoint(JOB, task, checkpoint_id, reason)
        )

    def begin(self, properties=None, location=None):
        """Trigger and let the boundary come; returns id and future."""
        future = self.coordinator.trigger_checkpoint(properties, location)
        checkpoint_id = self.coordinator.pending_ids[-1]
        assert self.coordinator.triggered(checkpoint_id)
        return checkpoint_id, future

    def finalize(self, checkpoint_id):
        asked = [e for e in self.all(FinalizeCheckpoint) if e.checkpoint_id == checkpoint_id]
        self.coordinator.finalized(
            checkpoint_id, asked[-1].completed(WALL + self.now, f"chk-{checkpoint_id}")
        )

    def finish(self, checkpoint_id):
        self.ack_all(checkpoint_id)
        self.finalize(checkpoint_id)

    def checkpoint(self, properties=None):
        """A checkpoint from its trigger to its end; returns its id."""
        checkpoint_id, _ = self.begin(properties)
        self.finish(checkpoint_id)
        return checkpoint_id

    def clean(self):
        """Answer every deletion that was asked for."""
        from moorage_state.coordinator import DiscardCheckpoint

        for effect in self.all(DiscardCheckpoint):
            self.coordinator.discarded(effect.checkpoint_id)

    def wait(self, seconds):
        self.now += seconds
        return self.coordinator.on_time(self.now)


def new_completed(checkpoint_id, properties=None, **fields):
    """A completed checkpoint that some driver left."""
    own = CheckpointProperties.for_checkpoint(
        CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
    )
    states = {task: f"s{task.subtask}" for task in TASKS}
    return CompletedCheckpoint(
        JOB,
        checkpoint_id,
        WALL,
        WALL + 1,
        properties or own,
        f"chk-{checkpoint_id}",
        **{"states": states, **fields},
    )


@pytest.fixture
def make():
    """Build a harness."""
    return Harness


@pytest.fixture
def completed():
    """Build a completed checkpoint."""
    return new_completed


@pytest.fixture
def tasks():
    """The tasks of the job."""
    return TASKS
