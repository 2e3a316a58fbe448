"""One database for a record at a time: what was written lately is kept, and read before the rest.

Decides when writes reach the database: many keys at once, in one batch, when so many have come that
it pays, or when somebody has to scan what they touch. `RecordStore` is the keyed state store whose
writes go here in place of an epoch's frames. Belongs to one thread.
"""

from collections.abc import Callable

from moorage_state.database import RangeDatabase
from moorage_state.deltas import Frame
from moorage_state.descriptors import StateDescriptor
from moorage_state.errors import Bug
from moorage_state.keyed.access import Scan
from moorage_state.keyed.expiry import Expiry, stamp_bytes
from moorage_state.keyed.store import KeyedStateStore, StateSchema
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keys import EVENT_TIMERS
from moorage_state.server import scans
from moorage_state.server.api import RangeSpec

__all__ = ["RecentWrites", "RecordStore"]

_MOST_BYTES = 4 << 20
_ENTRY_BYTES = 200
_MANY_APPENDED = 1 << 31

Entries = dict[bytes, bytes | None]


class _Scope:
    """What was written for one key: ranges that were deleted, and entries that came after."""

    __slots__ = ("entries", "ranges")

    def __init__(self) -> None:
        self.entries: Entries = {}
        self.ranges: list[tuple[bytes, bytes]] = []

    def delete_range(self, start: bytes, end: bytes) -> None:
        for key in [key for key in self.entries if start <= key < end]:
            del self.entries[key]
        self.ranges.append((start, end))

    def is_deleted(self, key: bytes) -> bool:
        return any(start <= key < end for start, end in self.ranges)


