"""Namespaces: a state that a key has several times, once for each window for example.

Decides where a namespace stands in a stored key: its length (4) and canonical bytes directly behind
the state's id, so that a state without namespaces has nothing there. Called by the store for states
that are registered with namespaces.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from moorage_state.checks import StateTypeError
from moorage_state.codecs import checker
from moorage_state.keyed import interfaces
from moorage_state.keyed.detached import DetachedValueState
from moorage_state.keyed.value_states import StoredValueState
from moorage_state.keylayout import KEYED_STATE
from moorage_state.keys import KeyCodec

if TYPE_CHECKING:
    from moorage_state.database import Scan
    from moorage_state.keyed.state_store import KeyedStateStore

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">HBI")
_ID_BYTES = 4
_HANDLES = 1024
_PAGE = 4096
_FIRST_PAGE = 64
_MOST_AHEAD = 12
_PAGE_BYTES = 8 << 20


def namespace_codec(types: Sequence[str]) -> KeyCodec:
    """What turns a namespace of these types into bytes. Raises ValueError."""
    if isinstance(types, str) or not types:
        raise ValueError(f"a namespace needs a sequence of at least one type: types={types!r}")
    return KeyCodec(types)


class NamespaceCodec:
    """A namespace as users have it, a tuple where it has several columns, to its bytes and back.

    `state` is whose namespaces they are, for errors.
    """

    __slots__ = ("_checks", "_codec", "_state")

    def __init__(self, types: Sequence[str], state: str) -> None:
        self._codec = namespace_codec(types)
        self._checks = [checker(ddl) for ddl in types]
        self._state = state

    def encode(self, namespace: Any) -> bytes:
        """Its bytes. Raises `StateTypeError`."""
        columns = namespace if isinstance(namespace, tuple) else (namespace,)
        try:
            checked = (check(one) for check, one in zip(self._checks, columns, strict=True))
            return self._codec.encode(tuple(checked))
        except (StateTypeError, ValueError) as error:
            declared = ", ".join(self._codec.ddl)
            raise StateTypeError(
                f"a namespace is not of its declared type: state={self._state} "
                f"namespace={namespace!r:.80} declared={declared} type={type(namespace).__name__}; "
                f"give a value of this type"
            ) from error

    def decode(self, raw: bytes) -> Any:
        """The namespace whose bytes these are."""
        columns = self._codec.decode(raw)
        return columns[0] if len(columns) == 1 else columns


def namespace_bytes(codec: KeyCodec, namespace: Any) -> bytes:
    """What stands behind the state's id; `namespace` is a tuple where it has several columns."""
    return prefixed_with_length(
        codec.encode(namespace if isinstance(namespace, tuple) else (namespace,))
    )


def prefixed_with_length(raw: bytes) -> bytes:
    """What stands behind the state's id for the bytes of a namespace."""
    return _LENGTH.pack(len(raw)) + raw


def split_namespace(rest: bytes) -> tuple[bytes, bytes]:
    """The namespace and what follows it, of what stands behind the state's id; or ValueError."""
    end = _LENGTH.size + int.from_bytes(rest[: _LENGTH.size], "big")
    if len(rest) < max(end, _LENGTH.size):
        raise ValueError("a stored key ends within its namespace")
    return rest[_LENGTH.size : end], rest[end:]


