"""State backends as factories: configuration only, chosen by name, made anywhere."""

import pickle
import sys
import threading
import types

import pytest

from moorage_state.coordinator import CheckpointingMode, CheckpointRetentionPolicy
from moorage_state.descriptors import ListStateDescriptor, ValueStateDescriptor
from moorage_state.errors import IllegalConfigurationError, UserError
from moorage_state.keygroups import KeyGroupRange, range_of
from moorage_state.state_backends import (
    BatchExecutionStateBackend,
    ConfigurableStateBackend,
    Configuration,
    DelegatingStateBackend,
    DriverCheckpointStorage,
    EmbeddedRocksDBStateBackend,
    Environment,
    FilesystemCheckpointStorage,
    HashMapStateBackend,
    StateBackend,
    StateBackendFactory,
    checkpoint_config,
    load_state_backend,
    register_factory,
)
from moorage_state.state_backends.registry import known_identifiers

EVERY = [
    HashMapStateBackend(),
    HashMapStateBackend(asynchronous_snapshots=False),
    EmbeddedRocksDBStateBackend(),
    EmbeddedRocksDBStateBackend(
        "/data", "ROCKSDB", False, {"state.backend.rocksdb.writebuffer.size": "8mb"}
    ),
    BatchExecutionStateBackend(),
]


def test_only_rocksdb_uses_memory_that_is_not_pythons():
    assert [type(backend) for backend in EVERY if backend.use_managed_memory()] == [
        EmbeddedRocksDBStateBackend,
        EmbeddedRocksDBStateBackend,
    ]


class CountingBackend(HashMapStateBackend):
    """A user's own backend: one of ours with something added to it."""

    @property
    def delegated_state_backend(self):
        return HashMapStateBackend()


class CountingFactory(StateBackendFactory):
    @property
    def identifier(self):
        return "counting"

    def create_from_config(self, config):  # noqa: ARG002
        return CountingBackend()


class FailingFactory(StateBackendFactory):
    identifier = "failing"

    def create_from_config(self, config):
        raise IllegalConfigurationError(f"setting is wrong: key=my.key value={config['my.key']}")


class BrokenFactory(StateBackendFactory):
    identifier = "broken"

    def create_from_config(self, config):
        return dict(config)["nothing"]


class WrongFactory(StateBackendFactory):
    identifier = "wrong"

    def create_from_config(self, config):  # noqa: ARG002
        return "rocksdb"


class NeedsArguments:
    def __init__(self, argument):
        pass


# -- configuration only -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["filesystem", "FileSystem", "FILESYSTEM"])
def test_an_old_name_chooses_its_storage_however_it_is_written(name):
    settings = {"state.backend": name, "state.checkpoints.dir": "file:///tmp/moorage-nowhere"}
    loaded = load_state_backend(settings)
    assert isinstance(loaded.storage, FilesystemCheckpointStorage)
    assert loaded.name == "filesystem"
    old = load_state_backend({**settings, "state.backend": "JobManager"})
    assert isinstance(old.storage, DriverCheckpointStorage)
    with pytest.raises(IllegalConfigurationError, match=r"needed_by=state\.backend=filesystem"):
        load_state_backend({"state.backend": name})


@pytest.mark.parametrize("backend", EVERY, ids=lambda one: one.identifier)
def test_a_backend_comes_out_of_a_pickle_as_it_went_in_and_works(backend, tmp_path):
    again = pickle.loads(pickle.dumps(backend))
    assert again == backend
    assert again.identifier == backend.identifier
    if backend == EVERY[3]:
        return  # its directory is another machine's
    made = again.create_keyed_state_backend(
        Environment(local_dir=tmp_path), "job", "op", ["string"], 8, KeyGroupRange(0, 7)
    )
    made.set_current_key("k")
    state = made.get_state(ValueStateDescriptor("v", "long"))
    state.update(1)
    assert state.value() == 1
    made.dispose()


