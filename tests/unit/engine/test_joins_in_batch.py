"""Joins with the backend batch: all rows at once come to what streams come to in the end."""

from random import Random
from typing import Any

import pytest
from moorage_testing.two_inputs import through_failures

from moorage import FileSink, JoinFunction, ProcessJoinFunction, Session, Tumbling
from moorage.testing.environment import TestEnvironment
from moorage.testing.in_process import Collector, InProcessJob

ROWS = "key string, n long, at long"
NAMED = {"n": "left.n", "m": "right.n"}
JOINS: dict[str, Any] = {
    "interval": lambda a, b: a.interval_join(b).between("-10ms", "30ms"),
    "tumbling": lambda a, b: a.join(b).window(Tumbling("10ms")),
    "session": lambda a, b: a.join(b).window(Session("5ms")),
    "temporal": lambda a, b: a.temporal_join(b, outer=True),
    "latest": lambda a, b: a.temporal_join(b, time="processing", outer=True),
}


class Both(JoinFunction, ProcessJoinFunction):
    def join(self, left, right, _):
        yield left.n, right.n if right else None

    process_element = join


def joined(name, way, one, two):
    join = JOINS[name](one, two)
    if way == "columns":
        return join.select(uid="j", **NAMED)
    apply = join.process if name == "interval" else join.apply
    return apply(Both(), uid="j", output="n long, m long")


@pytest.mark.parametrize("way", ["columns", "rows"])
@pytest.mark.parametrize("name", JOINS)
def test_all_rows_at_once_give_what_a_stream_gives(name, way):
    def build(env):
        one, two = (
            env.read_stream(uid, "json", schema=ROWS).with_event_time("at").key_by("key")
            for uid in ("one", "two")
        )
        joined(name, way, one, two).sink_to(FileSink("out"), uid="out")

    chance = Random(name)
    rows: dict[str, Any] = {
        uid: [(chance.choice("abc"), i, chance.randrange(300)) for i in range(60)]
        for uid in ("one", "two")
    }
    env = TestEnvironment()
    build(env)
    found = Collector()
    sink: Any = found
    env.graph.sinks[0].sink = sink
    with InProcessJob(env.graph, clock=lambda: 0, parallelism=2) as job:
        job.planner.batch = True
        job.epoch(rows)
    pairs = [tuple(row.values()) for batch in found.take() for row in batch.to_pylist()]
    assert sorted(pairs, key=repr) == sorted(
        through_failures(build, [rows], chance)["out"], key=repr
    )
    assert len(pairs) > 20
