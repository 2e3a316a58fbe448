"""One database for a record at a time: what was written lately is kept, and read before the rest.

Decides when writes reach the database: many keys at once, in one batch, when so many have come that
it pays, or when somebody has to scan what they touch. `RecordStore` is the keyed state store whose
writes go here in place of an epoch's frames. Belongs to one thread.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from moorage_state.checks import StateTypeError
from moorage_state.database import RangeDatabase, Scan
from moorage_state.deltas import Frame
from moorage_state.descriptors import StateDescriptor
from moorage_state.errors import Bug
from moorage_state.keyed.expiry import Expiry, stamp_bytes
from moorage_state.keyed.kv_states import TaskKvStateRegistry
from moorage_state.keyed.schema import StateSchema
from moorage_state.keyed.state_store import KeyedStateStore, NoKey, StateHandleBase
from moorage_state.keyed.timers import MIN_TIME
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import EVENT_TIMERS, KEY_AT, KEYED_STATE, METADATA
from moorage_state.server import scans
from moorage_state.server.operations import RangeSpec

_MOST_BYTES = 8 << 20
_ENTRY_BYTES = 200
_MANY_APPENDED = 1 << 31
# Entries for which a change of the key may wait, some milliseconds.
_SWEPT_AT_ONCE = 1000
# Sooner a sweep finds nothing new: the index has its times rounded up to such a part of a life.
_SPANS = 16

Entries = dict[bytes, bytes | None]


class RecentWrites:
    """Implements `RangeAccess` over a database and what is not in it yet.

    Every method may raise what the database raises.

    Attributes:
        prefix: what is stored of the current key begins with it; empty where there is none.
        held: bytes of all that is not in the database yet, with what Python needs for it; 0 for
            nothing.
    """

    def __init__(self, database: RangeDatabase, key_groups: KeyGroupRange) -> None:
        self.database = database
        self._spec = RangeSpec("", key_groups.start, key_groups.end)
        self.prefix = b""
        self.held = 0
        self._stored = False
        self._entries: Entries = {}
        # Set by the first range that is deleted or scanned beside what is written: only then has it
        # to be known by key what was written, which costs every write a second look-up.
        self._by_key = False
        # What lies under a key beside its cells: entries, and what was deleted before they came.
        self._below: dict[bytes, Entries] = {}
        self._deleted: dict[bytes, list[tuple[bytes, bytes]]] = {}

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write an entry, or delete it where `value` is None."""
        self.held += _ENTRY_BYTES if value is None else _ENTRY_BYTES + len(value)
        prefix = self.prefix
        if self._by_key and prefix and key.startswith(prefix):
            self._below.setdefault(prefix, {})[key] = value
        else:
            self._entries[key] = value

    def put_cell(self, key: bytes, value: bytes | None) -> None:
        """As `put`, of what is always written by this and never in a range that is deleted."""
        self.held += _ENTRY_BYTES if value is None else _ENTRY_BYTES + len(value)
        self._entries[key] = value

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete every key in [start, end), which are the current key's."""
        prefix = self.prefix
        if not prefix or not start.startswith(prefix):
            self.apply()
            self.database.delete_range(start, end)
            return
        self._keep_by_key()
        self.held += _ENTRY_BYTES
        own = self._below.get(prefix, {})
        for key in [key for key in own if start <= key < end]:
            del own[key]
        self._deleted.setdefault(prefix, []).append((start, end))

    def get(self, key: bytes) -> bytes | None:
        """The value of one key."""
        if self._by_key:
            prefix = self.prefix
            own = self._below.get(prefix)
            if own is not None and key in own:
                return own[key]
            if prefix in self._deleted and self._is_deleted(key):
                return None
        entries = self._entries
        return entries[key] if key in entries else self.database.get(key)

    def get_cell(self, key: bytes) -> bytes | None:
        """As `get`, of what `put_cell` writes."""
        entries = self._entries
        return entries[key] if key in entries else self.database.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See `RangeAccess`."""
        prefix = self.prefix
        if len(keys) == 1 and prefix and keys[0].startswith(prefix):
            return [self.get(keys[0])]
        if self.held and not (prefix and all(key.startswith(prefix) for key in keys)):
            self.apply()
        return [self.get(key) for key in keys] if self.held else self.database.get_many(keys)

    def scan_many(self, prefixes: list[bytes], limit_entries: int, limit_bytes: int) -> list[Scan]:  # noqa: ARG002
        """See `RangeAccess`: nothing ahead of its use."""
        # For a chunk of keys it pays to fetch whole small maps at once. Here there is one key, and
        # most often one entry of its map is wanted.
        return [Scan([], [], complete=False) for _ in prefixes]

    def scan_from(self, prefix: bytes, after: bytes, limit: int) -> Scan:
        """See `RangeAccess`.

        Raises:
            RuntimeError: it is of a key that is not the current one any more.
        """
        if self.prefix and _is_of_a_key(prefix) and not prefix.startswith(self.prefix):
            raise RuntimeError(
                "a list or map of a key is read on when another key is current: read it to its "
                "end, or keep list(state), before the key changes"
            )
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
        if not self.held and marker is None:
            return
        entries, ranges = self._entries, []
        for own in self._below.values():
            entries.update(own)
        for deleted in self._deleted.values():
            ranges += deleted
        keys = sorted(entries)
        self.database.apply([Frame(ranges, keys, list(map(entries.get, keys)))], marker)
        self._stored = True
        self._clear()

    def forget_all(self) -> None:
        """Delete everything, here and in the database."""
        self._clear()
        if self._stored:
            self.database.delete_range(b"", METADATA)
            self._stored = False

    def _clear(self) -> None:
        self._entries, self._below, self._deleted = {}, {}, {}
        self.held = 0

    def _settle(self, prefix: bytes) -> None:
        """Have the database know what a scan under `prefix` must see."""
        if not self.prefix or not prefix.startswith(self.prefix):
            self.apply()
            return
        self._keep_by_key()
        entries = self._below.get(self.prefix, {})
        ranges = self._deleted.get(self.prefix, [])
        if not entries and not ranges:
            return
        self.database.apply([Frame(ranges, list(entries), list(entries.values()))])
        self._stored = True
        # Its writes go on counting towards the bound, which only makes the next batch sooner.
        self._below.pop(self.prefix, None)
        self._deleted.pop(self.prefix, None)

    def _keep_by_key(self) -> None:
        if not self._by_key:
            self.apply()
            self._by_key = True

    def _is_deleted(self, key: bytes) -> bool:
        return any(start <= key < end for start, end in self._deleted[self.prefix])


def _is_of_a_key(prefix: bytes) -> bool:
    """Whether one key's state begins so, and not a whole key group's."""
    return len(prefix) > KEY_AT and prefix[2] == KEYED_STATE


class _LiveExpiry(Expiry):
    """A time to live whose present moves on."""

    __slots__ = ()

    def move_to(self, now_ms: int) -> None:
        if self.ttl_ms:
            self.now_ms = now_ms
            self.stamp = stamp_bytes(now_ms)


class _Closed(list[StateHandleBase]):
    """Stands for the touched handles where there will be no key again."""

    def __init__(self, gone: Callable[[], Exception]) -> None:
        super().__init__()
        self._gone = gone

    def append(self, _: StateHandleBase) -> None:
        raise self._gone()


# What `RecordStore` does by a method of `RecentWrites` itself.
_METHODS = {"write": "put", "write_cell": "put_cell", "read": "get"}


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
        kv_states: TaskKvStateRegistry | None = None,
    ) -> None:
        now_ms = clock_ms()
        super().__init__(writes, epoch, known, now_ms=now_ms, groups=groups, kv_states=kv_states)
        self.writes = writes
        self._clock_ms = clock_ms
        self._live: list[_LiveExpiry] = []
        self._next_sweep_ms = MIN_TIME
        self._key_prefix: bytes | None = None
        self.prefixes = [b""]
        # Not methods that call them: that would be a tenth of what a record costs.
        for name, method in _METHODS.items():
            setattr(self, name, getattr(writes, method))

    looks_ahead = False

    def fetch(self, sid: bytes) -> Sequence[bytes | None]:
        """See `KeyedStateStore`: of the one key."""
        return (self.writes.get_cell(self.prefix + sid),)

    def enter(self, prefix: bytes) -> None:
        """Make the key with this prefix the current one."""
        # What `begin_chunk` and `switch_to` do for a chunk of one key, in one go: it is done for
        # every record. Handles that the key before did not touch have nothing to forget.
        writes = self.writes
        if writes.held >= _MOST_BYTES:
            writes.apply()
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
            if self.now_ms >= self._next_sweep_ms:
                self._sweep_a_part()
        self._key_prefix = self.prefix = self.prefixes[0] = writes.prefix = prefix
        self.touched = self._of_key

    def leave(self) -> None:
        """Write what the current key changed; there is none afterwards."""
        for handle in self.touched:
            handle.flush()
            handle.new_chunk()
        self.touched.clear()
        self._key_prefix = None
        self.writes.prefix = b""
        # The place of an element has four bytes for its number within the epoch.
        if self.appended >= _MANY_APPENDED:
            self.next_epoch()

    def forget_all(self) -> None:
        """Forget the state of every key; there is no current one afterwards."""
        self.leave()
        self.prefix, self.touched = b"", NoKey()
        self.writes.forget_all()

    def close(self, gone: Callable[[], Exception]) -> None:
        """Have every use of a state raise what `gone` gives; what is pending is dropped."""
        for handle in self.touched:
            # A value may be of another type than declared: of no more matter.
            with suppress(StateTypeError):
                handle.flush()
            handle.new_chunk()
        self.touched = _Closed(gone)
        self.prefix, self._key_prefix = b"", None

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

    def sweep_expired(self, at_most: int | None = None) -> int:
        """See `KeyedStateStore`; what was declared until now is known."""
        self._known |= self._schemas
        return super().sweep_expired(at_most)

    def _sweep_a_part(self) -> None:
        """Remove some of what has expired; where there is more, the next key goes on."""
        self.writes.prefix = b""
        swept = self.sweep_expired(_SWEPT_AT_ONCE)
        if swept:
            # What was removed is known by no key: it must not come after what is put there next.
            self.writes.apply()
        if swept < _SWEPT_AT_ONCE:
            lives = [schema.ttl_ms for schema in self.schemas if schema.ttl_ms]
            self._next_sweep_ms = self.now_ms + max(1, min(lives, default=0) // _SPANS)

    def settle(self) -> None:
        """See `KeyedStateStore`."""
        self.writes.apply()

    def new_expiry(self, descriptor: StateDescriptor) -> Expiry:
        """See `KeyedStateStore`."""
        expiry = _LiveExpiry(self, descriptor.ttl)
        self._live.append(expiry)
        return expiry

    def delete_range(self, start: bytes, end: bytes) -> None:
        """See `KeyedStateStore`."""
        self.writes.delete_range(start, end)
