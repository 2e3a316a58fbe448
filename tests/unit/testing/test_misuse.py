# ruff: noqa: ARG002  functions are written as people write them
"""What a harness refuses, that a refusal changes nothing, and that nothing of one is left."""

import functools
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar, cast

import pytest

from moorage import (
    CoGroupFunction,
    FileSink,
    JoinFunction,
    KeyedBatchFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessWindowFunction,
    Trigger,
    TriggerResult,
    Tumbling,
    ValueStateDescriptor,
    count,
)
from moorage.testing import KeyedHarness, SecondStream, run_job
from moorage_state.errors import MoorageError, UserError
from moorage_state.keyed import TimeDomain

STREAM = "user string, n long"
NO_COUNTS: list[Any] = [0, -1, True, 2.0, "2", None, 300]


class Total(KeyedProcessFunction):
    def __init__(self, kind="long", *, breaks=False):
        self.kind = kind
        self.breaks = breaks

    def open(self, ctx):
        if self.breaks:
            raise ZeroDivisionError("broken")
        self.total = ctx.get_state(ValueStateDescriptor("total", self.kind))
        self.rows = ctx.get_list_state(ListStateDescriptor("rows", "long"))
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", "long", "string"))
        self.of_days = ctx.get_namespaced_state(ValueStateDescriptor("of_days", "long"), ["long"])

    def process(self, row, ctx):
        self.total.update((self.total.value() or 0) + row.n)
        self.of_days.set_current_namespace(row.n).update(row.n)
        yield ctx.key, self.total.value()


def harness(function=None, **options):
    given = {"schema": STREAM, "key_by": "user", "output": "user string, total long"}
    return KeyedHarness(function or Total(), **given | options)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where temporary files of the test lie; nothing is in it afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", NO_COUNTS)
def test_another_number_of_subtasks_is_refused_wherever_one_is_given(count):
    def build(env):
        env.read_stream("rows", "json", schema=STREAM).foreach_epoch(print, uid="out")

    says = "parallelism is a whole number from 1 to 128"
    with pytest.raises(UserError, match=says):
        harness(parallelism=count)
    with pytest.raises(UserError, match=says):
        run_job(build, {}, parallelism=count)
    with harness(parallelism=2) as one:
        one.process(("a", 1))
        with pytest.raises(UserError, match=says):
            one.rescale(count)
        if count is not None:
            with pytest.raises(UserError, match=says):
                one.restore(one.snapshot(), parallelism=count)
        assert one.process(("a", 2)) == [("a", 3)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_parallelism": 0}, "max_parallelism is a whole number from 1 to 32768"),
        ({"max_parallelism": 4, "parallelism": 5}, "from 1 to 4"),
        ({"now_ms": 0.5}, "now_ms is a whole number"),
        ({"batch_rows": 0}, "batch_rows is a whole number"),
        ({"key_by": None}, "key_by is a column, or several"),
        ({"second": STREAM}, r"give one"),
        ({"second": SecondStream(STREAM, cast("Any", None))}, "key_by is a column, or several"),
        # As Spark says it, where tests before have one in this process.
        ({"schema": "user strin"}, "columns of an input.*(did you mean string|STRIN)"),
        ({"schema": 5}, "columns of an input"),
        ({"restore": "yesterday"}, r"what snapshot\(\) gave: got=str"),
        ({"max_delay": "1s"}, "event_time"),
        ({"function": lambda keyed: keyed.count(uid="n")}, "give them there"),
        ({"now_ms": datetime(2026, 1, 1, tzinfo=UTC)}, r"give milliseconds since 1970 UTC: int\("),
    ],
)
def test_other_arguments_are_refused(options, says):
    with pytest.raises(UserError, match=says):
        harness(**options)


def nothing(_: Any) -> Any:
    """No operator of a stream, and no job."""


@pytest.mark.parametrize("function", [None, Total, "total"])
def test_what_is_no_function_is_refused(function):
    with pytest.raises(UserError, match="an instance of a KeyedProcessFunction"):
        KeyedHarness(function, STREAM, "user", "user string, total long")
    with harness() as one:
        one.process(("a", 1))
        with pytest.raises(UserError, match="an instance of a KeyedProcessFunction"):
            one.upgrade(function)
        assert one.process(("a", 2)) == [("a", 3)]
    with pytest.raises(UserError, match="an instance of a KeyedProcessFunction"):
        KeyedHarness(nothing, STREAM, "user")


