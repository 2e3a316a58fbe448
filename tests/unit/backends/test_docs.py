"""docs/state-backends.md: its examples run as they stand, and what they make can be used."""

import sys
import tempfile
import threading
import types

import pytest
from moorage_testing.pages import blocks

from moorage_state.descriptors import ValueStateDescriptor
from moorage_state.keygroups import KeyGroupRange
from moorage_state.state_backends import HashMapStateBackend, load_state_backend

PAGE = "docs/state-backends.md"


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the examples define; their directory for checkpoints is a temporary one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    module = types.ModuleType("my_module")
    monkeypatch.setitem(sys.modules, "my_module", module)
    before = set(threading.enumerate())
    for block in blocks(PAGE, "python"):
        code = block.code.replace("file:///data/checkpoints", f"file://{tmp_path}/checkpoints")
        exec(compile(code, PAGE, "exec"), module.__dict__)  # noqa: S102 - the page is the test
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    return module.__dict__


def test_the_examples_run_and_their_snapshot_can_be_restored(names):
    assert names["loaded"].chosen_by == "job"
    restored = names["loaded"].backend.create_keyed_state_backend(
        names["Environment"](subtask=0, parallelism=1),
        "job-1",
        "counts",
        key_types=["string"],
        number_of_key_groups=128,
        key_group_range=KeyGroupRange(0, 127),
        restore=[names["handle"]],
    )
    restored.set_current_key("alice")
    assert restored.get_state(ValueStateDescriptor("count", "long")).value() == 1
    fired = []
    restored.timers().fire_due(1_700_000_000_000, lambda *timer: fired.append(timer))
    assert len(fired) == 1
    restored.dispose()


@pytest.mark.usefixtures("names")
def test_the_factory_of_the_example_is_chosen_by_its_full_name():
    settings = {"state.backend": "my_module.MyFactory", "my.snapshots": "at once"}
    backend = load_state_backend(settings).backend
    assert backend == HashMapStateBackend(asynchronous_snapshots=False)
