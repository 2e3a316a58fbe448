"""Ready-made operators: what comes out is what a few lines of Python make of all rows."""

from collections import defaultdict
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from moorage.api.aggregates import avg, bound, count, max_, min_, sum_
from moorage.api.ready_made import FirstRows, Running, TopRows
from moorage.api.windows import Count
from moorage.engine.task_failures import SubtaskFailure
from moorage.testing import KeyedHarness
from moorage_state.keyed import TimeDomain

STREAM = StructType([StructField("user", StringType()), StructField("n", LongType())])
ROW = pa.schema([("user", pa.string()), ("n", pa.int64())])


def epochs(rng, count=5, keys="abcd"):
    for _ in range(count):
        size = rng.randint(0, 25)
        rows = [(rng.choice(keys), rng.choice([None, *range(-5, 6)])) for _ in range(size)]
        yield sorted(rows, key=lambda row: sum(row[0].encode()) % 128)


def cut(batch, rows, rng):
    step = rng.randint(1, 9)
    return [batch(*rows[at : at + step]) for at in range(0, len(rows), step)]


def test_running_aggregates_are_those_of_all_rows_up_to_each(new_operator, batch):
    named = {"n": count(), "some": count("n"), "total": sum_("n"), "least": min_("n")}
    named |= {"most": max_("n"), "mean": avg("n")}
    kinds = [pa.int64()] * 5 + [pa.float64()]
    output = pa.schema([("user", pa.string()), *zip(named, kinds, strict=True)])
    for seed in range(5):
        rng, operator = Random(seed), new_operator()
        seen: dict[str, list[Any]] = defaultdict(list)
        for rows in epochs(rng):
            expected = []
            for user, n in rows:
                seen[user].append(n)
                some = [value for value in seen[user] if value is not None]
                expected.append(
                    (user, len(seen[user]), len(some))
                    + (
                        (sum(some), min(some), max(some), sum(some) / len(some))
                        if some
                        else (None,) * 4
                    )
                )
            make = Running(bound("r", named, STREAM), ("user",))
            done = operator.epoch(make, cut(batch, rows, rng), output=output)
            assert sorted(done.rows, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    "how",
    [
        lambda s: s.sum("größe", uid="w"),
        lambda s: s.aggregate(uid="w", größe=sum_("größe")),
        lambda s: s.window(Count(1)).aggregate(uid="w", größe=sum_("größe")),
    ],
)
def test_names_may_have_letters_beyond_ascii(how):
    with KeyedHarness(how, "user string, `größe` long", "user") as harness:
        assert harness.process(("a", 1)) == [("a", 1)]


def test_kept_values_have_their_plain_names_without_quotes():
    """They are in the types of stored states."""
    kept = bound("w", {"größe": sum_("n"), "mean": avg("n")}, STREAM)
    assert kept.ddl == "struct<`größe`:bigint,mean_sum:double,mean_count:bigint>"


GREAT = 5 * 10**18


def sums(operator, batch, *rows):
    make = Running(bound("r", {"total": sum_("n"), "most": max_("n")}, STREAM), ("user",))
    output = pa.schema([*ROW, ("most", pa.int64())])
    output = output.set(1, pa.field("total", pa.int64()))
    return operator.epoch(make, [batch(*rows)], output=output).rows


def test_a_running_sum_that_fits_is_made_whatever_its_rows_are_without_those_before(
    operator, batch
):
    rows = [("a", -GREAT), ("a", GREAT), ("a", GREAT), ("a", None), ("b", None), ("b", 7)]
    totals = [-GREAT, 0, GREAT, GREAT, None, 7]
    assert [row[1] for row in sums(operator, batch, *rows)] == totals
    found = sums(operator, batch, ("a", -GREAT), ("a", -GREAT), ("a", 1))
    assert [row[1] for row in found] == [0, -GREAT, 1 - GREAT]


def test_a_running_sum_that_does_not_fit_after_some_row_is_refused(operator, batch):
    with pytest.raises(SubtaskFailure, match="does not fit 64 bits: column=n"):
        sums(operator, batch, ("a", GREAT), ("a", GREAT), ("a", -GREAT), ("a", 0))


def test_of_equal_rows_the_first_one_comes_once_in_its_time_to_live(operator, batch):
    def epoch(now_ms, *rows, ttl_ms=10_000):
        done = operator.epoch(FirstRows(ttl_ms), [batch(*rows)] if rows else [], now_ms=now_ms)
        return done.rows

    assert epoch(1_000, ("a", 1), ("a", 2), ("b", 3)) == [("a", 1), ("b", 3)]
    assert epoch(10_999, ("a", 4)) == []
    # Exactly so long after the first one, whenever state is cleaned up.
    assert epoch(11_000, ("a", 5), ("a", 6)) == [("a", 5)]
    assert epoch(20_900, ("a", 7), ("b", 8)) == [("b", 8)]
    assert operator.epoch(FirstRows(10_000), now_ms=99_000).ack.timers_fired > 0
    done = operator.epoch(FirstRows(10_000), now_ms=99_000)
    assert done.ack.timers_fired == 0
    assert epoch(99_001, ("a", 9)) == [("a", 9)]


