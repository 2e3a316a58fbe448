# ruff: noqa: ARG002  functions are written as people write them
"""Harnesses of functions that are called with more than a row: batches, and broadcast rows."""

import math
import random

import numpy as np
import pyarrow as pa
import pytest

from moorage import (
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ValueStateDescriptor,
)
from moorage.testing import KeyedHarness, NotDeterministic
from moorage_state.errors import UserError
from moorage_state.keyed import TimeDomain

STREAM = "user string, n long"
ODD = OutputTag("odd", "user string, n long")


class Sums(KeyedBatchFunction):
    """State by column, a timer of each kind, a side output."""

    def __init__(self, kind="long"):
        self.kind = kind

    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", self.kind))

    def process_batch(self, keys, rows, ctx):
        sums = np.add.reduceat(rows.column("n").to_numpy(), ctx.starts)
        sums = sums + ctx.get_values(self.total).fill_null(0).to_numpy()
        ctx.put_values(self.total, pa.array(sums))
        every = np.arange(len(keys))
        ctx.register_timers(every, np.full(len(keys), 100))
        ctx.register_timers(every, np.full(len(keys), 50), TimeDomain.PROCESSING_TIME)
        odd = rows.filter(pa.array(rows.column("n").to_numpy() % 2 == 1))
        yield ODD, odd.select(["user", "n"])
        yield pa.table({"user": keys, "total": sums})

    def on_timers(self, keys, timers, ctx):
        sign = -1 if timers.domain is TimeDomain.EVENT_TIME else -2
        users = keys.take(pa.array(timers.key_index))
        return pa.table({"user": users, "total": np.full(len(users), sign)})


def sums(function=None, **options):
    options = {"event_time": "at", "side_outputs": [ODD]} | options
    schema = f"{STREAM}, at long"
    return KeyedHarness(function or Sums(), schema, "user", "user string, total long", **options)


def test_a_function_over_batches_has_state_timers_and_side_outputs():
    with sums(parallelism=2) as one:
        assert sorted(one.process(("a", 1, 5), ("b", 2, 6), ("a", 3, 7))) == [("a", 4), ("b", 2)]
        assert one.process(("a", 1, 8)) == [("a", 5)]
        assert sorted(one.side_output(ODD)) == [("a", 1), ("a", 1), ("a", 3)]
        assert (one.state("total", "a"), one.state("total", "c")) == (5, None)
        assert (one.timers("a"), one.timers("b", TimeDomain.PROCESSING_TIME)) == ([100], [50])
        assert sorted(one.set_processing_time(50)) == [("a", -2), ("b", -2)]
        one.rescale(3)
        one.upgrade(Sums())
        assert one.process_watermark(99) == []
        assert sorted(one.process_watermark(100)) == [("a", -1), ("b", -1)]
        assert one.num_timers() == 0


@pytest.mark.parametrize(("batch_rows", "made"), [(1, [1, 4, 5]), (2, [1, 5]), (1024, [5])])
def test_rows_of_a_key_are_spread_over_as_many_calls_as_one_likes(batch_rows, made):
    with sums(batch_rows=batch_rows) as one:
        found = one.process(("a", 1, 1), ("a", 3, 2), ("a", 1, 3))
        # The first batch begins with what is no row of the stream.
        assert found == [("a", total) for total in made]
        one.rescale(2)
        assert one.process(("a", 1, 4)) == [("a", 6)]


def test_what_a_function_over_batches_does_wrong_is_told():
    class Strange(Sums):
        def process_batch(self, keys, rows, ctx):
            return pa.table({"user": keys})

    with sums(Strange()) as one:
        with pytest.raises(UserError, match="total"):
            one.process(("a", 1, 1))
        assert one.keys() == []
    with sums(Sums("int")) as one, pytest.raises(TypeError, match="state=total"):
        one.process(("a", 1 << 40, 1))


LIMITS = MapStateDescriptor("limits", "string", "long")
RULES = "user string, most long"


