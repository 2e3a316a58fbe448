"""The log of one open range: which materialized files it begins with, and where its deltas lie.

With a changelog a checkpoint lists, for each range, the files of an earlier copy and the deltas
since. Decides what a checkpoint may list: what a completed one listed, what its own upload writes,
and files that were materialized since. Everything else might be deleted by who retires checkpoints;
see docs/adr/0028-a-changelog-makes-checkpoints-references.md. Called by `Snapshots`; knows neither
database nor store. Thread-safe.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moorage_state.deltas import parse_delta_name
from moorage_state.server.operations import Version
from moorage_state.snapshots import FileRef, Materialized, RangeHandle

_ABORTS = 16
"""How many of the last aborted checkpoints are known, whose copies may still be on their way."""

_UNLISTED_SECONDS = 6 * 3600.0
"""How long what no checkpoint lists yet may wait for one. A sweep deletes it after a day."""


def _since_boot() -> float:
    """Seconds that also pass while the machine sleeps, as they do for who sweeps the store."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """Files of a copy that checkpoints may list again and again."""

    materialized: Materialized
    files: tuple[FileRef, ...]


@dataclass(slots=True, eq=False)
class Listing:
    """What one checkpoint lists of the range, from its beginning to its end.

    Attributes:
        base: None where the checkpoint's own copy becomes it.
        stored: deltas that an earlier checkpoint listed, or that were uploaded ahead.
        local: files of the other deltas.
        cancel: ends its upload.
    """

    version: Version
    base: Base | None
    stored: list[FileRef] = field(default_factory=list)
    local: list[Path] = field(default_factory=list)
    cancel: threading.Event = field(default_factory=threading.Event)

    def written(self, handle: RangeHandle, checkpoint_id: int) -> None:
        """Take note of what the part says of the range, with which the checkpoint may complete."""
        if self.base is None:
            self.base = Base(_holding(checkpoint_id, self.version), tuple(handle.files))
        else:
            # The upload may be asked for again, and lists each delta once.
            self.stored, self.local = handle.deltas, []


class RangeLog:
    """See the module. Begins without a base: then a checkpoint is a copy of all.

    Args:
        clock: in seconds, counting while the machine sleeps.
    """

    def __init__(self, clock: Callable[[], float] = _since_boot) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._base: Base | None = None
        self._completed = 0
        self._places: dict[str, FileRef] = {}
        self._ahead: dict[str, tuple[FileRef, float]] = {}
        self._next: tuple[Base, Base | None, float] | None = None
        self._listings: dict[int, Listing] = {}
        self._copy = 0
        self._gone: deque[int] = deque(maxlen=_ABORTS)

    def restored(self, handle: RangeHandle, checkpoint_id: int) -> None:
        """The range was opened from this handle of a completed checkpoint of its own lineage."""
        files = handle.database_files
        # What belongs to one checkpoint alone goes with it.
        if not all(file.shared or not file.size for file in files):
            return
        own = _holding(checkpoint_id, Version(handle.epoch, handle.digest))
        self._base = Base(handle.logged or own, tuple(files))
        self._places = {file.name: file for file in handle.deltas}
        self._completed = checkpoint_id

    def begin(
        self,
        checkpoint_id: int,
        version: Version,
        committed: Mapping[Version, Path],
        base_id: int,
    ) -> bool:
        """A checkpoint begins; whether it can list an earlier copy and deltas.

        Args:
            committed: deltas on this volume.
            base_id: the completed checkpoint whose objects it may reference; 0 if there is none.
        """
        with self._lock:
            self._listings.pop(checkpoint_id, None)
            # Of one whose end nobody told it is not known whether it lists what is here. And one
            # that completed while the range was opened again may list other objects: these go.
            if self._listings or base_id != self._completed:
                self._base, self._next, self._places = None, None, {}
                self._ahead.clear()
                self._listings.clear()
            base = self._newest()
            listing = self._listed(base, version, committed) if base else None
            self._listings[checkpoint_id] = listing or Listing(version, None)
            return listing is not None

    @property
    def copy(self) -> int:
        """The last checkpoint with which a copy was taken for later ones to begin with, or 0."""
        return self._copy

    def copied(self, checkpoint_id: int) -> None:
        """Such a copy is taken with this checkpoint."""
        self._copy = checkpoint_id

    def listing(self, checkpoint_id: int) -> Listing | None:
        """What a checkpoint that is under way lists; None where it is a copy of all, as it is."""
        with self._lock:
            return self._listings.get(checkpoint_id)

    def complete(self, checkpoint_id: int) -> Materialized | None:
        """The checkpoint exists: what the log begins with now; None where there is none.

        Told once more, or of a checkpoint that is older than the last one, it says the same.
        """
        with self._lock:
            listing = self._listings.pop(checkpoint_id, None)
            if listing is None:
                return self._base.materialized if self._base else None
            base = listing.base
            if base is None:
                return None
            if self._next is not None and self._next[0] is base:
                self._next = None
            self._base, self._completed = base, checkpoint_id
            self._places = {file.name: file for file in listing.stored}
            self._forget_ahead(listing.version.epoch)
            return base.materialized

    def aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will not exist, or its copy failed: what only it has is garbage."""
        with self._lock:
            self._gone.append(checkpoint_id)
            if self._next and self._next[0].materialized.checkpoint_id == checkpoint_id:
                self._next = None
            listing = self._listings.pop(checkpoint_id, None)
            if listing is None:
                return
            listing.cancel.set()
            if self._next is not None and self._next[0] is listing.base:
                self._next = None
            self._forget_ahead(listing.version.epoch)

    def damaged(self) -> None:
        """A delta on this volume is not what was committed: the next checkpoint is a copy."""
        with self._lock:
            self._base, self._completed = None, 0

    def unlisted(self, committed: Mapping[Version, Path]) -> Listing | None:
        """The deltas that no checkpoint lists and that are not in the store; None without a base.

        Args:
            committed: deltas on this volume.
        """
        with self._lock:
            if self._base is None or not committed:
                return None
            after = self._base.materialized.epoch
            known = self._places.keys() | self._fresh()
            new = sorted(one for one in committed if one.epoch > after)
            paths = [committed[one] for one in new]
            local = [path for path in paths if path.name not in known]
            return Listing(new[-1], self._base, local=local) if local else None

    def uploaded(self, files: Iterable[FileRef], base: Base | None) -> None:
        """These deltas are in the store before any checkpoint asks for them.

        Args:
            base: that of the listing they were; when the log has another by now, they do not count.
        """
        with self._lock:
            if base is self._base:
                self._ahead.update((file.name, (file, self._clock())) for file in files)

    def _fresh(self) -> dict[str, FileRef]:
        now = self._clock()
        return {n: file for n, (file, at) in self._ahead.items() if now - at < _UNLISTED_SECONDS}

    def _forget_ahead(self, epoch: int) -> None:
        """What a checkpoint listed is known from it, or is garbage with it."""
        late = {n: one for n, one in self._ahead.items() if int(n[:20]) > epoch}
        self._ahead = late

    def begins_with(self, checkpoint_id: int) -> bool:
        """Whether the copy that was taken with this checkpoint is what the log begins with."""
        with self._lock:
            base = self._base
        return base is not None and base.materialized.checkpoint_id == checkpoint_id

    def materializing(self) -> tuple[Base | None, Sequence[FileRef]]:
        """What files that are materialized now may build on, to be named when they are there."""
        with self._lock:
            return self._base, self._base.files if self._base else ()

    def materialized(
        self, checkpoint_id: int, version: Version, files: Iterable[FileRef], on: Base | None
    ) -> None:
        """The copy that was taken with a checkpoint is in the store: the next one begins with it.

        Args:
            on: what `materializing` said; when the log has another base by now, it is not used.
        """
        base = Base(_holding(checkpoint_id, version), tuple(files))
        with self._lock:
            # Another server's failure ends the copy on all of them.
            if checkpoint_id not in self._gone:
                self._next = base, on, self._clock()

    def _newest(self) -> Base | None:
        if self._next is not None:
            base, on, since = self._next
            if on is self._base and self._clock() - since < _UNLISTED_SECONDS:
                return base
            self._next = None
        return self._base

    def _listed(
        self, base: Base, version: Version, committed: Mapping[Version, Path]
    ) -> Listing | None:
        """None where a delta between the base and the version is not known."""
        places = {**self._fresh(), **self._places}
        named = ((parse_delta_name(name), file) for name, file in places.items())
        stored = {at[0]: file for at, file in named if at is not None}
        local = {one.epoch: one for one in committed}
        listing = Listing(version, base)
        for epoch in range(base.materialized.epoch + 1, version.epoch + 1):
            if epoch in stored:
                listing.stored.append(stored[epoch])
            elif epoch in local:
                listing.local.append(committed[local[epoch]])
            else:
                return None
        return listing


def _holding(checkpoint_id: int, version: Version) -> Materialized:
    return Materialized(checkpoint_id=checkpoint_id, epoch=version.epoch, digest=version.digest)
