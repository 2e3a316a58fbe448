"""State backends: how a job's state is kept while it runs, as values that travel with the job.

A `StateBackend` holds configuration only. State servers are made from it; and in a process of one's
own it may be asked, by many threads at once, for the keyed and the operator state backend of one
subtask, which own data structures, files and snapshots, and belong to one thread.

Decides the words; holds no behaviour. Called by whoever runs subtasks in a process of its own.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from moorage_state.coordinator import CheckpointOptions
from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    require_descriptor,
)
from moorage_state.keyed.timers import TimeDomain
from moorage_state.keygroups import SPARK_XXHASH64, KeyGroupRange
from moorage_state.state_backends.configuration import Configuration
from moorage_state.state_backends.futures import SnapshotFuture
from moorage_state.state_backends.handles import SnapshotResult
from moorage_state.state_backends.state_backend import StateBackend
from moorage_state.state_backends.storage import CheckpointStreamFactory

__all__ = [
    "VOID_NAMESPACE",
    "ConfigurableStateBackend",
    "DelegatingStateBackend",
    "Environment",
    "KeyedStateBackend",
    "KeyedTimers",
    "OperatorStateBackend",
    "StateBackend",
    "TimeDomain",
]

VOID_NAMESPACE = None
"""The namespace of states that have none."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Environment:
    """What a subtask knows of the process it runs in.

    Attributes:
        subtask: its number, from 0.
        parallelism: how many subtasks the operator has.
        local_dir: where backends may keep files; the system's own place for such if None.
        clock_ms: processing time, milliseconds since 1970; read by time to live.
        key_hash: which function maps a key to its key group.
    """

    subtask: int = 0
    parallelism: int = 1
    local_dir: Path | None = None
    clock_ms: Callable[[], int] = field(default=_now_ms, compare=False)
    key_hash: str = SPARK_XXHASH64


class KeyedTimers(Protocol):
    """Timers of one time domain, one for each key and time; found in the order of time.

    Times are milliseconds since 1970 UTC, any 64-bit integer.
    """

    def register(self, time_ms: int) -> None:
        """Set a timer of the current key; setting one that is set changes nothing."""
        ...

    def delete(self, time_ms: int) -> None:
        """Delete a timer of the current key, if it is set."""
        ...

    def peek(self) -> int | None:
        """The earliest time of any key, None where no timer is set."""
        ...

    def fire_due(self, up_to_ms: int, on_timer: Callable[[int, Any], None]) -> int:
        """Take every timer that is due at `up_to_ms`, by time, and call `on_timer(time, key)`.

        The timer's key is the current one then. What is set meanwhile and is due fires too, but for
        a timer of processing time that is not later than the one that fires: it waits for the next
        call. The key that was current before is current again afterwards. Returns how many fired.
        """
        ...

    def __len__(self) -> int: ...


