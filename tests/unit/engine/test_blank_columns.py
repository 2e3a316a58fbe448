"""Columns that are null in all of the first rows of an input, as misnamed ones are."""

# ruff: noqa: ARG002 - functions have the signature that the API gives them

from datetime import UTC, datetime
from typing import Any

import pytest

from moorage import FileSink, KeyedProcessFunction, Tumbling
from moorage.engine.blank_columns import FirstRows
from moorage.testing import run_job
from moorage.testing.environment import TestEnvironment
from moorage.testing.in_process import Collector, InProcessJob
from moorage_state.errors import UserError

SCHEMA = "user string, price double, at timestamp, _corrupt_record string"
AT = datetime(2026, 1, 1, 10, tzinfo=UTC)
ASKED = "these are all {} rows of input={}: is the column's name that of the data?"


class Prices(KeyedProcessFunction):
    def process(self, row, ctx):
        yield row.user, row.price


def read(env, name):
    stream = env.read_stream(name, "json", schema=SCHEMA, path=name)
    # As the files of a job that runs.
    env.graph.inputs[-1].files = name
    return stream.with_event_time("at")


def one(env):
    prices = (
        read(env, "offers").key_by("user").process(Prices(), uid="f", output="u string, p double")
    )
    prices.sink_to(FileSink("out"), uid="out")


def together(env):
    both = read(env, "offers").union(read(env, "bids")).key_by("user")
    both.process(Prices(), uid="f", output="u string, p double").sink_to(FileSink("out"), uid="out")


def joined(env):
    offers, bids = (read(env, name).key_by("user") for name in ("offers", "bids"))
    pairs = offers.join(bids).window(Tumbling("1h")).select(uid="f", user="left.user")
    pairs.sink_to(FileSink("out"), uid="out")


JOBS = [one, together, joined]


def rows(count, user: Any = "ann", price: Any = 1.0, at: Any = AT):
    return [{"user": user, "price": price, "at": at}] * count


def told(build, *epochs):
    """What is told after these epochs, by column."""
    env = TestEnvironment()
    build(env)
    for node in env.graph.sinks:
        sink: Any = Collector()  # writes no files
        node.sink = sink
    with InProcessJob(env.graph, clock=lambda: 0, parallelism=2) as job:
        for given in epochs:
            job.epoch({uid: some for uid, some in given.items() if some})
        return dict(job.runner.first_rows.told), job.runner.first_rows.to_look_at()["f"]


@pytest.mark.parametrize("build", JOBS)
def test_a_column_that_no_row_has_is_told_once_there_are_enough_rows(build):
    found, wanted = told(build, {"offers": rows(60, price=None)})
    assert found == {}
    assert 0 in wanted
    found, wanted = told(build, *2 * [{"offers": [*rows(30, "bob", None), *rows(30, price=None)]}])
    assert list(found) == ["input=offers column=price"]
    (text,) = found.values()
    assert "input=offers column=price rows=120; see whether the data has it by this name" in text
    # Of no later row anybody looks.
    assert 0 not in wanted


@pytest.mark.parametrize("build", JOBS)
@pytest.mark.parametrize("other", [{"price": 2.0}, {"user": "bob"}])
def test_a_column_that_one_row_has_is_not(build, other):
    given = [*rows(99, price=None), *rows(1, **other)]
    assert told(build, {"offers": given}, {"offers": rows(100, price=None)})[0] == {}


@pytest.mark.parametrize("build", JOBS[1:])
def test_each_input_has_its_own_names(build):
    found, wanted = told(build, {"offers": rows(100, price=None), "bids": rows(100)})
    assert list(found) == ["input=offers column=price"]
    assert wanted == ()


def test_a_source_that_names_its_columns_itself_is_believed():
    def build(env):
        one(env)
        env.graph.inputs[0].files = None

    assert told(build, {"offers": rows(100, price=None)}) == ({}, ())


def test_what_a_transform_leaves_or_makes_is_not_looked_at():
    env = TestEnvironment()
    offers, bids = (read(env, name) for name in ("offers", "bids"))
    both = offers.transform(lambda frame: frame).union(bids).key_by("user")
    both.process(Prices(), uid="f", output="u string, p double").sink_to(FileSink("out"), uid="out")
    assert FirstRows(env.graph).to_look_at() == {"f": (1,)}


@pytest.mark.parametrize("build", JOBS)
@pytest.mark.parametrize(
    ("column", "said"), [("user", "null key"), ("at", "without an event time")]
)
def test_where_all_rows_lack_what_they_are_refused_for_its_name_is_asked_for(build, column, said):
    nothing: dict[str, Any] = {column: None}
    given = {"offers": rows(3, **nothing), "bids": rows(3)}
    if build is one:
        del given["bids"]
    with pytest.raises(UserError, match=said) as caught:
        run_job(build, given)
    assert f"rows=3; {ASKED.format(3, 'offers')}; filter them out" in str(caught.value)
    given["offers"] += rows(1)
    with pytest.raises(UserError, match="rows=3; filter them out"):
        run_job(build, given)


def test_of_a_single_row_nothing_is_asked():
    with pytest.raises(UserError, match="rows=1; filter them out"):
        run_job(one, {"offers": rows(1, user=None)})


def test_rows_of_nulls_alone_are_lines_that_are_not_read_and_no_matter_of_names():
    with pytest.raises(UserError, match="cannot read; filter them out"):
        run_job(one, {"offers": rows(3, None, None, None)})