@pytest.mark.parametrize(
    "storage",
    [DriverCheckpointStorage(7), FilesystemCheckpointStorage("/data", "s3://bucket/sp", 0)],
)
def test_a_storage_comes_out_of_a_pickle_as_it_went_in(storage):
    assert pickle.loads(pickle.dumps(storage)) == storage


@pytest.mark.parametrize("backend", [EVERY[0], EVERY[2], EVERY[4]], ids=lambda b: b.identifier)
def test_many_threads_make_backends_at_once_and_share_nothing(backend, tmp_path):
    subtasks, failures, start = 8, [], threading.Barrier(8)

    def run(subtask):
        try:
            start.wait()
            for round_ in range(3):
                groups = range_of(subtask, subtasks, 64)
                env = Environment(subtask, subtasks, tmp_path)
                made = backend.create_keyed_state_backend(env, "job", "op", ["long"], 64, groups)
                operator = backend.create_operator_state_backend(env, "op")
                operator.get_list_state(ListStateDescriptor("offsets", "long")).add(subtask)
                state = made.get_state(ValueStateDescriptor("v", "long"))
                mine = [key for key in range(300) if of(key, groups)]
                if backend.identifier == "batch":
                    mine = mine[:1]
                for key in mine:
                    made.set_current_key(key)
                    state.update(key * 10 + round_)
                for key in mine:
                    made.set_current_key(key)
                    assert state.value() == key * 10 + round_
                made.dispose()
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(subtasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []


def of(key, groups):
    from moorage_state.canonical import key_groups

    return key_groups(["long"], 64)([(key,)])[0] in groups


def test_rocksdb_backends_with_the_same_options_share_one_memory_budget(new_backend):
    one = new_backend(EmbeddedRocksDBStateBackend())
    other = new_backend(EmbeddedRocksDBStateBackend())
    third = new_backend(
        EmbeddedRocksDBStateBackend(options={"state.backend.rocksdb.block.cache-size": "9mb"})
    )
    assert one._saver._databases is other._saver._databases
    assert third._saver._databases is not one._saver._databases


# -- chosen by name ---------------------------------------------------------------------------


def test_where_nobody_chose_state_is_in_memory_and_checkpoints_are_with_the_driver():
    loaded = load_state_backend()
    assert isinstance(loaded.backend, HashMapStateBackend)
    assert loaded.storage == DriverCheckpointStorage()
    assert (loaded.name, loaded.chosen_by) == ("jobmanager", "default")


@pytest.mark.parametrize(
    ("name", "backend", "storage"),
    [
        ("hashmap", HashMapStateBackend, FilesystemCheckpointStorage),
        ("rocksdb", EmbeddedRocksDBStateBackend, FilesystemCheckpointStorage),
        ("batch", BatchExecutionStateBackend, FilesystemCheckpointStorage),
        ("jobmanager", HashMapStateBackend, DriverCheckpointStorage),
        ("filesystem", HashMapStateBackend, FilesystemCheckpointStorage),
        ("RocksDB", EmbeddedRocksDBStateBackend, FilesystemCheckpointStorage),
    ],
)
def test_each_name_means_a_backend_and_a_storage(name, backend, storage):
    loaded = load_state_backend(
        {"state.backend": name, "state.checkpoints.dir": "file:///checkpoints"}
    )
    assert isinstance(loaded.backend, backend)
    assert isinstance(loaded.storage, storage)
    assert pickle.loads(pickle.dumps(loaded.backend)) == loaded.backend


def test_the_job_goes_before_the_cluster_and_the_cluster_before_the_default():
    cluster = {"state.backend": "rocksdb", "state.checkpoints.dir": "s3://bucket/checkpoints"}
    assert load_state_backend({}, cluster).chosen_by == "cluster"
    loaded = load_state_backend({"state.backend.type": "hashmap"}, cluster)
    assert (loaded.backend.identifier, loaded.chosen_by) == ("hashmap", "job")
    assert loaded.storage == FilesystemCheckpointStorage("s3://bucket/checkpoints")


def test_a_backend_made_in_code_takes_what_it_left_open_from_the_settings():
    loaded = load_state_backend(
        {
            "state.backend": "hashmap",
            "state.backend.rocksdb.localdir": "/ssd",
            "state.backend.rocksdb.timer-service.factory": "rocksdb",
            "state.backend.incremental": "false",
        },
        from_code=EmbeddedRocksDBStateBackend(local_dir="/own"),
    )
    made = loaded.backend
    assert isinstance(made, EmbeddedRocksDBStateBackend)
    assert (made.local_dir, made.timer_service, made.incremental) == ("/own", "ROCKSDB", False)


@pytest.fixture
def importable(monkeypatch):
    """This file as a module that can be named."""
    made = types.ModuleType(__name__)
    made.__dict__.update(globals())
    monkeypatch.setitem(sys.modules, __name__, made)


@pytest.mark.usefixtures("importable")
def test_a_factory_is_found_by_its_full_name():
    loaded = load_state_backend({"state.backend": f"{__name__}.CountingFactory"})
    assert isinstance(loaded.backend, CountingBackend)
    assert isinstance(loaded.backend, DelegatingStateBackend)
    assert isinstance(loaded.backend, ConfigurableStateBackend)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("frogdb", "no such state backend: key=state.backend value='frogdb'; use one of batch,"),
        ("no.such.Module", "there is no module no"),
        ("json.NoSuchFactory", "module json has no NoSuchFactory"),
        ("json.JSONDecoder", "it is no StateBackend, and has no create_from_config"),
        ("{}.NeedsArguments", "the class cannot be made without arguments"),
        ("{}.BrokenFactory", "create_from_config failed: 'nothing'"),
        ("{}.WrongFactory", "create_from_config gave a str"),
        ("a..b", "no such state backend"),
        ("", "key=state.backend value=''; give text that is not empty"),
    ],
)
@pytest.mark.usefixtures("importable")
def test_a_name_that_cannot_be_used_is_refused_with_its_key_and_the_reason(name, why):
    with pytest.raises(IllegalConfigurationError) as refused:
        load_state_backend({"state.backend": name.format(__name__)})
    assert why in str(refused.value)
    assert "key=state.backend" in str(refused.value)