def test_a_function_of_other_streams_than_the_harness_has_is_refused():
    def two(keyed, other):
        return keyed.connect(other)

    def one(keyed):
        return keyed.count(uid="n")

    with pytest.raises(UserError, match=r"streams=1: .*'other'; give second=SecondStream\("):
        KeyedHarness(two, STREAM, "user")
    with pytest.raises(UserError, match=r"streams=2: .*; leave second out"):
        KeyedHarness(one, STREAM, "user", second=SecondStream(STREAM, "user"))


def test_after_a_refusal_a_harness_goes_on_as_it_was():
    with harness() as one, harness(max_parallelism=64) as other:
        one.process(("a", 1))
        taken = one.snapshot()
        with pytest.raises(UserError, match="total"):
            one.upgrade(Total("string"))
        with pytest.raises(UserError, match="total"):
            one.restore(taken, function=Total("string"))
        with pytest.raises(UserError, match="give max_parallelism=64"):
            one.restore(other.snapshot())
        with pytest.raises(UserError, match="got=int"):
            one.restore(7)
        with pytest.raises(ZeroDivisionError):
            one.upgrade(Total(breaks=True))
        assert one.process(("a", 2)) == [("a", 3)]
        one.restore(taken)
        assert one.process(("a", 5)) == [("a", 6)]
        assert one.output == [("a", 1), ("a", 3), ("a", 6)]


def test_a_snapshot_that_the_function_cannot_read_is_refused_at_once():
    with harness() as one:
        one.process(("a", 1))
        with pytest.raises(UserError, match="total"):
            harness(Total("string"), restore=one.snapshot())


def test_a_snapshot_goes_on_under_its_own_uid_and_key_alone():
    with harness() as one:
        one.process(("a", 1))
        with pytest.raises(UserError, match=r"snapshot={'function': \('string',\)}.*bigint"):
            harness(key_by="n", restore=one.snapshot())
        with pytest.raises(UserError, match="give the uid and key_by that it was taken with"):
            harness(lambda keyed: keyed.count(uid="n"), output="", restore=one.snapshot())


@pytest.mark.parametrize(
    ("inputs", "options", "says"),
    [
        ([("a", 1)], {}, r"give {uid: \[row, ...\]}"),
        (None, {}, "inputs is rows by uid"),
        ("rows", {}, "inputs is rows by uid"),
        ({}, {"args": "out"}, "args is a list"),
        ({}, {"now_ms": "noon"}, "now_ms is a whole number"),
    ],
)
def test_what_a_whole_job_cannot_be_given_is_refused(inputs, options, says):
    with pytest.raises(UserError, match=says):
        run_job(nothing, inputs, **options)


def test_a_harness_that_is_closed_does_nothing_more_and_shows_what_it_sent():
    with harness() as one:
        one.process(("a", 1))
        taken = one.snapshot()
    one.close()
    uses = [
        one.__enter__,
        lambda: one.process(("a", 1)),
        lambda: one.process_watermark(1),
        lambda: one.set_processing_time(1),
        one.end_input,
        one.current_watermark,
        one.keys,
        lambda: one.state("total", "a"),
        lambda: one.timers("a"),
        one.num_timers,
        lambda: one.crash_and_replay(("a", 1)),
        one.snapshot,
        lambda: one.restore(taken),
        lambda: one.rescale(2),
        lambda: one.upgrade(Total()),
    ]
    for use in uses:
        with pytest.raises(UserError, match="the harness is closed"):
            use()
    assert one.output == [("a", 1)]
    with harness(restore=taken) as other:
        assert other.state("total", "a") == 1


def test_nothing_is_left_of_one_that_was_closed_or_could_not_be_made(folder):
    with harness() as one:
        one.process(("a", 1))
        (mine,) = folder.iterdir()
        lost = replace(one.snapshot(), url="memory://gone")
        with pytest.raises(MoorageError):
            harness(restore=lost)
        assert list(folder.iterdir()) == [mine]
    assert not mine.exists()


