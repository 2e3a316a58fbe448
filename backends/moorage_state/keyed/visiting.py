"""Visits: one function called for all keys of a range that have something in a state.

Decides that visited keys are read page by page, and that what a visit changes is there for the
visits and the rows that follow in the same epoch. Called through the context of broadcast rows,
while there is no current key.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from moorage_state.descriptors import StateDescriptor
from moorage_state.keyed.overlay import Overlay
from moorage_state.keyed.store import KeyedStateStore

__all__ = ["KeyVisits"]

_KEYS = 1024
_KEY_AT = 7


class KeyVisits:
    """The visits of one attempt of one subtask.

    Args:
        decode: the key whose bytes these are, as users know it.
        directories: where what visits change may wait; see `Overlay`.
    """

    def __init__(
        self,
        store: KeyedStateStore,
        decode: Callable[[bytes], Any],
        directories: Sequence[str],
    ) -> None:
        self._store = store
        self._decode = decode
        self._directories = directories
        self._overlay: Overlay | None = None
        self._visiting = False
        self._over = False

    def visit(self, descriptor: StateDescriptor, function: Callable[[Any, Any], object]) -> None:
        """Call `function(key, state)` for each key that has something in the state.

        The function may change what its key has, and nothing else. Keys come in the order in which
        they are stored. If it raises, what it did until then is done.

        Raises:
            RuntimeError: called by such a function, or after `end`.
            UserError, TypeError: see `KeyedStateStore.state`.
        """
        self._refuse(descriptor)
        store = self._store
        handle = store.state(descriptor)
        if self._overlay is None:
            self._overlay = store.access = Overlay(store.access, self._directories)
        self._visiting = self._overlay.recording = True
        try:
            # What was swept before the first key is not to be visited.
            store.finish()
            for prefixes in _pages(store.keys_of(descriptor.name)):
                self._visit_page(prefixes, handle, function)
        finally:
            # Also for who catches what a function raised, and goes on.
            self._visiting = False
            store.finish()
            self._overlay.recording = False

    def end(self) -> None:
        """Take no more visits: rows with keys come now, whose changes a visit would not find."""
        self._over = True

    def close(self) -> None:
        """Let go of what was kept; idempotent."""
        if self._overlay is not None:
            self._overlay.close()

    def _refuse(self, descriptor: Any) -> None:
        if self._over:
            raise RuntimeError(
                "a function can be applied to all keys only while broadcast rows are processed: "
                "call apply_to_keyed_state within process_broadcast_element"
            )
        if self._visiting:
            raise RuntimeError(
                "a function that is applied to all keys cannot apply another one to all keys: "
                "return first"
            )
        if not isinstance(descriptor, StateDescriptor):
            raise TypeError(
                f"the state of all keys is named by its descriptor, such as a "
                f"ValueStateDescriptor: got={descriptor!r:.200}"
            )

    def _visit_page(
        self, prefixes: list[bytes], handle: Any, function: Callable[[Any, Any], object]
    ) -> None:
        store = self._store
        store.begin_chunk(prefixes)
        for i, prefix in enumerate(prefixes):
            store.switch_to(i)
            key = self._decode(prefix[_KEY_AT:])
            try:
                function(key, handle)
                store.flush_key()
            except Exception as error:
                error.add_note(f"it was applied to the state of key={key!r:.100}")
                raise


def _pages(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    while page := list(islice(keys, _KEYS)):
        yield page
