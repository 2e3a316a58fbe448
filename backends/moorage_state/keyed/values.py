"""ValueState: one value per key, fetched for a chunk of keys and written once when a key is done.

Also the cell in which reducing and aggregating states keep theirs. Called by user functions.
"""

from typing import TYPE_CHECKING, Any

from moorage_state.keyed import api
from moorage_state.keyed.cells import OverCell
from moorage_state.keyed.expiry import NEVER, split_stamp, stamp_bytes

if TYPE_CHECKING:
    from moorage_state.codecs import Decode
    from moorage_state.keyed.codec import StateCodec
    from moorage_state.keyed.expiry import Expiry
    from moorage_state.keyed.scanning import Values
    from moorage_state.keyed.store import KeyedStateStore

__all__ = ["DefaultedValueState", "ExpiringValueState", "ValueState"]


class ValueState(api.ValueState):
    """One value per key; None when there is none."""

    __slots__ = (
        "_as_given",
        "_decode",
        "_dirty",
        "_encode",
        "_loaded",
        "_plain",
        "_raws",
        "_settle",
        "_sid",
        "_store",
        "_value",
    )

    def __init__(self, store: "KeyedStateStore", sid: bytes, codec: "StateCodec") -> None:
        self._store = store
        self._sid = sid
        self._encode, self._decode, self._plain, self._settle = codec
        self._raws: Values | None = None
        self._loaded = False
        self._dirty = False
        self._as_given = False
        self._value: Any = None

    def value(self) -> Any:
        """The current key's value, or None. Change it with `update`, not in place."""
        if self._loaded:
            if self._as_given:
                self._value = self._settle(self._value)
                self._as_given = False
            return self._value
        store = self._store
        store.touched.append(self)
        raws = self._raws
        if raws is None:
            raws = self._raws = store.fetch(self._sid)
        raw = raws[store.index]
        self._value = value = None if raw is None else self._decode(raw)
        self._loaded = True
        return value

    # As further values are added to it: never one that has expired.
    live = value

    def take_over(self, other: "ValueState") -> None:
        """Make the value of `other` this one's, as old as it is."""
        self.update(other.live())

    def update(self, value: Any) -> None:
        """Set the current key's value; None clears it.

        Raises:
            StateTypeError: when the value is not of the declared type (at the next `value`, or
                when the key is done).
        """
        if not self._loaded:
            self._store.touched.append(self)
            self._loaded = True
        self._value = value
        self._dirty = True
        self._as_given = value is not None and type(value) is not self._plain

    def clear(self) -> None:
        """Remove the current key's value."""
        self.update(None)

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        self._raws = None

    def give(self, raw: bytes | None) -> None:
        """Take what is stored for the current key, which was fetched with others."""
        self._raws = {self._store.index: raw}

    def flush(self) -> None:
        """Write the current key's value if it changed."""
        self._loaded = self._as_given = False
        if self._dirty:
            self._dirty = False
            value, store = self._value, self._store
            raw = None if value is None else self._encode(value)
            store.write_cell(store.prefix + self._sid, raw)


class ExpiringValueState(ValueState):
    """A value with a time to live, stamped with when it was last used."""

    __slots__ = ("_expired", "_expiry", "_payload", "_renewed", "_stamp", "_taken")

    def __init__(
        self, store: "KeyedStateStore", sid: bytes, codec: "StateCodec", expiry: "Expiry"
    ) -> None:
        super().__init__(store, sid, codec)
        self._expiry = expiry
        self._stamp: int | None = None
        self._expired: bytes | None = None
        self._payload = b""
        self._renewed = False
        # The stamp of a value that another state had, until it is written or renewed here.
        self._taken: int | None = None

    def value(self) -> Any:
        """The current key's value, or None; begins its time anew if reading does."""
        self._load()
        if self._expired is not None:
            raw, self._expired = self._expired, None
            return self._decode(raw)
        if not self._dirty and self._value is not None:
            self._renewed = self._expiry.renews(self._stamp)
        elif self._taken is not None and self._expiry.renews(self._taken):
            self._taken = None
        return super().value()

    def live(self) -> Any:
        """The value as further values are added to it: never one that has expired."""
        self._load()
        return super().value()

    def update(self, value: Any) -> None:
        """Set the current key's value; None clears it."""
        super().update(value)
        self._expired = self._taken = None

    def take_over(self, other: Any) -> None:
        """See `ValueState.take_over`."""
        super().take_over(other)
        self._taken = other.stamp_ms

    @property
    def stamp_ms(self) -> int | None:
        """When the value was last used, as it stands after `live`; None for in this epoch."""
        if self._dirty or self._renewed:
            return self._taken
        return None if self._stamp == NEVER else self._stamp

    def flush(self) -> None:
        """Write the current key's value, its stamp, and where the sweep finds it."""
        self._loaded = self._as_given = False
        stamp, self._stamp, self._expired = self._stamp, None, None
        dirty, self._dirty = self._dirty, False
        renewed, self._renewed = self._renewed, False
        taken, self._taken = self._taken, None
        expiry, cell = self._expiry, self._store.prefix + self._sid
        if dirty and self._value is None:
            self._store.write_cell(cell, None)
            expiry.forget(cell, stamp)
        elif dirty or renewed:
            # What is only read is stored as it was, whatever became of the object.
            payload = self._encode(self._value) if dirty else self._payload
            bears = expiry.stamp if taken is None else stamp_bytes(taken)
            self._store.write_cell(cell, bears + payload)
            expiry.note(cell, stamp, taken)

    def _load(self) -> None:
        """What is stored, without the stamp; what has expired is cleaned up by being read."""
        if self._loaded:
            return
        store = self._store
        store.touched.append(self)
        self._loaded = True
        if self._raws is None:
            self._raws = store.fetch(self._sid)
        raw = self._raws[store.index]
        self._value = None
        if raw is None:
            return
        self._stamp, payload = split_stamp(raw)
        if not self._expiry.expired(self._stamp):
            self._value = self._decode(payload)
            self._payload = payload
            return
        self._dirty = True
        if self._expiry.returns_expired:
            self._expired = payload


class DefaultedValueState(OverCell, api.ValueState):
    """A value that reads as a default where nothing is stored; `cell` holds what is.

    Attributes:
        default: the bytes of the default, which is decoded anew for everyone who asks, so that
            nobody changes another's.
    """

    __slots__ = ("_decode", "default")

    def __init__(self, cell: Any, default: bytes, decode: "Decode") -> None:
        super().__init__(cell)
        self.default, self._decode = default, decode

    def value(self) -> Any:
        """The current key's value, or the default."""
        found = self.cell.value()
        return self._decode(self.default) if found is None else found

    def update(self, value: Any) -> None:
        """Set the current key's value; None clears it, and the default is what reads then.

        Raises:
            StateTypeError: see `ValueState.update`.
        """
        self.cell.update(value)