@pytest.mark.usefixtures("importable")
def test_a_factorys_own_refusal_passes_through():
    with pytest.raises(IllegalConfigurationError, match=r"key=my\.key value=7"):
        load_state_backend({"state.backend": f"{__name__}.FailingFactory", "my.key": 7})


def test_a_registered_factory_is_known_by_its_identifier(monkeypatch):
    from moorage_state.state_backends import registry

    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    factory = CountingFactory()
    register_factory(factory)
    register_factory(factory)
    assert "counting" in known_identifiers()
    assert isinstance(load_state_backend({"state.backend": "counting"}).backend, CountingBackend)
    with pytest.raises(IllegalConfigurationError, match="value=counting"):
        register_factory(CountingFactory())


# -- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"state.backend": "filesystem"}, "key=state.checkpoints.dir needed_by=state.backend"),
        (
            {"state.checkpoint-storage": "filesystem"},
            "key=state.checkpoints.dir needed_by=state.checkpoint-storage=filesystem",
        ),
        ({"state.checkpoint-storage": "tape"}, "value='tape'; give one of FILESYSTEM, JOB"),
        ({"state.checkpoints.dir": "relative/path"}, "value='relative/path'; use file:///path"),
        ({"state.backend.async": "maybe"}, "key=state.backend.async value='maybe'; give true"),
        (
            {"state.checkpoint-storage.driver.max-state-size": "5 lb"},
            "key=state.checkpoint-storage.driver.max-state-size value='5 lb'; give a size",
        ),
        ({"state.checkpoint-storage.driver.max-state-size": 0}, "value=0; give 1 byte or more"),
        (
            {
                "state.checkpoints.dir": "/data",
                "execution.checkpointing.data-inline-threshold": "2mb",
            },
            "key=execution.checkpointing.data-inline-threshold value=2097152",
        ),
        (
            {
                "state.backend": "rocksdb",
                "state.backend.rocksdb.timer-service.factory": "DISK",
            },
            "key=state.backend.rocksdb.timer-service.factory value='DISK'; give one of HEAP",
        ),
        (
            {"state.backend": "rocksdb", "state.backend.rocksdb.writebufer.size": "8mb"},
            "key=state.backend.rocksdb.writebufer.size",
        ),
        ({"state.backend": ["rocksdb"]}, "key=state.backend value=['rocksdb'] type=list"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_key_value_and_what_is_allowed(settings, named):
    with pytest.raises(IllegalConfigurationError) as refused:
        load_state_backend(settings)
    assert named in str(refused.value)


def test_sizes_are_in_powers_of_1024_and_old_spellings_are_read():
    loaded = load_state_backend(
        {
            "state.checkpoints.dir": "file:///checkpoints",
            "state.savepoints.dir": "file:///savepoints",
            "state.backend.fs.memory-threshold": "3 kb",
        }
    )
    assert loaded.storage == FilesystemCheckpointStorage(
        "file:///checkpoints", "file:///savepoints", 3072
    )


def test_the_section_of_a_configuration_file_that_people_know_means_what_it_says():
    config = Configuration(
        {
            "execution.checkpointing.interval": 30000,
            "execution.checkpointing.mode": "EXACTLY_ONCE",
            "execution.checkpointing.timeout": 600000,
            "execution.checkpointing.max-concurrent-checkpoints": 1,
            "execution.checkpointing.min-pause": "5s",
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        }
    )
    made = checkpoint_config(config)
    assert (made.interval, made.timeout, made.min_pause) == (30.0, 600.0, 5.0)
    assert made.mode is CheckpointingMode.EXACTLY_ONCE
    assert made.retention is CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("execution.checkpointing.interval", "soon"),
        ("execution.checkpointing.mode", "MAYBE_ONCE"),
        ("execution.checkpointing.timeout", "0"),
        ("execution.checkpointing.max-concurrent-checkpoints", "-1"),
    ],
)
def test_a_wrong_checkpoint_setting_is_refused(key, value):
    with pytest.raises(IllegalConfigurationError, match=r"key=execution\.checkpointing"):
        checkpoint_config(Configuration({key: value}))


