"""A subtask that fails: what the driver is told, and that nothing is left behind."""

# ruff: noqa: ARG002 - functions have the signature that the API gives them

import errno
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moorage.api.file_sink import FileSink
from moorage.api.functions import KeyedProcessFunction
from moorage.engine.range_access import LeasedRange, ServerDoor
from moorage.engine.subtask import run_subtask, stage_rows
from moorage.engine.task_failures import SubtaskFailure, UserFunctionError, failure_of
from moorage_state.descriptors import ValueStateDescriptor
from moorage_state.errors import (
    LocalDiskError,
    Retryable,
    ServerGone,
    StaleLease,
    UserError,
    VersionMismatch,
)
from moorage_state.server.client import StateClient
from moorage_state.server.host import RangeHost
from moorage_state.server.operations import Lease, RangeSpec, Version


class Echo(KeyedProcessFunction):
    def process(self, row, ctx):
        yield ctx.key, row.n


class Fails(KeyedProcessFunction):
    """Raises where it is told to."""

    def __init__(self, at, error=None):
        self.at = at
        self.error = error or ZeroDivisionError("division by zero")
        self.calls = []

    def step(self, name):
        self.calls.append(name)
        if name in self.at.split():
            raise self.error

    def open(self, ctx):
        self.step("open")

    def process(self, row, ctx):
        if ctx.timestamp() is not None:
            ctx.timer_service().register_event_time_timer(ctx.timestamp())
        self.step(f"process-{row.user}")
        yield ctx.key, row.n

    def on_timer(self, timestamp, ctx):
        self.step("on_timer")

    def close(self):
        self.step("close")


class RecordingSink:
    """A sink whose writer notes what is done with it, and fails where it is told to."""

    def __init__(self, fail=""):
        self.fail = fail
        self.calls = []

    def open_writer(self, stage, schema):
        return self._do("open")

    def write(self, batch):
        self._do("write")

    def finish(self):
        self._do("finish")
        return [{"rows": 1}]

    def abort(self):
        self._do("abort")

    def _do(self, call):
        self.calls.append(call)
        if call in self.fail.split():
            raise RuntimeError(f"sink cannot {call}")
        return self


def failing(operator, function, batches=(), **changes):
    with pytest.raises(SubtaskFailure) as caught:
        operator.attempt(function, batches, **changes)
    return failure_of(caught.value)


@pytest.mark.parametrize(
    ("at", "where"),
    [
        ("open", "operator={uid} subtask=0"),
        ("process-a", "operator={uid} subtask=0 key='a'"),
        ("process-b", "operator={uid} subtask=0 key='b'"),
        ("on_timer", "operator={uid} subtask=0 key='a'"),
        ("close", "operator={uid} subtask=0"),
    ],
)
def test_an_error_in_user_code_names_operator_subtask_and_key(operator, batch, at, where):
    rows = [batch(("a", 1, 5), ("a", 2, 6)), batch(("b", 1, 7))]
    error = failing(operator, Fails(at), rows)
    assert type(error) is UserFunctionError
    first, *trace = str(error).splitlines()
    assert first == f"{where.format(uid=operator.uid)}: ZeroDivisionError: division by zero"
    assert trace[-1] == "ZeroDivisionError: division by zero"
    assert Path(__file__).name in trace[0]
    assert any("in step" in line for line in trace)


def test_an_error_of_a_timer_without_rows_names_its_key(operator, batch):
    operator.epoch(Fails(""), [batch(("a", 1, 5), ("b", 1, 5))])
    assert "key='a': Zero" in str(failing(operator, Fails("on_timer"), watermark=9))


def test_a_long_key_is_shortened(operator, batch):
    rows = [batch(("k" * 500, 1))]
    error = failing(operator, Fails("process-" + "k" * 500), rows)
    assert re.match(r"operator=\S+ subtask=0 key='k{99}: Zero", str(error))