def test_rows_are_forgotten_in_a_time_to_live_that_is_longer_than_before():
    def first(ttl):
        return lambda stream: stream.deduplicate(uid="d", ttl=ttl)

    with KeyedHarness(first("10s"), "user string, n long", "user") as harness:
        harness.process(("a", 1))
        snapshot = harness.snapshot()
    with KeyedHarness(first("50s"), "user string, n long", "user", restore=snapshot) as harness:
        harness.set_processing_time(20_000)
        assert harness.process(("a", 2)) == []
        assert harness.timers("a", TimeDomain.PROCESSING_TIME) == [50_000]
        harness.set_processing_time(60_000)
        assert (harness.keys(), harness.num_timers(TimeDomain.PROCESSING_TIME)) == ([], 0)


def test_without_a_time_to_live_a_row_is_never_forgotten(operator, batch):
    done = operator.epoch(FirstRows(None), [batch(("a", 1), ("a", 2))])
    assert (done.rows, done.ack.next_timer) == ([("a", 1)], (1 << 63) - 1)
    assert operator.epoch(FirstRows(None), [batch(("a", 1))], now_ms=1 << 50).rows == []


@pytest.mark.parametrize("ascending", [False, True])
def test_the_best_rows_of_a_key_come_when_they_change(ascending, new_operator, batch):
    output = pa.schema([*ROW, ("rank", pa.int32())])
    for seed in range(5):
        rng, operator = Random(seed), new_operator()
        seen: dict[str, list[int]] = defaultdict(list)
        shown: dict[tuple[str, int], int] = {}
        for rows in epochs(rng):
            for user, n in rows:
                seen[user] += [n] if n is not None else []
            function = TopRows(3, "n", STREAM.simpleString(), ascending)
            done = operator.epoch(function, cut(batch, rows, rng), output=output)
            shown |= {(user, rank): n for user, n, rank in done.rows}
            assert shown == {
                (user, rank): n
                for user, numbers in seen.items()
                for rank, n in enumerate(sorted(numbers, reverse=not ascending)[:3], 1)
            }


def test_nulls_and_no_numbers_are_not_among_the_best(operator, batch):
    stream = pa.schema([("user", pa.string()), ("n", pa.float64())])
    row = StructType([StructField("user", StringType()), StructField("n", DoubleType())])
    rows = [("a", 1.5), ("a", float("nan")), ("a", None), ("a", 2.5)]
    done = operator.epoch(
        TopRows(9, "n", row.simpleString(), False),
        [batch(*rows, stream=stream)],
        output=pa.schema([*stream, ("rank", pa.int32())]),
    )
    assert done.rows == [("a", 2.5, 1), ("a", 1.5, 2)]


def test_a_batch_of_rows_none_of_which_counts_leaves_the_best_as_they_are(operator, batch):
    output = pa.schema([*ROW, ("rank", pa.int32())])
    make = lambda: TopRows(2, "n", STREAM.simpleString(), False)  # noqa: E731
    assert operator.epoch(make(), [batch(("a", None), ("b", None))], output=output).rows == []
    operator.epoch(make(), [batch(("a", 5), ("b", 1))], output=output)
    assert operator.epoch(make(), [batch(("a", None), ("c", None))], output=output).rows == []
    assert operator.epoch(make(), [batch(("a", 3))], output=output).rows == [
        ("a", 5, 1),
        ("a", 3, 2),
    ]


def test_rows_that_change_nothing_among_the_best_are_not_told(operator, batch):
    output = pa.schema([*ROW, ("rank", pa.int32())])
    make = lambda: TopRows(1, "n", STREAM.simpleString(), False)  # noqa: E731
    assert operator.epoch(make(), [batch(("a", 5), ("b", 1))], output=output).rows == [
        ("a", 5, 1),
        ("b", 1, 1),
    ]
    assert operator.epoch(make(), [batch(("a", 5), ("b", 2))], output=output).rows == [("b", 2, 1)]


def test_timers_of_processing_time_wait_for_the_next_epoch_if_timers_set_them(operator, batch):
    calls = []

    class Alarm(FirstRows):
        def on_timers(self, keys, timers, ctx):
            calls.append((keys.to_pylist(), timers.times.tolist()))
            at = [ctx.current_processing_time()] * len(timers.times)
            ctx.register_timers(timers.key_index, at, TimeDomain.PROCESSING_TIME)

    operator.epoch(Alarm(100), [batch(("a", 1), ("b", 1))], now_ms=0)
    for now in (100, 200, 300):
        operator.epoch(Alarm(100), now_ms=now)
    assert calls == [(["a", "b"], [at, at]) for at in (100, 100, 200)]
