"""Functions and jobs of the engine's tests on local clusters, and what their attempts write down.

Functions misbehave once, by a file that says it has happened, and write down which attempt of
which subtask did what, so that a scenario can tell that what it is about really took place.
"""

import json
import logging
import os
import secrets
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from moorage_testing.engine import Collect, input_stream
from pyspark import TaskContext
from tests.spark.placed_tasks import executor_process

from moorage import KeyedProcessFunction, ValueStateDescriptor

WAIT_SECONDS = 90.0
ROWS, USERS = 600, 60
EVENTS = "user long, amount long"
SENT = "bucket long, user long, amount long"


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
