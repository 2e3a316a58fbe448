"""What state servers are made from: a state backend, and how it comes to a server's process.

A backend is configuration and nothing else. The driver and the sidecar make one from a job's
settings; a server's process gets its name and its fields as JSON, imports its class before it
serves anything, and opens databases by it. Imports no backend until one is asked for.
"""

import dataclasses
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

import msgspec

from moorage_state.database import FileBytes, RangeDatabase
from moorage_state.errors import IllegalConfigurationError, UserError
from moorage_state.import_path import after_standard_library
from moorage_state.keygroups import KeyGroupRange

if TYPE_CHECKING:  # a server starts without them in a third of the time
    from moorage_state.keyed.kv_states import TaskKvStateRegistry
    from moorage_state.operator_state.backend import OperatorStateBackend
    from moorage_state.server.databases import Databases
    from moorage_state.state_backends.api import Environment
    from moorage_state.state_backends.handles import KeyedStateHandle
    from moorage_state.state_backends.keyed import KeyedStateBackend
    from moorage_state.state_backends.storage import CheckpointStorageLocation

IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What handles can name."""

BUILT_IN = {
    "rocksdb": "moorage_state.state_backends.rocksdb:EmbeddedRocksDBStateBackend",
    "hashmap": "moorage_state.state_backends.hashmap:HashMapStateBackend",
    "forst": "moorage_state.state_backends.forst:ForStStateBackend",
    "batch": "moorage_state.state_backends.batch:BatchExecutionStateBackend",
}
"""The backends that every process has, by their identifiers."""


class StateBackend(ABC):
    """How state is kept: a factory with nothing but configuration in it.

    A frozen dataclass whose fields are plain values: it compares by them, survives pickling, and
    travels to state servers as JSON. Safe to use from several threads: each call makes what it
    returns and shares nothing that could be written.

    Attributes:
        identifier: its name in configurations, and in the handles of what it wrote. Files of
            another identifier are never given to it.
        unchanging: how names of files end whose bytes never change, so that a copy may be a hard
            link. What ends in `.sst` is also uploaded once, and referenced by later checkpoints.
        stored: whether its databases open although files of `unchanging` have no bytes, and are
            `StoredDatabase`s. Then `open_database` takes `stored`, a `StoredFiles`, that says where
            these are.
        reads_in_place: whether a copy opens without being read, so that some of its entries cost
            what they are. Then epochs that do not count are undone where the database is open.
    """

    identifier: ClassVar[str]
    stored: ClassVar[bool] = False
    reads_in_place: ClassVar[bool] = False
    unchanging: ClassVar[frozenset[str]] = frozenset({".sst"})

    @abstractmethod
    def open_database(
        self,
        path: Path,
        memory: Any,
        groups: tuple[int, int] | None = None,
        *,
        read_only: bool = False,
    ) -> RangeDatabase:
        """The database of one range in the directory `path`, empty if nothing lies there.

        What lies there are files that a checkpoint of such a database had, or nothing. Those of
        `unchanging` may be hard links to the checkpoint's own.

        Args:
            memory: what `process_memory` made in this process.
            groups: key groups, (first, last), that are needed; others may be left out.
            read_only: a copy that is read and closed soon: none of its files may change, for they
                may be those of a checkpoint, and it counts to no limit.

        Raises:
            CorruptState: the files are damaged.
            LocalDiskError: the volume refuses.
        """

    def leave_out(self, path: Path, groups: tuple[int, int]) -> frozenset[str] | None:  # noqa: ARG002
        """Make a copy smaller before all of it is fetched, for who takes a part of it.

        Args:
            path: the directory of the copy, for this caller alone. Files of `unchanging` need not
                be there yet.
            groups: key groups, (first, last), that are needed besides the server's own entries;
                what remains of others is deleted before it is read.

        Returns:
            The names of the `unchanging` files that it still consists of; None for all.

        Raises:
            CorruptState: the files are damaged.
            LocalDiskError: the volume refuses.
        """
        return None

    def write_part(self, path: Path, source: FileBytes, groups: tuple[int, int]) -> bool:  # noqa: ARG002
        """Write what is needed of a file of a copy, of which the rest is never read.

        Args:
            path: the file to write; its name is that of the file in the copy.
            source: the file of the copy.
            groups: as in `leave_out`; what is written must open as the whole file would, with the
                server's own entries, and is read once.

        Returns:
            Whether it was written; False: the whole file is needed.

        Raises:
            CorruptState: what was read is damaged.
            LocalDiskError: the volume refuses.
        """
        return False

    def process_memory(self) -> Any:
        """What all databases of one process share, such as a cache; made once in each."""
        return None

    def configure(self, configuration: Mapping[str, str]) -> "StateBackend":
        """A backend like this one, with what was not set in code taken from `configuration`.

        Unless a backend says otherwise, `state.backend.<identifier>.some-name` is its field
        `some_name`.

        Raises:
            IllegalConfigurationError: a setting of its own is unknown, or has a value that it
                cannot have.
        """
        prefix = f"state.backend.{self.identifier}."
        own = {key: text for key, text in configuration.items() if key.startswith(prefix)}
        return _with_settings(self, prefix, own) if own else self

    def for_servers(self, servers: int, memory: int | None) -> "StateBackend":  # noqa: ARG002
        """This backend for each of `servers` server processes on one machine.

        Together their databases may have `memory` bytes; None where nobody said.
        """
        return self

    @property
    def working_directory(self) -> Path | None:
        """Where working files go, if the configuration says so."""
        return None

    def create_keyed_state_backend(
        self,
        environment: "Environment",
        job_id: str,
        operator_identifier: str,
        key_types: Sequence[str],
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_state_registry: "TaskKvStateRegistry | None" = None,
        *,
        restore: Iterable["KeyedStateHandle"] = (),
    ) -> "KeyedStateBackend":
        """The keyed state of one subtask, in this process.

        Args:
            operator_identifier: the uid of the operator.
            key_types: the DDL types of the key columns.
            number_of_key_groups: the operator's maximum parallelism.
            key_group_range: the key groups of this subtask.
            kv_state_registry: told of the states that may be looked up from outside.
            restore: handles of one snapshot, of any parallelism; those of other key groups are
                passed over.

        Raises:
            UserError: the handles are of another backend's own format, or of other keys.
            CorruptState: stored bytes are not what was written.
        """
        usual = environment.local_dir or Path(tempfile.gettempdir()) / f"moorage-{self.identifier}"
        return self._keyed_state_backend()(
            environment,
            job_id,
            operator_identifier,
            tuple(key_types),
            number_of_key_groups,
            key_group_range,
            kv_state_registry=kv_state_registry,
            databases=self._process_databases(),
            directory=self.working_directory or usual,
            restore=restore,
            **self._snapshot_ways(),
        )

    def _keyed_state_backend(self) -> "type[KeyedStateBackend]":
        """What keeps the keyed state of a process of one's own."""
        from moorage_state.state_backends.keyed import KeyedStateBackend

        return KeyedStateBackend

    def _process_databases(self) -> "Databases":
        """What opens the databases of a process of one's own."""
        from moorage_state.server.databases import Databases

        return Databases(self)

    def _snapshot_ways(self) -> dict[str, bool]:
        """How snapshots are taken there, as far as it is not the usual way."""
        return {}

    def create_operator_state_backend(
        self,
        environment: "Environment",  # noqa: ARG002  for backends that keep it elsewhere
        operator_identifier: str,
        *,
        restore: Iterable[Any] = (),
    ) -> "OperatorStateBackend":
        """The operator state of one subtask, in memory unless a backend says otherwise.

        Args:
            restore: the handles that the subtask was assigned.
        """
        # Not at the top: operator state's snapshots are made of this package's futures and streams.
        from moorage_state.operator_state.backend import OperatorStateBackend

        return OperatorStateBackend(operator_identifier, restore)

    def resolve_checkpoint(self, pointer: str) -> "CheckpointStorageLocation":
        """The place of the snapshot at `pointer`; raises `UserError` where there is none."""
        from moorage_state.state_backends.storage import resolve_checkpoint

        return resolve_checkpoint(pointer)

    def use_managed_memory(self) -> bool:
        """Whether a budget outside of Python's own memory is used."""
        return False


