"""The epoch engine where executors die and shuffles are lost: one local cluster."""

import os
import signal
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from moorage_testing.engine import Engine
from tests.spark.executors.cluster_jobs import (
    ROWS,
    USERS,
    WAIT_SECONDS,
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

from moorage.engine.placement import ExecutorWatch
from moorage_state.server.group import ServerGroup

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(400)]


class Moody(Sum):
    """Sends on one more than it was given, in attempts that begin after the kill."""

    def open(self, ctx):
        super().open(ctx)
        self.more = len(self.journal.notes("kill"))

    def handle(self, row, ctx):
        return super().handle(row._replace(amount=row.amount + self.more), ctx)


class KillsItsExecutor(Sum):
    """Takes its executor down in epoch 2, in subtask 4, once, with rows half done."""

    def handle(self, row, ctx):
        here = self.rows == 5 and (self.me["epoch"], self.me["subtask"]) == (2, 4)
        if here and self.journal.first("killed"):
            os.kill(self.me["pid"], signal.SIGKILL)
            time.sleep(WAIT_SECONDS)  # ends early: this process dies with the executor
        return super().handle(row, ctx)


class ReadsOn(Sum):
    """In epoch 2 the first attempt of subtask 1 stops, until its executor is killed."""

    def misbehave(self, when, *, epoch, uid, subtask, **_):
        waits = when == "first row" and (epoch, uid, subtask) == (2, "second", 1)
        if waits and self.journal.first("waits"):
            self.journal.note("waiting")
            self.journal.wait(lambda _: False)


def losses_scenario(spark):
    with ServerGroup(2, Path.cwd() / "state") as group:
        engine = partial(Engine, spark, group, parallelism=6, placement=Placing(spark.sparkContext))
        answer = {"killed": kill_an_executor(spark, engine)}
        checks(spark, on=True)
        answer["same rows again"] = lose_a_shuffle(spark, engine, Sum, fence=2)
        answer["other rows again, spark compares"] = lose_a_shuffle(spark, engine, Dice, fence=3)
        checks(spark, on=False)
        answer["other rows for two"] = lose_a_shuffle(spark, engine, Moody, fence=4, third=Sum)
    return answer


def checks(spark, *, on):
    """Spark's own look at whether a shuffle that is computed again has the same rows."""
    name = "spark.sql.shuffle.orderIndependentChecksum.enabled"
    spark.conf.set(name, str(on).lower())
    spark.conf.set(name.replace("enabled", "enableFullRetryOnMismatch"), str(on).lower())


def wait_for_executors(spark, count=3):
    deadline = time.monotonic() + 60
    watch = ExecutorWatch(spark.sparkContext)
    while len(watch.live()) != count:
        assert time.monotonic() < deadline, watch.live()
        time.sleep(0.05)


def kill_an_executor(spark, engine):
    journal = Journal.make("killed")
    job = engine(one_operator(KillsItsExecutor(journal)), fence=1)
    wanted: Counter[int] = Counter()
    for epoch in (1, 2, 3):
        frame, sums = events(spark, epoch)
        wanted += sums
        job.epoch(frame)
        wait_for_executors(spark)
    return {
        "killed": not journal.first("killed"),
        "attempts": attempts(journal, epoch=2),
        "state": equal(job.values("first", "total"), wanted),
    }


def lose_a_shuffle(spark, engine, first, fence, third=None):
    """Kill the executor of subtask 1 of both operators when the second has half finished."""
    journal = Journal.make(f"lost-{fence}")
    reader = ReadsOn(journal)
    job = engine(chain(first(journal), reader, third=third and third(journal)), fence=fence)
    wanted: Counter[int] = Counter()
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.locality.wait", "5s")
    killer = threading.Thread(target=kill_when_half_done, args=(journal, conf), daemon=True)
    killer.start()
    agreed = []
    with warnings_of_the_runner() as warned:
        for epoch in (1, 2, 3):
            frame, sums = events(spark, epoch)
            wanted += sums
            job.epoch(frame)
            if first is Moody and epoch > 1:
                wanted += Counter(dict.fromkeys(sums, ROWS // USERS))
            agreed.append(what_both_know(job, third))
            wait_for_executors(spark)
    killer.join()
    return {
        "warned": warned,
        "killed": journal.notes("kill"),
        "first": attempts(journal, epoch=2, uid="first"),
        "second": attempts(journal, epoch=2, uid="second"),
        "agreed": agreed,
        "oracle": equal(job.values("second", "total"), by_bucket(wanted)),
    }


def kill_when_half_done(journal, conf):
    """Subtask 0 has read what subtask 1 of the operator before has sent, subtask 1 is at it."""
    journal.wait(
        lambda j: j.notes("waiting") and j.notes("close", epoch=2, uid="second", subtask=0)
    )
    (reading,) = journal.notes("open", epoch=2, uid="second", subtask=1)
    producers = journal.notes("open", epoch=2, uid="first", executor=reading["executor"])
    journal.note("kill", producers=sorted(n["subtask"] for n in producers))
    conf.set("spark.locality.wait", "500ms")
    os.kill(reading["pid"], signal.SIGKILL)


def what_both_know(job, third):
    """Whether what the first operator says it sent is what the others say they got."""
    sent = by_bucket(job.values("first", "total"))
    differences = [equal(job.values("second", "total"), sent)]
    if third is not None:
        differences.append(equal(job.values("third", "total"), sent))
    return [d for d in differences if d]


# --- the tests ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def losses(local_cluster):
    return local_cluster(losses_scenario, conf={"spark.locality.wait": "1s"}, timeout=350)


def test_an_executor_killed_in_an_epoch_costs_no_count(losses):
    answer = losses["killed"]
    assert answer["killed"]
    assert answer["attempts"]["began"][4] >= 2
    assert answer["state"] is None


def test_a_shuffle_lost_between_operators_is_computed_again_and_counted_once(losses):
    answer = losses["same rows again"]
    require_mixed_attempts(answer)
    assert answer["warned"] == []
    assert answer["agreed"] == [[], [], []]
    assert answer["oracle"] is None


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("other rows again, spark compares", "indeterminate"),
        ("other rows for two", "two attempts of one subtask had different results: uid=first"),
    ],
)
def test_an_epoch_that_mixed_attempts_with_other_results_is_void_and_run_again(
    losses, case, reason
):
    answer = losses[case]
    require_mixed_attempts(answer)
    assert len(answer["warned"]) == 1
    assert "epoch=2 attempt=1 of=4" in answer["warned"][0]
    assert reason in answer["warned"][0]
    assert answer["agreed"] == [[], [], []]


def test_the_epoch_that_was_run_again_holds_the_rows_of_its_second_attempt(losses):
    assert losses["other rows for two"]["oracle"] is None


def require_mixed_attempts(answer):
    """The second operator had read from subtasks whose output was then lost and made again."""
    (kill,) = answer["killed"]
    assert kill["producers"]
    assert all(answer["first"]["began"][subtask] >= 2 for subtask in kill["producers"])
    assert answer["second"]["began"][1] >= 2
