"""Look-ups in a job whose epochs are Spark's: what subtasks register, and what an epoch commits."""

import json
import threading

import pytest
from moorage_testing.engine import Collect, input_stream

from moorage import KeyedProcessFunction, MapStateDescriptor, ValueStateDescriptor
from moorage.driver.lookup_requests import LookupRequest
from moorage.driver.lookups import StateLookups
from moorage_state.errors import UserError

pytestmark = pytest.mark.spark

EVENTS = "user string, amount long"


class Spend(KeyedProcessFunction):
    """Sums what a user spends, and by amount how often."""

    def __init__(self, name="totals"):
        self.name = name

    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", "long").queryable(self.name))
        self.often = ctx.get_map_state(
            MapStateDescriptor("often", "long", "long").queryable("often")
        )

    def process(self, row, ctx):
        self.total.update((self.total.value() or 0) + row.amount)
        self.often[row.amount] = (self.often[row.amount] or 0) + 1
        yield ctx.key, self.total.value()


def spending(env, name="totals"):
    stream = input_stream(env, "events", EVENTS)
    spent = stream.key_by("user").process(Spend(name), uid="spend", output="user string, n long")
    spent.sink_to(Collect(), uid="out")


def ask(lookups, name, *keys):
    results = json.loads(lookups.submit(LookupRequest(name, keys)).result(60))["results"]
    return [(result["value"], result["epoch"]) for result in results]


def test_a_running_job_is_asked_for_what_its_last_epoch_committed(spark, start):
    engine = start(spending, parallelism=3)
    lookups = StateLookups()
    with lookups.serving(engine.lookups):
        engine.epoch(spark.createDataFrame([("ann", 1), ("ben", 2), ("ann", 1)], EVENTS))
        assert ask(lookups, "totals", "ann", "ben", "none") == [(2, 1), (2, 1), (None, 1)]
        assert ask(lookups, "often", "ann") == [([{"key": 1, "value": 2}], 1)]

        # An epoch that all subtasks have acknowledged, and that the driver has not committed yet.
        prepared, go_on, commit = threading.Event(), threading.Event(), engine.fleet.commit

        def stopped_before(epoch, digests):
            prepared.set()
            assert go_on.wait(60)
            commit(epoch, digests)

        engine.fleet.commit = stopped_before
        frame = spark.createDataFrame([("ann", 5), ("new", 9)], EVENTS)
        running = threading.Thread(target=engine.epoch, args=(frame,))
        running.start()
        try:
            assert prepared.wait(60)
            assert ask(lookups, "totals", "ann", "new") == [(2, 1), (None, 1)]
        finally:
            go_on.set()
            running.join(60)
        assert ask(lookups, "totals", "ann", "new") == [(7, 2), (9, 2)]


def test_two_states_of_one_name_end_the_job_before_anything_is_committed(spark, start):
    engine = start(lambda env: spending(env, "often"))
    frame = spark.createDataFrame([("ann", 1)], EVENTS)
    with pytest.raises(UserError, match="queryable=often state=total and state=often"):
        engine.epoch(frame)
    assert engine.runner.epoch == 0
