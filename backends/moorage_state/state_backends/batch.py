"""One key at a time: its state is forgotten when the next key comes.

Decides the order in which keys must come and that a key which comes too late is refused: its state
would be gone, and the answer wrong without a word. A key's timers have all fired before the next
key begins, up to the end of time, as in a bounded job time ends with the key's last record.
What these set is ignored: a timer that always sets the next one would never let the key end.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from moorage_state.coordinator import CheckpointOptions
from moorage_state.database import RangeDatabase
from moorage_state.errors import UserError
from moorage_state.keyed.timers import MAX_TIME, TimeDomain
from moorage_state.keygroups import SPARK_XXHASH64, KeyGroupRange
from moorage_state.server.databases import Databases
from moorage_state.state_backends.handles import KeyedStateHandle
from moorage_state.state_backends.hashmap import HashMapStateBackend
from moorage_state.state_backends.keyed import KeyedStateBackend
from moorage_state.state_backends.keying import KeyLocator, Located
from moorage_state.state_backends.rocksdb import EmbeddedRocksDBStateBackend
from moorage_state.state_backends.state_backend import StateBackend
from moorage_state.state_backends.storage import CheckpointStreamFactory

_log = logging.getLogger(__name__)

OnTimer = Callable[[TimeDomain, int, Any], None]


def sort_key(
    key_types: Sequence[str], number_of_key_groups: int, key_hash: str = SPARK_XXHASH64
) -> Callable[[Any], bytes]:
    """A function from a key to bytes in whose order the batch backend takes keys.

    Bounded input has to be sorted by it before it is processed.
    """
    whole = KeyGroupRange(0, number_of_key_groups - 1)
    locator = KeyLocator(key_types, number_of_key_groups, whole, key_hash)
    return lambda key: locator.find(key).prefix


class BatchKeyedStateBackend(KeyedStateBackend):
    """See `KeyedStateBackend`; holds the current key's state alone.

    Raises:
        UserError: there are handles to restore.
    """

    def __init__(
        self, *args: Any, restore: Iterable[KeyedStateHandle] = (), **options: Any
    ) -> None:
        if any(True for _ in restore):
            raise UserError(
                "a bounded job begins without keyed state: backend=batch; restore the snapshot "
                "with another state backend"
            )
        super().__init__(*args, **options)
        self._on_timer: OnTimer | None = None
        self._firing = False
        self._warned = False
        self._last: Located | None = None

    def set_timer_handler(self, on_timer: OnTimer) -> None:
        """Have `on_timer(domain, time, key)` called for a key's timers when the key is done."""
        self._on_timer = on_timer

    def set_current_key(self, key: Any) -> None:
        """See `KeyedStateBackend`.

        Raises:
            UserError: the key is finished, or comes after one that is greater: its state is gone.
        """
        found, last = self._locator.find(key), self._last
        if self._located is not None and found.prefix == self._located.prefix:
            return
        if last is not None and found.prefix <= last.prefix:
            raise UserError(
                f"input of the batch backend is not sorted by key: key={key!r:.80} "
                f"after={last.key!r:.80}; sort it by sort_key, all records of a key together"
            )
        self.finish_key()
        self._last = found
        super().set_current_key(key)

    def finish_key(self) -> None:
        """Fire what timers the current key has and forget its state; also after the last key.

        There is no current key afterwards, and this one does not come again.

        Raises:
            UserError: it has timers, and nobody takes them.
        """
        if self._located is None:
            return
        if self._firing or self._of_key.has_due(MAX_TIME, MAX_TIME):
            self._fire_all()
        self._store.forget_all()
        self._located = None

    def get_keys(self, state_name: str, namespace: Any = None) -> Iterator[Any]:  # noqa: ARG002
        """None: no key but the current one has state, as with Flink's backend of this kind."""
        return iter(())

    def snapshot(
        self,
        checkpoint_id: int,
        timestamp: float,  # noqa: ARG002
        stream_factory: CheckpointStreamFactory,  # noqa: ARG002
        options: CheckpointOptions,
    ) -> NoReturn:
        """Always refused: of a key that was finished nothing is left that could be restored.

        Raises:
            UserError: always.
        """
        what = "Savepoints are" if options.checkpoint_type.is_savepoint else "Snapshotting is"
        raise UserError(
            f"{what} not supported in BATCH runtime mode.: operator={self._operator} "
            f"checkpoint={checkpoint_id}; a bounded job that fails begins again, or choose "
            f"another state.backend"
        )

    def _fire_all(self) -> None:
        """Event time ends with the key; then processing-time timers fire, as nothing comes after.

        What is set meanwhile is ignored.
        """
        if self._firing:
            raise UserError(
                f"a key is finished while its timers fire: operator={self._operator} "
                f"key={self.current_key!r:.80}; on_timer must not change the key"
            )
        self._firing = True
        ending = [self.timers(domain) for domain in TimeDomain]
        for timers in ending:
            timers.ignored = self._ignore
        try:
            for domain in TimeDomain:
                self._fire(domain)
        finally:
            self._firing = False
            for timers in ending:
                timers.ignored = None

    def _ignore(self, time_ms: int) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "timer that is set at the end of its key is ignored: operator=%s key=%.80r "
                "time=%d; nothing comes after, and this is said once",
                self._operator,
                self.current_key,
                time_ms,
            )

    def _fire(self, domain: TimeDomain) -> None:
        """Fire what there is of one kind."""
        timers, handler = self.timers(domain), self._on_timer
        if handler is None and len(timers):
            raise UserError(
                f"timers are set and nobody takes them: operator={self._operator} "
                f"key={self.current_key!r:.80} timers={len(timers)}; call set_timer_handler first"
            )
        if handler is not None:
            timers.fire_due(MAX_TIME, lambda time_ms, key: handler(domain, time_ms, key))


@dataclass(frozen=True, slots=True)
class BatchExecutionStateBackend(StateBackend):
    """State of bounded jobs, whose input is sorted by key; takes no snapshots.

    State servers, where nothing is kept, have the backend `databases`.
    """

    identifier: ClassVar[str] = "batch"

    databases: EmbeddedRocksDBStateBackend = field(default_factory=EmbeddedRocksDBStateBackend)

    @property
    def delegated_state_backend(self) -> StateBackend:
        """See `DelegatingStateBackend`."""
        return self.databases

    def open_database(
        self,
        path: Path,
        memory: Any,
        groups: tuple[int, int] | None = None,
        *,
        read_only: bool = False,
    ) -> RangeDatabase:
        """See `StateBackend`."""
        return self.databases.open_database(path, memory, groups, read_only=read_only)

    def process_memory(self) -> Any:
        """See `StateBackend`."""
        return self.databases.process_memory()

    def configure(self, configuration: Mapping[str, str]) -> StateBackend:
        """See `StateBackend`: the settings are those of the databases."""
        return replace(self, databases=self.databases.configure(configuration))

    def for_servers(self, servers: int, memory: int | None) -> StateBackend:
        """See `StateBackend`."""
        return replace(self, databases=self.databases.for_servers(servers, memory))

    @property
    def working_directory(self) -> Path | None:
        """See `StateBackend`."""
        return self.databases.working_directory

    def _keyed_state_backend(self) -> type[KeyedStateBackend]:
        return BatchKeyedStateBackend

    def _process_databases(self) -> Databases:
        """One key's state in memory, whatever servers are made from."""
        return Databases(HashMapStateBackend())
