"""What is told of an error in a job's code: the operator, its line, and the names there are."""

from pathlib import Path
from typing import Any, NamedTuple

from moorage import KeyedProcessFunction, ValueStateDescriptor
from moorage.engine.task_failures import failure_in
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


def test_what_no_line_of_the_job_raised_is_told_the_methods_first_line():
    failure = failure_in(Count(), UserError("rows do not fit: column=n"), "operator=count")
    line = line_of("def process(self, row, ctx)")
    assert failure.message == (
        f"rows do not fit: column=n (file={__file__} line={line} in Count.process)"
    )
    assert failure_in(Count(), Retryable("gone"), "").message == "gone"