class KeyedStateBackend(ABC):
    """The keyed state of one subtask: the key groups of one range. Belongs to one thread.

    Only what `snapshot` returns may be used from another one.
    """

    key_types: tuple[str, ...]
    number_of_key_groups: int
    key_group_range: KeyGroupRange

    @abstractmethod
    def set_current_key(self, key: Any) -> None:
        """Make `key` the one that states and timers speak of: a value, or a tuple for several.

        Raises:
            StateTypeError: it is not of the declared types.
            UserError: its key group is not in this range.
        """

    @property
    @abstractmethod
    def current_key(self) -> Any:
        """The key that was set last, None before the first."""

    @abstractmethod
    def get_or_create_keyed_state(self, descriptor: Any) -> Any:
        """The handle of a state of any kind; the same one for every call.

        Raises:
            UserError: the name is taken by another kind or type, here or in what was restored.
        """

    @abstractmethod
    def get_partitioned_state(
        self, namespace: Any, namespace_type: str | None, descriptor: Any
    ) -> Any:
        """The handle of a state that a key has once for each namespace, for this one.

        Ask again when the key or the namespace changes. `namespace_type` is the DDL type of the
        namespaces; both are None for a state without.
        """

    @abstractmethod
    def merge_namespaces(
        self, target: Any, sources: Iterable[Any], namespace_type: str, descriptor: Any
    ) -> None:
        """Make what the current key has in `sources` part of what it has in `target`.

        Raises:
            TypeError: states of this kind cannot be merged; only list, reducing, aggregating.
        """

    @abstractmethod
    def get_keys(self, state_name: str, namespace: Any = VOID_NAMESPACE) -> Iterator[Any]:
        """All keys that have something in this state and namespace; in no promised order."""

    def apply_to_all_keys(
        self,
        namespace: Any,
        namespace_type: str | None,
        descriptor: Any,
        function: Callable[[Any, Any], None],
    ) -> None:
        """Call `function(key, state)` for every key that has something in this state.

        The function may change the state of its key. The current key is the same afterwards.
        """
        before, had = self.current_key, self.has_current_key
        self.get_partitioned_state(namespace, namespace_type, descriptor)
        for key in list(self.get_keys(descriptor.name, namespace)):
            self.set_current_key(key)
            function(key, self.get_partitioned_state(namespace, namespace_type, descriptor))
        if had:
            self.set_current_key(before)

    @property
    @abstractmethod
    def has_current_key(self) -> bool:
        """Whether a key was set."""

    @abstractmethod
    def timers(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> KeyedTimers:
        """The timers of one domain; the same object for every call."""

    @abstractmethod
    def num_key_value_state_entries(self) -> int:
        """How many entries there are in all states; for tests and metrics."""

    @abstractmethod
    def snapshot(
        self,
        checkpoint_id: int,
        timestamp: float,
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,
    ) -> SnapshotFuture[SnapshotResult]:
        """Take the state as it is now.

        The synchronous part is over when this returns: whatever is written from then on is not in
        the snapshot. The future's `run` does the rest, in any thread.

        Raises:
            UserError: this backend takes no snapshots.
        """

    @abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A snapshot counts; later ones may build on it. Unknown ids are passed over."""

    @abstractmethod
    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A snapshot will never count: what is left of it here may go."""

    @abstractmethod
    def dispose(self) -> None:
        """Let go of everything; snapshots that are not through are canceled. Idempotent."""

    # The names of a KeyedStateStore.

    def get_state(self, descriptor: Any) -> Any:
        """One value per key."""
        require_descriptor(descriptor, ValueStateDescriptor)
        return self.get_or_create_keyed_state(descriptor)

    def get_list_state(self, descriptor: Any) -> Any:
        """A list per key."""
        require_descriptor(descriptor, ListStateDescriptor)
        return self.get_or_create_keyed_state(descriptor)

    def get_map_state(self, descriptor: Any) -> Any:
        """A map per key."""
        require_descriptor(descriptor, MapStateDescriptor)
        return self.get_or_create_keyed_state(descriptor)

    def get_reducing_state(self, descriptor: Any) -> Any:
        """One value per key, to which values are added by a reduce function."""
        require_descriptor(descriptor, ReducingStateDescriptor)
        return self.get_or_create_keyed_state(descriptor)

    def get_aggregating_state(self, descriptor: Any) -> Any:
        """One accumulator per key, to which values are added by an aggregate function."""
        require_descriptor(descriptor, AggregatingStateDescriptor)
        return self.get_or_create_keyed_state(descriptor)

    def get_folding_state(self, descriptor: Any) -> Any:
        """Deprecated; see `get_aggregating_state`."""
        require_descriptor(descriptor, FoldingStateDescriptor)
        return self.get_or_create_keyed_state(descriptor)


class OperatorStateBackend(Protocol):
    """The operator state of one subtask."""

    def get_list_state(self, descriptor: Any) -> Any:
        """A list whose elements are split evenly at another parallelism."""
        ...

    def get_union_list_state(self, descriptor: Any) -> Any:
        """A list of which every subtask gets all elements on a restore."""
        ...

    def get_broadcast_state(self, descriptor: Any) -> Any:
        """A map that is the same in all subtasks."""
        ...


@runtime_checkable
class ConfigurableStateBackend(Protocol):
    """A backend that takes what its creator left open from a configuration."""

    def configure(self, configuration: Configuration) -> StateBackend:
        """A backend like this one, with what was not set in code taken from `configuration`.

        Raises:
            IllegalConfigurationError: a setting has a value that it cannot have.
        """
        ...


@runtime_checkable
class DelegatingStateBackend(Protocol):
    """A backend that adds something to another one."""

    @property
    def delegated_state_backend(self) -> StateBackend:
        """The one that keeps the state."""
        ...
