"""Event time over several inputs: the same output wherever epochs are cut, and what is late.

Streams are made from a seed: one to three inputs of different speed, out of order within the delay
that they declare, some of partitions that are counted by value, some silent for a while. The
functions are right in Flink for any pace of the watermark. What must come out is computed from all
rows at once, without epochs or watermarks.
"""

# ruff: noqa: ARG002 - functions have the signature that the API gives them

import json
from abc import abstractmethod
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from moorage.api.functions import MAX_WATERMARK, NO_WATERMARK, KeyedProcessFunction
from moorage.api.graph import Branch, JobGraph, OperatorNode
from moorage.engine.acks import Ack, encode_ack
from moorage.engine.columns import (
    ACK,
    ACK_COLUMN,
    GROUP_COLUMN,
    INPUT_COLUMN,
    KIND_COLUMN,
    MARK_COLUMN,
    ROW,
    START,
    TIME_COLUMN,
)
from moorage.engine.event_time import Watermarks, job_clocks
from moorage.engine.subtask_plan import Upstream
from moorage_state.descriptors import ListStateDescriptor

SEEDS, SOAK_SEEDS, SHARE = 100, 2000, 25
GAP, NEAR, DAY = 20, 15, 100
KEYS = "abc"
SOURCE, PART = 10_000, 1000
ENGINE = [
    (KIND_COLUMN, pa.int8()),
    (GROUP_COLUMN, pa.int32()),
    (TIME_COLUMN, pa.int64()),
    (INPUT_COLUMN, pa.int32()),
    (MARK_COLUMN, pa.int64()),
    (ACK_COLUMN, pa.binary()),
]
INPUT = pa.schema([("user", pa.string()), ("n", pa.int64()), ("part", pa.string())])
SESSION = pa.schema([("user", pa.string()), ("at", pa.int64()), ("n", pa.int64())])


# -- functions that are right for any pace of the watermark -----------------------------------


class Timed(KeyedProcessFunction):
    """Notes timers that fired, as (time, watermark)."""

    def __init__(self):
        self.fired = []

    def open(self, ctx):
        self.kept = ctx.get_list_state(ListStateDescriptor("kept", "array<long>"))

    def process(self, row, ctx):
        if ctx.timestamp() <= ctx.timer_service().current_watermark():
            yield ctx.key, -1, row.n
        else:
            yield from self.on_time(row, ctx)

    @abstractmethod
    def on_time(self, row, ctx):
        """Handle a row that is not late."""

    @abstractmethod
    def at_time(self, timestamp, ctx):
        """Handle a timer."""

    def on_timer(self, timestamp, ctx):
        self.fired.append((timestamp, ctx.timer_service().current_watermark()))
        yield from self.at_time(timestamp, ctx)


class Sessions(Timed):
    """How many rows there are between pauses of GAP; kept are (first, end, rows)."""

    def on_time(self, row, ctx):
        first, end, count = ctx.timestamp(), ctx.timestamp() + GAP, 1
        apart = []
        for other in self.kept.get():
            if other[0] < end and first < other[1]:
                first, end, count = min(first, other[0]), max(end, other[1]), count + other[2]
            else:
                apart.append(other)
        self.kept.update([*apart, [first, end, count]])
        ctx.timer_service().register_event_time_timer(end - 1)
        return ()

    def at_time(self, timestamp, ctx):
        kept = list(self.kept.get())
        self.kept.update([one for one in kept if one[1] - 1 != timestamp])
        return [(ctx.key, timestamp, one[2]) for one in kept if one[1] - 1 == timestamp]


