"""The epoch engine on one machine: jobs of several shapes against real state servers."""

import datetime
import itertools
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import pandas as pd
import pytest
from moorage_testing.engine import Collect, input_stream, rows_of
from tests.spark.engine_jobs import (
    BUCKETED,
    EVENTS,
    REMEMBERED,
    SUMS,
    Remember,
    Sum,
    ToBucket,
    chained,
    counts,
    some_events,
    summing,
    totals,
)

from moorage import FileSink

pytestmark = pytest.mark.spark


def by_key(texts):
    """`user n amount` of a bucket as, by user, the list of n in the order seen."""
    seen = defaultdict(list)
    for text in texts:
        user, n, _ = text.split()
        seen[user].append(int(n))
    return seen


# --- one operator ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism"), [(1, 1), (2, 16), (3, 7), (5, 5), (4, 32768)]
)
def test_counts_are_right_over_several_epochs(spark, start, parallelism, max_parallelism):
    engine = start(summing, parallelism=parallelism, max_parallelism=max_parallelism)
    so_far, sent = [], []
    for seed in range(3):
        events = some_events(seed)
        outcome = engine.epoch(spark.createDataFrame(events, EVENTS).repartition(3))
        so_far += events
        sent += rows_of(outcome, "out")
        assert outcome.rows_in({"sum"}) == len(events)
        assert engine.values("sum", "total") == totals(so_far)
        assert engine.values("sum", "n") == counts(so_far)
    assert engine.runner.epoch == 3
    assert sorted((user, n) for user, n, _ in sent) == sorted(
        (user, n + 1) for user, total in counts(so_far).items() for n in range(total)
    )


def test_a_key_whose_rows_fill_several_arrow_batches_is_one_key(spark, start):
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "3")
    try:
        engine = start(chained, parallelism=5)
        events = some_events(1, count=200, users=4)
        engine.epoch(spark.createDataFrame(events, EVENTS))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert engine.values("first", "n") == counts(events)
    seen = engine.lists("second", "seen")
    assert sum(map(len, seen.values())) == len(events)


def test_rows_of_a_key_keep_the_order_of_their_source_partition(spark, start):
    def build(env):
        stream = input_stream(env, "events", EVENTS)
        stream.key_by("user").process(Remember(["amount"]), uid="seen", output=REMEMBERED)

    engine = start(build, parallelism=3)
    events = [(f"u{i % 7}", i) for i in range(300)]
    engine.epoch(spark.createDataFrame(events, EVENTS).coalesce(1))
    engine.epoch(spark.createDataFrame(events, EVENTS).coalesce(1))
    for user, seen in engine.lists("seen", "seen").items():
        mine = [str(i) for u, i in events if u == user]
        assert seen == mine + mine


def test_subtasks_without_rows_take_part_and_an_empty_batch_is_an_epoch(spark, start):
    engine = start(chained, parallelism=4)
    rows = spark.createDataFrame([("only", 3)], EVENTS)
    batches = [rows, rows.where("1 = 0"), spark.createDataFrame([], rows.schema), rows]
    outcomes = [engine.epoch(batch) for batch in batches]
    outcomes.append(engine.epoch())
    for outcome in outcomes:
        assert sorted(outcome.acks) == sorted(itertools.product(["first", "second"], range(4)))
    assert [rows_of(outcome, "out") for outcome in outcomes] == [
        [("0", "only 1 3")], [], [], [("0", "only 2 3")], []
    ]  # fmt: skip
    assert engine.runner.epoch == 5
    assert engine.values("first", "n") == {"only": 2}


def shuffled(spark, run):
    """Bytes that the jobs of `run()` wrote for a shuffle."""
    context = spark.sparkContext
    group = f"shuffled-{uuid4().hex}"
    context.setJobGroup(group, "counted")
    try:
        run()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    jvm: Any = context._jsc.sc()
    jvm.listenerBus().waitUntilEmpty()
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = {stage for job in jobs for stage in job.stageIds}
    return sum(jvm.statusStore().lastStageAttempt(stage).shuffleWriteBytes() for stage in stages)


def test_what_acknowledgements_shuffle_grows_with_subtasks_and_not_with_their_pairs(spark, start):
    def build(env):
        stream = input_stream(env, "events", EVENTS)
        for uid in ("first", "second", "third"):
            stream = stream.key_by("user").process(ToBucket(), uid=uid, output=BUCKETED)

    def an_empty_epoch(subtasks):
        engine = start(build, parallelism=subtasks)
        found = shuffled(spark, engine.epoch)
        assert engine.runner.epoch == 1
        return found

    few, many = an_empty_epoch(4), an_empty_epoch(12)
    # Of each of three operators, starts included.
    assert 0 < few <= 500 * 4 * 3
    # Thrice the subtasks, thrice the bytes; with one for each pair it was nine times.
    assert many <= 3.5 * few


# --- several inputs -------------------------------------------------------------------------------


def test_inputs_of_other_schemas_reach_their_own_operators(spark, start):
    def build(env):
        events = input_stream(env, "events", EVENTS)
        visits = input_stream(env, "visits", "page string, who struct<name:string>, t timestamp")
        events.key_by("user").process(Sum(), uid="sum", output=SUMS)
        visits.key_by("page").process(
            Remember(["who", "t"]), uid="pages", output=REMEMBERED
        ).sink_to(Collect(), uid="out")

    engine = start(build)
    events = some_events(5)
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, 678900, datetime.UTC)
    visit = spark.createDataFrame(
        [("home", ("ann",), when), ("home", None, None)],
        "page string, who struct<name:string>, t timestamp",
    ).coalesce(1)
    engine.epoch(spark.createDataFrame(events, EVENTS), visit)
    engine.epoch(spark.createDataFrame(events, EVENTS), visit.limit(0))
    assert engine.values("sum", "total") == totals(events + events)
    seen = engine.lists("pages", "seen")
    assert list(seen) == ["home"]
    assert seen["home"][0].startswith("{'name': 'ann'} 2026-01-02 03:04:05.678900")
    assert seen["home"][1] == "None None"


