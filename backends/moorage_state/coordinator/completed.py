"""The completed checkpoints that a job may come back from, and which of them go when."""

import sys
from bisect import insort
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from moorage_state.coordinator.pending import CompletedCheckpoint
from moorage_state.coordinator.properties import ClaimMode, JobStatus
from moorage_state.coordinator.registry import SharedStateRegistry
from moorage_state.errors import Bug, UserError

__all__ = ["CompletedCheckpointStore", "StoreChange"]

_NOTHING_RETAINED = sys.maxsize


@dataclass(frozen=True, slots=True)
class StoreChange:
    """What one change of the store leads to.

    Attributes:
        subsumed: out of the store now, oldest first; of these the job deletes only what it owns.
        discard: to be deleted with all that is theirs alone.
        unused: shared files that nothing retained references any more, to be deleted.
    """

    subsumed: tuple[CompletedCheckpoint, ...] = ()
    discard: tuple[CompletedCheckpoint, ...] = ()
    unused: tuple[Any, ...] = ()

    @property
    def notify_subsumed(self) -> int | None:
        """The newest subsumed one, if the job deletes it: the one that tasks hear of."""
        if not self.subsumed:
            return None
        newest = max(self.subsumed, key=lambda one: one.checkpoint_id)
        return newest.checkpoint_id if newest.properties.discard_on_subsumed else None


class CompletedCheckpointStore:
    """The retained checkpoints of one job, oldest first.

    Args:
        num_retained: how many to keep, at least 1.
        registry: the files they share.
        recovered: what an earlier driver left, oldest first.
    """

    def __init__(
        self,
        num_retained: int = 1,
        registry: SharedStateRegistry | None = None,
        recovered: Iterable[CompletedCheckpoint] = (),
    ) -> None:
        if num_retained < 1:
            raise UserError(f"one checkpoint at least is retained: num_retained={num_retained}")
        self._num_retained = num_retained
        self.registry = registry if registry is not None else SharedStateRegistry()
        self._retained = list(recovered)
        self._ended: JobStatus | None = None
        # Claimed snapshots that were subsumed while files they brought are still referenced.
        self._held: list[CompletedCheckpoint] = []
        self._claimed: set[int] = set()
        self._kept: set[int] = set()
        for one in self._retained:
            mode = ClaimMode.NO_CLAIM if one.properties.unclaimed else ClaimMode.CLAIM
            self.registry.register_restored(one, mode)

    @property
    def checkpoints(self) -> tuple[CompletedCheckpoint, ...]:
        """All that are retained, newest last."""
        return tuple(self._retained)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The newest retained one."""
        return self._retained[-1] if self._retained else None

    @property
    def latest_id(self) -> int:
        """Its id; 0 if there is none."""
        return self._retained[-1].checkpoint_id if self._retained else 0

    @property
    def base_id(self) -> int:
        """The newest whose files later checkpoints may reference; 0 if there is none.

        Not a savepoint that the job stopped with: its files are a person's.
        """
        own = (o.checkpoint_id for o in reversed(self._retained) if not o.properties.is_synchronous)
        return next(own, 0)

    def restored(self, checkpoint: CompletedCheckpoint, mode: ClaimMode) -> StoreChange:
        """Add the snapshot that the job starts from; its properties say what `mode` made of it.

        Raises:
            Bug: a checkpoint is retained that is as new or newer.
        """
        if checkpoint.checkpoint_id <= self.latest_id:
            raise Bug(
                f"a newer checkpoint would be restored instead: "
                f"snapshot={checkpoint.checkpoint_id} latest={self.latest_id}"
            )
        self.registry.register_restored(checkpoint, mode)
        if mode is ClaimMode.CLAIM:
            self._claimed.add(checkpoint.checkpoint_id)
        return self.add(checkpoint)

    def add(
        self,
        checkpoint: CompletedCheckpoint,
        pinned: Collection[int] = (),
        live: Collection[int] = (),
    ) -> StoreChange:
        """Add a completed checkpoint and let go of what is over the number retained.

        After `shutdown` it is only decided whether it stays.

        Args:
            pinned: checkpoints whose files pending ones may still reference.
            live: the pending checkpoints.

        Raises:
            Bug: it is there.
        """
        if self._ended is not None:
            return self._end([checkpoint], self._ended, pinned, live)
        if any(one.checkpoint_id == checkpoint.checkpoint_id for one in self._retained):
            raise Bug(f"a checkpoint completes once: checkpoint={checkpoint.checkpoint_id}")
        # One that cannot be subsumed while pending may complete after a newer one.
        insort(self._retained, checkpoint, key=lambda one: one.checkpoint_id)
        subsumed = self._subsume()
        unused = self.registry.unregister_unused(self._lowest(pinned), live)
        owned = [one for one in subsumed if one.properties.discard_on_subsumed]
        return StoreChange(tuple(subsumed), self._discardable(owned), unused)

    def shutdown(
        self, status: JobStatus, pinned: Collection[int] = (), live: Collection[int] = ()
    ) -> StoreChange:
        """The job ended: discard what its properties say. Suspended, it only lets go."""
        self._ended = status
        retained, self._retained = self._retained, []
        return self._end(retained, status, pinned, live)

    def _end(
        self,
        ending: list[CompletedCheckpoint],
        status: JobStatus,
        pinned: Collection[int],
        live: Collection[int],
    ) -> StoreChange:
        if not status.is_globally_terminal:
            return StoreChange()
        discard = [one for one in ending if one.properties.discard_on(status)]
        self._kept.update(one.checkpoint_id for one in ending if one not in discard)
        lowest = min((*self._kept, *(p for p in pinned if p), *live), default=_NOTHING_RETAINED)
        unused = self.registry.unregister_unused(lowest, live)
        return StoreChange(tuple(discard), self._discardable(discard), unused)

    def _subsume(self) -> list[CompletedCheckpoint]:
        """Take the oldest out until the number fits, without those that must stay."""
        latest = self._retained[-1]
        last_checkpoint = next(
            (o for o in reversed(self._retained) if not o.properties.is_savepoint), None
        )
        subsumed: list[CompletedCheckpoint] = []
        for one in tuple(self._retained):
            if len(self._retained) <= self._num_retained:
                break
            if one is latest or (one is last_checkpoint and not _is_the_end(latest)):
                continue
            self._retained.remove(one)
            subsumed.append(one)
        return subsumed

    def _discardable(self, owned: Iterable[CompletedCheckpoint]) -> tuple[CompletedCheckpoint, ...]:
        """Those to delete now; a claimed one waits until nothing it brought is referenced."""
        waiting = [*self._held, *owned]
        self._held = [
            one
            for one in waiting
            if one.checkpoint_id in self._claimed
            and self.registry.created_and_in_use(one.checkpoint_id)
        ]
        return tuple(one for one in waiting if one not in self._held)

    def _lowest(self, pinned: Collection[int]) -> int:
        """The oldest checkpoint whose shared files are needed; 0 if that is not known.

        Savepoints reference none.
        """
        own = [o.checkpoint_id for o in self._retained if not o.properties.is_savepoint]
        return min((*own, *(one for one in pinned if one)), default=0) if own else 0


def _is_the_end(latest: CompletedCheckpoint) -> bool:
    """Whether the job stopped with it, so that nothing will reference older files."""
    return latest.properties.is_synchronous
