"""The epoch engine where Spark retries and doubles tasks: one local cluster of several hosts."""

import time
from collections import Counter
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from moorage_testing.engine import Engine, rows_of
from tests.spark.executors.cluster_jobs import (
    ROWS,
    Dice,
    Journal,
    Sum,
    attempts,
    by_bucket,
    chain,
    equal,
    events,
    one_operator,
    warnings_of_the_runner,
)
from tests.spark.placed_tasks import Placing

from moorage import FileSink
from moorage.engine.placement import ExecutorWatch
from moorage_state.server.group import ServerGroup

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

HOSTS = ["127.0.0.2", "127.0.0.3"]


class FailsOnceItHasPrepared(Sum):
    """The first attempt of each subtask in each epoch fails when its work is done."""

    def misbehave(self, when, *, epoch, uid, subtask, **_):
        if when == "prepared" and self.journal.first(f"failed-{epoch}-{uid}-{subtask}"):
            raise ConnectionResetError("after the acknowledgement")


class SlowTwin(Sum):
    """In epoch 2 the first attempt of subtask 1 stops at `point` until the scenario lets it go."""

    def __init__(self, journal, point):
        super().__init__(journal)
        self.point = point

    def misbehave(self, when, *, epoch, subtask, **_):
        if when == self.point and (epoch, subtask) == (2, 1) and self.journal.first("slow"):
            self.journal.wait(lambda journal: journal.notes("go"))
            self.journal.note("went", point=self.point)


class SlowDice(SlowTwin, Dice):
    """A slow twin that, in addition, is not deterministic."""


def twins_scenario(spark):
    conf = spark.sparkContext._jsc.sc().conf()
    with ServerGroup(2, Path.cwd() / "state") as group:
        engine = partial(Engine, spark, group, parallelism=3, placement=add_hosts_and_place(spark))
        conf.set("spark.speculation", "false")
        answer = {"retried": fail_after_prepare(spark, engine)}
        conf.set("spark.speculation", "true")
        answer["late"] = slow_twin(spark, engine, SlowTwin, "first row", fence=2)
        answer["dice"] = slow_twin(spark, engine, SlowDice, "prepared", fence=3)
        answer["taken over"] = zombie_of_an_older_run(spark, engine, fence=4)
    return answer


def add_hosts_and_place(spark):
    """Workers under other addresses of this machine: Spark starts no twin on the same host."""
    context = spark.sparkContext
    jvm, backend = context._jvm, context._jsc.sc().schedulerBackend()
    field = backend.getClass().getDeclaredField("masters")
    field.setAccessible(True)
    masters = field.get(backend)
    for number, host in enumerate(HOSTS, 50):
        jvm.org.apache.spark.deploy.worker.Worker.startRpcEnvAndEndpoint(
            host,
            0,
            0,
            1,
            1024,
            masters,
            str(Path.cwd() / f"work-{number}"),
            jvm.scala.Option.apply(number),
            context._jsc.sc().conf(),
            jvm.scala.Option.empty(),
        )
    deadline = time.monotonic() + 60
    watch = ExecutorWatch(context)
    while len({e.host for e in watch.live()}) < 1 + len(HOSTS):
        assert time.monotonic() < deadline, watch.live()
        time.sleep(0.05)
    return Placing(context)


def fail_after_prepare(spark, engine):
    journal = Journal.make("retried")
    sink = FileSink(Path.cwd() / "retried")
    function = FailsOnceItHasPrepared(journal)
    job = engine(chain(function, function, sink), fence=1)
    wanted: Counter[int] = Counter()
    staged: list[dict] = []
    with warnings_of_the_runner() as warned:
        for epoch in (1, 2, 3):
            frame, sums = events(spark, epoch)
            wanted += sums
            staged += job.epoch(frame).committables()["out"]
    sink.publish("lineage", 1, staged)
    files = sorted(str(f) for f in Path(sink.path).glob("*.parquet"))
    published = pd.concat(pd.read_parquet(f) for f in files)
    return {
        "warned": warned,
        "attempts": [
            attempts(journal, epoch=epoch, uid=uid)
            for epoch in (1, 2, 3)
            for uid in ("first", "second")
        ],
        "first": equal(job.values("first", "total"), wanted),
        "second": equal(job.values("second", "total"), by_bucket(wanted)),
        "published": equal(published.groupby("user").amount.sum().to_dict(), wanted),
    }


