"""Functions that live as long as their worker: opened once, bound to state in each epoch."""

from typing import ClassVar

import pytest

from moorage.api.functions import KeyedProcessFunction, WorkerContext
from moorage.engine.kept_functions import _kept, give_back, take
from moorage.engine.task_failures import SubtaskFailure
from moorage_state.descriptors import ValueStateDescriptor


class Model(KeyedProcessFunction):
    long_lived = True
    calls: ClassVar[list[str]] = []

    def open(self, ctx):
        self.calls.append(f"open {ctx.uid}")
        self.opened_with = ctx

    def open_epoch(self, ctx):
        self.calls.append(f"epoch {ctx.subtask}")
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

    def process(self, row, ctx):
        if row.n < 0:
            raise ValueError("no")
        self.n.update((self.n.value() or 0) + row.n)
        yield ctx.key, self.n.value()

    def close(self):
        self.calls.append("close")


@pytest.fixture(autouse=True)
def _forget():
    Model.calls.clear()
    yield
    _kept.clear()


def test_it_is_opened_once_and_has_the_state_of_each_epoch(operator, batch):
    assert operator.epoch(Model(), [batch(("a", 1))]).rows == [("a", 1)]
    assert operator.epoch(Model(), [batch(("a", 2), ("b", 5))]).rows == [("a", 3), ("b", 5)]
    assert Model.calls == [f"open {operator.uid}", "epoch 0", "epoch 0"]


def test_what_a_failed_attempt_left_behind_does_not_go_on(operator, batch):
    operator.epoch(Model(), [batch(("a", 1))])
    with pytest.raises(SubtaskFailure):
        operator.attempt(Model(), [batch(("a", 7), ("a", -1))])
    assert operator.epoch(Model(), [batch(("a", 2))]).rows == [("a", 3)]
    opened = f"open {operator.uid}"
    assert Model.calls == [opened, "epoch 0", "epoch 0", "close", opened, "epoch 0"]


def test_another_run_has_another_instance(operator):
    first, second, third = Model(), Model(), Model()
    plan = operator.plan(first)
    assert take(plan) is first
    give_back(plan, first)
    assert take(operator.plan(second)) is first
    give_back(plan, first)
    assert take(operator.plan(third, run="f2r0")) is third
    assert Model.calls.count("close") == 1


def test_state_is_not_asked_for_in_open():
    with pytest.raises(RuntimeError, match=r"in open_epoch\(ctx\): operator=m asked=get_state"):
        WorkerContext("m", 2).get_state(ValueStateDescriptor("n", "long"))
