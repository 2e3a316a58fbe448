"""Functions are opened over what a restore point lists of their states, and no values."""

from types import SimpleNamespace
from typing import Any

import pytest

from moorage import KeyedProcessFunction, ValueStateDescriptor
from moorage.api.checkpointed import CheckpointedFunction
from moorage.driver.preflight import _open
from moorage.engine.task_failures import UserFunctionError
from moorage_state.errors import UserError
from moorage_state.keyed.schema import StateSchema

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
    pass


def opened(function, known=KNOWN):
    operator: Any = SimpleNamespace(uid="counts", function=function)
    _open(operator, known, 2)
    return function.calls


def test_a_function_that_reads_what_is_there_is_opened_and_closed():
    assert opened(Counts()) == ["open", "close"]
    assert opened(Counts(), ()) == ["open", "close"]
    assert opened(LongLived()) == ["open", "open_epoch", "close"]


def test_one_with_state_of_its_subtasks_is_left_out():
    assert opened(OfItsSubtask()) == []


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