def slow_twin(spark, engine, function, point, fence):
    """A twin overtakes the first attempt, which is let go when the epoch has committed."""
    journal = Journal.make(f"twin-{fence}")
    job = engine(one_operator(function(journal, point)), fence=fence)
    frames = [events(spark, epoch)[0] for epoch in (1, 2, 3)]
    sent = rows_of(job.epoch(frames[0]), "out")
    with warnings_of_the_runner() as warned:
        sent += rows_of(job.epoch(frames[1]), "out")
    committed = job.values("first", "total")
    went_early = journal.notes("went")
    journal.note("go")
    journal.wait(lambda j: len(j.notes("close", epoch=2, subtask=1)) == 2)
    untouched = equal(job.values("first", "total"), committed)
    sent += rows_of(job.epoch(frames[2]), "out")
    sums: Counter[int] = Counter()
    for _, user, amount in sent:
        sums[user] += amount
    ran = journal.notes("open", epoch=2, subtask=1)
    return {
        "warned": warned,
        "executors": len({n["executor"] for n in ran}),
        "attempts": attempts(journal, epoch=2, subtask=1),
        "went_early": went_early,
        "untouched": untouched,
        "rows": len(sent),
        "state": equal(job.values("first", "total"), sums),
        "oracle": equal(sums, sum((events(spark, e)[1] for e in (1, 2, 3)), Counter())),
    }


def zombie_of_an_older_run(spark, engine, fence):
    """The first attempt is let go when another run, begun again from nothing, has the ranges."""
    journal = Journal.make(f"zombie-{fence}")
    job = engine(one_operator(SlowTwin(journal, "first row")), fence=fence)
    for epoch in (1, 2):
        job.epoch(events(spark, epoch)[0])
    next_job = engine(one_operator(Sum(Journal.make(f"next-{fence}"))), fence=fence + 1)
    journal.note("go")
    journal.wait(lambda j: len(j.notes("close", epoch=2, subtask=1)) == 2)
    frame, sums = events(spark, 9)
    next_job.epoch(frame)
    return {
        "attempts": attempts(journal, epoch=2, subtask=1),
        "state": equal(next_job.values("first", "total"), sums),
    }


# --- the tests ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twins(local_cluster):
    return local_cluster(
        twins_scenario,
        executors=1,
        conf={
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.minTaskRuntime": "200ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.3",
            # The first attempt lives on when Spark has given it up.
            "spark.python.task.killTimeout": "300s",
        },
        timeout=350,
    )


def test_a_task_that_fails_after_it_has_prepared_is_run_again_and_counted_once(twins):
    answer = twins["retried"]
    for operator in answer["attempts"]:
        assert operator["began"] == [2, 2, 2]
        assert operator["ended"] == ["", "", ""]
    assert answer["warned"] == []
    assert answer["first"] is None
    assert answer["second"] is None


def test_a_sink_publishes_the_rows_of_the_attempt_that_succeeded_only(twins):
    assert twins["retried"]["published"] is None


@pytest.mark.parametrize(("case", "error"), [("late", "VersionMismatch"), ("dice", "")])
def test_of_a_speculative_twin_and_the_attempt_it_overtakes_one_is_committed(twins, case, error):
    answer = twins[case]
    assert answer["attempts"] == {"began": [2], "ended": ["", error]}
    assert answer["executors"] == 2
    assert answer["went_early"] == []
    assert answer["rows"] == 3 * ROWS
    assert answer["state"] is None
    assert answer["warned"] == []


def test_an_attempt_that_ends_after_its_epoch_was_committed_changes_nothing(twins):
    assert twins["late"]["untouched"] is None
    assert twins["late"]["oracle"] is None
    assert twins["dice"]["untouched"] is None


def test_an_attempt_of_an_older_run_is_refused_when_another_run_has_the_range(twins):
    answer = twins["taken over"]
    assert answer["attempts"] == {"began": [2], "ended": ["", "StaleLease"]}
    assert answer["state"] is None
