"""Every backend in process, as the tests of what they share see it."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from moorage_state.coordinator import CheckpointOptions
from moorage_state.keyed.timers import TIMERS_STATE, TimeDomain
from moorage_state.keygroups import KeyGroupRange, owner, range_of
from moorage_state.keylayout import KEYED_STATE, state_id
from moorage_state.state_backends import (
    BatchExecutionStateBackend,
    CheckpointStorageLocation,
    DriverCheckpointStorage,
    EmbeddedRocksDBStateBackend,
    Environment,
    FilesystemCheckpointStorage,
    HashMapStateBackend,
)

# A busy machine is no failure.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

GROUPS = 16
CHECKPOINT = CheckpointOptions.for_checkpoint_with_default_location()
SAVEPOINT = CheckpointOptions.for_savepoint(None)

BACKENDS = {
    "hashmap": HashMapStateBackend(),
    "rocksdb-heap-timers": EmbeddedRocksDBStateBackend(),
    "rocksdb-stored-timers": EmbeddedRocksDBStateBackend(timer_service="ROCKSDB"),
}


def entries_in(backend):
    """How many entries there are in all states of all keys, each timer counted once."""
    backend._settle()
    own, timers, found = backend.key_group_range, state_id(TIMERS_STATE), 0
    for group in range(own.start, own.end + 1):
        lower, upper = (group.to_bytes(2, "big") + bytes([KEYED_STATE + n]) for n in (0, 1))
        with backend._database.cursor(lower, upper) as cursor:
            cursor.seek(lower)
            keys, _, _ = cursor.take(upper, 1 << 30, 1 << 40)
        ids = [key[7 + int.from_bytes(key[3:7], "big") :][:4] for key in keys]
        found += sum(one != timers for one in ids)
    return found + sum(len(backend.timers(domain)) for domain in TimeDomain)


class Subtasks:
    """A stateful operator in process: as many keyed backends as it has subtasks.

    Implements the harness that the contract of keyed state is tested with.
    """

    def __init__(self, backend: Any, path: Any, parallelism: int = 1) -> None:
        self.backend = backend
        self.path = path
        self.now_ms = 1_000_000
        self.key_types = ("string",)
        self.storage: Any = FilesystemCheckpointStorage(str(path / "store"))
        self.options = CHECKPOINT
        self.checkpoint_id = 0
        self.parallelism = parallelism
        self.made: list[Any] = []
        self.current: Any = None

    # -- the harness --------------------------------------------------------------------------

    def open(self) -> None:
        self.start([])

    def with_key(self, key: Any) -> None:
        self.current = self.made[self.subtask_of(key)]
        self.current.set_current_key(key)

    def state(self, descriptor: Any) -> Any:
        return self.current.get_or_create_keyed_state(descriptor)

    def new_epoch(self) -> None:
        """There are no epochs: what was written lasts anyway. New handles come by a restore."""
        self.restore(self.take(CHECKPOINT))

    def snapshot(self) -> Any:
        return self.take()

    def restore(self, snapshot: Any) -> None:
        self.close()
        self.start(snapshot)

    def rescale(self, parallelism: int) -> None:
        snapshot = self.take()
        self.close()
        self.parallelism = parallelism
        self.start(snapshot)

    def stored_entries(self) -> int:
        return sum(entries_in(one) for one in self.made)

    def close(self) -> None:
        for one in self.made:
            one.dispose()
        self.made, self.current = [], None

    # -- more ---------------------------------------------------------------------------------

    def start(self, handles: list[Any], backend: Any = None) -> None:
        self.made = [
            (backend or self.backend).create_keyed_state_backend(
                Environment(
                    subtask, self.parallelism, self.path / "local", clock_ms=lambda: self.now_ms
                ),
                "job",
                "op",
                self.key_types,
                GROUPS,
                range_of(subtask, self.parallelism, GROUPS),
                restore=handles,
            )
            for subtask in range(self.parallelism)
        ]

    def location(self, checkpoint_id: int) -> CheckpointStorageLocation:
        return self.storage.create_access("job").location_for_checkpoint(checkpoint_id)

    def begin(self, options: Any = None) -> list[Any]:
        """The futures of a snapshot."""
        self.checkpoint_id += 1
        location = self.location(self.checkpoint_id)
        return [
            one.snapshot(
                self.checkpoint_id, 0.0, location.stream_factory(), options or self.options
            )
            for one in self.made
        ]

    def take(self, options: Any = None) -> list[Any]:
        """The handles of a snapshot that counts."""
        futures = self.begin(options)
        for future in futures:
            future.run()
        handles = [future.result(0).handle for future in futures]
        for one in self.made:
            one.notify_checkpoint_complete(self.checkpoint_id)
        return handles

    def subtask_of(self, key: Any) -> int:
        from moorage_state.canonical import key_groups

        values = key if isinstance(key, tuple) else (key,)
        (group,) = key_groups(self.key_types, GROUPS)([values])
        return owner(group, self.parallelism, GROUPS)


@pytest.fixture(params=list(BACKENDS))
def backend(request):
    return BACKENDS[request.param]


@pytest.fixture
def subtasks(tmp_path):
    made = []

    def make(backend, parallelism=1, **more):
        one = Subtasks(backend, tmp_path, parallelism)
        for name, value in more.items():
            setattr(one, name, value)
        one.open()
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()
    DriverCheckpointStorage.forget("job")


@pytest.fixture
def op(backend, subtasks):
    """An operator with one subtask on every backend in turn."""
    return subtasks(backend)


@pytest.fixture
def options():
    return {"checkpoint": CHECKPOINT, "savepoint": SAVEPOINT}


@pytest.fixture
def run_on_backend(backend, subtasks, options):
    """Run a state machine that `make`s operators and takes snapshots in both `formats`."""

    def run(machine, examples, steps):
        run_state_machine_as_test(
            type(
                "OnBackend",
                (machine,),
                {"make": staticmethod(lambda: subtasks(backend)), "formats": options},
            ),
            settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None),
        )

    return run


@pytest.fixture
def new_backend(tmp_path):
    """Of any factory: a keyed backend over all key groups."""
    made = []

    def make(backend, key_types=("string",), clock_ms=lambda: 0, restore=()):
        one = backend.create_keyed_state_backend(
            Environment(local_dir=tmp_path / "local", clock_ms=clock_ms),
            "job",
            "op",
            key_types,
            GROUPS,
            KeyGroupRange(0, GROUPS - 1),
            restore=restore,
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.dispose()


@pytest.fixture
def batch_backend():
    return BatchExecutionStateBackend()