@pytest.mark.parametrize(
    ("key_by", "key", "says"),
    [
        ("user", 7, "key_by=user string.*give one value"),
        ("user", None, "key_by=user string"),
        ("user", ("a", "b"), "give one value"),
        ("n", "a", "key_by=n bigint"),
        ("n", True, "bigint cannot hold True"),
        ("n", 1 << 70, "outside"),
        (("user", "n"), "a", "key_by=user string, n bigint; give a tuple"),
        (("user", "n"), ("a", "b"), "bigint cannot hold 'b'"),
        (("user", "n"), ("a", 1, 2), "give a tuple"),
    ],
)
def test_what_is_no_key_is_refused(key_by, key, says):
    with KeyedHarness(Total(), STREAM, key_by, "user string, total long") as one:
        for ask in (lambda: one.state("total", key), lambda: one.timers(key)):
            with pytest.raises(UserError, match=says):
                ask()


class Same(KeyedProcessFunction):
    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

    def process(self, row, ctx):
        self.n.update(1)


@pytest.mark.parametrize(
    ("ddl", "key"),
    [
        ("timestamp", datetime(2026, 1, 1, tzinfo=UTC)),
        ("date", datetime(2026, 1, 1, tzinfo=UTC).date()),
        ("boolean", True),
        ("binary", b"a"),
        ("int", -1),
        ("decimal(10,2)", Decimal("1.5")),
    ],
)
def test_keys_of_each_type_are_found(ddl, key):
    with KeyedHarness(Same(), f"k {ddl}", "k", "k long") as one:
        one.process((key,))
        assert one.keys() == [key]
        assert one.state("n", key) == 1


def test_a_declared_state_is_known_before_the_first_row_and_no_other():
    with harness() as one:
        shown = [one.state(name, "a") for name in ("total", "rows", "seen")]
        assert shown == [None, [], {}]
        assert one.state("of_days", "a", namespace=(7,)) is None
        with pytest.raises(UserError, match=r"known=\['of_days', 'rows', 'seen', 'total'\]"):
            one.state("other", "a")
        with pytest.raises(UserError, match="no such state"):
            one.state(["total"], "a")
        assert (one.keys(), one.process(("a", 1))) == ([], [("a", 1)])


def test_namespaces_and_kinds_of_timers_are_checked():
    with harness() as one:
        one.process(("a", 1))
        assert one.state("of_days", "a", (1,)) == 1
        with pytest.raises(UserError, match="a namespace is given for a state that has them"):
            one.state("of_days", "a")
        with pytest.raises(UserError, match="a namespace is given for a state that has them"):
            one.state("total", "a", (1,))
        with pytest.raises(UserError, match="declared=bigint"):
            one.state("of_days", "a", ("x",))
        for ask in (one.num_timers, lambda domain: one.timers("a", domain)):
            with pytest.raises(UserError, match=r"TimeDomain\.EVENT_TIME"):
                ask("event")
        assert one.num_timers(TimeDomain.PROCESSING_TIME) == 0


class Client(KeyedProcessFunction):
    long_lived = True
    told: ClassVar[list[str]] = []

    def __init__(self, name):
        self.name = name

    def open(self, ctx):
        self.told.append(f"open {self.name}")

    def process(self, row, ctx):
        yield ctx.key, row.n

    def close(self):
        self.told.append(f"close {self.name}")


def test_a_long_lived_function_lives_as_long_as_its_harness():
    Client.told.clear()
    with harness(Client("a")) as one, harness(Client("b")) as other:
        for _ in range(2):
            one.process(("a", 1))
            other.process(("a", 1))
        assert Client.told == ["open a", "open b"]
        one.upgrade(Client("c"))
        assert Client.told[2:] == ["open c", "close a"]
    assert Client.told[4:] == ["close b", "close c"]


def test_a_long_lived_function_of_a_whole_job_is_closed_with_it(tmp_path):
    def build(env):
        rows = env.read_stream("rows", "json", schema=STREAM, path="x")
        out = rows.key_by("user").process(Client("a"), uid="a", output="user string, n long")
        out.sink_to(FileSink(str(tmp_path)), uid="out")

    Client.told.clear()
    assert run_job(build, {"rows": [("a", 1)]}) == {"out": [("a", 1)]}
    assert Client.told == ["open a", "close a"]