def test_a_wrong_state_value_names_the_key_that_wrote_it(operator, batch):
    class Wrong(KeyedProcessFunction):
        def open(self, ctx):
            self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

        def process(self, row, ctx):
            if row.user == "b":
                self.n.update("two")

    rows = [batch(("a", 1), ("b", 1), ("c", 1))]
    error = failing(operator, Wrong(), rows)
    assert "key='b': StateTypeError: a value is not of its state's type: state=n" in str(error)
    assert "key='b'" in str(failing(operator, Wrong(), [batch(("a", 1), ("b", 1))]))


@pytest.mark.parametrize("default", [None, 0])
def test_a_wrong_state_value_shows_the_line_that_wrote_it_and_its_type(operator, batch, default):
    class Wrong(KeyedProcessFunction):
        def open(self, ctx):
            self.seen = ctx.get_state(ValueStateDescriptor("seen", "long"))
            self.n = ctx.get_state(ValueStateDescriptor("n", "long", default=default))

        def process(self, row, ctx):
            self.seen.update(1)
            self.n.update("two")

    line = Wrong.process.__code__.co_firstlineno + 2
    error = failing(operator, Wrong(), [batch(("a", 1))])
    assert "state=n declared=long: bigint cannot hold 'two' of Python type str" in str(error)
    assert str(error).endswith(f"(file={__file__} line={line} in process)")
    assert "Traceback" not in str(error)


class Lazy:
    """Runs code of its own when it is asked for anything."""

    def __getattribute__(self, name):
        raise RuntimeError("the client is not connected")


def test_the_error_of_a_state_is_told_whatever_else_the_function_has(operator, batch):
    class Wrong(KeyedProcessFunction):
        process_batch = limits = Lazy()

        def open(self, ctx):
            self.client = Lazy()
            self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

        def process(self, row, ctx):
            self.n.update("two")

    line = Wrong.process.__code__.co_firstlineno + 1
    error = failing(operator, Wrong(), [batch(("a", 1))])
    assert "cannot hold 'two' of Python type str" in str(error)
    assert str(error).endswith(f"(file={__file__} line={line} in process)")


def test_an_attribute_that_is_not_there_is_told_whatever_it_was_asked_of(operator, batch):
    class Refuses:
        def __getattr__(self, name):
            if name == "send":
                raise AttributeError("no send", name=name, obj=self)
            raise RuntimeError("the client is not connected")

    class Sends(KeyedProcessFunction):
        def process(self, row, ctx):
            row.n = Refuses().send

    assert "AttributeError: no send" in str(failing(operator, Sends(), [batch(("a", 1))]))


def test_a_method_that_is_overridden_is_not_named(operator, batch):
    class Base(KeyedProcessFunction):
        def open(self, ctx):
            self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

        def process(self, row, ctx):
            self.n.update(1)

    class Wrong(Base):
        def process(self, row, ctx):
            self.n.update("two")

    line = Wrong.process.__code__.co_firstlineno + 1
    error = failing(operator, Wrong(), [batch(("a", 1))])
    assert str(error).endswith(f"'two' of Python type str (file={__file__} line={line} in process)")


def test_where_it_is_not_known_which_line_wrote_it_the_method_is_shown(operator, batch):
    class Wrong(KeyedProcessFunction):
        def open(self, ctx):
            self.states = [ctx.get_state(ValueStateDescriptor("n", "long"))]

        def process(self, row, ctx):
            self.states[0].update("two")

    line = Wrong.process.__code__.co_firstlineno
    error = failing(operator, Wrong(), [batch(("a", 1))])
    assert str(error).endswith(f"(file={__file__} line={line} in Wrong.process)")


def test_state_that_is_used_in_open_is_refused_with_the_place(operator):
    class Early(Echo):
        def open(self, ctx):
            ctx.get_state(ValueStateDescriptor("n", "long")).value()

    assert "RuntimeError: state belongs to a key" in str(failing(operator, Early()))


def test_a_function_without_process_says_so(operator, batch):
    class Nothing(KeyedProcessFunction):
        pass

    error = failing(operator, Nothing(), [batch(("a", 1))])
    assert "TypeError: Nothing does not define process(row, ctx)" in str(error)


