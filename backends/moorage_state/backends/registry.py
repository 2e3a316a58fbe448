"""From a name in a configuration to a state backend and its checkpoint storage.

Decides which names there are, that the job's choice goes before the cluster's and the cluster's
before the built-in one, and what is said of a choice that cannot be made. Called by whoever starts
a job. Thread-safe.
"""

import importlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moorage_state.backends.api import ConfigurableStateBackend, StateBackend
from moorage_state.backends.batch import BatchExecutionStateBackend
from moorage_state.backends.configuration import (
    CHECKPOINT_STORAGE,
    CHECKPOINTS_DIR,
    INLINE_THRESHOLD,
    MAX_STATE_SIZE,
    SAVEPOINTS_DIR,
    STATE_BACKEND,
    Configuration,
)
from moorage_state.backends.hashmap import HashMapStateBackend
from moorage_state.backends.rocksdb import EmbeddedRocksDBStateBackend
from moorage_state.backends.storage import (
    CheckpointStorage,
    DriverCheckpointStorage,
    FilesystemCheckpointStorage,
)
from moorage_state.errors import IllegalConfigurationError, MoorageError

__all__ = [
    "DEFAULT_STATE_BACKEND",
    "LoadedBackend",
    "StateBackendFactory",
    "known_identifiers",
    "load_state_backend",
    "register_factory",
]

DEFAULT_STATE_BACKEND = "jobmanager"
"""What holds where nobody chose: state in memory, checkpoints with the driver."""

_STORAGE_OF = {"jobmanager": "driver", "filesystem": "filesystem"}
"""Old names choose a storage as well."""


class StateBackendFactory(ABC):
    """Makes a backend from a configuration; a class of this kind can be named in one."""

    @abstractmethod
    def create_from_config(self, config: Configuration) -> StateBackend:
        """The backend.

        Raises:
            IllegalConfigurationError: a setting has a value that it cannot have.
        """

    @property
    @abstractmethod
    def identifier(self) -> str:
        """The name in configurations."""


@dataclass(frozen=True, slots=True)
class LoadedBackend:
    """What a job runs with.

    Attributes:
        name: how it was chosen; a known name as the factory has it.
        chosen_by: who chose it: "job", "cluster" or "default".
    """

    backend: StateBackend
    storage: CheckpointStorage
    name: str
    chosen_by: str


class _OwnFactory(StateBackendFactory):
    """Of the backends here: made with defaults, then configured."""

    def __init__(self, identifier: str, make: type[StateBackend]) -> None:
        self._identifier = identifier
        self._make = make

    @property
    def identifier(self) -> str:
        return self._identifier

    def create_from_config(self, config: Configuration) -> StateBackend:
        return _configured(self._make(), config)


_lock = threading.Lock()
_factories: dict[str, StateBackendFactory] = {
    name: _OwnFactory(name, make)
    for name, make in (
        ("hashmap", HashMapStateBackend),
        ("rocksdb", EmbeddedRocksDBStateBackend),
        ("batch", BatchExecutionStateBackend),
        ("jobmanager", HashMapStateBackend),
        ("filesystem", HashMapStateBackend),
    )
}


def known_identifiers() -> list[str]:
    """The names that can be chosen, besides full names of factories."""
    with _lock:
        return sorted(_factories)


def register_factory(factory: StateBackendFactory) -> None:
    """Make a factory known under its identifier.

    Raises:
        IllegalConfigurationError: the identifier is another factory's.
    """
    with _lock:
        other = _factories.setdefault(factory.identifier, factory)
    if other is not factory:
        raise IllegalConfigurationError(
            f"two factories have the same identifier: key={STATE_BACKEND.key} "
            f"value={factory.identifier} classes={type(other).__name__},{type(factory).__name__}; "
            f"give one of them another identifier"
        )


