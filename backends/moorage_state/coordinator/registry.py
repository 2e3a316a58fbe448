"""Files that several checkpoints reference, and when one may be deleted.

There is no counting up and down, which a lost message would leave wrong for ever: each entry knows
which checkpoints referenced it, and goes when all of those are older than the oldest one retained.
Asking again finds nothing more to do.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from moorage_state.coordinator.messages import SharedStateKey
from moorage_state.coordinator.pending import CompletedCheckpoint
from moorage_state.coordinator.properties import ClaimMode
from moorage_state.errors import Bug

__all__ = ["Registration", "SharedStateRegistry"]


class Registration(NamedTuple):
    """What became of one registered file.

    Attributes:
        handle: what the checkpoint references from now on.
        discard: handles that nothing references and nothing ever will.
    """

    handle: Any
    discard: tuple[Any, ...] = ()


@dataclass(slots=True)
class _Entry:
    key: SharedStateKey
    handle: Any
    created_by: int
    users: set[int] = field(default_factory=set)
    confirmed: bool = False

    @property
    def last_used(self) -> int:
        return max(self.users)


class SharedStateRegistry:
    """All shared files of the checkpoints of one job."""

    def __init__(self) -> None:
        self._entries: dict[SharedStateKey, _Entry] = {}
        # Files whose key another file took while a pending checkpoint still referenced them.
        self._replaced: list[_Entry] = []
        self._highest_not_claimed = 0

    def __len__(self) -> int:
        return len(self._entries) + len(self._replaced)

    def get(self, key: SharedStateKey) -> Any | None:
        """Return the handle under a key."""
        entry = self._entries.get(key)
        return None if entry is None else entry.handle

    def register(
        self,
        key: SharedStateKey,
        handle: Any,
        checkpoint_id: int,
        live: Collection[int] = (),
        *,
        late: bool = False,
    ) -> Registration:
        """Note that a checkpoint references a file.

        Another file under the same key: if the one that is known belongs to a completed
        checkpoint it stays and the newcomer goes (the task did not hear of the completion and
        uploaded again). If not, it was uploaded by an attempt that failed, and what this
        checkpoint was made of is the newcomer.

        Args:
            handle: None if the task did not upload it but references what is registered.
            live: the checkpoints that are pending or may exist, whose files are not discarded.
            late: the checkpoint has failed already, so its file takes the place of no other.

        Raises:
            Bug: nothing is registered under the key and `handle` is None.
        """
        entry = self._entries.get(key)
        if entry is None:
            if handle is None:
                raise Bug(
                    f"a checkpoint references a file that is not known: scope={key.scope} "
                    f"file={key.file_id} checkpoint={checkpoint_id}"
                )
            self._entries[key] = _Entry(key, handle, checkpoint_id, {checkpoint_id})
            return Registration(handle)
        if handle is None or handle == entry.handle:
            entry.users.add(checkpoint_id)
            return Registration(entry.handle)
        if entry.confirmed or late:
            entry.users.add(checkpoint_id)
            return Registration(entry.handle, self._unreferenced(key, handle))
        return self._replace(entry, handle, checkpoint_id, live)

    def _replace(
        self, old: _Entry, handle: Any, checkpoint_id: int, live: Collection[int]
    ) -> Registration:
        self._entries[old.key] = _Entry(old.key, handle, checkpoint_id, {checkpoint_id})
        # Two checkpoints, or two tasks of one, may have uploaded a file each for itself.
        if old.users.intersection((*live, checkpoint_id)):
            self._replaced.append(old)
        return Registration(handle, self._unreferenced(old.key, old.handle))

    def register_all(
        self,
        files: Mapping[SharedStateKey, Any],
        checkpoint_id: int,
        live: Collection[int] = (),
        *,
        late: bool = False,
    ) -> tuple[dict[SharedStateKey, Any], tuple[Any, ...]]:
        """Register a task's files; returns them as they are referenced, and what to discard."""
        for key, handle in files.items():
            if handle is None and key not in self._entries:
                self.register(key, None, checkpoint_id)
        resolved: dict[SharedStateKey, Any] = {}
        discard: list[Any] = []
        for key, handle in files.items():
            registration = self.register(key, handle, checkpoint_id, live, late=late)
            resolved[key] = registration.handle
            discard.extend(registration.discard)
        return resolved, tuple(discard)

    def register_restored(self, checkpoint: CompletedCheckpoint, mode: ClaimMode) -> None:
        """Register the files of a snapshot that the job was restored from.

        Unless it is claimed, nothing created at or before its id is ever given out for deletion.
        """
        for files in checkpoint.shared.values():
            self.register_all(files, checkpoint.checkpoint_id)
        self.checkpoint_completed(checkpoint.checkpoint_id)
        if mode is not ClaimMode.CLAIM:
            self._highest_not_claimed = max(self._highest_not_claimed, checkpoint.checkpoint_id)

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Confirm what a completed checkpoint references."""
        for entry in (*self._entries.values(), *self._replaced):
            entry.confirmed |= checkpoint_id in entry.users
        self._promote()

    def unregister_unused(
        self, lowest_retained: int, live: Collection[int] = ()
    ) -> tuple[Any, ...]:
        """Forget what only checkpoints below an id referenced; returns what is to be deleted.

        Safe to repeat. What a pending checkpoint (`live`) references stays whatever its id.
        """
        gone = {
            key: entry
            for key, entry in self._entries.items()
            if _unused(entry, lowest_retained, live)
        }
        replaced = [e for e in self._replaced if _unused(e, lowest_retained, live)]
        for key in gone:
            del self._entries[key]
        self._replaced = [e for e in self._replaced if not _unused(e, lowest_retained, live)]
        for entry in (*self._entries.values(), *self._replaced):
            entry.users = {u for u in entry.users if u >= lowest_retained or u in live}
        self._promote()
        return tuple(
            handle
            for entry in (*gone.values(), *replaced)
            if entry.created_by > self._highest_not_claimed
            for handle in self._unreferenced(entry.key, entry.handle)
        )

    def created_and_in_use(self, checkpoint_id: int) -> bool:
        """Whether a file that a checkpoint brought with it is still referenced."""
        return any(
            entry.created_by == checkpoint_id
            for entry in (*self._entries.values(), *self._replaced)
        )

    def _promote(self) -> None:
        """Let a key stand for what was confirmed: a reference without a file means it."""
        waiting, self._replaced = self._replaced, []
        for old in waiting:
            current = self._entries.get(old.key)
            if current is None:
                self._entries[old.key] = old
            elif old.confirmed and not current.confirmed:
                self._entries[old.key] = old
                self._replaced.append(current)
            else:
                self._replaced.append(old)

    def _unreferenced(self, key: SharedStateKey, handle: Any) -> tuple[Any, ...]:
        """The handle, unless something that is registered still is this very file."""
        current = self._entries.get(key)
        if current is not None and current.handle == handle:
            return ()
        if any(entry.key == key and entry.handle == handle for entry in self._replaced):
            return ()
        return (handle,)


def _unused(entry: _Entry, lowest_retained: int, live: Collection[int]) -> bool:
    return entry.last_used < lowest_retained and not entry.users.intersection(live)