def test_a_state_declared_otherwise_than_before_is_refused(operator, batch):
    class Declares(Echo):
        def __init__(self, ddl):
            self.ddl = ddl

        def open(self, ctx):
            ctx.get_state(ValueStateDescriptor("n", self.ddl))

    operator.epoch(Declares("long"), [batch(("a", 1))])
    error = failing(operator, Declares("string"))
    assert type(error) is UserError
    assert "state=n written=bigint declared=string" in str(error)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (("a", 1.5), "column=n declared=int64: got 1.5"),
        (("a",), "must yield rows, each a tuple of 2 values"),
        ("ab", "must yield rows"),
    ],
)
def test_output_that_is_not_declared_is_the_users_error(operator, batch, row, words):
    class Bad(KeyedProcessFunction):
        def process(self, _row, ctx):
            yield row

    error = failing(operator, Bad(), [batch(("a", 1))])
    assert type(error) is UserError
    assert f"operator={operator.uid}" in str(error)
    assert words in str(error)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), LocalDiskError),
        (OSError(errno.EROFS, "Read-only file system"), LocalDiskError),
        (PermissionError(errno.EACCES, "Permission denied"), UserFunctionError),
        (UserError("the lookup table is missing"), UserError),
        (Retryable("the service does not answer"), Retryable),
        (ValueError("[moorage:fenced] not ours"), UserFunctionError),
        (KeyError(), UserFunctionError),
    ],
)
def test_what_the_driver_does_depends_on_the_error(operator, batch, error, kind):
    assert type(failing(operator, Fails("process-a", error), [batch(("a", 1))])) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LocalDiskError("no room"), LocalDiskError),
        (Retryable("the store is away"), Retryable),
        (UserError("no name of a directory"), UserError),
    ],
)
@pytest.mark.parametrize("aborts", [True, False])
def test_what_stages_rows_of_no_operator_says_what_the_driver_is_to_do(error, kind, aborts):
    class Writer:
        def write(self, _batch: pa.RecordBatch) -> None:
            raise error

        def abort(self) -> None:
            if not aborts:
                raise OSError(errno.EIO, "Input/output error")

    rows = pa.RecordBatch.from_pydict({"n": [1]})
    sink: Any = SimpleNamespace(open_writer=lambda _stage, _schema: Writer())
    with pytest.raises(SubtaskFailure) as told:
        list(stage_rows("lineage", "f1r0", 1, "out", sink, rows.schema, iter([rows])))
    told_to_driver = RuntimeError(f"PythonException: SubtaskFailure: {told.value}")
    found = failure_of(told_to_driver)
    assert (type(found), str(found)) == (kind, str(error))


# -- the range --------------------------------------------------------------------------------


def test_another_version_of_the_range_is_reported_as_that(operator, batch, connections):
    leased = LeasedRange(operator.lease, ServerDoor(operator.address), Version(3, "x"))
    for function in (Echo(), Fails("")):
        rows = [batch(("a", 1))]
        assert type(failing(operator, function, rows, ranges=(leased,))) is VersionMismatch
    assert [c._broken for c in connections] == ["the client was closed"] * 2


def test_another_run_on_the_range_is_reported_as_that(operator, batch):
    newer = "f2r0"
    operator.client.open_range(RangeSpec(operator.uid, 0, 127), newer, None, [], "memory://x")
    assert type(failing(operator, Echo(), [batch(("a", 1))])) is StaleLease
    operator.client.release_range(Lease(operator.uid, 0, newer))


@pytest.mark.parametrize("address", ["unix:/tmp/moorage-nobody/0.sock", "tcp:127.0.0.1:1"])
def test_a_server_that_does_not_answer_is_tried_again(operator, batch, address):
    leased = LeasedRange(operator.lease, ServerDoor(address), operator.version)
    error = failing(operator, Echo(), [batch(("a", 1))], ranges=(leased,))
    assert type(error) is ServerGone
    assert address in str(error)


class _Kept:
    """A host as a client, whose end is not that of the host."""

    def __init__(self, host: RangeHost) -> None:
        self.range = host.range

    def close(self) -> None:
        pass


