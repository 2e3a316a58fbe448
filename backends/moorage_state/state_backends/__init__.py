"""State backends: factories of keyed and operator state, chosen by name or made in code.

Decides nothing itself: `registry` chooses, `state_backend` says what a backend is, which state
servers are made from, `api` what it gives to a process of one's own, `storage` where snapshots go.

Names are looked up when they are first used: operator state is written with this package's futures
and streams, and given by its backends.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from moorage_state.errors import StateSizeExceeded as StateSizeExceeded

if TYPE_CHECKING:
    from moorage_state.operator_state.backend import OperatorStateBackend as OperatorStateBackend
    from moorage_state.state_backends.api import VOID_NAMESPACE as VOID_NAMESPACE
    from moorage_state.state_backends.api import (
        ConfigurableStateBackend as ConfigurableStateBackend,
    )
    from moorage_state.state_backends.api import DelegatingStateBackend as DelegatingStateBackend
    from moorage_state.state_backends.api import Environment as Environment
    from moorage_state.state_backends.batch import (
        BatchExecutionStateBackend as BatchExecutionStateBackend,
    )
    from moorage_state.state_backends.batch import sort_key as sort_key
    from moorage_state.state_backends.configuration import Configuration as Configuration
    from moorage_state.state_backends.configuration import checkpoint_config as checkpoint_config
    from moorage_state.state_backends.forst import ForStStateBackend as ForStStateBackend
    from moorage_state.state_backends.futures import SnapshotCanceled as SnapshotCanceled
    from moorage_state.state_backends.futures import SnapshotFuture as SnapshotFuture
    from moorage_state.state_backends.handles import KeyedStateHandle as KeyedStateHandle
    from moorage_state.state_backends.handles import SnapshotResult as SnapshotResult
    from moorage_state.state_backends.hashmap import HashMapStateBackend as HashMapStateBackend
    from moorage_state.state_backends.keyed import KeyedStateBackend as KeyedStateBackend
    from moorage_state.state_backends.registry import LoadedBackend as LoadedBackend
    from moorage_state.state_backends.registry import StateBackendFactory as StateBackendFactory
    from moorage_state.state_backends.registry import job_backend as job_backend
    from moorage_state.state_backends.registry import job_max_state_size as job_max_state_size
    from moorage_state.state_backends.registry import judge_job_backend as judge_job_backend
    from moorage_state.state_backends.registry import load_state_backend as load_state_backend
    from moorage_state.state_backends.registry import register_backend as register_backend
    from moorage_state.state_backends.registry import register_factory as register_factory
    from moorage_state.state_backends.registry import registered_backend as registered_backend
    from moorage_state.state_backends.rocksdb import (
        EmbeddedRocksDBStateBackend as EmbeddedRocksDBStateBackend,
    )
    from moorage_state.state_backends.state_backend import StateBackend as StateBackend
    from moorage_state.state_backends.storage import CheckpointStorage as CheckpointStorage
    from moorage_state.state_backends.storage import (
        CheckpointStorageAccess as CheckpointStorageAccess,
    )
    from moorage_state.state_backends.storage import (
        CheckpointStorageLocation as CheckpointStorageLocation,
    )
    from moorage_state.state_backends.storage import (
        CheckpointStreamFactory as CheckpointStreamFactory,
    )
    from moorage_state.state_backends.storage import (
        DriverCheckpointStorage as DriverCheckpointStorage,
    )
    from moorage_state.state_backends.storage import (
        FilesystemCheckpointStorage as FilesystemCheckpointStorage,
    )
    from moorage_state.state_backends.storage import resolve_checkpoint as resolve_checkpoint
    from moorage_state.state_backends.streams import (
        CheckpointOutputStream as CheckpointOutputStream,
    )
    from moorage_state.state_backends.streams import StreamStateHandle as StreamStateHandle
    from moorage_state.state_backends.timers import KeyedTimers as KeyedTimers

_MODULES = {
    ".keyed.kv_states": ("KvStateEntry", "TaskKvStateRegistry"),
    ".operator_state.backend": ("OperatorStateBackend",),
    "api": (
        "VOID_NAMESPACE",
        "ConfigurableStateBackend",
        "DelegatingStateBackend",
        "Environment",
    ),
    "batch": ("BatchExecutionStateBackend", "sort_key"),
    "configuration": ("Configuration", "checkpoint_config"),
    "forst": ("ForStStateBackend",),
    "futures": ("SnapshotCanceled", "SnapshotFuture"),
    "handles": ("KeyedStateHandle", "SnapshotResult"),
    "hashmap": ("HashMapStateBackend",),
    "keyed": ("KeyedStateBackend",),
    "registry": (
        "LoadedBackend",
        "StateBackendFactory",
        "job_backend",
        "job_max_state_size",
        "judge_job_backend",
        "load_state_backend",
        "register_backend",
        "register_factory",
        "registered_backend",
    ),
    "rocksdb": ("EmbeddedRocksDBStateBackend",),
    "state_backend": ("StateBackend",),
    "storage": (
        "CheckpointStorage",
        "CheckpointStorageAccess",
        "CheckpointStorageLocation",
        "CheckpointStreamFactory",
        "DriverCheckpointStorage",
        "FilesystemCheckpointStorage",
        "resolve_checkpoint",
    ),
    "streams": ("CheckpointOutputStream", "StreamStateHandle"),
    "timers": ("KeyedTimers",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["StateSizeExceeded", *_MODULE_OF]  # noqa: PLE0604  names, which are strings


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{module}", __name__), name)
