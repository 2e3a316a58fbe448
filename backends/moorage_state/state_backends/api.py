"""State backends: how a job's state is kept while it runs, as values that travel with the job.

A `StateBackend` holds configuration only. State servers are made from it; and in a process of one's
own it may be asked, by many threads at once, for the keyed and the operator state backend of one
subtask, which own data structures, files and snapshots, and belong to one thread.

Decides the words; holds no behaviour. Called by whoever runs subtasks in a process of its own.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from moorage_state.keygroups import SPARK_XXHASH64
from moorage_state.state_backends.configuration import Configuration
from moorage_state.state_backends.state_backend import StateBackend

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