def test_the_in_process_host_serves_as_well(tmp_path, operator, batch, monkeypatch):
    with RangeHost(tmp_path / "host") as host:
        host.open_range(RangeSpec(operator.uid, 0, 127), "f1r0", None, [], f"file://{tmp_path}")
        monkeypatch.setattr(StateClient, "connect", lambda *_, **__: _Kept(host))
        done = operator.attempt(Echo(), [batch(("a", 1))], downstream=1)
        assert done.rows == [("a", 1)]
        host.range(operator.lease).commit(1, done.ack.delta)


# -- letting go -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "calls"),
    [
        ("open", ["open"]),
        ("process-a", ["open", "process-a", "close"]),
        ("process-a close", ["open", "process-a", "close"]),
        ("close", ["open", "process-a", "close"]),
    ],
)
def test_what_was_opened_is_closed_once_and_the_first_error_counts(operator, batch, at, calls):
    function = Fails(at)
    failing(operator, function, [batch(("a", 1))])
    assert function.calls == calls


def test_an_error_in_close_does_not_hide_what_went_wrong_before(operator, batch):
    class Both(Fails):
        def close(self):
            raise RuntimeError("close failed too")

    error = failing(operator, Both("process-a"), [batch(("a", 1))])
    assert "ZeroDivisionError" in str(error)
    assert "close failed" not in str(error)


@pytest.mark.parametrize(
    ("fail", "calls"),
    [
        ("open", ["open"]),
        ("write", ["open", "write", "abort"]),
        ("finish", ["open", "write", "finish", "abort"]),
        ("write abort", ["open", "write", "abort"]),
    ],
)
def test_a_sink_that_fails_fails_the_attempt_and_is_dropped(operator, batch, fail, calls):
    sink, other = RecordingSink(fail), RecordingSink()
    sinks = (("one", other), ("two", sink))
    error = failing(operator, Echo(), [batch(("a", 1))], sinks=sinks)
    assert f"sink cannot {fail.split()[0]}" in str(error)
    assert sink.calls == calls
    assert other.calls[-1] == "abort"


def test_a_failure_after_rows_were_written_drops_them(operator, batch, tmp_path):
    class Late(Fails):
        def process(self, row, ctx):
            yield from [(ctx.key, row.n)] * 9000
            self.step(f"process-{row.user}")

    sink = FileSink(str(tmp_path / "out"))
    rows = [batch(("a", 1)), batch(("b", 1))]
    failing(operator, Late("process-b"), rows, sinks=(("out", sink),))
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_rows_that_nobody_takes_any_more_are_dropped(operator, batch):
    sink, function = RecordingSink(), Fails("")
    plan = operator.plan(function, sinks=(("s", sink),), downstream=1)
    schema = batch(("a", 1)).schema
    start = pa.RecordBatch.from_pylist([{"_m_kind": 2, "_m_kg": 0}], schema=schema)
    rows = batch(*(("a", i) for i in range(9000)))
    attempt: Any = run_subtask(plan, iter([start, rows, batch(("b", 1))]))
    next(attempt)
    attempt.close()
    assert sink.calls[-1] == "abort"
    assert function.calls[-1] == "close"


def test_staged_output_is_in_the_ack_and_not_yet_visible(operator, batch, tmp_path):
    sinks = (("out", FileSink(str(tmp_path / "a"))), ("copy", FileSink(str(tmp_path / "b"))))
    ack = operator.attempt(Echo(), [batch(("a", 1)), batch(("b", 2))], sinks=sinks).ack
    assert sorted(ack.committables) == ["copy", "out"]
    (item,) = ack.committables["out"]
    assert item["rows"] == 2
    assert pq.read_table(tmp_path / "a" / item["staged"]).to_pylist() == [
        {"user": "a", "n": 1},
        {"user": "b", "n": 2},
    ]
    assert not list((tmp_path / "a").glob("*.parquet"))
    assert operator.uid in item["file"]


def test_an_epoch_without_output_stages_nothing(operator, tmp_path):
    sink = FileSink(str(tmp_path / "out"))
    assert operator.attempt(Echo(), [], sinks=(("out", sink),)).ack.committables == {}
    assert not (tmp_path / "out").exists()
