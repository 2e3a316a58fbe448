"""The factory of state in memory."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from moorage_state.backends.api import (
    Environment,
    KeyedStateBackend,
    StateBackend,
)
from moorage_state.backends.configuration import ASYNCHRONOUS, Configuration
from moorage_state.backends.handles import KeyedStateHandle
from moorage_state.backends.keyed import DatabaseKeyedStateBackend
from moorage_state.keygroups import KeyGroupRange
from moorage_state.memory import HeapOptions
from moorage_state.server.databases import Databases

__all__ = ["HashMapStateBackend"]


@dataclass(frozen=True, slots=True)
class HashMapStateBackend(StateBackend):
    """State as sorted bytes in the memory of the process.

    Attributes:
        asynchronous_snapshots: whether snapshots are written beside the processing of records;
            False only to look for faults. None to take `state.backend.async`.
    """

    identifier: ClassVar[str] = "hashmap"

    asynchronous_snapshots: bool | None = None

    def configure(self, configuration: Configuration) -> StateBackend:
        """See `ConfigurableStateBackend`."""
        if self.asynchronous_snapshots is not None:
            return self
        return replace(self, asynchronous_snapshots=configuration.get_option(ASYNCHRONOUS))

    def create_keyed_state_backend(
        self,
        environment: Environment,
        job_id: str,
        operator_identifier: str,
        key_types: Sequence[str],
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        *,
        restore: Iterable[KeyedStateHandle] = (),
    ) -> KeyedStateBackend:
        """See `StateBackend`."""
        return DatabaseKeyedStateBackend(
            environment,
            job_id,
            operator_identifier,
            tuple(key_types),
            number_of_key_groups,
            key_group_range,
            databases=Databases(HeapOptions()),
            directory=environment.local_dir or Path(tempfile.gettempdir()) / "moorage-hashmap",
            asynchronous=self.asynchronous_snapshots is not False,
            restore=restore,
        )