def _with_settings(backend: StateBackend, prefix: str, own: Mapping[str, str]) -> StateBackend:
    """The backend with fields from text, but for those that are not as its class has them."""
    if not _is_dataclass(type(backend)):
        raise IllegalConfigurationError(
            f"settings for a backend that takes none: class={_name_of(type(backend))} "
            f"keys={','.join(own)}; make it a dataclass, or give it a configure(configuration)"
        )
    given: Any = backend
    usual: Any = type(backend)()
    hints = get_type_hints(type(backend))
    types = {field.name: hints[field.name] for field in dataclasses.fields(given)}
    found = {}
    for key, text in own.items():
        name = key.removeprefix(prefix).replace("-", "_")
        if name not in types:
            known = ", ".join(prefix + known.replace("_", "-") for known in types) or "none"
            raise IllegalConfigurationError(
                f"setting is not known: key={key} value={text!r}; known are {known}"
            )
        # What was set in code goes before the configuration.
        if getattr(backend, name) != getattr(usual, name):
            continue
        try:
            found[name] = msgspec.convert(text, types[name], strict=False)
        except (msgspec.ValidationError, TypeError) as error:
            raise IllegalConfigurationError(
                f"setting has a value that it cannot have: key={key} value={text!r} error={error}"
            ) from error
    made: StateBackend = dataclasses.replace(given, **found)
    return made


