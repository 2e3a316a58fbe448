"""What fails in an epoch: state servers that die, and functions that raise or send nonsense."""

import os
import signal

import pytest
from moorage_testing.engine import input_stream
from tests.spark.engine_jobs import EVENTS, SUMS, Sum, counts, some_events, totals

from moorage import KeyedProcessFunction, ValueStateDescriptor
from moorage.engine.task_failures import UserFunctionError
from moorage_state.errors import UserError

pytestmark = pytest.mark.spark


class KillsAServer(Sum):
    """In subtask 0, once, kills a state server: among the rows, or when all is prepared."""

    def __init__(self, pid, marker, when):
        self.pid, self.marker, self.when = pid, marker, when

    def open(self, ctx):
        super().open(ctx)
        self.subtask = ctx.subtask

    def process(self, row, ctx):
        self.kill("process")
        return super().process(row, ctx)

    def close(self):
        self.kill("close")

    def kill(self, when):
        if self.when == when and self.subtask == 0 and not self.marker.exists():
            self.marker.touch()
            os.kill(self.pid, signal.SIGKILL)


class Fussy(KeyedProcessFunction):
    """Fails where it is told to."""

    def __init__(self, where="", output=None):
        self.where = where
        self.output = output

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))
        if self.where == "open":
            raise KeyError("no model")

    def process(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        if self.where == "process" and row.amount < 0:
            raise ZeroDivisionError("negative amount")
        if self.output is not None and row.amount < 0:
            return self.output
        return [(ctx.key,)]

    def close(self):
        if self.where == "close":
            raise OSError("cannot hang up")


@pytest.mark.parametrize(("when", "given_up"), [("process", 1), ("close", 0)])
def test_a_state_server_killed_in_an_epoch_comes_back_with_what_was_committed(
    spark, start, group, tmp_path, caplog, when, given_up
):
    function = KillsAServer(group.pids[0], tmp_path / "killed", when)

    def build(env):
        stream = input_stream(env, "events", EVENTS)
        stream.key_by("user").process(function, uid="sum", output=SUMS)

    engine = start(build)
    for seed in range(2):
        engine.epoch(spark.createDataFrame(some_events(seed), EVENTS))
    assert (tmp_path / "killed").exists()
    assert caplog.text.count("epoch attempt failed, trying again: epoch=1") == given_up
    assert engine.values("sum", "total") == totals(some_events(0) + some_events(1))


def fussy(where="", output=None):
    def build(env):
        stream = input_stream(env, "events", EVENTS)
        stream.key_by("user").process(Fussy(where, output), uid="fussy", output="user string")

    return build


def test_an_exception_names_operator_and_key_and_changes_nothing(spark, start):
    engine = start(fussy("process"), parallelism=3)
    good = spark.createDataFrame(some_events(1), EVENTS)
    engine.epoch(good)
    bad = spark.createDataFrame([*some_events(1), ("mallory", -1)], EVENTS)
    with pytest.raises(UserFunctionError) as caught:
        engine.epoch(bad)
    message = str(caught.value)
    assert message.startswith("operator=fussy subtask=")
    assert "key='mallory': ZeroDivisionError: negative amount" in message
    assert "in process" in message
    assert "at org.apache.spark" not in message
    engine.epoch(good)
    assert engine.runner.epoch == 2
    assert engine.values("fussy", "n") == counts(some_events(1) * 2)


@pytest.mark.parametrize(
    ("where", "message"), [("open", "KeyError: 'no model'"), ("close", "OSError: cannot hang up")]
)
def test_open_and_close_fail_an_epoch_as_rows_do(spark, start, where, message):
    engine = start(fussy(where))
    with pytest.raises(UserFunctionError, match=message):
        engine.epoch(spark.createDataFrame([("a", 1)], EVENTS))
    assert engine.runner.epoch == 0


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ([("a", 1)], "must yield rows, each a tuple of 1 values or a dict: operator=fussy"),
        ([{"usr": "a"}], r"does not declare: operator=fussy columns=\['usr'\]"),
        ([(3,)], "does not fit its column: operator=fussy column=user"),
        ("text", "must yield rows"),
    ],
)
def test_a_wrong_output_row_is_the_users_to_mend(spark, start, output, message):
    engine = start(fussy(output=output))
    with pytest.raises(UserError, match=message):
        engine.epoch(spark.createDataFrame([("a", -1)], EVENTS))
    assert engine.runner.epoch == 0
    engine.epoch(spark.createDataFrame([("a", 1)], EVENTS))
    assert engine.values("fussy", "n") == {"a": 1}