class NamespacedState:
    """A state of the current key in several namespaces.

    A handle that it gives is for the current key only: ask again when the key changes.
    """

    __slots__ = (
        "_asked",
        "_at",
        "_codec",
        "_fetched",
        "_handles",
        "_key",
        "_make",
        "_sid",
        "_store",
    )

    def __init__(
        self,
        store: "KeyedStateStore",
        sid: bytes,
        namespace_types: Sequence[str],
        state: str,
        make: Callable[[bytes], Any],
    ) -> None:
        self._store = store
        self._sid = sid
        self._codec = NamespaceCodec(namespace_types, state)
        self._make = make
        self._handles: dict[bytes, Any] = {}
        self._key = b""
        self._at: dict[bytes, bytes] = {}
        self._fetched: dict[bytes, bytes | None] = {}
        self._asked: dict[bytes, int] = {}

    def set_current_namespace(self, namespace: Any) -> Any:
        """The handle of the state for the current key and `namespace`."""
        store, sid = self._store, self._sid + prefixed_with_length(self._codec.encode(namespace))
        handle = self._handles.get(sid)
        if handle is None:
            if len(self._handles) >= _HANDLES and self._key != store.prefix:
                # Only where the key is another: a handle of this one may be in somebody's hands,
                # or have what is to be written. Those of the key before were flushed with it.
                self._handles.clear()
                self._at.clear()
            handle = self._handles[sid] = self._make(sid)
        self._key = store.prefix
        if self._at.get(sid) != store.prefix:
            self._at[sid] = store.prefix
            handle.new_chunk()
            self._hand_over(handle, sid)
        return handle

    def merge_namespaces(self, target: Any, sources: Sequence[Any]) -> None:
        """Move what the current key has in `sources` to `target`, and clear the sources.

        What the target has comes first, then each source in the order given. Raises TypeError for a
        kind of state that cannot be merged, NotImplementedError where an aggregate function does
        not say how.
        """
        handle = self.set_current_namespace(target)
        if not isinstance(handle, interfaces.MergingState):
            kind = "MapState" if isinstance(handle, interfaces.MapState) else "ValueState"
            raise TypeError(
                f"a {kind} has no way to become one of several; only list, reducing and "
                f"aggregating states are merged"
            )
        mine: Any = handle
        for source in sources:
            theirs = self.set_current_namespace(source)
            if theirs is not mine:
                mine.absorb(theirs)

    def prefetch(self, wanted: Sequence[tuple[int, Any]]) -> None:
        """Read values for keys of the chunk in one request; not for lists and maps.

        `wanted` has positions in the chunk, each with a namespace.
        """
        store, codec = self._store, self._codec
        cells = [
            store.prefixes[index] + self._sid + prefixed_with_length(codec.encode(namespace))
            for index, namespace in wanted
        ]
        if cells:
            cells = sorted(set(cells))
            self._fetched.update(zip(cells, store.access.get_many(cells), strict=True))

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        self._fetched, self._asked = {}, {}
        for handle in self._handles.values():
            handle.new_chunk()

    def flush(self) -> None:
        """Nothing: the handles of the namespaces are flushed themselves."""

    def _hand_over(self, handle: Any, sid: bytes) -> None:
        holder = getattr(handle, "cell", handle)
        if not isinstance(holder, (StoredValueState, DetachedValueState)):
            return
        cell = self._store.prefix + sid
        if cell not in self._fetched and self._store.looks_ahead:
            self._look_ahead(sid)
        if cell in self._fetched:
            holder.give(self._fetched[cell])

    def _look_ahead(self, sid: bytes) -> None:
        """Read a namespace of further keys, if others of the chunk have asked for it.

        Windows of one size are those of all keys; sessions are a key's own. So twice as many are
        read each time, and of a namespace that one key asks for none.
        """
        store, before = self._store, self._asked.get(sid, 0)
        self._asked[sid] = before + 1
        if before:
            ahead = store.prefixes[store.index : store.index + (1 << min(before, _MOST_AHEAD))]
            cells = [prefix + sid for prefix in ahead]
            self._fetched.update(zip(cells, store.access.get_many(cells), strict=True))


def keys_of(
    store: "KeyedStateStore",
    sid: bytes,
    namespace_types: Sequence[str],
    state: str,
    namespace: Any,
) -> Iterator[bytes]:
    """See `KeyedStateStore.keys_of`."""
    if store.groups is None:
        raise RuntimeError("keys can only be listed where the key groups of the range are known")
    wanted = sid
    if namespace is not None:
        wanted += prefixed_with_length(NamespaceCodec(namespace_types, state).encode(namespace))
    # Small at first: values may have any size, and the first page shows which.
    limit = min(_FIRST_PAGE, _PAGE)
    for group in range(store.groups.start, store.groups.end + 1):
        lower = group.to_bytes(2, "big") + bytes([KEYED_STATE])
        last, after, complete = b"", b"", False
        while not complete:
            page = store.access.scan_from(lower, after, limit)
            limit = _next_limit(page, limit)
            complete = page.complete
            after = page.keys[-1] if page.keys else after
            for entry in page.keys:
                at = _HEAD.size + _HEAD.unpack_from(entry)[2]
                if entry.startswith(wanted, at) and entry[:at] != last:
                    last = entry[:at]
                    yield last


def _next_limit(page: "Scan", limit: int) -> int:
    """So many entries that the next page, if it is like this one, has not too many bytes."""
    if not page.keys:
        return limit
    fitting = _PAGE_BYTES * len(page.keys) // (1 + sum(map(len, page.values)))
    return max(1, min(_PAGE, 2 * limit, fitting))
