"""State of subtasks in the engine: broadcast rows, and whole jobs that are killed and rescaled."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from moorage_testing.batches import KEYS, UNBOUNDED, add_batch, counted, start_and_wait, stop
from moorage_testing.engine import Collect, input_stream, rows_of
from moorage_testing.jobs import JobHome, kill_group
from moorage_testing.oracle import newest_manifest
from moorage_testing.pages import blocks

from moorage import (
    CheckpointedFunction,
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage.api.graph import SinkNode
from moorage.engine.task_failures import UserFunctionError
from moorage.state import read
from moorage_state.keygroups import range_of

pytestmark = pytest.mark.spark

JOB = Path(__file__).parent / "subtask_state_job.py"
EVENTS = "user string, amount long"
RULES_SCHEMA = "rule string, factor long"
RULES = MapStateDescriptor("rules", "string", "long")
SUM = ValueStateDescriptor("sum", "long")


class Priced(KeyedBroadcastProcessFunction):
    """Sends each amount times the factor, and every rule as it comes."""

    def process_broadcast_element(self, row, ctx):
        rules = ctx.get_broadcast_state(RULES)
        rules.put(row.rule, row.factor)
        yield f"{row.rule}={row.factor} of {len(rules.keys())}", None

    def process_element(self, row, ctx):
        yield ctx.key, row.amount * (ctx.get_broadcast_state(RULES).get("factor") or 0)


PRICED = "what string, amount long"


class Meddles(Priced):
    """Changes broadcast state where each subtask would change its own copy."""

    def process_element(self, row, ctx):
        ctx.get_broadcast_state(RULES).put("factor", row.amount)


class Remembers(KeyedProcessFunction, CheckpointedFunction):
    """Tells what it was told about its state, and counts its rows in a list of the subtask."""

    def initialize_state(self, ctx):
        self.told = ctx.is_restored, ctx.restored_checkpoint_id
        self.counts = ctx.operator_state_store.get_list_state(ListStateDescriptor("n", "long"))
        self.n = 0

    def process(self, row, ctx):  # noqa: ARG002
        self.n += 1
        yield ctx.key, f"{self.told} {sum(self.counts.get())}"

    def snapshot_state(self, ctx):
        assert ctx.checkpoint_id == 1
        assert ctx.checkpoint_timestamp > 1_600_000_000_000
        self.counts.add(self.n)


class CountsTogether(KeyedProcessFunction, CheckpointedFunction):
    """Tells how many rows all subtasks had before, and notes its own in a union list."""

    def initialize_state(self, ctx):
        counts = ListStateDescriptor("n", "long")
        self.counts = ctx.operator_state_store.get_union_list_state(counts)
        self.before, self.n = sum(self.counts.get()), 0

    def process(self, row, ctx):  # noqa: ARG002
        self.n += 1
        yield ctx.key, str(self.before)

    def snapshot_state(self, ctx):  # noqa: ARG002
        if self.n:
            self.counts.add(self.n)


class KillsAServerAtItsSnapshot(Remembers):
    """Once, in one subtask, kills the server of the state it is about to write."""

    def __init__(self, pid, marker):
        self.pid, self.marker = pid, marker

    def snapshot_state(self, ctx):
        super().snapshot_state(ctx)
        if self.n and not self.marker.exists():
            self.marker.touch()
            os.kill(self.pid, signal.SIGKILL)


@pytest.fixture
def frame(spark):
    def frame(rows, schema):
        return spark.createDataFrame(rows, schema)

    return frame


def priced(function):
    def build(env):
        rules = input_stream(env, "rules", RULES_SCHEMA)
        keyed = input_stream(env, "events", EVENTS).key_by("user")
        connected = keyed.connect(rules.broadcast(RULES))
        connected.process(function, uid="priced", output=PRICED).sink_to(Collect(), uid="out")

    return build


def test_broadcast_rows_come_first_to_every_subtask_in_one_order(start, frame):
    engine = start(priced(Priced()), parallelism=3)
    users = [(f"u{i}", i) for i in range(8)]
    rules = [("a", 1), ("factor", 5), ("a", 2), ("factor", 10)]
    sent = rows_of(engine.epoch(frame(rules, RULES_SCHEMA), frame(users, EVENTS)), "out")
    said = [what for what, amount in sent if amount is None]
    assert said == ["a=1 of 1", "factor=5 of 2", "a=2 of 2", "factor=10 of 2"] * 3
    assert sorted(row for row in sent if row[1] is not None) == [(u, n * 10) for u, n in users]


def test_broadcast_state_lasts_and_epochs_without_rules_use_it(start, frame):
    engine = start(priced(Priced()))
    nothing = frame([], EVENTS)
    engine.epoch(frame([("factor", 3)], RULES_SCHEMA), nothing)
    engine.epoch()
    sent = rows_of(engine.epoch(frame([], RULES_SCHEMA), frame([("u", 7)], EVENTS)), "out")
    assert sent == [("u", 21)]


def test_broadcast_state_cannot_be_changed_beside_keyed_rows(start, frame):
    engine = start(priced(Meddles()))
    with pytest.raises(UserFunctionError, match=r"'rules' is read-only beside keyed rows"):
        engine.epoch(frame([], RULES_SCHEMA), frame([("u", 7)], EVENTS))


def test_keyed_rows_of_an_operator_meet_broadcast_rows(start, frame):
    def build(env):
        rules = input_stream(env, "rules", RULES_SCHEMA)
        events = input_stream(env, "events", EVENTS).key_by("user")
        first = events.process(Doubles(), uid="doubles", output="user string, amount long")
        connected = first.key_by("user").connect(rules, RULES)
        connected.process(Priced(), uid="priced", output=PRICED).sink_to(Collect(), uid="out")

    engine = start(build)
    rules, events = frame([("factor", 10)], RULES_SCHEMA), frame([("u", 7), ("v", 1)], EVENTS)
    sent = rows_of(engine.epoch(rules, events), "out")
    assert sorted(row for row in sent if row[1] is not None) == [("u", 140), ("v", 20)]


def test_the_second_example_of_the_page_works(start, frame, tmp_path):
    block = blocks("docs/operator-state.md", "python")[1]
    for name in ("events", "rules"):
        (tmp_path / name).mkdir()
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(block.code, block.page, "exec"), names)  # noqa: S102 - the page is the test

    def build(env):
        env.base_dir = str(tmp_path)
        names["build"](env)
        schema: Any = None
        output = DataStream(env, schema=schema, operator=env.graph.operators[-1])
        env.graph.sinks.append(SinkNode("out", output, Collect()))

    engine = start(build)
    rules = frame([("factor", 3)], RULES_SCHEMA)
    assert rows_of(engine.epoch(frame([("u", 5)], EVENTS), rules), "out") == [("u", 15)]


class Doubles(KeyedProcessFunction):
    def process(self, row, ctx):
        yield ctx.key, row.amount * 2


def remembering(function):
    def build(env):
        events = input_stream(env, "events", EVENTS).key_by("user")
        told = events.process(function, uid="remember", output="user string, told string")
        told.sink_to(Collect(), uid="out")

    return build


def test_every_subtask_reads_what_all_have_written_to_a_union_list(start, frame):
    engine = start(remembering(CountsTogether()), parallelism=3)
    users = [(f"u{i}", 1) for i in range(8)]
    for expected in ("0", "8", "16"):
        sent = rows_of(engine.epoch(frame(users, EVENTS)), "out")
        assert [told for _, told in sent] == [expected] * 8
    engine.epoch()
    assert {told for _, told in rows_of(engine.epoch(frame(users[:1], EVENTS)), "out")} == {"24"}


def test_each_epoch_begins_with_the_state_that_the_one_before_left(start, frame):
    engine = start(remembering(Remembers()), parallelism=1)
    for expected in ("(False, None) 0", "(True, None) 2", "(True, None) 4"):
        sent = rows_of(engine.epoch(frame([("u", 1), ("v", 1)], EVENTS)), "out")
        assert [told for _, told in sent] == [expected] * 2
        engine.epoch()


def test_an_epoch_whose_server_dies_at_the_snapshot_counts_once(start, frame, group, tmp_path):
    function = KillsAServerAtItsSnapshot(group.pids[0], tmp_path / "killed")
    engine = start(remembering(function), parallelism=1)
    for expected in ("(False, None) 0", "(True, None) 1", "(True, None) 2"):
        assert rows_of(engine.epoch(frame([("u", 1)], EVENTS)), "out") == [("u", expected)]
    assert (tmp_path / "killed").exists()


class AsksInOneSubtask(KeyedProcessFunction, CheckpointedFunction):
    """Declares another type in the first subtask; in the other once the marker is there."""

    def __init__(self, marker):
        self.marker = marker

    def initialize_state(self, ctx):
        subtask, store = ctx.keyed_state_store.subtask, ctx.operator_state_store
        self.seen = []
        if not ctx.is_restored:
            store.get_list_state(ListStateDescriptor("seen", "struct<n:int>")).add((subtask,))
        elif subtask == 0 or self.marker.exists():
            later = ListStateDescriptor("seen", "struct<n:int,note:string DEFAULT 'none'>")
            self.seen = store.get_list_state(later).get()

    def process(self, row, ctx):  # noqa: ARG002
        yield ctx.key, repr([tuple(each) for each in self.seen])

    def snapshot_state(self, ctx):
        """What changes is done at the beginning."""


def test_a_state_may_change_its_type_though_only_one_subtask_asks_for_it(start, frame, tmp_path):
    engine = start(remembering(AsksInOneSubtask(tmp_path / "all")), parallelism=2)
    users = [(f"u{i}", 1) for i in range(8)]
    for expected in ({"[]"}, {"[(0, 'none')]", "[]"}, {"[(0, 'none')]", "[(1, 'none')]"}):
        sent = rows_of(engine.epoch(frame(users, EVENTS)), "out")
        assert {told for _, told in sent} == expected
        if len(expected) > 1:
            (tmp_path / "all").touch()


class Raises(KeyedBroadcastProcessFunction):
    """Adds up amounts; a rule raises the sums of all keys, and tells what they were."""

    def open(self, ctx):
        self.sum = ctx.get_state(SUM)

    def process_broadcast_element(self, row, ctx):
        before = []

        def change(key, state):
            before.append((key, state.value()))
            state.update(state.value() * row.factor)

        ctx.apply_to_keyed_state(SUM, change)
        yield from before

    def process_element(self, row, ctx):
        self.sum.update((self.sum.value() or 0) + row.amount)
        yield f"{ctx.key} now", self.sum.value()


def test_broadcast_rows_change_the_state_of_every_key_once(start, frame):
    engine = start(priced(Raises()), parallelism=3)
    users = [(f"u{i}", i + 1) for i in range(12)]
    engine.epoch(frame([], RULES_SCHEMA), frame(users, EVENTS))
    rules = frame([("all", 10), ("all", 2)], RULES_SCHEMA)
    sent = rows_of(engine.epoch(rules, frame([("u0", 5), ("new", 7)], EVENTS)), "out")
    assert sorted(sent) == sorted(
        [*users, *((user, n * 10) for user, n in users), ("u0 now", 25), ("new now", 7)]
    )
    more = frame([(user, 0) for user, _ in users], EVENTS)
    sent = rows_of(engine.epoch(frame([], RULES_SCHEMA), more), "out")
    after = {f"{user} now": n * 20 for user, n in users} | {"u0 now": 25}
    assert dict(sent) == after


def test_two_operators_may_both_visit_their_keys_and_stand_one_after_the_other(start, frame):
    def build(env):
        rules = input_stream(env, "rules", RULES_SCHEMA)
        events = input_stream(env, "events", EVENTS).key_by("user")
        first = events.connect(rules.broadcast(RULES)).process(
            Raises(), uid="first", output="user string, amount long"
        )
        second = first.key_by("user").connect(rules, RULES)
        second.process(Raises(), uid="second", output=PRICED).sink_to(Collect(), uid="out")

    engine = start(build, parallelism=2)
    engine.epoch(frame([], RULES_SCHEMA), frame([("u", 5)], EVENTS))
    rules = frame([("all", 10)], RULES_SCHEMA)
    sent = rows_of(engine.epoch(rules, frame([("u", 1)], EVENTS)), "out")
    # The first says what `u` had, and that it has 51 now; the second raises 5 to 50.
    assert sorted(sent) == [("u now", 5), ("u now", 5), ("u now now", 50 + 51)]


# --- whole jobs -----------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path):
    """A home of the job in `subtask_state_job.py`; nothing of it is left when the test ends."""
    for number in (0, 1):
        add_batch(tmp_path / "events", number)
    (tmp_path / "rules").mkdir()
    home = JobHome.make(tmp_path / "job", JOB, tmp_path / "events")
    yield home
    home.end()


def scaled(home, parallelism, **more):
    root = home.path.parent
    args = [str(home.path), str(root / "events"), str(root / "rules")]
    spec = {**UNBOUNDED, "application": {"mainFile": f"local://{JOB}", "args": args}, **more}
    home.write_manifest(JOB, **spec, scaling={"parallelism": parallelism, "maxParallelism": 16})


def add_rule(home, number, factor):
    path = home.path.parent / "rules" / f"{number}.json"
    half = path.with_name(f".{path.name}")  # which Spark does not list
    half.write_text(json.dumps({"rule": "all", "factor": factor}) + "\n")
    half.rename(path)


def rows(home, state):
    return read(home.checkpoints, "count", state).to_pylist()


def check(home, parallelism, rows_per_key, factor):
    """Everything is there exactly once, under the subtasks that there are now."""
    manifest = newest_manifest(home.checkpoints)
    operator = manifest.operators["count"]
    assert operator.parallelism == parallelism
    starts = {range_of(i, parallelism, 16).start for i in range(parallelism)}
    seen = rows(home, "_operator.seen")
    found = sorted((row["value"]["key"], row["value"]["n"]) for row in seen)
    assert found == [(key, n + 1) for key in KEYS for n in range(rows_per_key)]
    assert {row["key_group"] for row in seen} <= starts
    totals = rows(home, "_operator.totals")
    assert sum(row["value"] for row in totals) == rows_per_key * len(KEYS)
    assert {row["key_group"] for row in totals} == starts
    copies = rows(home, "_operator.rules")
    assert {(row["map_key"], row["value"]) for row in copies} == {("all", factor)}
    assert {row["key_group"] for row in copies} == starts
    assert {row["key_group"] for row in rows(home, "_raw_keyed")} == set(range(16))
    assert len(rows(home, "_raw_operator")) == parallelism


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_state_of_subtasks_survives_kills_and_other_parallelisms(home):
    scaled(home, 2)
    add_rule(home, 0, 2)
    kill_group(start_and_wait(home, 4))
    check(home, 2, 4, 2)
    scaled(home, 3)
    add_batch(home.path.parent / "events", 2)
    add_rule(home, 1, 3)
    kill_group(start_and_wait(home, 6))
    check(home, 3, 6, 5)
    scaled(home, 1)
    add_batch(home.path.parent / "events", 3)
    stop(home, start_and_wait(home, 8))
    check(home, 1, 8, 5)
    assert set(counted(home).values()) == {8}