class Days(Timed):
    """How many sessions end in each span of DAY, and their rows; kept are (day, rows)."""

    def on_time(self, row, ctx):
        day = ctx.timestamp() // DAY
        self.kept.add([day, row.n])
        ctx.timer_service().register_event_time_timer((day + 1) * DAY - 1)
        return ()

    def at_time(self, timestamp, ctx):
        kept = list(self.kept.get())
        self.kept.update([one for one in kept if one[0] != timestamp // DAY])
        sizes = [one[1] for one in kept if one[0] == timestamp // DAY]
        return [(ctx.key, timestamp, len(sizes) * 1000 + sum(sizes))]


class Pairs(Timed):
    """Rows of the first input with those of others that are NEAR; kept are (time, n)."""

    def on_time(self, row, ctx):
        at, mine = ctx.timestamp(), row.n
        for other_at, other in self.kept.get():
            if (other < SOURCE) != (mine < SOURCE) and abs(at - other_at) <= NEAR:
                yield ctx.key, min(mine, other), max(mine, other)
        self.kept.add([at, mine])
        ctx.timer_service().register_event_time_timer(at + NEAR)

    def at_time(self, timestamp, ctx):
        self.kept.update([one for one in self.kept.get() if one[0] + NEAR > timestamp])
        return ()


def sessions_of(rows):
    """By hand: what Sessions gives for all rows (user, time, n)."""
    found = []
    for user in KEYS:
        times = sorted(time for key, time, _ in rows if key == user)
        starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(times)) if b - a >= GAP)]
        for start, end in pairwise([*starts, len(times)]):
            if end > start:
                found.append((user, times[end - 1] + GAP - 1, end - start))
    return found


