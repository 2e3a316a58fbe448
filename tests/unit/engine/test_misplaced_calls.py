"""Calls that a stream does not have: who makes them is told what to call instead."""

import re
from typing import Any

import pytest

from moorage import FileSink, Tumbling
from moorage.testing import run_job
from moorage_state.errors import UserError


def building(call):
    """What a job says whose `build` does this with a stream."""

    def build(env):
        call(env.read_stream("in", "json", schema="user string, n long", path="in"))

    with pytest.raises(UserError) as refused:
        run_job(build, {})
    return str(refused.value)


def test_who_asks_whether_a_call_is_there_is_told_no():
    answers: list[bool] = []

    def ask(stream):
        answers.extend(hasattr(stream, name) for name in ("filter", "window", "process"))
        raise UserError("enough")

    assert "enough" in building(ask)
    assert answers == [False, False, False]


def test_spark_may_not_take_files_away_that_a_restore_reads_again():
    def build(env):
        options = {"cleanSource": "DELETE"}
        env.read_stream("in", "json", schema="user string", path="in", **options)

    with pytest.raises(UserError, match="leave cleanSource out"):
        run_job(build, {})


NO_PATH: Any = 3
FIRST = "is a call of a KeyedStream, and this is a DataStream: call key_by"
OPERATOR = "call process, window or another operator first"
EVENT_TIME = 'call with_event_time("column", max_delay="10s")'


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.join(s), FIRST),
        (lambda s: s.window(Tumbling("1m")), FIRST),
        (lambda s: s.key_by("user").sink_to(FileSink("out"), uid="x"), OPERATOR),
        (lambda s: s.filter("n > 1"), "a DataStream has no filter: call transform(lambda frame"),
        (lambda s: s.withWatermark("at", "1m"), EVENT_TIME),
        (lambda s: s.keyBy("user"), 'a DataStream has no keyBy: call key_by("column")'),
        (lambda s: s.key_by("user").flatMap(list), "a KeyedStream has no flatMap: call transform"),
        (lambda s: s.sink_to(FileSink(NO_PATH), uid="x"), "path is text or a pathlib.Path: path=3"),
    ],
)
def test_it_is_said_what_to_call_instead(call, said):
    assert said in building(call)


def test_other_names_are_no_attributes_as_anywhere():
    def build(env):
        stream = env.read_stream("in", "json", schema="user string", path="in")
        assert not hasattr(stream, "nonsense")
        assert not hasattr(stream.key_by("user"), "__deepcopy__")
        stream.nonsense()

    with pytest.raises(AttributeError, match=re.escape("'DataStream' object has no attribute")):
        run_job(build, {})