def method(base, name, made):
    """An instance of a function of whose class one method is given."""
    return type("Mine", (base,), {name: made})()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            method(KeyedProcessFunction, "process", lambda _self, _row: None),
            "process(self, row, ctx)",
        ),
        (method(KeyedProcessFunction, "open", lambda _self: None), "open(self, ctx)"),
        (
            method(KeyedProcessFunction, "on_timer", lambda _self, _at: None),
            "on_timer(self, timestamp, ctx)",
        ),
        (
            method(KeyedBatchFunction, "process_batch", lambda _self, _table: None),
            "process_batch(self, keys, table, ctx)",
        ),
        (
            lambda s: s.window(Tumbling("1m", time="processing")).process(
                method(ProcessWindowFunction, "process", lambda _self, rows: rows),
                uid="w",
                output=STREAM,
            ),
            "process(self, key, ctx, rows)",
        ),
    ],
)
def test_a_method_that_cannot_be_called_is_refused_with_the_form_that_can(function, says):
    def made():
        if isinstance(function, KeyedProcessFunction):
            return harness(function)
        return KeyedHarness(function, STREAM, "user")

    with pytest.raises(UserError, match=r"cannot be called with .* method=Mine\.") as caught:
        made()
    assert str(caught.value).endswith(f"write def {says}")


def of_windows(function):
    window = Tumbling("1m", time="processing")
    return lambda s: s.window(window).process(function, uid="w", output=STREAM)


def of_joins(kind, function):
    window = Tumbling("1m", time="processing")

    def build(one, other):
        met = one.join(other) if kind is JoinFunction else one.co_group(other)
        return met.window(window).apply(function, uid="w", output=STREAM)

    return build


def does_nothing(_self, *_given):
    """A method of any form."""


@pytest.mark.parametrize(
    ("base", "theirs", "says"),
    [
        (KeyedProcessFunction, "process_element", "process(self, row, ctx) in place of process_e"),
        (KeyedProcessFunction, "processElement", "process(self, row, ctx) in place of processEl"),
        (KeyedProcessFunction, "on_timer", "process(self, row, ctx)"),
        (KeyedBatchFunction, "process", "process_batch(self, keys, table, ctx)"),
        (KeyedCoProcessFunction, "process_element1", "process_element2(self, row, ctx)"),
        (ProcessWindowFunction, "process_window", "process(self, key, ctx, rows) in place of pro"),
        (JoinFunction, "apply", "join(self, left, right, ctx)"),
        (CoGroupFunction, "coGroup", "co_group(self, lefts, rights, ctx) in place of coGroup"),
    ],
)
def test_a_function_without_the_method_that_is_called_is_refused_before_it_runs(base, theirs, says):
    function: Any = method(base, theirs, does_nothing)
    second = None
    if base is ProcessWindowFunction:
        function = of_windows(function)
    if base in {JoinFunction, CoGroupFunction}:
        function = of_joins(base, function)
    if base in {JoinFunction, CoGroupFunction, KeyedCoProcessFunction}:
        second = SecondStream(STREAM, "user")
    output = STREAM if isinstance(function, KeyedProcessFunction) else ""
    with pytest.raises(
        UserError, match=r"a method is not defined: uid=\w+ method=Mine\."
    ) as caught:
        KeyedHarness(function, STREAM, "user", output, second=second)
    assert f"; write def {says}" in str(caught.value)


def test_a_method_may_be_defined_by_a_class_of_the_authors_or_by_the_instance():
    class Base(KeyedProcessFunction):
        def process(self, row, ctx):
            return self.rows_of(row)

        def rows_of(self, row):
            raise NotImplementedError

    class Derived(Base):
        def rows_of(self, row):
            return [(row.user, row.n)]

    class Given(KeyedProcessFunction):
        def __init__(self, process):
            self.process = process  # type: ignore[method-assign]  # that is what is tested

    for function in (Derived(), Given(lambda row, _ctx: [(row.user, row.n)])):
        with harness(function) as one:
            assert one.process(("a", 1)) == [("a", 1)]


def test_what_is_called_as_ours_is_taken_however_it_is_written():
    class Wide(Total):
        def process(self, *given, **_named):
            return super().process(*given)

        def on_timer(self, timestamp, ctx, more=None):
            return ()

        def _help(self):
            """Nobody of ours calls it."""

    class Columns(KeyedBatchFunction):
        def process(self, keys):  # type: ignore[override]  # that is what is tested
            """Its own: a function over columns is called otherwise."""

        def process_batch(self, keys, table, ctx):
            return table

    def without_context(process):
        @functools.wraps(process)
        def called(self, row, _ctx):
            return process(self, row)

        return called

    class Wrapped(Total):
        @without_context
        def process(self, row):
            yield tuple(row)

    for function in (Wide(), Wrapped()):
        with harness(function) as one:
            assert one.process(("a", 1)) == [("a", 1)]
    with harness(Columns(), output=STREAM) as one:
        assert one.process(("a", 1)) == [("a", 1)]


