"""What is told of an error in a job's code: the operator, its line, and the names there are."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

import moorage
from moorage import (
    CoGroupFunction,
    FileSink,
    JoinFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    ProcessJoinFunction,
    ProcessWindowFunction,
    Tumbling,
    ValueStateDescriptor,
)
from moorage.engine.task_failures import failure_in
from moorage.testing import run_job
from moorage_state.errors import Retryable, UserError


class Row(NamedTuple):
    user: str
    page: str


NO_CONTEXT: Any = None


class Count(KeyedProcessFunction):
    def process(self, row, ctx):  # noqa: ARG002 - what a function is given
        yield len(row.usr)


def told(action, where="operator=count subtask=0"):
    try:
        action()
    except Exception as error:  # noqa: BLE001 - any
        return failure_in(Count(), error, where)
    raise AssertionError("nothing was raised")


def line_of(text):
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)


def test_a_column_that_is_not_there_is_told_those_that_are():
    failure = told(lambda: list(Count().process(Row("a", "x"), NO_CONTEXT)))
    first, *trace = failure.message.splitlines()
    assert first == (
        "operator=count subtask=0: AttributeError: 'Row' object has no attribute 'usr'; columns of "
        "the row are user, page; did you mean user?"
    )
    assert any(f"line {line_of('yield len(row.usr)')}, in process" in line for line in trace)


def test_an_attribute_of_something_else_is_told_as_python_does():
    failure = told(lambda: getattr("text", "nothing"))  # noqa: B009 - an error for the type checker else
    assert "columns" not in failure.message


def test_a_state_of_an_unknown_type_is_named_and_the_trace_ends_at_the_jobs_line():
    failure = told(lambda: ValueStateDescriptor("visits", "strng"))
    first, *trace = failure.message.splitlines()
    assert "unknown type 'strng'" in first
    assert first.endswith("type='strng' state=visits")
    files = [line for line in trace if line.lstrip().startswith("File ")]
    assert files
    assert all(__file__ in line for line in files)


def test_rows_that_do_not_fit_are_told_the_function_that_yields_them():
    def refuse():
        raise UserError("an output value does not fit its column: operator=count column=n")

    error = told(refuse)
    assert error.message.startswith("an output value does not fit its column: ")
    assert f"(file={__file__} line=" in error.message


def test_a_package_whose_name_begins_like_ours_is_the_jobs():
    file = Path(moorage.__file__).parent.with_name("moorage_jobs") / "counts.py"
    names: dict[str, Any] = {}
    exec(compile("def refuse():\n    return 1 / 0\n", str(file), "exec"), names)  # noqa: S102
    assert f'File "{file}", line 2, in refuse' in told(names["refuse"]).message


def test_what_no_line_of_the_job_raised_is_told_the_methods_first_line():
    failure = failure_in(Count(), UserError("rows do not fit: column=n"), "operator=count")
    line = line_of("def process(self, row, ctx)")
    assert failure.message == (
        f"rows do not fit: column=n (file={__file__} line={line} in Count.process)"
    )
    assert failure_in(Count(), Retryable("gone"), "").message == "gone"


# Each gives a time as it was given it, in milliseconds, for a column that is a timestamp.


class OfWindow(ProcessWindowFunction):
    def process(self, key, ctx, rows):  # noqa: ARG002 - what a function is given
        yield (ctx.window.start,)


class OfGroups(CoGroupFunction):
    def co_group(self, lefts, rights, ctx):  # noqa: ARG002 - as above
        yield (ctx.window.start,)


class OfPair(JoinFunction):
    def join(self, left, right, ctx):  # noqa: ARG002 - as above
        yield (left.at,)


class Inherits(OfPair):
    pass


class NearInTime(ProcessJoinFunction):
    def process_element(self, left, right, ctx):  # noqa: ARG002 - as above
        yield (ctx.timestamp,)


class OfBoth(KeyedCoProcessFunction):
    def process_element1(self, row, ctx):
        ctx.timer_service().register_event_time_timer(row.at)

    def process_element2(self, row, ctx):
        pass

    def on_timer(self, timestamp, ctx):  # noqa: ARG002 - as above
        yield (timestamp,)


class WithRules(KeyedBroadcastProcessFunction):
    def process_element(self, row, ctx):  # noqa: ARG002 - as above
        yield (row.at,)

    def process_broadcast_element(self, row, ctx):
        pass


HOUR = Tumbling("1h")
RULES = MapStateDescriptor("rules", "string", "long")
MADE: dict[str, Any] = {"uid": "made", "output": "at timestamp"}


@pytest.mark.parametrize(
    ("make", "methods"),
    [
        (lambda a, _: a.window(HOUR).process(OfWindow(), **MADE), [OfWindow.process]),
        (
            lambda a, b: a.co_group(b).window(HOUR).apply(OfGroups(), **MADE),
            [OfGroups.co_group],
        ),
        (lambda a, b: a.join(b).window(HOUR).apply(OfPair(), **MADE), [OfPair.join]),
        (lambda a, b: a.join(b).window(HOUR).apply(Inherits(), **MADE), [OfPair.join]),
        (lambda a, b: a.temporal_join(b).apply(OfPair(), **MADE), [OfPair.join]),
        (
            lambda a, b: a.interval_join(b).between("0s", "0s").process(NearInTime(), **MADE),
            [NearInTime.process_element],
        ),
        (
            lambda a, b: a.connect(b).process(OfBoth(), **MADE),
            [OfBoth.process_element1, OfBoth.process_element2, OfBoth.on_timer],
        ),
        (
            lambda a, b: a.connect(b.stream.broadcast(RULES)).process(WithRules(), **MADE),
            [WithRules.process_element, WithRules.process_broadcast_element],
        ),
    ],
)
def test_a_value_that_does_not_fit_is_told_with_the_jobs_own_function_and_what_to_do(make, methods):
    def build(env):
        a, b = (
            env.read_stream(uid, "json", schema="user string, at long", path=uid)
            .with_event_time("at")
            .key_by("user")
            for uid in ("a", "b")
        )
        make(a, b).sink_to(FileSink("out"), uid="out")

    with pytest.raises(UserError) as refused:
        run_job(build, {"a": [("ann", 7)], "b": [("ann", 7)]})
    message = str(refused.value)
    fix = "give datetime.fromtimestamp(ms / 1000, UTC) where this is milliseconds"
    assert f"of Python type int; {fix}" in message
    assert message.count("file=") == len(methods)
    for method in methods:
        line = f"file={__file__} line={method.__code__.co_firstlineno} in "
        assert f"{line}" in message


def test_where_the_job_wrote_no_function_the_operator_is_told():
    class Selects(KeyedProcessFunction):
        process = staticmethod(len)  # type: ignore[assignment]  # what has no line

    failure = failure_in(Selects(), UserError("a row is too far away"), "operator=hourly subtask=0")
    assert failure.message == "a row is too far away (operator=hourly subtask=0)"
