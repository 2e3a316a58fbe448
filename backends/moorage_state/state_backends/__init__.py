"""State backends: factories of keyed and operator state, chosen by name or made in code.

Decides nothing itself: `registry` chooses, `state_backend` says what a backend is, which state
servers are made from, `api` what it gives to a process of one's own, `storage` where snapshots go.

Names are looked up when they are first used: operator state is written with this package's futures
and streams, and given by its backends.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from moorage_state.errors import StateSizeExceeded

if TYPE_CHECKING:
    from moorage_state.operator_state.backend import OperatorStateBackend
    from moorage_state.state_backends.api import (
        VOID_NAMESPACE,
        ConfigurableStateBackend,
        DelegatingStateBackend,
        Environment,
    )
    from moorage_state.state_backends.batch import BatchExecutionStateBackend, sort_key
    from moorage_state.state_backends.configuration import Configuration, checkpoint_config
    from moorage_state.state_backends.futures import SnapshotCanceled, SnapshotFuture
    from moorage_state.state_backends.handles import KeyedStateHandle, SnapshotResult
    from moorage_state.state_backends.hashmap import HashMapStateBackend
    from moorage_state.state_backends.keyed import KeyedStateBackend
    from moorage_state.state_backends.registry import (
        LoadedBackend,
        StateBackendFactory,
        job_backend,
        job_max_state_size,
        judge_job_backend,
        load_state_backend,
        register_backend,
        register_factory,
        registered_backend,
    )
    from moorage_state.state_backends.rocksdb import EmbeddedRocksDBStateBackend
    from moorage_state.state_backends.state_backend import StateBackend
    from moorage_state.state_backends.storage import (
        CheckpointStorage,
        CheckpointStorageAccess,
        CheckpointStorageLocation,
        CheckpointStreamFactory,
        DriverCheckpointStorage,
        FilesystemCheckpointStorage,
        resolve_checkpoint,
    )
    from moorage_state.state_backends.streams import CheckpointOutputStream, StreamStateHandle
    from moorage_state.state_backends.timers import KeyedTimers

__all__ = [
    "VOID_NAMESPACE",
    "BatchExecutionStateBackend",
    "CheckpointOutputStream",
    "CheckpointStorage",
    "CheckpointStorageAccess",
    "CheckpointStorageLocation",
    "CheckpointStreamFactory",
    "ConfigurableStateBackend",
    "Configuration",
    "DelegatingStateBackend",
    "DriverCheckpointStorage",
    "EmbeddedRocksDBStateBackend",
    "Environment",
    "FilesystemCheckpointStorage",
    "HashMapStateBackend",
    "KeyedStateBackend",
    "KeyedStateHandle",
    "KeyedTimers",
    "LoadedBackend",
    "OperatorStateBackend",
    "SnapshotCanceled",
    "SnapshotFuture",
    "SnapshotResult",
    "StateBackend",
    "StateBackendFactory",
    "StateSizeExceeded",
    "StreamStateHandle",
    "checkpoint_config",
    "job_backend",
    "job_max_state_size",
    "judge_job_backend",
    "load_state_backend",
    "register_backend",
    "register_factory",
    "registered_backend",
    "resolve_checkpoint",
    "sort_key",
]

_MODULES = {
    ".operator_state.backend": ("OperatorStateBackend",),
    "api": (
        "VOID_NAMESPACE",
        "ConfigurableStateBackend",
        "DelegatingStateBackend",
        "Environment",
    ),
    "batch": ("BatchExecutionStateBackend", "sort_key"),
    "configuration": ("Configuration", "checkpoint_config"),
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


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{module}", __name__), name)