class RecentWrites:
    """Implements `RangeAccess` over a database and what is not in it yet.

    Every method may raise what the database raises.
    """

    def __init__(self, database: RangeDatabase, key_groups: KeyGroupRange) -> None:
        self.database = database
        self._spec = RangeSpec("", key_groups.start, key_groups.end)
        self._scopes: dict[bytes, _Scope] = {}
        self._others: Entries = {}
        self._prefix = b""
        self._scope: _Scope | None = None
        # Of all that is not in the database yet, with what Python needs for it; 0 for nothing.
        self._bytes = 0

    def enter(self, prefix: bytes) -> None:
        """Say which key comes: its state is stored under this prefix."""
        if self._bytes >= _MOST_BYTES:
            self.apply()
        self._prefix = prefix
        self._scope = self._scopes.get(prefix)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write an entry, or delete it where `value` is None."""
        self._bytes += _ENTRY_BYTES if value is None else _ENTRY_BYTES + len(value)
        prefix = self._prefix
        if prefix and key.startswith(prefix):
            scope = self._scope
            if scope is None:
                scope = self._scope = self._scopes[prefix] = _Scope()
            scope.entries[key] = value
        else:
            self._others[key] = value

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete every key in [start, end), which are the current key's."""
        if not self._prefix or not start.startswith(self._prefix):
            self.apply()
            self.database.delete_range(start, end)
            return
        self._bytes += _ENTRY_BYTES
        scope = self._scope
        if scope is None:
            scope = self._scope = self._scopes[self._prefix] = _Scope()
        scope.delete_range(start, end)

    def get(self, key: bytes) -> bytes | None:
        """The value of one key."""
        scope = self._scope
        if scope is not None:
            if key in scope.entries:
                return scope.entries[key]
            if scope.ranges and scope.is_deleted(key):
                return None
        if key in self._others:
            return self._others[key]
        return self.database.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See `RangeAccess`."""
        prefix = self._prefix
        if len(keys) == 1 and prefix and keys[0].startswith(prefix):
            return [self.get(keys[0])]
        if self._bytes and not (prefix and all(key.startswith(prefix) for key in keys)):
            self.apply()
        return [self.get(key) for key in keys] if self._bytes else self.database.get_many(keys)

    def scan_many(self, prefixes: list[bytes], limit_entries: int, limit_bytes: int) -> list[Scan]:  # noqa: ARG002
        """See `RangeAccess`: nothing ahead of its use.

        For a chunk of keys it pays to fetch whole small maps at once. Here there is one key, and
        most often one entry of its map is wanted.
        """
        return [Scan([], [], complete=False) for _ in prefixes]

    def scan_from(self, prefix: bytes, after: bytes, limit: int) -> Scan:
        """See `RangeAccess`."""
        self._settle(prefix)
        return Scan(*scans.scan_from(self.database, prefix, after, limit))

    def due_timers(
        self, up_to_ms: int, limit: int, after: bytes, kind: int = EVENT_TIMERS
    ) -> list[bytes]:
        """See `RangeAccess`."""
        self.apply()
        return scans.due_timers(self.database, self._spec, kind, up_to_ms, limit, after)

    def stage(self, frame: bytes) -> None:
        """Never called: the store writes here."""
        raise Bug(f"a frame was staged for a database in process: bytes={len(frame)}")

    def apply(self, marker: tuple[bytes, bytes] | None = None) -> None:
        """Bring everything into the database, in one batch with `marker`."""
        if not self._bytes and marker is None:
            return
        ranges: list[tuple[bytes, bytes]] = []
        keys: list[bytes] = []
        values: list[bytes | None] = []
        for scope in self._scopes.values():
            ranges += scope.ranges
            keys += scope.entries
            values += scope.entries.values()
        keys += self._others
        values += self._others.values()
        self.database.apply([Frame(ranges, keys, values)], marker)
        self._scopes, self._others, self._scope = {}, {}, None
        self._bytes = 0

    def _settle(self, prefix: bytes) -> None:
        """Have the database know what a scan under `prefix` must see."""
        if not self._prefix or not prefix.startswith(self._prefix):
            self.apply()
            return
        scope = self._scope
        if scope is None:
            return
        entries = scope.entries
        self.database.apply([Frame(scope.ranges, list(entries), list(entries.values()))])
        # Its writes go on counting towards the bound, which only makes the next batch sooner.
        del self._scopes[self._prefix]
        self._scope = None


class _LiveExpiry(Expiry):
    """A time to live whose present moves on."""

    __slots__ = ()

    def move_to(self, now_ms: int) -> None:
        if self.ttl_ms:
            self._now = now_ms
            self.stamp = stamp_bytes(now_ms)


class RecordStore(KeyedStateStore):
    """The keyed state store of a database in process: keys come in any order, as often as they do.

    Args:
        writes: what it reads and writes.
        epoch: the place of list elements; greater than any that is stored.
        clock_ms: processing time, read once for every change of the key where states expire.
    """

    def __init__(
        self,
        writes: RecentWrites,
        epoch: int,
        known: list[StateSchema],
        groups: KeyGroupRange,
        clock_ms: Callable[[], int],
    ) -> None:
        super().__init__(writes, epoch, known, now_ms=clock_ms(), groups=groups)
        self.writes = writes
        self._clock_ms = clock_ms
        self._live: list[_LiveExpiry] = []
        self._key_prefix: bytes | None = None
        self.prefixes = [b""]
        # Not a method that calls it: that would be a tenth of what a record costs.
        setattr(self, "write", writes.put)  # noqa: B010  a method to whoever checks types

    def enter(self, prefix: bytes) -> None:
        """Make the key with this prefix the current one.

        What `begin_chunk` and `switch_to` do for a chunk of one key, in one go: it is done for
        every record. Handles that the key before did not touch have nothing to forget.
        """
        if prefix == self._key_prefix and not self._live:
            return
        touched = self.touched
        if touched:
            for handle in touched:
                handle.flush()
                handle.new_chunk()
            touched.clear()
        if self._live:
            self.move_time()
        self.writes.enter(prefix)
        self._key_prefix = self.prefix = self.prefixes[0] = prefix
        self.touched = self._of_key

    def leave(self) -> None:
        """Write what the current key changed; there is none afterwards."""
        for handle in self.touched:
            handle.flush()
            handle.new_chunk()
        self.touched.clear()
        self._key_prefix = None
        self.writes.enter(b"")
        if self.appended >= _MANY_APPENDED:
            self.next_epoch()

    def next_epoch(self) -> None:
        """Begin a new place for list elements; there is no current key."""
        self.epoch += 1
        self.appended = 0

    def move_time(self) -> None:
        """Let states see the present time; nothing of the current key is pending."""
        now = self._clock_ms()
        if now != self.now_ms:
            self.now_ms = now
            for expiry in self._live:
                expiry.move_to(now)

    def new_expiry(self, descriptor: StateDescriptor) -> Expiry:
        """See `KeyedStateStore`."""
        expiry = _LiveExpiry(self, descriptor.ttl)
        self._live.append(expiry)
        return expiry

    def delete_range(self, start: bytes, end: bytes) -> None:
        """See `KeyedStateStore`."""
        self.writes.delete_range(start, end)
