"""Functions that live as long as their worker: opened once, bound to state in each epoch."""

from contextlib import suppress
from typing import Any, ClassVar

import pytest

from moorage import (
    CoGroupFunction,
    JoinFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    RichFunction,
    Tumbling,
)
from moorage.api.functions import KeyedProcessFunction, WorkerContext
from moorage.engine.kept_functions import _kept, give_back, take
from moorage.engine.task_failures import SubtaskFailure
from moorage.testing import KeyedHarness, SecondStream
from moorage_state.descriptors import ValueStateDescriptor


class Told(RichFunction):
    """Tells what is called of it, and counts in state how often it has answered for a key."""

    long_lived = True
    calls: ClassVar[list[str]] = []

    def open(self, ctx):
        self.calls.append(f"open {ctx.uid}")
        self.opened_with = ctx

    def open_epoch(self, ctx):
        self.calls.append(f"epoch {ctx.subtask}")
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

    def answer(self, ctx, worth):
        if worth < 0:
            raise ValueError("no")
        self.n.update((self.n.value() or 0) + 1)
        yield ctx.key, worth, self.n.value(), type(self.opened_with).__name__

    def close(self):
        self.calls.append("close")


class OfWindow(Told, ProcessWindowFunction):
    def process(self, key, ctx, rows):  # noqa: ARG002
        return self.answer(ctx, sum(row.n for row in rows))


class OfPair(Told, JoinFunction):
    def join(self, left, right, ctx):
        return self.answer(ctx, left.n + right.n)


class OfGroup(Told, CoGroupFunction):
    def co_group(self, lefts, rights, ctx):
        return self.answer(ctx, sum(row.n for row in (*lefts, *rights)))


class OfInterval(Told, ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        return self.answer(ctx, left.n + right.n)


ROWS, ANSWER = "user string, n long, at long", "user string, worth long, nth long, opened string"
GIVEN: dict[str, Any] = {"uid": "d", "output": ANSWER}
FORMS: list[tuple[type[Told], Any]] = [
    (OfWindow, lambda f, one: one.window(Tumbling("1s")).process(f, **GIVEN)),
    (OfPair, lambda f, one, two: one.join(two).window(Tumbling("1s")).apply(f, **GIVEN)),
    (OfGroup, lambda f, one, two: one.co_group(two).window(Tumbling("1s")).apply(f, **GIVEN)),
    (
        OfInterval,
        lambda f, one, two: one.interval_join(two).between("0s", "0s").process(f, **GIVEN),
    ),
    (OfPair, lambda f, one, two: one.temporal_join(two).apply(f, **GIVEN)),
    (OfPair, lambda f, one, two: one.temporal_join(two, time="processing").apply(f, **GIVEN)),
]


class Model(Told, KeyedProcessFunction):
    def process(self, row, ctx):
        if row.n < 0:
            raise ValueError("no")
        self.n.update((self.n.value() or 0) + row.n)
        yield ctx.key, self.n.value()


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


class Fed:
    """A harness of one of the forms: each row is its only one in its second, on each side."""

    def __init__(self, kind, build, **options):
        two = kind is not OfWindow
        self._two, self._at = two, 0
        # The harness takes the streams that the form has.
        form = (
            (lambda one, other: build(kind(), one, other))
            if two
            else lambda one: build(kind(), one)
        )
        second = SecondStream(ROWS, "user", "at") if two else None
        self.harness = KeyedHarness(form, ROWS, "user", event_time="at", second=second, **options)

    def feed(self, *users, n=1):
        rows = [(user, n, self._at + 500) for user in users]
        self.harness.process(*rows, **({"second": rows} if self._two else {}))
        self._at += 1000
        self.harness.process_watermark(self._at)


@pytest.mark.parametrize(("kind", "build"), FORMS)
def test_functions_of_windows_and_joins_are_opened_once_and_have_the_state_of_each_epoch(
    kind, build
):
    fed = Fed(kind, build)
    with fed.harness as one:
        for _ in range(3):
            fed.feed("a")
        worth = 1 if kind is OfWindow else 2
        assert one.output == [("a", worth, nth, "WorkerContext") for nth in (1, 2, 3)]
        assert Told.calls == ["open d", *["epoch 0"] * 6]
    assert Told.calls[7:] == ["close"]


@pytest.mark.parametrize(("kind", "build"), FORMS)
def test_one_instance_of_windows_and_joins_serves_all_subtasks_of_its_worker(kind, build):
    fed = Fed(kind, build, parallelism=3)
    users = "abcdef"
    with fed.harness as one:
        for _ in range(2):
            fed.feed(*users)
        worth = 1 if kind is OfWindow else 2
        assert sorted(one.output) == [
            (user, worth, nth, "WorkerContext") for user in users for nth in (1, 2)
        ]
        assert Told.calls.count("open d") == 1
        assert {"epoch 0", "epoch 1", "epoch 2"} < {*Told.calls}


@pytest.mark.parametrize(("kind", "build"), FORMS)
def test_what_a_failure_left_in_functions_of_windows_and_joins_does_not_go_on(kind, build):
    fed = Fed(kind, build)
    with fed.harness:
        fed.feed("a")
        with pytest.raises(ValueError, match="no"):
            fed.feed("a", n=-5)
        assert Told.calls[-1] == "close"
        # What was committed before may fail once more.
        with suppress(ValueError):
            fed.feed("a")
        assert Told.calls.count("open d") == 2


@pytest.mark.parametrize(("kind", "build"), FORMS)
def test_others_are_opened_with_each_epoch(kind, build):
    short = type(kind.__name__, (kind,), {"long_lived": False})
    fed = Fed(kind, lambda _, *streams: build(short(), *streams))
    with fed.harness as one:
        fed.feed("a")
        fed.feed("a")
        worth = 1 if kind is OfWindow else 2
        assert one.output == [("a", worth, nth, "RuntimeContext") for nth in (1, 2)]
    assert Told.calls == ["open d", "epoch 0", "close"] * 4