async def wait(_self, _row, _ctx):
    """What no engine here waits for."""


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda _self, _row, _ctx: 5, "must yield rows, each a tuple of 2 values.*got=5"),
        (wait, r"cannot be called with \(row, ctx\): .*it is async"),
    ],
)
def test_a_function_that_gives_no_rows_is_told_what_to_give(made, says):
    function = method(KeyedProcessFunction, "process", made)
    with pytest.raises(UserError, match=says), harness(function) as one:
        one.process(("a", 1))


def test_columns_are_asked_for_of_a_function_that_gives_a_number():
    with (
        harness(method(KeyedBatchFunction, "process_batch", lambda *_: 5)) as one,
        pytest.raises(UserError, match="a vectorized operator gives Arrow tables or batches"),
    ):
        one.process(("a", 1))


def test_a_reduction_and_a_trigger_are_held_to_their_form():
    class Silent(Trigger):
        def on_element(self, window, ctx):
            """Forgets to say what is to be done."""

        def on_timer(self, timestamp, domain, window, ctx):
            return TriggerResult.CONTINUE

    class Short(Silent):
        def on_element(self, window):  # type: ignore[override]  # that is what is tested
            return TriggerResult.FIRE

    window = Tumbling("1m", time="processing")
    with pytest.raises(UserError, match="reduce takes a function of two rows"):
        KeyedHarness(
            lambda s: s.window(window).reduce(cast("Any", lambda one: one), uid="w"), STREAM, "user"
        )
    with pytest.raises(UserError, match=r"method=Short\.on_element"):
        KeyedHarness(
            lambda s: s.window(window, trigger=Short()).aggregate(uid="w", n=count()),
            STREAM,
            "user",
        )
    with (
        KeyedHarness(
            lambda s: s.window(window, trigger=Silent()).aggregate(uid="w", n=count()),
            STREAM,
            "user",
        ) as one,
        pytest.raises(UserError, match="a trigger answers with a TriggerResult: trigger=Silent"),
    ):
        one.process(("a", 1))


def keyed(env: Any) -> Any:
    return env.read_stream("in", "rows", schema=STREAM).key_by("user")


def test_arguments_that_no_call_has_are_named_as_in_a_job():
    with pytest.raises(UserError, match=r"options=\['nul_key'\] has=.*null_key"):
        harness(nul_key="drop")
    with pytest.raises(UserError, match="deduplicate missing 1 required keyword-only argument"):
        KeyedHarness(lambda s: s.deduplicate("n"), STREAM, "user")
    with pytest.raises(UserError, match="deduplicate missing 1 required keyword-only argument"):
        run_job(lambda env: keyed(env).deduplicate(), {})


async def build_later(_env):
    """Describes nothing when it is called."""


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (None, "run_job takes a job's build: got=None"),
        ("job.py", "run_job takes a job's build: got='job.py'"),
        (Total, "run_job takes a job's build: got=<class"),
        (lambda: None, "build is called with env alone: .*too many positional arguments"),
        (lambda _env, _x: None, "build is called with env alone: .*missing a required argument"),
        (lambda env: (yield env), "it yields, and so does nothing when it is called"),
        (build_later, "build is called with env alone: .*it is async"),
    ],
)
def test_run_job_says_what_is_no_build(build, says):
    with pytest.raises(UserError, match=says) as caught:
        run_job(build, {})
    assert str(caught.value).endswith("give the function of the job file, def build(env)")


@pytest.mark.parametrize("rows", [5, None, "ab", {"user": "a", "n": 1}])
def test_run_job_says_what_rows_are(rows):
    def build(env):
        env.read_stream("rows", "json", schema=STREAM).foreach_epoch(print, uid="out")

    with pytest.raises(UserError, match="rows of an input are a list of tuples or dicts"):
        run_job(build, {"rows": rows})


@pytest.mark.parametrize("args", ["text", None, 5, [5]])
def test_run_job_takes_arguments_as_a_manifest_has_them(args):
    with pytest.raises(UserError, match="args is a list of texts"):
        run_job(lambda _env: None, {}, args=args)
