"""Two keyed streams in one operator, without Spark: held against plain Python."""

import random
from typing import Any

import pytest
from moorage_testing.two_inputs import (
    ODD,
    ORDERS,
    SEEN,
    Tell,
    both,
    order,
    pairs_of_outputs,
    ship,
    through_failures,
    told,
    watermarks,
)

from moorage import (
    MAX_WATERMARK,
    NO_WATERMARK,
    CoGroupFunction,
    FileSink,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    Tumbling,
)
from moorage.driver.stream_run import counting_consumers
from moorage.testing import run_job
from moorage.testing.environment import TestEnvironment
from moorage.testing.in_process import InProcessJob
from moorage.testing.shuffle import Shuffle
from moorage_state.errors import UserError


def test_rows_of_a_key_come_in_one_order_and_share_state_and_timers():
    epochs: list[Any] = [
        {"orders": [order("a", 30), order("a", 10), order("b", 5)], "ships": [ship("a", 20)]},
        {"ships": [ship("a", 10_000), ship("b", 7)]},
        {"orders": [order("a", 10_040)]},
    ]
    found = run_job(told, epochs, parallelism=3)
    rows = [(r.side, r.at, r.n) for r in found["out"] if r.key == "a"]
    assert rows == [
        (1, 10, 1), (2, 20, 2), (1, 30, 3), (2, 10_000, 4), (1, 10_040, 5), (0, 30, 6),
        (0, 10_010, 7),
    ]  # fmt: skip
    assert [(r.side, r.n) for r in found["out"] if r.key == "b"] == [(1, 1), (2, 2), (0, 3)]
    assert sorted(found["odd"]) == [("a", 1), ("a", 3), ("a", 5), ("b", 1)]


def test_outputs_of_operators_are_connected_with_inputs_and_with_each_other():
    chance = random.Random(7)
    keys = "abcde"
    rows = [(chance.choice(keys), chance.randrange(1_000)) for _ in range(60)]
    orders = [
        order(key, at) if i % 2 else (key, 5, 1.0, at) for i, (key, at) in enumerate(rows[:30])
    ]
    orders = [(key, i % 3, amount, at) for i, (key, _, amount, at) in enumerate(orders)]
    ships = [ship(key, at) for key, at in rows[30:]]
    epochs: list[Any] = [
        {"orders": orders[:10], "ships": ships[:25]},
        {"orders": orders[10:11]},
        {"orders": orders[11:], "ships": ships[25:]},
    ]
    found = run_job(pairs_of_outputs, epochs, parallelism=3)
    ours = [(row[0], row[3]) for row in orders]
    theirs = [(row[0], row[1]) for row in ships]
    join = lambda one, two: sorted((k, a, b) for k, a in one for j, b in two if j == k)  # noqa: E731
    assert sorted(found["mixed-out"]) == join(theirs, ours)
    assert sorted(found["plain-out"]) == join(ours, theirs)
    assert sorted(found["sides-out"]) == sorted(found["twice-out"]) == join(ours, ours)


def test_each_acknowledgement_takes_one_way():
    seen: list[list[bytes]] = []
    acks = Shuffle.acks

    def counted(self):
        seen.append(acks(self))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shuffle, "acks", counted)
        run_job(pairs_of_outputs, {"orders": [order("a", 1)]}, parallelism=3)
    assert [len(raws) for raws in seen] == [5 * 3] * 2


def test_what_cannot_be_connected_is_refused_with_what_to_do():
    tag = OutputTag("t")
    given: dict[str, Any] = {"uid": "u", "output": SEEN}
    cases: list[tuple[str, Any]] = [
        (
            r"same types; cast one .*first={'id': 'string'} second={'n': 'bigint'}",
            lambda one, two: one.key_by("id").connect(two.key_by("n")),
        ),
        (
            r"no broadcast state; .*descriptors=\['m'\]",
            lambda one, two: one.key_by("id").connect(
                two.key_by("id"), MapStateDescriptor("m", "string", "long")
            ),
        ),
        (
            "take an instance of a KeyedCoProcessFunction: uid=u got=Plain",
            lambda one, two: one.key_by("id").connect(two.key_by("id")).process(Plain(), **given),
        ),
        (
            r"needs two keyed streams: uid=u; call connect\(other.key_by",
            lambda one, _: one.key_by("id").process(Tell(), **given),
        ),
        (
            "say 'fail' or 'drop', .*uid=u null_key=OutputTag",
            lambda one, two: (
                one.key_by("id")
                .connect(two.key_by("id"))
                .process(Tell(), **given, null_key=tag)
            ),
        ),
        (
            "names its columns: uid=u tag=t; write OutputTag",
            lambda one, two: (
                one.key_by("id")
                .connect(two.key_by("id"))
                .process(Tell(), **given, side_outputs=[tag])
            ),
        ),
    ]  # fmt: skip
    for words, make in cases:

        def build(env, make=make):
            one = env.read_stream("one", "json", schema="id string, n long, at long")
            two = env.read_stream("two", "json", schema="n long, id string, name string")
            make(one, two)

        with pytest.raises(UserError, match=words):
            run_job(build, {})


