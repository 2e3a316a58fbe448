"""The epoch engine where Spark retries, loses and doubles tasks: local clusters, one per group.

Functions misbehave once, by a file that says it has happened, and write down which attempt of
which subtask did what, so that a scenario can tell that what it is about really took place.
"""

import json
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

import pandas as pd
import pytest
from moorage_testing.engine import Collect, Engine, input_stream, rows_of
from pyspark import TaskContext

from moorage import FileSink, KeyedProcessFunction, ValueStateDescriptor
from moorage.engine.placement import executors, placement_for
from moorage_state.server.group import ServerGroup

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

HOSTS = ["127.0.0.2", "127.0.0.3"]
WAIT_SECONDS = 90.0
ROWS, USERS = 600, 60
EVENTS = "user long, amount long"
SENT = "bucket long, user long, amount long"


# --- what attempts write down ---------------------------------------------------------------------


@dataclass(frozen=True)
class Journal:
    """Files through which attempts and the scenario tell each other what happened."""

    path: str

    @classmethod
    def make(cls, name):
        path = Path.cwd() / "journals" / name
        path.mkdir(parents=True)
        return cls(str(path))

    def note(self, kind, **facts):
        temporary = Path(self.path) / f".{uuid4().hex}"
        temporary.write_text(json.dumps(facts))
        temporary.rename(Path(self.path) / f"{kind}-{time.time_ns()}-{uuid4().hex}.json")

    def notes(self, kind, **facts):
        """Notes of this kind that hold these facts, oldest first."""
        found = [json.loads(p.read_text()) for p in sorted(Path(self.path).glob(f"{kind}-*.json"))]
        return [n for n in found if facts.items() <= n.items()]

    def first(self, what):
        """Whether nobody has asked for this before."""
        try:
            os.close(os.open(Path(self.path) / what, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def wait(self, condition):
        """Wait until `condition(self)` is true."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition(self):
            if time.monotonic() > deadline:
                seen = sorted(path.name for path in Path(self.path).iterdir())
                raise TimeoutError(f"it does not come true: seen={seen}")
            time.sleep(0.02)


def executor_process():
    """Process id and Spark id of the executor above this Python worker."""
    pid = os.getpid()
    while pid > 1:
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "--executor-id" in arguments:
            return pid, arguments[arguments.index("--executor-id") + 1]
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0, ""


class Watched(KeyedProcessFunction):
    """Notes when an attempt opens and closes; `misbehave` comes at the points it names."""

    def __init__(self, journal):
        self.journal = journal

    def open(self, ctx):
        task, (pid, executor) = TaskContext.get(), executor_process()
        assert task is not None
        self.rows = 0
        self.me = {
            "epoch": ctx._store.epoch,
            "uid": ctx.uid,
            "subtask": ctx.subtask,
            "attempt": task.taskAttemptId(),
            "number": task.attemptNumber(),
            "executor": executor,
            "pid": pid,
        }
        self.register(ctx)
        self.journal.note("open", **self.me)

    def process(self, row, ctx):
        if self.rows == 0:
            self.misbehave("first row", **self.me)
        self.rows += 1
        return self.handle(row, ctx)

    def close(self):
        error = sys.exc_info()[1]
        if error is None:
            # Only an attempt that has prepared and acknowledged comes here without an error.
            self.misbehave("prepared", **self.me)
        # The server's client closes its socket when Spark is gone: that is not a refusal.
        self.journal.note("close", **self.me, error=type(error).__name__ if error else "")

    def register(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", "long"))

    def add(self, amount):
        self.total.update((self.total.value() or 0) + amount)

    def handle(self, row, ctx):
        raise NotImplementedError

    def misbehave(self, when, *, epoch, uid, subtask, pid, **_):
        """For tests to override."""


class Sum(Watched):
    """Sums per key; sends on what it was given."""

    def handle(self, row, ctx):  # noqa: ARG002
        self.add(row.amount)
        yield row.user % 5, row.user, row.amount


class Dice(Sum):
    """Not deterministic: sends on another amount in each attempt, and keeps the sum of those."""

    def handle(self, row, ctx):  # noqa: ARG002
        amount = secrets.randbelow(1 << 40)
        self.add(amount)
        yield row.user % 5, row.user, amount


class Moody(Sum):
    """Sends on one more than it was given, in attempts that begin after the kill."""

    def open(self, ctx):
        super().open(ctx)
        self.more = len(self.journal.notes("kill"))

    def handle(self, row, ctx):
        return super().handle(row._replace(amount=row.amount + self.more), ctx)


# --- helpers of the scenarios ---------------------------------------------------------------------


def events(spark, epoch):
    """The same rows for the same epoch, and what they sum up to."""
    frame = spark.range(0, ROWS, 1, 4).selectExpr(
        f"id % {USERS} AS user", f"id * 7 + {epoch} AS amount"
    )
    sums: Counter[int] = Counter()
    for i in range(ROWS):
        sums[i % USERS] += i * 7 + epoch
    return frame, sums


def by_bucket(sums):
    buckets: Counter[int] = Counter()
    for user, amount in sums.items():
        buckets[user % 5] += amount
    return buckets


def one_operator(first):
    def build(env):
        stream = input_stream(env, "events", EVENTS)
        stream.key_by("user").process(first, uid="first", output=SENT).sink_to(Collect(), uid="out")

    return build


def chain(first, second, sink=None, third=None):
    """first -> second, keyed by bucket; and first -> third where there is one."""

    def build(env):
        stream = input_stream(env, "events", EVENTS)
        sent = stream.key_by("user").process(first, uid="first", output=SENT)
        last = sent.key_by("bucket").process(second, uid="second", output=SENT)
        last.sink_to(sink or Collect(), uid="out")
        if third is not None:
            sent.key_by("bucket").process(third, uid="third", output=SENT)

    return build


@contextmanager
def warnings_of_the_runner():
    """What the epoch runner warns of: the attempts of epochs that it gave up."""
    seen: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record):
            seen.append(record.getMessage())

    handler = Listener()
    logger = logging.getLogger("moorage.engine.epoch")
    logger.addHandler(handler)
    try:
        yield seen
    finally:
        logger.removeHandler(handler)


def attempts(journal, **facts):
    """How many attempts of each subtask began and, as far as is known, how they ended."""
    began = Counter(n["subtask"] for n in journal.notes("open", **facts))
    ended = [n["error"] for n in journal.notes("close", **facts)]
    return {"began": [began[i] for i in sorted(began)], "ended": sorted(ended)}


def equal(found, wanted):
    """None where they are the same, else the differences: small enough for a failing test."""
    found, wanted = dict(found), dict(wanted)
    keys = [k for k in {*found, *wanted} if found.get(k) != wanted.get(k)]
    return {str(k): [found.get(k), wanted.get(k)] for k in keys[:5]} or None


# --- a task fails after it has prepared; speculative twins ----------------------------------------


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
    while len({e.host for e in executors(context)}) < 1 + len(HOSTS):
        assert time.monotonic() < deadline, executors(context)
        time.sleep(0.05)
    return placement_for(context)


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


# --- executors are killed -------------------------------------------------------------------------


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
        engine = partial(
            Engine, spark, group, parallelism=6, placement=placement_for(spark.sparkContext)
        )
        answer = {"killed": kill_an_executor(spark, engine)}
        checks(spark, on=True)
        answer["same rows again"] = lose_a_shuffle(spark, engine, Sum, fence=2)
        answer["other rows again, spark compares"] = lose_a_shuffle(spark, engine, Dice, fence=3)
        checks(spark, on=False)
        answer["other rows again"] = lose_a_shuffle(spark, engine, Dice, fence=4)
        answer["other rows for two"] = lose_a_shuffle(spark, engine, Moody, fence=5, third=Sum)
    return answer


def checks(spark, *, on):
    """Spark's own look at whether a shuffle that is computed again has the same rows."""
    name = "spark.sql.shuffle.orderIndependentChecksum.enabled"
    spark.conf.set(name, str(on).lower())
    spark.conf.set(name.replace("enabled", "enableFullRetryOnMismatch"), str(on).lower())


def wait_for_executors(spark, count=3):
    deadline = time.monotonic() + 60
    while len(executors(spark.sparkContext)) != count:
        assert time.monotonic() < deadline, executors(spark.sparkContext)
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


@pytest.fixture(scope="module")
def losses(local_cluster):
    return local_cluster(losses_scenario, conf={"spark.locality.wait": "1s"}, timeout=350)


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
        ("other rows again", "two attempts of one subtask had different results: uid=first"),
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