class Alerts(KeyedBroadcastProcessFunction):
    """Rows beyond the limit of their user, which the broadcast stream sets."""

    def open(self, ctx):
        self.seen = ctx.get_state(ValueStateDescriptor("seen", "long"))

    def process_element(self, row, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        most = ctx.get_broadcast_state(LIMITS).get(row.user)
        if most is not None and row.n > most:
            yield ctx.key, row.n - most

    def process_broadcast_element(self, row, ctx):
        ctx.get_broadcast_state(LIMITS).put(row.user, row.most)
        found = []
        ctx.apply_to_keyed_state(
            ValueStateDescriptor("seen", "long"),
            lambda key, state: found.append((key, -state.value())),
        )
        return sorted(found)


def alerts(function=None, **options):
    options = {"broadcast": RULES, "broadcast_states": [LIMITS]} | options
    return KeyedHarness(function or Alerts(), STREAM, "user", "user string, over long", **options)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_broadcast_rows_come_first_and_every_subtask_has_what_they_build_up(parallelism):
    with alerts(parallelism=parallelism) as one:
        assert one.broadcast_state("limits") == {}
        assert one.process(("a", 9), ("b", 9)) == []
        rules = [("a", 5), {"user": "b", "most": 8}]
        found = one.process(("a", 9), ("b", 9), ("c", 9), broadcast=rules)
        # Each rule visits all keys, each in its own subtask.
        assert sorted(found) == [("a", -1), ("a", -1), ("a", 4), ("b", -1), ("b", -1), ("b", 1)]
        assert one.broadcast_state("limits") == {"a": 5, "b": 8}
        assert one.state("seen", "a") == 2
        one.rescale(2)
        one.upgrade(Alerts())
        assert one.process(("a", 6)) == [("a", 1)]
        assert one.broadcast_state("limits") == {"a": 5, "b": 8}


def test_broadcast_rows_are_run_again_too():
    class Field(Alerts):
        """Rules in a field, which the next epoch does not have."""

        def open(self, ctx):
            super().open(ctx)
            self.limits = {}

        def process_element(self, row, ctx):
            if row.n > self.limits.get(row.user, 1 << 60):
                yield ctx.key, row.n

        def process_broadcast_element(self, row, ctx):
            self.limits[row.user] = row.most

    class Dice(Alerts):
        def process_broadcast_element(self, row, ctx):
            ctx.get_broadcast_state(LIMITS).put(row.user, random.randrange(100))

    with alerts() as one:
        assert one.crash_and_replay(("a", 9), broadcast=[("a", 5)]) == [("a", 4)]
        assert one.broadcast_state("limits") == {"a": 5}
    with alerts(Field()) as one, pytest.raises(NotDeterministic, match="with a new instance"):
        one.crash_and_replay(("a", 9), broadcast=[("a", 5)])
    with alerts(Dice()) as one:
        with pytest.raises(NotDeterministic, match="broadcast state"):
            one.crash_and_replay(broadcast=[("a", 5)])
        assert one.broadcast_state("limits") == {}


def test_copies_that_differ_between_subtasks_are_told():
    class Draws(Alerts):
        def process_broadcast_element(self, row, ctx):
            ctx.get_broadcast_state(LIMITS).put(row.user, random.getrandbits(60))

    with alerts(Draws(), parallelism=2) as one:
        one.process(broadcast=[("a", 5)])
        with pytest.raises(
            UserError, match=r"different copies .* subtask=1 .*nothing but its rows"
        ):
            one.broadcast_state("limits")


def test_copies_with_a_value_that_equals_nothing_are_alike():
    shares = MapStateDescriptor("shares", "string", "double")

    class Shares(Alerts):
        def process_broadcast_element(self, row, ctx):
            ctx.get_broadcast_state(shares).put(row.user, float("nan"))

    with alerts(Shares(), parallelism=2, broadcast_states=[shares]) as one:
        one.process(broadcast=[("a", 5)])
        assert math.isnan(one.broadcast_state("shares")["a"])


class Plain(KeyedProcessFunction):
    def process(self, row, ctx):
        return ()


def test_what_is_no_broadcast_stream_of_the_function_is_refused():
    with pytest.raises(UserError, match="needs a broadcast stream"):
        alerts(broadcast="", broadcast_states=())
    with pytest.raises(UserError, match="MapStateDescriptor"):
        alerts(broadcast_states=())
    with pytest.raises(UserError, match="MapStateDescriptor"):
        alerts(broadcast_states=[ValueStateDescriptor("limits", "long")])
    with pytest.raises(UserError, match=r"a list of descriptors.*give \[descriptor\]"):
        alerts(broadcast_states=LIMITS)
    with pytest.raises(UserError, match=r"columns of an input.*uid=given.broadcast"):
        alerts(broadcast="")
    with pytest.raises(UserError, match="KeyedBroadcastProcessFunction"):
        alerts(Plain())
    with KeyedHarness(Plain(), STREAM, "user", "user string") as one:
        with pytest.raises(UserError, match="there is no broadcast stream"):
            one.process(broadcast=[("a", 5)])
        with pytest.raises(UserError, match=r"no such broadcast state: state='limits' known=\[\]"):
            one.broadcast_state("limits")
    with alerts() as one:
        with pytest.raises(UserError, match=r"input=given\.broadcast column=most"):
            one.process(broadcast=[("a", "b")])
        with pytest.raises(UserError, match="no such broadcast state"):
            one.broadcast_state(LIMITS)
