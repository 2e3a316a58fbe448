"""From a name in a configuration to a state backend and its checkpoint storage.

Decides which names there are, that the job's choice goes before the cluster's and the cluster's
before the built-in one, and what is said of a choice that cannot be made. Called by whoever starts
a job. Thread-safe.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moorage_state.errors import IllegalConfigurationError, MoorageError
from moorage_state.state_backends.configuration import (
    CHECKPOINT_STORAGE,
    CHECKPOINTS_DIR,
    INLINE_THRESHOLD,
    MAX_STATE_SIZE,
    SAVEPOINTS_DIR,
    STATE_BACKEND,
    Configuration,
)
from moorage_state.state_backends.state_backend import (
    BUILT_IN,
    IDENTIFIER,
    StateBackend,
    backend_flags,
    import_named,
)
from moorage_state.state_backends.storage import (
    DEFAULT_MAX_STATE_BYTES,
    CheckpointStorage,
    DriverCheckpointStorage,
    FilesystemCheckpointStorage,
)
from moorage_state.tuning import (
    CHECKPOINT_STORAGE_KEY,
    MAX_STATE_SIZE_KEY,
    Refusal,
    judge_options,
    parse_options,
)

DEFAULT_STATE_BACKEND = "jobmanager"
"""What holds where nobody chose: state in memory, checkpoints with the driver."""

# Old names choose a storage as well.
_STORAGE_OF = {"jobmanager": "driver", "filesystem": "filesystem"}


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
    """Of a backend that is named by `module:Class`: made with defaults, then configured."""

    def __init__(self, identifier: str, name: str) -> None:
        self._identifier = identifier
        self._name = name

    @property
    def identifier(self) -> str:
        return self._identifier

    def create_from_config(self, config: Configuration) -> StateBackend:
        # Imported when it is asked for: a choice is judged where not every backend is installed.
        made: StateBackend = import_named(self._name)()
        return made.configure(config)


_lock = threading.Lock()
_factories: dict[str, StateBackendFactory | StateBackend] = {
    name: _OwnFactory(name, BUILT_IN[kind])
    for name, kind in (
        *((name, name) for name in BUILT_IN),
        ("jobmanager", "hashmap"),
        ("filesystem", "hashmap"),
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


def register_backend(name: str) -> None:
    """Make the backend that `module:Class` names known under its identifier, for what it wrote.

    The class may be a factory. One of Moorage's own is known already, by every name.

    Raises:
        IllegalConfigurationError: there is no such class, or it cannot be used.
    """
    made = _made(_known_name(name), STATE_BACKEND.key, Configuration())
    if made.identifier in BUILT_IN:
        return
    with _lock:
        # In place of what was there: this one was named by a person just now.
        _factories[made.identifier] = made


def registered_backend(identifier: str) -> StateBackend | None:
    """The backend that is known under an identifier; None where none is."""
    if _is_foreign(identifier):
        return None
    return _made(identifier, STATE_BACKEND.key, Configuration())


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
        backend = from_code.configure(config)
        return LoadedBackend(backend, _storage(config, ""), backend.identifier, "job")
    found = config.find(STATE_BACKEND)
    name = _known_name(config.get_option(STATE_BACKEND) or DEFAULT_STATE_BACKEND)
    chosen_by = "default" if found is None else "job" if own.find(STATE_BACKEND) else "cluster"
    backend = _made(name, found[0] if found else STATE_BACKEND.key, config)
    # The built-in default does not outweigh a directory that somebody configured.
    storage = _storage(config, name if found else "")
    return LoadedBackend(backend, storage, name, chosen_by)


def judge_job_backend(
    name: str, options: Mapping[str, str], defaults: Mapping[str, str] | None = None
) -> StateBackend | list[Refusal]:
    """The backend that a job's state servers are made from, or what is wrong with its settings.

    Args:
        name: as in `spec.state.backend`; its module must be found by this process.
        options: as in `spec.state.options`.
        defaults: the cluster's or the machine's, below the job's own.

    Raises:
        IllegalConfigurationError: there is no such backend, or it cannot be used.
    """
    config = Configuration(options).over(Configuration(defaults))
    known, key = _known_name(name), STATE_BACKEND.key
    backend, own = None, ""
    if _is_foreign(known):
        # Made first: only it knows which settings are its own.
        backend = _made(known, key, config)
        own = "" if backend.identifier in BUILT_IN else f"state.backend.{backend.identifier}."
    judged = judge_options(options, defaults, own)
    if isinstance(judged, list):
        return judged
    backend = backend or _made(known, key, config)
    backend_flags(backend)
    return backend


def job_backend(
    name: str, options: Mapping[str, str], defaults: Mapping[str, str] | None = None
) -> StateBackend:
    """What `judge_job_backend` gives.

    Raises:
        IllegalConfigurationError: for whatever is wrong, naming the key, its value and what is
            allowed.
    """
    judged = judge_job_backend(name, options, defaults)
    if isinstance(judged, StateBackend):
        return judged
    raise judged[0].error()


def job_max_state_size(
    name: str, options: Mapping[str, str], defaults: Mapping[str, str] | None = None
) -> int | None:
    """What one subtask of a job may have in a manifest; None where checkpoints are files.

    Raises, for arguments as of `judge_job_backend`:
        IllegalConfigurationError: a setting has a value that it cannot have.
    """
    given = {**(defaults or {}), **options}
    keys = given.keys() & {CHECKPOINT_STORAGE_KEY, MAX_STATE_SIZE_KEY}
    asked = parse_options({key: given[key] for key in keys})
    storage = asked.storage or _STORAGE_OF.get(_known_name(name), "filesystem")
    return asked.max_state_size or DEFAULT_MAX_STATE_BYTES if storage == "driver" else None


def _is_foreign(name: str) -> bool:
    with _lock:
        return name not in _factories


def _known_name(name: str) -> str:
    """The name as a factory has it, which may be written with other capitals."""
    with _lock:
        return name if name in _factories or name.lower() not in _factories else name.lower()


def _made(name: str, key: str, config: Configuration) -> StateBackend:
    """The backend of this name, with what it leaves open taken from `config`."""
    with _lock:
        factory: Any = _factories.get(name)
    if factory is None:
        factory = _imported(name, key)
    if not isinstance(factory, StateBackend):
        factory = _created(factory, config, name, key)
    backend: StateBackend = factory.configure(config)
    built_in = BUILT_IN.get(backend.identifier)
    if built_in is not None and not isinstance(backend, import_named(built_in)):
        raise _illegal(
            key, name, f"its identifier is that of a built-in backend: {backend.identifier}"
        )
    if not IDENTIFIER.fullmatch(backend.identifier):
        raise _illegal(key, name, f"its identifier is no name: {backend.identifier!r}")
    return backend


def _imported(name: str, key: str) -> Any:
    """A backend that is made without arguments, or a factory."""
    module_name, separator, class_name = name.partition(":")
    if not separator:
        module_name, separator, class_name = name.rpartition(".")
    if not separator or not all(
        part.isidentifier() for part in (*module_name.split("."), class_name)
    ):
        raise IllegalConfigurationError(
            f"no such state backend: key={key} value={name!r}; use one of "
            f"{', '.join(known_identifiers())}, or module:Class of one that the job can import"
        )
    try:
        found = import_named(name)
        made = found() if isinstance(found, type) else found
    except IllegalConfigurationError:
        raise
    except Exception as error:
        raise _illegal(key, name, f"the class cannot be made without arguments: {error}") from error
    if not isinstance(made, StateBackend) and not callable(
        getattr(made, "create_from_config", None)
    ):
        raise _illegal(key, name, "it is no StateBackend, and has no create_from_config(config)")
    return made


def _illegal(key: str, name: str, why: str) -> IllegalConfigurationError:
    return IllegalConfigurationError(
        f"state backend cannot be used: key={key} value={name!r} reason={why!r}; name a subclass "
        f"of StateBackend or of StateBackendFactory that the job can import, or one of "
        f"{', '.join(known_identifiers())}"
    )


def _created(factory: Any, config: Configuration, name: str, key: str) -> StateBackend:
    try:
        backend: Any = factory.create_from_config(config)
    except MoorageError:
        raise
    except Exception as error:
        raise _illegal(key, name, f"create_from_config failed: {error}") from error
    if not isinstance(backend, StateBackend):
        raise _illegal(key, name, f"create_from_config gave a {type(backend).__name__}")
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
