"""A range that an older run has open here, made the next run's: no file is fetched or opened.

Decides whether a range stands through a recovery: only where it has, or had, the very state that
the next run begins with. Epochs since are undone in place: what their deltas touched gets the
values it had, which the local copy and the deltas before say. Where anything is missing the range
is opened anew, as if nobody had it open. Called by `RangeHost` while it opens a range.
"""

import logging
import shutil
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from moorage_state import failpoints
from moorage_state.database import RangeDatabase, StoredDatabase
from moorage_state.deltas import DeltaReader, Frame
from moorage_state.errors import MoorageError
from moorage_state.server.databases import Databases, owner_of
from moorage_state.server.local_files import RangeDirectory
from moorage_state.server.open_range import OpenRange, Surrendered
from moorage_state.server.operations import RestoreBase, Version
from moorage_state.server.restore import Restored, entries, link_all, verified, write_marker
from moorage_state.snapshots import RangeHandle

_log = logging.getLogger(__name__)

_SLICE = 4096
_LITTLE_BYTES = 1 << 20
"""Of deltas that are always undone: nothing costs less."""

_WORTH = 4
"""Undoing reads and writes at random: up to this part of a copy's size it costs less than a copy
that is opened anew, of which every byte is read once to be trusted."""

Span = tuple[bytes, bytes]
"""Keys from the first to the second, which is excluded."""


def take_over(
    opened: OpenRange, base: RestoreBase, run: str, databases: Databases, why: MoorageError
) -> tuple[RangeDirectory, Restored] | None:
    """Shut out the run that has the range open, and go on with its database.

    The directory stays locked. None, and the range is closed, where it has to be opened anew.

    Args:
        base: what `run` begins with, with its handles.
        why: what the run before hears.
    """
    handle = _own_handle(opened, base, databases)
    at = opened.holding(handle, base.checkpoint_id) if handle else None
    held = opened.surrender(why, at) if at else None
    if handle is None or at is None or held is None:
        opened.close(why)
        return None
    try:
        undone = _go_back(held, at, handle, base, run, databases)
    # Whatever it is: all that is needed is in the store or among the local copies.
    except (MoorageError, OSError) as error:
        _log.warning("range.not-undone %s error=%s", held.directory.root, error)
        undone = None
    except BaseException:
        held.close()
        raise
    if undone is None:
        held.close()
        return None
    restored = Restored(
        held.database,
        Version(base.epoch, ""),
        held.backend_uuid,
        held.hashes,
        "live",
        undone,
        held.label,
        (handle, base.checkpoint_id) if base.builds else None,
        Version(handle.epoch, handle.digest),
    )
    return held.directory, restored


def _own_handle(opened: OpenRange, base: RestoreBase, databases: Databases) -> RangeHandle | None:
    """What the checkpoint has of exactly this range, in files of this backend."""
    spec = opened.spec
    own = [h for h in base.handles if (h.start, h.end) == (spec.start, spec.end)]
    good = own and own[0].format == "native" and owner_of(own[0]) == databases.owner
    return own[0] if good and own[0].epoch == base.epoch else None


def _go_back(
    held: Surrendered,
    at: Version,
    handle: RangeHandle,
    base: RestoreBase,
    run: str,
    databases: Databases,
) -> int | None:
    """Bring the database to the state of `handle`; the bytes of deltas undone, None: it cannot."""
    marker = write_marker(Version(base.epoch, ""), run)
    if held.version == at:
        held.database.apply([], marker)
        return 0
    later = held.deltas_after(at.epoch)
    copy = held.directory.checkpoint(
        handle.logged.checkpoint_id if handle.logged else base.checkpoint_id
    )
    before = held.find(ref.name for ref in handle.deltas)
    if later is None or before is None or not databases.reads_in_place or not copy.is_dir():
        return None
    # Where the store has files that are not here, a look into the copy might wait for it.
    if isinstance(held.database, StoredDatabase):
        return None
    size = sum(path.stat().st_size for path in later)
    if size > max(_LITTLE_BYTES, sum(ref.size for ref in handle.database_files) // _WORTH):
        return None
    touched = Touched.by(later)
    failpoints.hit("recover.before_undo")
    scratch = held.directory.root / "import-undo"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        link_all(copy, handle.database_files, scratch, databases.unchanging)
        opened, _ = verified(databases.open_copy(scratch, owner_of(handle)), handle)
        with closing(opened):
            frames = restoring(touched, opened, before)
            held.database.apply(frames, marker, proven=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    failpoints.hit("recover.after_undo")
    return size


@dataclass(slots=True)
class Touched:
    """What some deltas write or delete: single keys, and spans that do not overlap, in order."""

    keys: list[bytes]
    spans: list[Span]
    _starts: list[bytes] = field(init=False)
    _set: frozenset[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._starts = [start for start, _ in self.spans]
        self._set = frozenset(self.keys)

    @classmethod
    def by(cls, deltas: Iterable[Path]) -> "Touched":
        """By these delta files."""
        keys: set[bytes] = set()
        spans: list[Span] = []
        for path in deltas:
            with DeltaReader(path) as reader:
                for frame in reader.frames():
                    keys.update(frame.keys)
                    spans += frame.ranges
        merged = _merged(spans)
        found = cls([], merged)
        return cls(sorted(key for key in keys if not found.spanned(key)), merged)

    def spanned(self, key: bytes) -> bool:
        """Whether a span has the key."""
        at = bisect_left(self._starts, key + b"\0") - 1
        return at >= 0 and key < self.spans[at][1]

    def within(self, frame: Frame) -> Frame:
        """What a frame does to what is touched."""
        ranges = [
            (max(a, low), min(b, high))
            for low, high in self.spans
            for a, b in frame.ranges
            if a < high and low < b
        ]
        pairs: list[tuple[bytes, bytes | None]] = [
            (key, None) for a, b in frame.ranges for key in self._between(a, b)
        ]
        pairs += (
            (key, value)
            for key, value in zip(frame.keys, frame.values, strict=True)
            if key in self._set or self.spanned(key)
        )
        return Frame(ranges, [key for key, _ in pairs], [value for _, value in pairs])

    def _between(self, low: bytes, high: bytes) -> Sequence[bytes]:
        return self.keys[bisect_left(self.keys, low) : bisect_left(self.keys, high)]


def restoring(touched: Touched, copy: RangeDatabase, before: Iterable[Path]) -> Iterator[Frame]:
    """What gives all that is touched the values of a copy and the deltas that follow it."""
    if touched.spans:
        yield Frame(list(touched.spans), [], [])
    for first in range(0, len(touched.keys), _SLICE):
        keys = touched.keys[first : first + _SLICE]
        yield Frame([], keys, copy.get_many(keys))
    for low, high in touched.spans:
        yield from entries(copy, low, high)
    for path in before:
        with DeltaReader(path) as reader:
            for frame in reader.frames():
                changed = touched.within(frame)
                if changed.operations:
                    yield changed


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for low, high in sorted(span for span in spans if span[0] < span[1]):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged
