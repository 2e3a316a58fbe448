"""Time to live of one state: stamps, what has expired, and the index that a sweep follows.

Decides when a stamped value, list element or map entry is over, and where the index by time has
it. Layouts::

    c1 00 | when it was last used, in milliseconds (8) | value     a stamped value

    key group (2) | 0x04 | time (8) | what follows 0x01 in the stored key     the index

No value begins with `c1 00` by itself, so one that was written before its state had a time to live,
or after, tells that it has no stamp.

The index has a value or a map entry by its stored key, and a list by its prefix. Its times are
rounded up to a sixteenth of the time to live, so that what is written in every epoch has at most
seventeen entries there and mostly keeps the one it has. An entry may be stale: whoever sweeps
looks at the stamp. Entries at the time `NEVER` are no such entries but marks: up to where state
that was not in the index has been brought into it. Called by the handles of states with a time to
live and by the sweep.
"""

from typing import TYPE_CHECKING

from moorage_state.keylayout import decode_time, encode_time, expiry_entry

if TYPE_CHECKING:
    from moorage_state.keyed.store import KeyedStateStore
    from moorage_state.timetolive import StateTtlConfig

__all__ = ["NEVER", "Expiry", "due_time", "has_expired", "split_stamp", "stamp_bytes"]

NEVER = -(1 << 63)
"""When a value without a stamp was last used: its time begins when it is read."""

_MARK = b"\xc1\x00"
_STAMP_BYTES = len(_MARK) + 8

_SPANS = 16


def stamp_bytes(stamp_ms: int) -> bytes:
    """What stands before a value that was last used at this time; nothing for `NEVER`."""
    return _MARK + encode_time(stamp_ms) if stamp_ms != NEVER else b""


def split_stamp(raw: bytes) -> tuple[int, bytes]:
    """When a stored value was last used, and the value."""
    if raw.startswith(_MARK):
        return decode_time(raw[len(_MARK) : _STAMP_BYTES]), raw[_STAMP_BYTES:]
    return NEVER, raw


def due_time(stamp_ms: int, ttl_ms: int) -> int:
    """When the index says that what was last used at `stamp_ms` is over: never too early."""
    grain = max(1, ttl_ms // _SPANS)
    return -(-(stamp_ms + ttl_ms) // grain) * grain


def has_expired(stamp_ms: int, ttl_ms: int, now_ms: int) -> bool:
    """Whether the time of what was last used at `stamp_ms` is over; `ttl_ms` of 0 is no limit."""
    return ttl_ms > 0 and stamp_ms != NEVER and stamp_ms + ttl_ms <= now_ms


class Expiry:
    """The time to live of one state in one epoch.

    Attributes:
        now_ms: when that is; `NEVER` where the state has no time to live any more.
        stamp: what is put before values that are written in this epoch.
        ttl_ms: 0 where the state had a time to live once and has none now.
        returns_expired: whether what is over may be read until it is cleaned up.
    """

    __slots__ = (
        "_indexed",
        "_store",
        "_updates_on_read",
        "now_ms",
        "returns_expired",
        "stamp",
        "ttl_ms",
    )

    def __init__(self, store: "KeyedStateStore", config: "StateTtlConfig | None") -> None:
        self._store = store
        self.ttl_ms = config.ttl_ms if config is not None else 0
        self.now_ms = store.now_ms if config is not None else NEVER
        self._indexed = config is not None and config.cleanup_in_background
        self.stamp = stamp_bytes(self.now_ms)
        self._updates_on_read = config is not None and config.updates_on_read
        self.returns_expired = config is not None and config.returns_expired

    def expired(self, stamp_ms: int) -> bool:
        """Whether what bears this stamp is over."""
        return has_expired(stamp_ms, self.ttl_ms, self.now_ms)

    def renews(self, stamp_ms: int | None) -> bool:
        """Whether reading what bears this stamp gives it another."""
        if stamp_ms is None or stamp_ms == self.now_ms:
            return False
        return self._updates_on_read or (stamp_ms == NEVER and self.ttl_ms > 0)

    def note(self, cell: bytes, before: int | None, stamp_ms: int | None = None) -> None:
        """Have the sweep look at `cell`, which is written in this epoch.

        Args:
            cell: a stored key, or the prefix of a list.
            before: the stamp that it bore, if that is known.
            stamp_ms: the stamp that it bears now; None for that of this epoch.
        """
        if not self._indexed:
            return
        due = due_time(self.now_ms if stamp_ms is None else stamp_ms, self.ttl_ms)
        if before is not None and before != NEVER:
            was = due_time(before, self.ttl_ms)
            if was == due:
                return
            self._store.write(expiry_entry(cell, was), None)
        self._store.write(expiry_entry(cell, due), b"")

    def forget(self, cell: bytes, before: int | None) -> None:
        """Spare the sweep a look at `cell`, which is removed; `before` as for `note`."""
        if self._indexed and before is not None and before != NEVER:
            self._store.write(expiry_entry(cell, due_time(before, self.ttl_ms)), None)