class Plain(KeyedProcessFunction):
    """For one stream."""

    def process(self, row, ctx):
        """Gives nothing."""


def test_rows_without_a_key_or_a_time_are_counted_over_both_streams():
    rows: list[Any] = [
        {"orders": [(None, 1, 1.0, 5), ("a", 1, 1.0, None)], "ships": [ship("a", 1)]}
    ]
    with pytest.raises(
        UserError,
        match=r"input=orders key=\['id'\] rows=1; .* null_key='drop' .* uid='tell'$",
    ):
        run_job(told, rows)
    words = "operator=tell input=ships column=at key='a' rows=1;"
    with pytest.raises(UserError, match=words):
        run_job(told, {"ships": [("a", None, "p")]})
    nulls = "rows_of_nulls=1"
    with pytest.raises(UserError, match=nulls):
        run_job(told, {"ships": [(None, None, None)]})


def test_several_inputs_of_one_side_and_columns_that_time_counts_by():
    def build(env):
        orders, ships = both(env)
        more = env.read_stream("more", "json", schema=ORDERS).with_event_time("at")
        by_place = ships.with_event_time("at", per="place")
        made = orders.union(more).key_by("id").connect(by_place.key_by("order"))
        made.process(Tell(), uid="tell", output=SEEN, side_outputs=[ODD]).sink_to(
            FileSink("out"), uid="out"
        )

    epochs: list[Any] = [
        {
            "orders": [order("a", 9_000)],
            "more": [order("a", 7_000)],
            "ships": [ship("a", 50), ship("a", 60)],
        },
        {"orders": [order("a", 9_500)]},
    ]
    found = run_job(build, epochs)
    rows = [(r.side, r.at, r.n, max(r.watermark, -1)) for r in found["out"]]
    assert rows == [
        (2, 50, 1, -1), (2, 60, 2, -1), (1, 7_000, 3, -1), (1, 9_000, 4, -1), (1, 9_500, 5, 49),
        (0, 60, 6, MAX_WATERMARK), (0, 70, 7, MAX_WATERMARK),
    ]  # fmt: skip


class Delayed(KeyedProcessFunction):
    """Sends each row five milliseconds after its time, by a timer."""

    def open(self, ctx):
        self.rows = ctx.get_map_state(MapStateDescriptor("rows", "long", "array<long>"))

    def process(self, row, ctx):
        self.rows.put(row.at + 5, [*self.rows.get(row.at + 5, ()), row.n])
        ctx.timer_service().register_event_time_timer(row.at + 5)

    def on_timer(self, timestamp, ctx):
        yield from ((ctx.key, n, timestamp) for n in self.rows.get(timestamp, ()))
        self.rows.remove(timestamp)


LATE = OutputTag("late")
ROWS = "key string, n long, at long"


def delayed_pairs(env):
    one = env.read_stream("one", "json", schema=ROWS).with_event_time("at", "30ms").key_by("key")
    two = env.read_stream("two", "json", schema=ROWS).with_event_time("at", "3ms").key_by("key")
    sent = one.process(Delayed(), uid="d", output=ROWS).with_event_time("at").key_by("key")
    join = sent.interval_join(two).between("-20ms", "20ms", late_right=LATE)
    found = join.select(uid="j", one="left.n", two="right.n")
    found.sink_to(FileSink("out"), uid="out")
    found.get_side_output(LATE).sink_to(FileSink("late"), uid="late")


def test_what_timers_of_an_operator_send_is_on_time_beside_an_input():
    chance = random.Random(11)

    def rows(epoch, back):
        return [
            (chance.choice("ab"), 10 * epoch + i, max(0, 9 * epoch + chance.randint(-back, 10)))
            for i in range(chance.randrange(5))
        ]

    epochs: list[Any] = [{"one": rows(i, 15), "two": rows(i, 90)} for i in range(16)]
    # Beside an operator, rows of an input find the watermark of the epoch before.
    found_by = [NO_WATERMARK, *watermarks(epochs, {"one": 30, "two": 3})]
    on_time: list[Any] = []
    late: list[Any] = []
    for given, mark in zip(epochs, found_by, strict=False):
        for row in given["two"]:
            (on_time if row[2] > mark else late).append(row)
    found = through_failures(delayed_pairs, epochs, chance)
    assert sorted(found["out"]) == sorted(
        (n, m)
        for given in epochs
        for key, n, at in given["one"]
        for other, m, then in on_time
        if key == other and -20 <= then - at - 5 <= 20
    )
    assert sorted(found["late"]) == sorted(late)
    assert late
    assert len(found["out"]) > 20


def test_a_stream_is_joined_with_itself():
    def build(env):
        _, ships = both(env)
        keyed = ships.key_by("order")
        pairs = keyed.interval_join(keyed).between("1ms", "10ms")
        pairs.select(uid="j", a="left.at", b="right.at").sink_to(FileSink("out"), uid="out")

    epochs: list[Any] = [
        {"ships": [ship("a", at) for at in some]} for some in ([1, 5, 9], [12, 25, 30])
    ]
    rows = [1, 5, 9, 12, 25, 30]
    found = run_job(build, epochs)
    assert sorted(found["out"]) == [(a, b) for a in rows for b in rows if 1 <= b - a <= 10]