def days_of(sessions):
    """By hand: what Days gives for all sessions."""
    days = defaultdict(list)
    for user, at, count in sessions:
        days[user, at // DAY].append(count)
    return [
        (user, (day + 1) * DAY - 1, len(counts) * 1000 + sum(counts))
        for (user, day), counts in days.items()
    ]


def part_of(n):
    """The value of the part that a row is of; one of them is the null."""
    return (None, "1", "2")[n % SOURCE // PART]


def pairs_of(rows):
    """By hand: what Pairs gives for all rows."""
    one, other = ([r for r in rows if (r[2] < SOURCE) == mine] for mine in (True, False))
    return [
        (user, n, m) for user, at, n in one for key, to, m in other
        if key == user and abs(at - to) <= NEAR
    ]  # fmt: skip


# -- a job over made-up inputs ----------------------------------------------------------------


@dataclass
class Part:
    """One partition of an input: rows (user, time, n) in the order it brings them."""

    delay: int
    rows: list
    newest: int | None = None
    behind: bool = False

    def take(self, count, beyond):
        """Its next rows; where they would be late, for it fell behind, all are newer."""
        taken, self.rows = self.rows[:count], self.rows[count:]
        if not taken:
            return []
        if self.behind:
            ahead = max(0, beyond + 1 - min(time for _, time, _ in taken + self.rows))
            taken, self.rows = (
                [(user, time + ahead, n) for user, time, n in rows] for rows in (taken, self.rows)
            )
            self.behind = False
        times = [time for _, time, _ in taken]
        self.newest = max([*times] if self.newest is None else [*times, self.newest])
        return taken


@dataclass
class Source:
    """One input, of one part or counted by several."""

    uid: str
    delay: int
    idle_after: int | None
    parts: list

    @property
    def left(self):
        return max(len(part.rows) for part in self.parts)

    @property
    def newest(self):
        """Of the slowest part that was seen."""
        return min((part.newest for part in self.parts if part.newest is not None), default=None)

    def take(self, choose, beyond):
        """Its next rows, of each part as many as `choose` says."""
        taken = [part.take(choose(), beyond) for part in self.parts]
        for part, rows in zip(self.parts, taken, strict=True):
            # Nothing waits for a part that is silent or was never seen.
            part.behind |= not rows and (self.idle_after is not None or part.newest is None)
        return [row for rows in taken for row in rows]

    def branches(self, count):
        """It as branches of a union that share its rows."""
        node: Any = SimpleNamespace(uid=self.uid)
        per = "part" if len(self.parts) > 1 else ""
        return [Branch(node, (), "at", self.delay, self.idle_after, per)] * count


def source(random, index, *, late=False):
    """An input whose rows are out of order, but no more than it declares; unless they may be."""
    delay, count = random.choice([0, 0, 5, 30]), random.choice([1, 1, 2, 3])
    idle = random.choice([None, None, 50]) if not late else None
    first = index * SOURCE
    parts = [part(random, first + i * PART, delay, count, late=late) for i in range(count)]
    return Source(f"in{index}", delay, idle, parts)


def part(random, first, delay, count, *, late):
    step, newest, rows = random.choice([1, 4, 12]), random.randint(0, 40), list[Any]()
    for i in range(random.randint(1, 30 // count)):
        newest += random.choice([0, step, step, random.randint(0, 4 * step)])
        behind = random.randint(0, delay + 40 * late) if rows and random.random() < 0.5 else 0
        rows.append((random.choice(KEYS), newest - behind, first + i))
    return Part(delay, rows)


@dataclass
class Step:
    """One operator of the job: what it reads, and where its attempts run."""

    uid: str
    function: Timed
    operator: object
    sources: list = field(default_factory=list)
    after: "Step | None" = None
    copies: int = 1
    rows: list = field(default_factory=list)
    done: object = None
    late_rows: int = 0
    bound: int = NO_WATERMARK

    def node(self, nodes):
        """It in the graph: a union of its inputs, or the next after another operator."""
        branches = [b for one in self.sources for b in one.branches(self.copies)]
        first = nodes.get(self.after.uid) if self.after else None
        upstream: Any = SimpleNamespace(branches=tuple(branches), operator=first)
        nothing: Any = None
        nodes[self.uid] = node = OperatorNode(
            self.uid, upstream, ("user",), ("string",), self.function, nothing, "fail"
        )
        return node


class Job:
    """Runs epochs over steps; checks after each that no timer was ahead of the watermark."""

    def __init__(self, random, sources, steps):
        self.random, self.sources, self.steps = random, sources, steps
        nodes = dict[str, OperatorNode]()
        graph = JobGraph(operators=[step.node(nodes) for step in steps])
        self.clocks = job_clocks(graph)
        self.marks = Watermarks.at_first(self.clocks)
        self.now, self.beyond, self.taken = 0, 0, []

    def epoch(self, given):
        """One epoch over the rows that each source brings, by uid."""
        began, observed = self.now, dict[str, int]()
        seen = defaultdict[str, dict[Any, int]](dict)
        for rows in given.values():
            self.taken += rows
            self.beyond = max([self.beyond, *(time for _, time, _ in rows)])
        for step in self.steps:
            self._run(step, given)
            ack = step.done.ack
            for clock, time in ack.max_event_time.items():
                observed[clock] = max(observed.get(clock, time), time)
            for clock, times in ack.value_times.items():
                for value, time in times.items():
                    seen[clock][value] = max(seen[clock].get(value, time), time)
        self.now += self.random.randint(1, 30)
        self.marks = self.marks.after_epoch(observed, began, self.now, seen)

    def run(self):
        """All rows in epochs that are cut anywhere, and the end of a bounded job."""
        cuts = self.random.choice([1, 2, 4, 7])
        most = max(one.left for one in self.sources)
        shares = [most] if cuts == 1 else [n * -(-most // cuts) for n in (0, 1, 1, 3)]
        while any(one.left for one in self.sources):
            choose = partial(self.random.choice, shares)
            self.epoch({one.uid: one.take(choose, self.beyond) for one in self.sources})
            if self.random.random() < 0.2:
                self.now += 100
                self.marks = self.marks.quiet_at(self.now)
                for one in self.sources:
                    for part in one.parts:
                        part.behind |= one.idle_after is not None
            if self.random.random() < 0.2:
                marks, uids = self.marks, [step.uid for step in self.steps]
                kept, values = json.loads(json.dumps([marks.to_json(), marks.values_to_json()]))
                self.marks = Watermarks.from_json(self.clocks, kept, marks.idle, uids, values)
        self.epoch({})
        self.marks = self.marks.drain()
        self.epoch({})

    def at_once(self, step):
        """What a step gives with the backend batch, over all that was read."""
        if step.after:
            rows = [(user, at, at, n, -1) for user, at, n in self.at_once(step.after)]
        else:
            given = {f"in{i}": [r for r in self.taken if r[2] // SOURCE == i] for i in range(3)}
            rows = self._branched(step, given)
        changes = self._changes(step) | {"watermark": NO_WATERMARK, "row_watermark": NO_WATERMARK}
        batches = self._batches(step, rows)
        done = step.operator.attempt(step.function, batches, batch=True, downstream=1, **changes)
        assert all(watermark >= time for time, watermark in step.function.fired)
        return done.rows

    def _changes(self, step):
        watermark = self.marks.of(step.uid)
        before = step.after
        changes = {
            "watermark": watermark,
            "row_watermark": self.marks.before(step.uid) if before else watermark,
            "timer_delay_ms": self.clocks.within_keys(step.uid),
            "inputs": tuple(clock or "" for clock in self.clocks.feeds[step.uid]),
            "per": self.clocks.per(step.uid),
            "output": SESSION,
            "start": False,
        }
        if before:
            changes |= {"upstreams": (Upstream(before.uid),), "columns": ("user", "at", "n")}
        return changes

    def _run(self, step, given):
        rows = self._branched(step, given)
        if step.after:
            rows = [(user, at, at, n, -1) for user, at, n in step.after.done.rows]
        batches = self._batches(step, rows)
        step.function.fired.clear()
        step.done = step.operator.epoch(step.function, batches, **self._changes(step))
        step.rows += step.done.rows
        step.late_rows += step.done.ack.late_rows
        self._require_rule(step)

    def _branched(self, step, given):
        """Rows of a step's sources, each of one of the source's branches."""
        return [
            (user, None, time, n, i * step.copies + n % step.copies)
            for i, one in enumerate(step.sources)
            for user, time, n in given.get(one.uid, ())
        ]

    def _batches(self, step, rows):
        """As the planner sorts them, in batches of any size; acknowledgements go ahead."""
        schema = pa.schema([*(SESSION if step.after else INPUT), *ENGINE])
        made: list[dict[str, Any]] = [{KIND_COLUMN: START, GROUP_COLUMN: 0}]
        if step.after:
            ack = Ack(uid=step.after.uid, subtask=0, run="f1r0", epoch=1)
            made.append({KIND_COLUMN: ACK, ACK_COLUMN: encode_ack(ack)})
        for user, at, time, n, index in sorted(rows, key=lambda row: (row[0], row[2], row[4])):
            made.append({
                "user": user, "at": at, "n": n, "part": part_of(n), KIND_COLUMN: ROW,
                GROUP_COLUMN: ord(user), TIME_COLUMN: time, INPUT_COLUMN: index,
                MARK_COLUMN: 0,
            })  # fmt: skip
        size = self.random.choice([2, 5, 1000])
        parts = [made[i : i + size] for i in range(0, len(made), size)]
        return [pa.RecordBatch.from_pylist(part, schema=schema) for part in parts]

    def _require_rule(self, step):
        """Every timer was due by the slowest input that may not be idle, by its rows so far."""
        first = step
        while first.after:
            first = first.after
        shown = [one for one in first.sources if one.idle_after is None]
        reached = [one.newest - one.delay - 1 for one in shown if one.newest is not None]
        if len(reached) == len(shown):
            step.bound = max(step.bound, min(reached, default=MAX_WATERMARK))
        for time, watermark in step.function.fired:
            assert time <= watermark
            assert time <= step.bound or self.marks.drained


@pytest.fixture
def places(new_operator):
    """Where the steps of all jobs of a test run: after a job nothing of it is left there."""
    return defaultdict(new_operator)


def job_of(seed, places):
    """The job of a seed: sessions and their days over some inputs, pairs over some."""
    random = Random(seed)
    sources = [source(random, i) for i in range(random.choice([1, 2, 2, 3]))]
    many = random.choice([sources, sources, random.sample(sources, 1)])
    sessions = Step("sessions", Sessions(), places["sessions"], many, copies=random.choice([1, 2]))
    days = Step("days", Days(), places["days"], after=sessions)
    pairs = [Step("pairs", Pairs(), places["pairs"], sources)] if len(sources) > 1 else []
    return Job(random, sources, [sessions, days, *pairs])


def require_same_output(seed, places):
    job = job_of(seed, places)
    job.run()
    sessions, days, *pairs = job.steps
    read = {int(one.uid[2:]) for one in sessions.sources}
    expected = sessions_of([row for row in job.taken if row[2] // SOURCE in read])
    assert Counter(sessions.rows) == Counter(expected), f"seed={seed}"
    assert Counter(days.rows) == Counter(days_of(expected)), f"seed={seed}"
    for step in pairs:
        assert Counter(step.rows) == Counter(pairs_of(job.taken)), f"seed={seed}"
    if seed % 5 == 0:
        for step in (days, *pairs):
            assert Counter(job.at_once(step)) == Counter(step.rows), f"seed={seed}"
    assert not any(step.late_rows for step in job.steps), f"seed={seed}"


@pytest.mark.parametrize("first", range(0, SEEDS, SHARE))
def test_the_output_is_the_same_wherever_epochs_are_cut(places, first):
    for seed in range(first, first + SHARE):
        require_same_output(seed, places)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, SOAK_SEEDS, 10 * SHARE))
def test_the_output_is_the_same_wherever_epochs_are_cut_at_length(places, first):
    for seed in range(first, first + 10 * SHARE):
        require_same_output(seed, places)


# -- late rows --------------------------------------------------------------------------------


class Judge(Timed):
    """Says of each row whether it is late, and sets a timer at its time."""

    def process(self, row, ctx):
        late = ctx.timestamp() <= ctx.timer_service().current_watermark()
        return self.on_time(row, ctx, late=late)

    def on_time(self, row, ctx, *, late=False):
        ctx.timer_service().register_event_time_timer(ctx.timestamp())
        return [(ctx.key, int(late), row.n)]

    def at_time(self, timestamp, ctx):
        return ()


def judged(seed, places):
    """Runs a job whose rows may be late; how many were, which is what is expected of each."""
    random = Random(seed)
    sources = [source(random, i, late=True) for i in range(random.choice([1, 2, 3]))]
    step = Step("judge", Judge(), places["judge"], sources)
    job = Job(random, sources, [step])
    expected, before = [], -MAX_WATERMARK
    while any(one.left for one in sources):
        if all(one.newest is not None for one in sources):
            before = max(before, min(one.newest - one.delay - 1 for one in sources))
        given = {one.uid: one.take(partial(random.choice, [0, 3, 8]), 0) for one in sources}
        rows = [row for taken in given.values() for row in taken]
        expected += [(user, int(time <= before), n) for user, time, n in rows]
        job.epoch(given)
        # What is due already fires in the same epoch.
        due = {time for _, time, _ in rows if time <= before}
        assert due <= {time for time, _ in step.function.fired}
    job.marks = job.marks.drain()
    job.epoch({})
    assert Counter(step.rows) == Counter(expected), f"seed={seed}"
    late = sum(late for _, late, _ in expected)
    assert step.late_rows == late, f"seed={seed}"
    return late


def test_late_is_what_the_watermark_had_reached_when_the_epoch_began(places):
    counts = [judged(seed, places) for seed in range(12)]
    assert 0 in counts
    assert sum(counts) > 10
