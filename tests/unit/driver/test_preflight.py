"""Functions are opened over what a restore point lists of their states, and no values."""

from types import SimpleNamespace
from typing import Any

import pytest

from moorage import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage.api.checkpointed import CheckpointedFunction
from moorage.driver.preflight import KnownStates, open_over
from moorage.engine.task_failures import UserFunctionError
from moorage_state.errors import UserError
from moorage_state.keyed.schema import StateSchema
from moorage_state.operator_state import OperatorStateSchema

KNOWN = (StateSchema("count", "value", "bigint"),)


class Counts(KeyedProcessFunction):
    declared = "long"

    def __init__(self):
        self.calls = []

    def open(self, ctx):
        self.calls.append("open")
        ctx.get_state(ValueStateDescriptor("count", self.declared))

    def close(self):
        self.calls.append("close")


class LongLived(Counts):
    long_lived = True

    def open(self, ctx):
        assert ctx.parallelism == 2
        self.calls.append("open")

    def open_epoch(self, ctx):
        self.calls.append("open_epoch")
        ctx.get_state(ValueStateDescriptor("count", self.declared))


class OfItsSubtask(Counts, CheckpointedFunction):
    kept = "long"
    reads = False

    def initialize_state(self, ctx):
        self.calls.append(f"initialize, restored={ctx.is_restored}")
        state = ctx.operator_state_store.get_list_state(ListStateDescriptor("seen", self.kept))
        if self.reads:
            try:
                self.calls.append(f"read {state.get()}")
            except Exception:  # noqa: BLE001  as a function of a person's may
                self.calls.append("hidden")


def opened(function, known=KNOWN, of_subtasks=(), restored=7, broadcast=None):
    operator: Any = SimpleNamespace(uid="counts", function=function, broadcast=broadcast)
    whole = open_over(operator, KnownStates(known, of_subtasks, restored), 2)
    return [*function.calls, *(() if whole else ("not all",))]


SEEN = (OperatorStateSchema("seen", "split", "bigint"),)


def test_a_function_that_reads_what_is_there_is_opened_and_closed():
    assert opened(Counts()) == ["open", "close"]
    assert opened(Counts(), ()) == ["open", "close"]
    assert opened(LongLived()) == ["open", "open_epoch", "close"]


def test_one_with_state_of_its_subtasks_takes_it_up_first():
    restored = "initialize, restored=True"
    assert opened(OfItsSubtask(), of_subtasks=SEEN) == [restored, "open", "close"]


def test_what_it_does_with_values_is_not_tried_as_none_are_read():
    function = OfItsSubtask()
    function.reads = True
    restored = "initialize, restored=True"
    assert opened(function, of_subtasks=SEEN) == [restored, "close", "not all"]


def test_without_a_restore_point_there_are_none_and_all_of_it_is_tried():
    function = OfItsSubtask()
    function.reads = True
    fresh = "initialize, restored=False"
    assert opened(function, (), restored=None) == [fresh, "read []", "open", "close"]


def test_a_type_that_stored_elements_cannot_be_read_as_is_refused():
    function = OfItsSubtask()
    function.kept = "array<string>"
    with pytest.raises(UserError, match="state=seen written=bigint declared=array<string>"):
        opened(function, of_subtasks=SEEN)
    assert function.calls[-1] == "close"


def test_a_broadcast_map_that_was_a_list_is_refused():
    rules: Any = SimpleNamespace(descriptors=[MapStateDescriptor("seen", "string", "long")])
    with pytest.raises(UserError, match="seen"):
        opened(Counts(), of_subtasks=SEEN, broadcast=rules)


@pytest.mark.parametrize("kind", [Counts, LongLived])
def test_a_type_that_stored_values_cannot_be_read_as_is_refused(kind):
    function = kind()
    function.declared = "array<string>"
    with pytest.raises(UserError, match="state=count written=bigint declared=array<string>"):
        opened(function)
    assert function.calls[-1] == "close"


def test_what_open_raises_is_told_with_its_operator():
    function = Counts()
    function.declared = "no type"
    wrong: Any = function
    wrong.open = lambda _ctx: 1 // 0
    with pytest.raises(UserFunctionError, match="operator=counts: ZeroDivisionError"):
        opened(function)