def test_rows_that_other_operators_sent_are_not_counted_as_rows_of_inputs():
    env = TestEnvironment()
    pairs_of_outputs(env)
    env.graph.sinks.clear()
    given: dict[str, Any] = {"orders": [order("a", 1), order("b", 2)], "ships": [ship("a", 3)] * 5}
    with InProcessJob(env.graph, clock=lambda: 0) as job:
        outcome = job.epoch(given)
    assert {uid: ack.rows_in for (uid, _), ack in outcome.acks.items()} == {
        "sum": 2, "mixed": 5, "sides": 4, "twice": 4, "plain": 5,
    }  # fmt: skip
    assert counting_consumers(env.graph) == {"sum", "mixed"}


class _Sizes(CoGroupFunction):
    def co_group(self, lefts, rights, ctx):  # noqa: ARG002
        yield len(lefts), len(rights)


@pytest.mark.parametrize(
    "joined",
    [
        lambda one, two: one.connect(two).process(Tell(), uid="x", output=SEEN, side_outputs=[ODD]),
        lambda one, two: one.interval_join(two).between("0s", "1m").select(uid="x", a="left.at"),
        lambda one, two: one.join(two).window(Tumbling("1m")).select(uid="x", a="left.at"),
        lambda one, two: (
            one.co_group(two)
            .window(Tumbling("1m"))
            .apply(_Sizes(), uid="x", output="a long, b long")
        ),
        lambda one, two: one.temporal_join(two).select(uid="x", a="left.at"),
    ],
)
@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ({"ships": [(None, 5, "p5")]}, "input=ships key=['order'] rows=1;"),
        (
            {"orders": [(None, 1, 1.0, 5)] * 2, "ships": [ship("a", 5), (None, 5, "p5")]},
            "rows=1",
        ),
    ],
)
def test_a_null_key_of_a_join_is_told_with_its_input_and_the_key_of_that(joined, rows, named):
    def build(env):
        orders, ships = both(env)
        joined(orders.key_by("id"), ships.key_by("order")).sink_to(FileSink("x"), uid="out")

    with pytest.raises(UserError) as refused:
        run_job(build, rows)
    words = str(refused.value)
    assert named in words
    assert ("input=orders key=['id'] rows=2" in words) == ("orders" in rows)
    assert "filter them out before key_by, or say null_key='drop' in the call with uid='x'" in words


def test_a_null_key_that_an_operator_sent_is_told_with_that_operator():
    class Nulls(KeyedProcessFunction):
        def process(self, row, ctx):  # noqa: ARG002
            yield (None,)
            yield ODD, (None, 1)

    def build(env):
        orders, _ = both(env)
        sent = orders.key_by("id").process(
            Nulls(), uid="nulls", output="id string", side_outputs=[ODD]
        )
        one, two = sent.key_by("id"), sent.get_side_output(ODD).key_by("key")
        one.connect(two).process(Tell(), uid="x", output=SEEN, side_outputs=[ODD])

    with (
        InProcessJob(_graph(build), clock=lambda: 0) as job,
        pytest.raises(UserError) as refused,
    ):
        job.epoch({"orders": [order("a", 5)]})
    told_of = "from=nulls key=['id'] rows=1, from=nulls side_output=odd key=['key'] rows=1"
    assert told_of in str(refused.value)


class _Same(KeyedBroadcastProcessFunction):
    def process_element(self, row, ctx):
        yield ctx.key, row.at

    def process_broadcast_element(self, row, ctx):
        pass


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("null_key", ["fail", "drop"])
def test_a_null_key_beside_broadcast_streams_is_that_of_its_own_input(null_key, behind):
    """Their rows tell by which of them they came, and those of a single stream have no number."""

    def build(env):
        orders = env.read_stream("orders", "json", schema="id string, at long", path="orders")
        if behind:
            same = {"uid": "first", "output": "id string, at long"}
            orders = orders.key_by("at").process(_AsItIs(), **same)
        one, two = (
            env.read_stream(name, "json", schema="at long", path=name) for name in ("one", "two")
        )
        rules = one.union(two).broadcast(MapStateDescriptor("rules", "string", "long"))
        keyed = orders.key_by("id").connect(rules)
        keyed.process(_Same(), uid="x", output="id string, at long", null_key=null_key).sink_to(
            FileSink("out"), uid="out"
        )

    rows: dict[str, list[Any]] = {
        "orders": [("a", 1), (None, 2)],
        "one": [(5,)],
        "two": [(6,)],
    }
    if null_key == "drop":
        assert run_job(build, rows)["out"] == [("a", 1)]
        return
    told = r"from=first key=\['id'\] rows=1" if behind else r"input=orders key=\['id'\] rows=1"
    with pytest.raises(UserError, match=told):
        run_job(build, rows)


class _AsItIs(KeyedProcessFunction):
    def process(self, row, ctx):  # noqa: ARG002
        yield row.id, row.at


def _graph(build):
    env = TestEnvironment()
    build(env)
    return env.graph
