"""Which state backend a job gets, and what its state servers are told."""

import sys
import textwrap

import pytest

from moorage.driver.backends import backend_options
from moorage.driver.tuning import server_options
from moorage_state.errors import IllegalConfigurationError
from moorage_state.memory import HeapOptions
from moorage_state.tuning import DEFAULTS_VARIABLE, RocksOptions, default_options

THREADS = "state.backend.rocksdb.thread.num"
NOWHERE: dict[str, str] = {}


@pytest.fixture
def factories(tmp_path):
    """A module of the job's own with factories; it is forgotten afterwards."""
    code = """
        from moorage_state.backends import EmbeddedRocksDBStateBackend, HashMapStateBackend

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
    options = backend_options("rocksdb", {THREADS: "5"}, environ=environ).rocks_options()
    assert (options.background_jobs, options.max_open_files) == (5, 9)


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
    found = backend_options(f"own_factories.{name}", {THREADS: "4"}, [factories], NOWHERE)
    assert found.kind == kind
    assert sys.path == before


@pytest.mark.parametrize("name", ["no_such_module.X", "own_factories.Missing"])
def test_a_factory_that_is_not_there_is_named(factories, name):
    with pytest.raises(IllegalConfigurationError, match=name.replace(".", r"\.")):
        backend_options(name, {}, [factories], NOWHERE)


def test_state_in_memory_may_take_half_of_the_machine():
    heap = backend_options("hashmap", {}, environ=NOWHERE)
    whole, half = server_options(heap, 1), server_options(heap, 2)
    assert isinstance(whole, HeapOptions)
    assert isinstance(half, HeapOptions)
    assert 0 < half.limit_bytes == whole.limit_bytes // 2
    named = {"state.backend.hashmap.memory-limit": "64mb"}
    limited = backend_options("jobmanager", named, environ=NOWHERE)
    assert server_options(limited, 2) == HeapOptions(limit_bytes=64 << 20)


def test_rocksdb_and_batch_have_rocksdbs_options():
    assert server_options(backend_options("rocksdb", {}, environ=NOWHERE), 2) == RocksOptions()
    assert server_options(backend_options("batch", {}, environ=NOWHERE), 2) == RocksOptions()
