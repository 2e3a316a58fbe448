"""The completed checkpoints of a lineage: a view of its log, and the place where they are let go.

The log says which checkpoints exist, whichever driver completed or retired them, and the manifests
say which files those need. So nothing is held here that either says. Called by the coordinator,
which restores from it, and by the driver: after each checkpoint, and when the job ends.
"""

import logging
from collections.abc import Collection, Sequence

from moorage_state.coordinator.checkpoint import CompletedCheckpoint, TaskId
from moorage_state.coordinator.properties import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    JobEnd,
)
from moorage_state.errors import UserError
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    Entry,
    Finished,
    LogWriter,
    Retirement,
    SnapshotRoot,
    finished_with,
    retained,
)

_log = logging.getLogger(__name__)


class CompletedCheckpointStore:
    """What a job may come back from, for as long as its driver holds the fence.

    Safe to use from several threads, as the log is.

    Args:
        log: of the lineage.
        checkpoints: its manifests and files.
        max_retained: how many stay while the job runs, at least 1.
        retention: what becomes of them when the job ends; None: they stay at every end.
    """

    def __init__(
        self,
        log: LogWriter,
        checkpoints: CheckpointStore,
        max_retained: int = 1,
        retention: CheckpointRetentionPolicy | None = None,
    ) -> None:
        if max_retained < 1:
            raise UserError(f"one checkpoint at least is retained: max_retained={max_retained}")
        self._log = log
        self._store = checkpoints
        self._max_retained = max_retained
        self._retention = retention
        self._latest: CompletedCheckpoint | None = None

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The log's entries of all that are retained, newest last."""
        return tuple(reversed(retained(self._log.entries)))

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """What a run begins from, its manifest as payload; None for nothing."""
        return self._latest

    def begin_from(
        self, manifest: SnapshotRoot | None, path: str = "", *, own: bool = True
    ) -> None:
        """Have runs begin from this point: the log's newest one, or one that a person named.

        Args:
            manifest: None for an empty start.
            path: how the log names it.
            own: a checkpoint of this lineage. Of any other no file is referenced, claimed or not:
                its owner may delete its directory.
        """
        if manifest is None:
            self._latest = None
            return
        policy = CheckpointProperties.for_checkpoint(self._retention)
        at = manifest.created_at.timestamp()
        self._latest = CompletedCheckpoint(
            manifest.lineage,
            manifest.checkpoint_id,
            at,
            at,
            policy if own else CheckpointProperties.for_unclaimed_snapshot(),
            path,
            {
                TaskId(uid, subtask): handle
                for uid, state in manifest.operators.items()
                for subtask, handle in enumerate(state.subtasks)
            },
            manifest,
        )

    def subsume(
        self, pinned: Collection[int] = (), entries: Sequence[Entry] | None = None
    ) -> Retirement:
        """Let go of those over the number retained; see `CheckpointStore.retire`.

        Args:
            pinned: what is under way may reference these.
            entries: the log at the moment when that was so; by default now.
        """
        return self._store.retire(self._log, self._max_retained, pinned=pinned, entries=entries)

    def shutdown(self, status: JobEnd) -> int:
        """The job has ended: delete its checkpoints if they are not to outlive such an end.

        Savepoints stay; so does the log, by which nobody takes the directory for a new one. Called
        when nothing writes any more, and again by who finds that it was not done to its end.

        Returns how many were deleted.

        Raises: as `CheckpointStore.retire`.
        """
        if self._retention is None or not self._retention.discards(status):
            return 0
        if status is JobEnd.FINISHED and finished_with(self._log.entries) is None:
            # Before the first of them goes: this process may end at any moment, unheard.
            self._log.append(Finished(self._log.fence))
        gone = self._store.retire(self._log, keep=None).checkpoint_ids
        _log.info(
            "checkpoints_discarded: status=%s retention=%s checkpoints=%s",
            status.value,
            self._retention.value,
            list(gone),
        )
        return len(gone)
