"""A coordinator with a clock of its own, a real lineage, and a driver that does what it is told."""

import random
from datetime import UTC, datetime
from itertools import count

import pytest
from moorage_testing.manifests import checkpoint_manifest

from moorage_state.coordinator import (
    AcknowledgeCheckpoint,
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointFailureManager,
    CheckpointFailureReason,
    CheckpointIdCounter,
    CompletedCheckpointStore,
    DeclineCheckpoint,
    FinalizeCheckpoint,
    TaskId,
)
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    OperatorState,
    Owner,
    RangeHandle,
    Run,
)
from moorage_state.stores import MemoryStore

JOB = "flights"
TASKS = (TaskId("count", 0), TaskId("count", 1))
WALL = 1_000_000.0
_NAMES = count()


class Lineage:
    """A checkpoint directory and this driver's hold on it."""

    def __init__(self):
        self.objects = MemoryStore(f"coordinator-{next(_NAMES)}")
        self.log = LogWriter.claim(self.objects, Owner("c", "n", JOB, "u"), "test")
        self.log.append(Run(self.log.fence, 0))
        self.checkpoints = CheckpointStore(self.objects)

    def manifest(self, checkpoint_id, *uids):
        handles = {
            uid: [
                RangeHandle(
                    uid=uid,
                    start=start,
                    end=start + 63,
                    epoch=1,
                    digest="d",
                    backend_uuid="b",
                    files=[],
                    bytes_total=0,
                )
                for start in (0, 64)
            ]
            for uid in uids
        }
        return checkpoint_manifest(
            self.log.lineage,
            checkpoint_id,
            fence=self.log.fence,
            created_at=datetime.fromtimestamp(WALL, UTC),
            job_name=JOB,
            operators={
                uid: OperatorState(parallelism=2, key_types=["string"], states=[], subtasks=found)
                for uid, found in handles.items()
            },
        )

    def complete(self, checkpoint_id, *uids):
        """Let a checkpoint exist; returns its manifest."""
        manifest = self.manifest(checkpoint_id, *uids)
        self.checkpoints.complete(self.log, manifest, datetime.fromtimestamp(WALL, UTC))
        return manifest


class Tracker:
    """Remembers what became of each checkpoint."""

    def __init__(self):
        self.completed_ids = []
        self.failed_ids = []
        self.refused = 0

    def pending(self, checkpoint):
        pass

    def completed(self, checkpoint):
        self.completed_ids.append(checkpoint.checkpoint_id)

    def failed(self, checkpoint_id, _failure, at):
        assert at > WALL
        if checkpoint_id is None:
            self.refused += 1
        else:
            self.failed_ids.append(checkpoint_id)


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
        **config,
    ):
        self.now = 100.0
        self.tasks = tasks
        self.effects = []
        self.config = CheckpointConfig(tolerable_failures=tolerable, **config)
        self.lineage = Lineage()
        self.store = CompletedCheckpointStore(
            self.lineage.log, self.lineage.checkpoints, retain, self.config.retention
        )
        self.tracker = Tracker()
        self.failures = CheckpointFailureManager(tolerable)
        self.coordinator = CheckpointCoordinator(
            JOB,
            self.config,
            tasks,
            tasks,
            tasks,
            ids or CheckpointIdCounter(),
            self.store,
            self.failures,
            lambda: self.now,
            wall_clock=lambda: WALL + self.now,
            next_time=next_time,
            ready=ready,
            tracker=self.tracker,
            rng=random.Random(1),
        )

    @property
    def latest_id(self):
        """The newest retained checkpoint; 0 for none."""
        return next((one.checkpoint_id for one in reversed(self.store.checkpoints)), 0)

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

    def ack(self, checkpoint_id, task=TASKS[0], state=""):
        return self.coordinator.receive_acknowledge_message(
            AcknowledgeCheckpoint(
                JOB,
                task,
                checkpoint_id,
                state or f"{task.operator}-{task.subtask}@{checkpoint_id}",
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
        if not asked[-1].properties.is_savepoint:
            self.lineage.complete(checkpoint_id)
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

    def restores(self, manifest, *, own=True, error=True, all_or_nothing=True):
        """Begin from a manifest, as the driver does."""
        self.store.begin_from(manifest, "chk-1" if own else "file:///elsewhere", own=own)
        return self.coordinator.restore_latest_checkpointed_state(error, all_or_nothing)

    def wait(self, seconds):
        self.now += seconds
        return self.coordinator.on_time(self.now)


@pytest.fixture
def make():
    """Build a harness."""
    return Harness


@pytest.fixture
def tasks():
    """The tasks of the job."""
    return TASKS


@pytest.fixture
def lineage():
    """A lineage without checkpoints."""
    return Lineage()