def backend_name(backend: StateBackend) -> str:
    """By which name a process finds the class: that of a built-in one, else `module:Class`."""
    cls = type(backend)
    return next((short for short, full in BUILT_IN.items() if _is(cls, full)), _name_of(cls))


def backend_flags(backend: StateBackend) -> list[str]:
    """What a server's process is told of it; `received_backend` reads it.

    Raises:
        IllegalConfigurationError: it cannot be told, because it is no dataclass of plain values.
    """
    cls, name = type(backend), backend_name(backend)
    if "<locals>" in name or not _is_dataclass(cls):
        raise IllegalConfigurationError(
            f"a state backend that cannot travel to state servers: class={name}; make it a "
            f"dataclass at the top of a module"
        )
    try:
        options = msgspec.json.encode(backend).decode()
    except (TypeError, msgspec.MsgspecError) as error:
        raise IllegalConfigurationError(
            f"a state backend that cannot travel to state servers: class={name} error={error}; "
            f"give it fields that are text, numbers, booleans, lists or mappings of such"
        ) from error
    return ["--backend", name, "--options", options]


def received_backend(name: str, options: str, code: Sequence[str] = ()) -> StateBackend:
    """The backend that `backend_flags` tells of.

    Args:
        code: folders and archives in which the job's own modules lie.

    Raises:
        UserError: there is no such class here, or these are not its fields.
    """
    after_standard_library(code)
    cls = import_named(BUILT_IN.get(name, name))
    if not (isinstance(cls, type) and issubclass(cls, StateBackend)):
        raise IllegalConfigurationError(
            f"not a state backend: backend={name} type={type(cls).__name__}; name a subclass of "
            f"moorage_state.state_backends.StateBackend"
        )
    try:
        known = set(getattr(cls, "__dataclass_fields__", ()))
        unknown = sorted(set(msgspec.json.decode(options, type=dict[str, Any])) - known)
        if unknown:
            raise UserError(f"{name} options are not known: options={unknown}")
        return msgspec.json.decode(options, type=cls)
    except (TypeError, msgspec.MsgspecError) as error:
        raise UserError(f"{name} options are not understood: error={error}") from error


def import_named(name: str) -> Any:
    """What a `module:Name` names, `a.module.Name` too.

    Raises:
        IllegalConfigurationError: saying what is missing, or why it cannot be imported.
    """
    module_name, separator, attribute = name.partition(":")
    if not separator:
        module_name, _, attribute = name.rpartition(".")
    words = [*module_name.split("."), attribute]
    if not module_name or not all(word.isidentifier() for word in words):
        raise _unusable(name, "it is not of the form module:Class")
    try:
        return getattr(import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise _unusable(name, f"there is no module {error.name}") from error
    except AttributeError as error:
        raise _unusable(name, f"module {module_name} has no {attribute}") from error
    except Exception as error:
        raise _unusable(name, f"module {module_name} cannot be imported: {error}") from error


def _unusable(name: str, why: str) -> IllegalConfigurationError:
    return IllegalConfigurationError(
        f"state backend cannot be used: key=state.backend value={name!r} reason={why!r}; name one "
        f"of {', '.join(sorted(BUILT_IN))}, or module:Class of a StateBackend that the job, its "
        f"pyFiles or its image has"
    )


def _is_dataclass(cls: type) -> bool:
    # Asked of a StateBackend in place, mypy takes the answer to be no.
    return dataclasses.is_dataclass(cls)


def _name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _is(cls: type, full: str) -> bool:
    """Whether a class is a built-in one, which may be defined further inside of its package."""
    package, _, name = full.partition(":")
    return cls.__qualname__ == name and f"{cls.__module__}.".startswith(f"{package}.")