def test_a_union_is_one_stream_and_an_input_may_also_be_read_alone(spark, start):
    def build(env):
        left = input_stream(env, "left", EVENTS)
        right = input_stream(env, "right", EVENTS)
        both = left.union(right.transform(lambda df: df.selectExpr("user", "-amount AS amount")))
        both.key_by("user").process(Sum(), uid="both", output=SUMS)
        left.key_by("user").process(Sum(), uid="alone", output=SUMS)
        left.union(left).key_by("user").process(Sum(), uid="twice", output=SUMS)

    engine = start(build, parallelism=3)
    left, right = some_events(1), some_events(2)
    engine.epoch(spark.createDataFrame(left, EVENTS), spark.createDataFrame(right, EVENTS))
    taken = [(user, -amount) for user, amount in right]
    assert engine.values("both", "total") == totals(left + taken)
    assert engine.values("both", "n") == counts(left + right)
    assert engine.values("alone", "total") == totals(left)
    assert engine.values("twice", "total") == totals(left + left)


# --- operators after operators --------------------------------------------------------------------


def test_a_second_operator_gets_all_that_the_first_one_sent_in_its_order(spark, start):
    engine = start(chained, parallelism=3)
    so_far = []
    for seed in range(3):
        events = some_events(seed)
        so_far += events
        outcome = engine.epoch(spark.createDataFrame(events, EVENTS).coalesce(1))
        assert len(rows_of(outcome, "out")) == len(events)
    seen = engine.lists("second", "seen")
    amounts: Counter[str] = Counter()
    for bucket, texts in seen.items():
        for user, numbers in by_key(texts).items():
            assert numbers == sorted(numbers), f"order of {user} in {bucket}"
        for text in texts:
            user, _, amount = text.split()
            assert int(amount) % 3 == bucket
            amounts[user] += int(amount)
    assert amounts == Counter(totals(so_far))
    assert engine.values("first", "n") == counts(so_far)


def test_an_output_is_read_by_two_operators_and_a_sink_and_a_third_reads_one_of_them(spark, start):
    def build(env):
        stream = input_stream(env, "events", EVENTS)
        first = stream.key_by("user").process(ToBucket(), uid="first", output=BUCKETED)
        first.sink_to(Collect(), uid="from-first")
        again = first.key_by("user").process(Sum(), uid="again", output=SUMS)
        first.key_by("bucket", "user").process(
            Remember(["n"]), uid="pairs", output=REMEMBERED
        ).sink_to(Collect(), uid="from-pairs")
        again.key_by("n").process(Sum(), uid="third", output="n long, k long, amount long")

    engine = start(build, parallelism=3)
    so_far = []
    for seed in range(2):
        events = some_events(seed)
        so_far += events
        outcome = engine.epoch(spark.createDataFrame(events, EVENTS))
        assert len(outcome.acks) == 4 * 3
        assert len(rows_of(outcome, "from-first")) == len(events)
        assert len(rows_of(outcome, "from-pairs")) == len(events)
    assert engine.values("again", "total") == totals(so_far)
    pairs = Counter((amount % 3, user) for user, amount in so_far)
    assert {k: len(v) for k, v in engine.lists("pairs", "seen").items()} == pairs
    per_count = Counter(n + 1 for total in counts(so_far).values() for n in range(total))
    assert engine.values("third", "n") == per_count
    assert not spark.sparkContext._jsc.getPersistentRDDs()


# --- sinks ----------------------------------------------------------------------------------------


def test_a_file_sink_publishes_what_was_acknowledged_from_operators_and_inputs(
    spark, start, tmp_path
):
    sums, raw = FileSink(tmp_path / "sums"), FileSink(tmp_path / "raw")

    def build(env):
        stream = input_stream(env, "events", "user string, amount long, t timestamp")
        stream.sink_to(raw, uid="raw")
        stream.key_by("user").process(Sum(), uid="sum", output=SUMS).sink_to(sums, uid="sums")

    engine = start(build, parallelism=3)
    when = datetime.datetime(2026, 7, 1, tzinfo=datetime.UTC)
    events = some_events(3)
    frame = spark.createDataFrame(
        [(*event, when) for event in events], "user string, amount long, t timestamp"
    )
    staged = engine.epoch(frame).committables()
    engine.epoch()
    assert not list(tmp_path.glob("*/*.parquet"))
    assert raw.publish("lineage", 1, staged["raw"]) == len(events)
    assert sums.publish("lineage", 1, staged["sums"]) == len(events)

    published = pd.read_parquet([str(f) for f in Path(raw.path).glob("*.parquet")])
    assert sorted(zip(published.user, published.amount, strict=True)) == sorted(events)
    assert set(published.t) == {pd.Timestamp(when)}
    published = pd.read_parquet([str(f) for f in Path(sums.path).glob("*.parquet")])
    assert sorted(zip(published.user, published.amount, strict=True)) == sorted(events)
    assert published.groupby("user").n.max().to_dict() == counts(events)