def load_state_backend(
    job: Mapping[str, Any] | None = None,
    cluster: Mapping[str, Any] | None = None,
    from_code: StateBackend | None = None,
) -> LoadedBackend:
    """The backend and storage of a job.

    Args:
        job: the job's settings, which go before those of the cluster.
        cluster: defaults for all jobs.
        from_code: a backend that the job's code made; it goes before `state.backend`, and what it
            left open is taken from the settings.

    Raises:
        IllegalConfigurationError: naming the key, the value and what is allowed.
    """
    own, below = Configuration(job), Configuration(cluster)
    config = own.over(below)
    if from_code is not None:
        backend = _configured(from_code, config)
        return LoadedBackend(backend, _storage(config, ""), backend.identifier, "job")
    found = config.find(STATE_BACKEND)
    name = _known_name(config.get_option(STATE_BACKEND) or DEFAULT_STATE_BACKEND)
    chosen_by = "default" if found is None else "job" if own.find(STATE_BACKEND) else "cluster"
    factory = _factory_of(name, found[0] if found else STATE_BACKEND.key)
    backend = _created(factory, config, name)
    # The built-in default does not outweigh a directory that somebody configured.
    storage = _storage(config, name if found else "")
    return LoadedBackend(backend, storage, name, chosen_by)


def _known_name(name: str) -> str:
    """The name as a factory has it, which may be written with other capitals."""
    with _lock:
        return name if name in _factories or name.lower() not in _factories else name.lower()


def _factory_of(name: str, key: str) -> StateBackendFactory:
    with _lock:
        known = _factories.get(name)
    return known if known is not None else _imported(name, key)


def _imported(name: str, key: str) -> StateBackendFactory:
    module_name, dot, class_name = name.rpartition(".")
    if not dot or not all(part.isidentifier() for part in name.split(".")):
        raise IllegalConfigurationError(
            f"no such state backend: key={key} value={name!r}; use one of "
            f"{', '.join(known_identifiers())}, or the full name of a factory, a.module.Class"
        )
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except ModuleNotFoundError as error:
        raise _illegal(key, name, f"there is no module {error.name}") from error
    except AttributeError as error:
        raise _illegal(key, name, f"module {module_name} has no {class_name}") from error
    except Exception as error:
        raise _illegal(key, name, f"module {module_name} cannot be imported: {error}") from error
    try:
        factory = found() if isinstance(found, type) else found
    except Exception as error:
        raise _illegal(key, name, f"the class cannot be made without arguments: {error}") from error
    if not callable(getattr(factory, "create_from_config", None)):
        raise _illegal(key, name, "it has no create_from_config(config)")
    made: StateBackendFactory = factory
    return made


def _illegal(key: str, name: str, why: str) -> IllegalConfigurationError:
    return IllegalConfigurationError(
        f"state backend factory cannot be used: key={key} value={name!r} reason={why!r}; name a "
        f"subclass of StateBackendFactory that the job can import, or one of "
        f"{', '.join(known_identifiers())}"
    )


def _created(factory: StateBackendFactory, config: Configuration, name: str) -> StateBackend:
    try:
        backend: Any = factory.create_from_config(config)
    except MoorageError:
        raise
    except Exception as error:
        raise _illegal(STATE_BACKEND.key, name, f"create_from_config failed: {error}") from error
    if not isinstance(backend, StateBackend):
        raise _illegal(
            STATE_BACKEND.key, name, f"create_from_config gave a {type(backend).__name__}"
        )
    return backend


def _configured(backend: StateBackend, config: Configuration) -> StateBackend:
    if isinstance(backend, ConfigurableStateBackend):
        return backend.configure(config)
    return backend


def _storage(config: Configuration, name: str) -> CheckpointStorage:
    """The storage that is configured, or that the backend's old name means, or that fits."""
    found = config.find(CHECKPOINT_STORAGE)
    chosen = config.get_option(CHECKPOINT_STORAGE)
    directory = config.get_option(CHECKPOINTS_DIR)
    chosen = chosen or _STORAGE_OF.get(name) or ("filesystem" if directory else "driver")
    savepoints = config.get_option(SAVEPOINTS_DIR)
    if chosen != "filesystem":
        return DriverCheckpointStorage(config.get_option(MAX_STATE_SIZE), savepoints)
    if directory is None:
        key, value = found or (STATE_BACKEND.key, name)
        raise IllegalConfigurationError(
            f"setting is missing: key={CHECKPOINTS_DIR.key} needed_by={key}={value}; give the "
            f"directory for checkpoints, for example file:///data/checkpoints"
        )
    return FilesystemCheckpointStorage(directory, savepoints, config.get_option(INLINE_THRESHOLD))
