"""Which state backend a job gets, and what its state servers are told."""

import sys
import textwrap
from typing import Any

import pytest

from moorage.driver import settings
from moorage_state.errors import IllegalConfigurationError
from moorage_state.state_backends import job_max_state_size
from moorage_state.tuning import RocksOptions, default_options
from moorage_state.tuning.resolved import DEFAULTS_VARIABLE

# Of any class: what is looked at here are the fields of our own.
chosen_backend: Any = settings.chosen_backend
THREADS = "state.backend.rocksdb.thread.num"
NOWHERE: dict[str, str] = {}


@pytest.fixture
def factories(tmp_path):
    """A module of the job's own with factories; it is forgotten afterwards."""
    code = """
        from moorage_state.state_backends import EmbeddedRocksDBStateBackend, HashMapStateBackend

        class OnHeap:
            def create_from_config(self, config):
                assert config["state.backend.rocksdb.thread.num"] == "4"
                return HashMapStateBackend()

        class OnDisk:
            def create_from_config(self, config):
                return EmbeddedRocksDBStateBackend()
    """
    (tmp_path / "own_factories.py").write_text(textwrap.dedent(code))
    yield tmp_path
    sys.modules.pop("own_factories", None)


def test_the_manifest_wins_over_the_machine():
    environ = {DEFAULTS_VARIABLE: f'{{"{THREADS}": "3", "state.backend.rocksdb.files.open": "9"}}'}
    options = chosen_backend("rocksdb", {THREADS: "5"}, environ=environ).for_servers(1, None).tuned
    assert (options.background_jobs, options.max_open_files) == (5, 9)


def test_a_manifest_that_names_no_backend_gets_the_machines_and_else_rocksdb():
    environ = {settings.DEFAULT_VARIABLE: " hashmap "}
    assert chosen_backend(None, {}, environ=environ).identifier == "hashmap"
    assert chosen_backend("rocksdb", {}, environ=environ).identifier == "rocksdb"
    assert chosen_backend(None, {}, environ=NOWHERE).identifier == "rocksdb"


def test_a_default_of_the_machine_that_cannot_be_used_is_named():
    environ = {settings.DEFAULT_VARIABLE: "rocskdb"}
    with pytest.raises(IllegalConfigurationError, match="variable=MOORAGE_STATE_BACKEND: no such"):
        chosen_backend(None, {}, environ=environ)


@pytest.mark.parametrize("name", ["batch", "Batch", "forst"])
def test_a_default_of_the_machine_that_cannot_serve_every_job_is_refused_as_a_clusters(name):
    environ = {settings.DEFAULT_VARIABLE: name}
    said = f"variable=MOORAGE_STATE_BACKEND: {name} is no backend for every job; use rocksdb, hash"
    with pytest.raises(IllegalConfigurationError, match=said):
        chosen_backend(None, {}, environ=environ)
    assert chosen_backend("batch", {}, environ=environ).identifier == "batch"


def test_a_default_of_the_machine_is_judged_by_what_its_class_makes():
    name = "moorage_state.state_backends:BatchExecutionStateBackend"
    said = "variable=MOORAGE_STATE_BACKEND: batch is no backend for every job"
    with pytest.raises(IllegalConfigurationError, match=said):
        chosen_backend(None, {}, environ={settings.DEFAULT_VARIABLE: name})
    assert chosen_backend(name, {}, environ=NOWHERE).identifier == "batch"


@pytest.mark.parametrize("text", ["", "  "])
def test_a_machine_without_defaults_has_none(text):
    assert default_options({DEFAULTS_VARIABLE: text}) == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', "thread.num=4"])
def test_defaults_that_cannot_be_read_are_refused(text):
    with pytest.raises(IllegalConfigurationError, match=f"variable={DEFAULTS_VARIABLE}"):
        default_options({DEFAULTS_VARIABLE: text})


@pytest.mark.parametrize(("name", "kind"), [("OnHeap", "hashmap"), ("OnDisk", "rocksdb")])
def test_a_factory_of_the_job_chooses_one_of_the_backends(factories, name, kind):
    before = list(sys.path)
    found = chosen_backend(f"own_factories.{name}", {THREADS: "4"}, [factories], NOWHERE)
    assert found.identifier == kind
    assert sys.path == before


@pytest.mark.parametrize("name", ["no_such_module.X", "own_factories.Missing"])
def test_a_factory_that_is_not_there_is_named(factories, name):
    with pytest.raises(IllegalConfigurationError, match=name.replace(".", r"\.")):
        chosen_backend(name, {}, [factories], NOWHERE)


def test_state_in_memory_may_take_half_of_the_machine():
    heap = chosen_backend("hashmap", {}, environ=NOWHERE)
    whole, half = heap.for_servers(1, None), heap.for_servers(2, None)
    assert 0 < half.memory_limit == whole.memory_limit // 2
    named = {"state.backend.hashmap.memory-limit": "64mb"}
    limited = chosen_backend("jobmanager", named, environ=NOWHERE)
    assert limited.for_servers(2, None).memory_limit == 64 << 20


STORAGE, MOST = "state.checkpoint-storage", "state.checkpoint-storage.driver.max-state-size"


@pytest.mark.parametrize(
    ("backend", "options", "limit"),
    [
        ("rocksdb", {}, None),
        ("hashmap", {MOST: "1kb"}, None),
        ("filesystem", {}, None),
        ("jobmanager", {}, 5 << 20),
        ("JobManager", {MOST: "2 mb"}, 2 << 20),
        ("jobmanager", {STORAGE: "filesystem"}, None),
        ("rocksdb", {STORAGE: "jobmanager", MOST: "100"}, 100),
        ("my_module:Backend", {STORAGE: "driver"}, 5 << 20),
    ],
)
def test_checkpoints_are_files_unless_the_driver_is_to_keep_them(backend, options, limit):
    assert job_max_state_size(backend, options) == limit


def test_the_machine_may_say_where_checkpoints_go():
    defaults = {STORAGE: "jobmanager", MOST: "7"}
    assert job_max_state_size("rocksdb", {MOST: "8"}, defaults) == 8
    assert job_max_state_size("rocksdb", {STORAGE: "filesystem"}, defaults) is None


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [(STORAGE, "tape", "one of FILESYSTEM, JOBMANAGER, DRIVER"), (MOST, "0", "at least 1 bytes")],
)
def test_a_storage_that_is_none_is_refused_with_all_other_options(key, text, said):
    with pytest.raises(IllegalConfigurationError, match=f"key={key} value='{text}'.*{said}"):
        chosen_backend("jobmanager", {key: text}, environ=NOWHERE)


def test_rocksdb_and_batch_have_rocksdbs_options():
    rocks = chosen_backend("rocksdb", {}, environ=NOWHERE).for_servers(2, None)
    batch = chosen_backend("batch", {}, environ=NOWHERE).for_servers(2, None)
    assert rocks.tuned == batch.databases.tuned == RocksOptions()
