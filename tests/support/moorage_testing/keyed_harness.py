"""The contract suite's harness for the keyed store, on ranges without servers.

Each epoch has a new store over what was committed, so that everything a body reads after
`new_epoch` was encoded, staged, applied and decoded.
"""

import copy
from typing import Any

import xxhash

from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.schema import StateSchema, merged_schema
from moorage_state.keygroups import KeyGroupRange, owner, range_of
from moorage_state.keylayout import key_prefix
from moorage_state.keys import KeyCodec
from moorage_testing.fake_range import FakeRange

__all__ = ["MAX_PARALLELISM", "KeyedStoreHarness"]

MAX_PARALLELISM = 16
_CODEC = KeyCodec(["string"])
_FIRST_MS = 1_700_000_000_000


class KeyedStoreHarness:
    """Implements `StateHarness` by `KeyedStateStore`."""

    def __init__(self, parallelism: int = 1) -> None:
        self.now_ms = _FIRST_MS
        self.epoch = 0
        self._parallelism = parallelism
        self._ranges: list[Any] = []
        self._stores: list[KeyedStateStore] = []
        self._schemas: list[Any] = []
        self._current = 0
        self._key = ""

    def open(self) -> None:
        self._ranges = [FakeRange() for _ in range(self._parallelism)]
        self._begin()

    def with_key(self, key: str) -> None:
        raw = _CODEC.encode((key,))
        group = xxhash.xxh32_intdigest(raw) % MAX_PARALLELISM
        self._current = owner(group, self._parallelism, MAX_PARALLELISM)
        self._key = key
        store = self._stores[self._current]
        prefix = key_prefix(group, raw)
        if store.prefix != prefix:
            # A key comes once in an epoch, so one that comes again begins another.
            if prefix in self._seen:
                self.new_epoch()
                store = self._stores[self._current]
            self._seen.add(prefix)
            store.flush_key()
            store.begin_chunk([prefix])
            store.switch_to(0)

    def state(self, descriptor: Any) -> Any:
        return self._stores[self._current].state(descriptor)

    def namespaced(self, descriptor: Any, types: list[str]) -> Any:
        """A state with namespaces, as `state` gives one without."""
        return self._stores[self._current].namespaced_state(descriptor, types)

    @property
    def store(self) -> KeyedStateStore:
        """The store of the current key."""
        return self._stores[self._current]

    def new_epoch(self) -> None:
        self._commit()
        self._begin()

    def snapshot(self) -> Any:
        self._commit()
        found = copy.deepcopy(self._entries()), list(self._schemas), self.epoch
        self._begin()
        return found

    def restore(self, snapshot: Any) -> None:
        entries, self._schemas, self.epoch = copy.deepcopy(snapshot)
        self._distribute(entries)

    def rescale(self, parallelism: int) -> None:
        self._commit()
        self._parallelism = parallelism
        self._distribute(self._entries())

    def stored_entries(self) -> int | None:
        return len(self._entries())

    def close(self) -> None:
        self._ranges, self._stores = [], []

    def _entries(self) -> dict[bytes, bytes]:
        return {k: v for one in self._ranges for k, v in one.entries.items()}

    def _distribute(self, entries: dict[bytes, bytes]) -> None:
        self._ranges = [FakeRange() for _ in range(self._parallelism)]
        for key, value in entries.items():
            group = int.from_bytes(key[:2], "big")
            self._ranges[owner(group, self._parallelism, MAX_PARALLELISM)].entries[key] = value
        self._begin()

    def _commit(self) -> None:
        schemas: dict[str, StateSchema] = {}
        for schema in (s for store in self._stores for s in store.schemas):
            before = schemas.setdefault(schema.name, schema)
            schemas[schema.name] = merged_schema(before, schema)
        for one, store in zip(self._ranges, self._stores, strict=True):
            store.finish()
            one.commit()
        self._schemas = list(schemas.values())
        self.epoch += 1

    def _begin(self) -> None:
        self._seen: set[bytes] = set()
        self._stores = [
            KeyedStateStore(one, self.epoch + 1, self._schemas, now_ms=self.now_ms, groups=groups)
            for one, groups in zip(self._ranges, self._groups(), strict=True)
        ]
        for store in self._stores:
            store.sweep_expired()
        if self._key:
            self.with_key(self._key)

    def _groups(self) -> list[KeyGroupRange]:
        parallelism = self._parallelism
        return [range_of(n, parallelism, MAX_PARALLELISM) for n in range(parallelism)]