def test_all_settings_of_the_table_of_rocksdb_reach_its_options():
    made = load_state_backend(
        {"state.backend": "rocksdb", "state.backend.rocksdb.block.cache-size": "9mb"}
    ).backend
    assert isinstance(made, EmbeddedRocksDBStateBackend)
    assert made._rocks_options().block_cache_bytes == 9 << 20


# -- abstract ---------------------------------------------------------------------------------


def test_a_backend_has_to_say_how_it_keeps_state():
    with pytest.raises(TypeError, match="open_database"):
        type("Nothing", (StateBackend,), {})()


@pytest.mark.parametrize("backend", EVERY[:3], ids=lambda one: one.identifier)
def test_key_groups_outside_of_the_operators_are_refused(backend, tmp_path):
    env = Environment(local_dir=tmp_path)
    for count, groups in ((8, KeyGroupRange(0, 8)), (0, KeyGroupRange(0, 0))):
        with pytest.raises(ValueError, match="key groups"):
            backend.create_keyed_state_backend(env, "job", "op", ["long"], count, groups)
    with pytest.raises(UserError, match="key_hash"):
        backend.create_keyed_state_backend(
            Environment(local_dir=tmp_path, key_hash="md5"),
            "job",
            "op",
            ["long"],
            8,
            KeyGroupRange(0, 7),
        )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
