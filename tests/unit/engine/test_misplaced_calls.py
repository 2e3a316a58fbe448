"""Calls that a stream does not have: who makes them is told what to call instead."""

import re
from typing import Any, cast

import pytest
from pyspark.sql.types import StructType

from moorage import (
    Count,
    EachCount,
    FileSink,
    JoinFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    Tumbling,
    avg,
    count,
    max_,
    sum_,
)
from moorage.api.join_functions import select_columns
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


@pytest.mark.parametrize("source", ["json", "JSON", "xml", "avro", "of.another.Package"])
@pytest.mark.parametrize("option", ["cleanSource", "cleansource"])
def test_spark_may_not_take_files_away_that_a_restore_reads_again(source, option):
    def build(env):
        options = {option: "DELETE"}
        env.read_stream("in", source, schema="user string", path="in", **options)

    with pytest.raises(UserError, match="leave cleanSource out"):
        run_job(build, {})


NO_PATH: Any = 3
PANES = Tumbling("1m", time="processing")
STATE = MapStateDescriptor("rules", "string", "long")
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
        (lambda s: s.key_by("user").flatMap(list), "has no flatMap: before key_by, call transform"),
        (lambda s: s.between("0s", "1m"), 'has no between: call key_by("column"), then interval'),
        (lambda s: s.reduce(max), 'has no reduce: call key_by("column"), then window('),
        (lambda s: s.with_event_time("n", idle="1m"), "'idle': did you mean idle_after?"),
        (lambda s: s.unoin(s), "a DataStream has no unoin: did you mean union?"),
        (lambda s: s.window_all(PANES), 'has no window_all: call key_by("all").window('),
        (lambda s: s.key_by("user").windw(Tumbling("1m")), "did you mean window?"),
        (lambda s: s.sink_to(FileSink(NO_PATH), uid="x"), "path is text or a pathlib.Path: path=3"),
    ],
)
def test_it_is_said_what_to_call_instead(call, said):
    assert said in building(call)


class First(JoinFunction):
    def join(self, left, right, ctx):
        """Gives nothing."""


class Rows(ProcessWindowFunction):
    def process(self, key, ctx, rows):
        """Gives nothing."""


OTHER: Any = {"nothing": None, "list": [], "tag": OutputTag("odd"), "number": 5}
SUM = "sum takes names of columns: uid=x column="


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.union([s]), "union takes other streams: got=list; give each as an argument"),
        (lambda s: s.union(s.key_by("user")), "union takes other streams: got=KeyedStream"),
        (lambda s: s.key_by("user").connect(OTHER["nothing"]), "another stream: got=NoneType"),
        (lambda s: s.key_by("user").sum(["n"], uid="x"), f"{SUM}['n'] columns=['user', 'n']"),
        (
            lambda s: s.key_by("user").max(OTHER["number"], uid="x"),
            "names of columns: uid=x column=5",
        ),
        (lambda s: s.key_by("user").sum("m", uid="x"), f"{SUM}'m'"),
        (
            lambda s: s.key_by("user").aggregate(uid="x", n=sum_(OTHER["nothing"])),
            "no such column to aggregate: uid=x n=sum column=None",
        ),
        (
            lambda s: (
                s.key_by("user")
                .window(PANES)
                .aggregate(uid="x", n=count())
                .key_by("window_start")
                .window(PANES)
                .aggregate(uid="y", n=count())
            ),
            "the key has one of this name: uid=y key=['window_start']; name it otherwise before",
        ),
        (
            lambda s: s.key_by("user").deduplicate(by=OTHER["number"], uid="x"),
            "deduplicate takes names of columns: uid=x column=5",
        ),
        (
            lambda s: s.key_by("user").count(uid="x", null_key=[OTHER["tag"]]),
            "null_key is 'fail', 'drop' or the OutputTag of a side output: uid=x null_key=[",
        ),
        (
            lambda s: (
                s.key_by("user")
                .window(PANES)
                .process(Rows(), uid="x", output="n long", side_outputs=OTHER["tag"])
            ),
            "side_outputs is a list of OutputTag(name, ddl): uid=x side_outputs=OutputTag(",
        ),
        (
            lambda s: (
                s.key_by("user")
                .temporal_join(s.key_by("user"), time="processing")
                .apply(First(), uid="x", output="n long", side_outputs=OTHER["tag"])
            ),
            "side_outputs is a list of OutputTag(name, ddl): uid=x side_outputs=OutputTag(",
        ),
        (
            lambda s: pairs_of(s).apply(
                First(), uid="x", output="n long", side_outputs=OTHER["nothing"]
            ),
            "side_outputs is a list of OutputTag(name, ddl): uid=x side_outputs=None",
        ),
    ],
)
def test_what_a_call_does_not_take_is_named_with_what_it_does(call, said):
    assert said in building(call)


BY_FUNCTION = 'in place of the join\'s select call apply(function, uid="...", output="...") with a'
OF_PAIRS = {"uid": "pairs", "n": "left.n"}


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.where("n > 1"),
        lambda made: made.transform(lambda frame: frame.where("n > 1")),
        lambda made: made.key_by("n").select("n"),
    ],
)
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: s.join(s).window(PANES).select(**OF_PAIRS), BY_FUNCTION),
        (lambda s: s.join(s).window(PANES, trigger=EachCount(2)).select(**OF_PAIRS), BY_FUNCTION),
        (lambda s: s.temporal_join(s, time="processing").select(**OF_PAIRS), BY_FUNCTION),
        (
            lambda s: s.interval_join(s).between("0s", "1m").select(**OF_PAIRS),
            'of an interval join process(function, uid="...", output="...") with a ProcessJoin',
        ),
        (
            lambda s: s.join(s).window(PANES).apply(First(), uid="pairs", output="n long"),
            "do it inside the function First instead",
        ),
        (
            lambda s: s.window(PANES).aggregate(uid="pairs", n=count()),
            'call key_by("column").process(function, uid="...", output="...") after it',
        ),
        (
            lambda s: s.window(PANES).reduce(max, uid="pairs"),
            'call key_by("column").process(function, uid="...", output="...") after it',
        ),
    ],
)
def test_rows_of_an_operator_are_changed_where_they_are_made(make, said, change):
    told = building(lambda stream: change(make(timed(stream))))
    assert said in told
    assert "operator=pairs" in told
    assert "lambda frame" not in told


def test_a_list_of_columns_is_no_column_of_a_select():
    told = re.escape("select takes columns of the sides as they are: uid=pairs v=['left.n']; for ")
    schema = StructType().add("n", "long")
    named: Any = {"v": ["left.n"]}
    with pytest.raises(UserError, match=told):
        select_columns("pairs", named, (schema, schema))


@pytest.mark.parametrize("given", ["right.n + 1", "upper(left.user)", "n * 2"])
def test_what_a_select_would_have_to_compute_is_for_a_function(given):
    told = building(lambda stream: pairs_of(stream).select(uid="pairs", n=given))
    assert f"select takes columns of the sides as they are: uid=pairs n={given!r}; for " in told
    assert 'call in its place apply(function, uid="...", output="...") with a JoinF' in told
    assert "did you mean" not in told
    told = building(lambda stream: pairs_of(stream).select(uid="pairs", n="n"))
    assert "did you mean left.n or right.n?" in told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("left.user-idd", "n='left.user-idd'; did you mean left.user-id?; these"),
        ("user-id", "n='user-id'; did you mean left.user-id or right.user-id?; these"),
        ("left.unit  price", "n='left.unit  price'; did you mean left.unit price?; these"),
        ("left.user-id + 1", "as they are: uid=pairs n='left.user-id + 1'; for"),
        ("left.n-1", "as they are: uid=pairs n='left.n-1'; for"),
    ],
)
def test_a_name_with_a_dash_or_a_space_is_no_expression(given, told):
    named = StructType().add("user-id", "string").add("unit price", "double").add("n", "long")
    with pytest.raises(UserError) as refused:
        select_columns("pairs", {"n": given}, (named, named))
    assert told in str(refused.value)


def pairs_of(stream):
    return stream.key_by("user").join(stream.key_by("user")).window(PANES)


BEFORE = "call it before key_by, as in stream."


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.with_event_time("n"), f"on a KeyedStream: {BEFORE}with_event_time("),
        (lambda s: s.transform(list), f"on a KeyedStream: {BEFORE}transform("),
        (lambda s: s.union(s.stream), f"on a KeyedStream: {BEFORE}union(other).key_by("),
        (lambda s: s.broadcast(STATE), "everybody have no key: leave key_by out"),
        (lambda s: s.withWatermark("n", "1m"), f"before key_by, {EVENT_TIME}"),
        (lambda s: s.key_by("n"), "name all its columns in one call, as in key_by("),
        (lambda s: s.groupBy("n"), "call process or another operator before groupBy"),
        (lambda s: s.between("0s", "1m"), "call interval_join(other).between("),
        (lambda s: s.reduce(max), 'call window(Tumbling("1h")).reduce(function, uid='),
        (lambda s: s.apply(max, uid="x"), "call process(function, uid="),
        (lambda s: s.window(PANES).with_event_time("n"), f"on a WindowedStream: {BEFORE}"),
        (lambda s: s.join(s).with_event_time("n"), f"on a JoinedStreams: {BEFORE}"),
        (lambda s: s.window(PANES).join(s), 'join first, as in one.key_by("id").join('),
        (lambda s: s.window(PANES).allowed_lateness("1m"), ', allowed_lateness="5m")'),
        (lambda s: s.window(PANES).side_output_late_data(1), ', late=OutputTag("late"))'),
        (
            lambda s: s.window(PANES).sum("n", uid="x"),
            'name the result, as in aggregate(uid="...",',
        ),
        (
            lambda s: s.window(PANES).count(uid="x"),
            'name the result, as in aggregate(uid="...", n=',
        ),
        (lambda s: s.join(s).where("user"), "the key that key_by("),
        (lambda s: s.join(s).window(PANES).allowedLateness("1m"), ', allowed_lateness="5m")'),
        (lambda s: s.co_group(s).window(PANES).sideOutputLateData(1), "and counts them; for fewer"),
    ],
)
def test_a_call_that_comes_too_late_is_told_where_it_belongs(call, said):
    assert said in building(lambda stream: call(stream.key_by("user")))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.join(s).window(PANES, late=1), "drops rows whose window is gone, and counts"),
        (lambda s: s.co_group(s).window(PANES, late=1), "allowed_lateness"),
        (lambda s: s.interval_join(s).between("0s", "1m", late=1), "late_left=tag and late_right"),
    ],
)
def test_a_join_says_what_becomes_of_its_late_rows(call, said):
    told = building(lambda stream: call(timed(stream)))
    assert "has no argument 'late': " in told
    assert said in told
    assert "did you mean" not in told


NEVER: Any = None


@pytest.mark.parametrize(
    ("call", "form"),
    [
        (lambda s, **more: s.count(uid="x", **more), "count(*, uid, null_key="),
        (lambda s, **more: s.sum("n", uid="x", **more), "sum(column, *, uid, "),
        (lambda s, **more: s.min("n", uid="x", **more), "min(column, *, uid, "),
        (lambda s, **more: s.max("n", uid="x", **more), "max(column, *, uid, "),
        (lambda s, **more: s.deduplicate("n", uid="x", **more), "deduplicate(*columns, uid, by="),
        (lambda s, **more: s.top_n(1, by="n", uid="x", **more), "top_n(n, *, by, uid, "),
        (lambda s, **more: s.window(PANES).reduce(max, uid="x", **more), "reduce(function, *, uid"),
        (
            lambda s, **more: s.window(PANES).process(NEVER, uid="x", output="n long", **more),
            "process(function, *, uid, output, ",
        ),
        (
            lambda s, **more: s.join(s).window(PANES).apply(NEVER, uid="x", output="", **more),
            "apply(function, *, uid, output, ",
        ),
        (
            lambda s, **more: s.co_group(s).window(PANES).apply(NEVER, uid="x", output="", **more),
            "apply(function, *, uid, output, ",
        ),
        (
            lambda s, **more: (
                s.interval_join(s).between("0s", "1m").process(NEVER, uid="x", output="", **more)
            ),
            "process(function, *, uid, output, ",
        ),
        (
            lambda s, **more: s.temporal_join(s).apply(NEVER, uid="x", output="", **more),
            "apply(function, *, uid, output, ",
        ),
        (
            lambda s, **more: s.connect(s.stream, STATE).process(NEVER, uid="x", output="", **more),
            "process(function, *, uid, output, ",
        ),
    ],
)
def test_arguments_that_a_call_would_only_pass_on_are_told_by_that_call(call, form):
    told = building(lambda stream: call(timed(stream), nul_key="drop"))
    name = form.partition("(")[0]
    assert f"{name} has no argument 'nul_key': did you mean null_key?; write {form}" in told


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda s: s.window(PANES).reduce(max, uid="x", output="n long"),
            "reduce has no argument 'output': its rows have the columns of the stream; write",
        ),
        (
            lambda s: s.deduplicate(uid="x", subset=["n"]),
            "deduplicate has no argument 'subset': columns beside the key are by=",
        ),
        (
            lambda s: s.deduplicate(by="nn", uid="x"),
            "deduplicate takes names of columns: uid=x column='nn' columns=['user', 'n']; did you",
        ),
        (
            lambda s: s.deduplicate(["n"], uid="x"),
            "deduplicate takes names of columns: uid=x column=['n']",
        ),
        (lambda s: s.top_n(1, by=["n"], uid="x"), "top_n takes names of columns: uid=x column=['n"),
        (
            lambda s: s.top_n(1, by="n", uid="x").key_by("n").top_n(1, by="n", uid="y"),
            "top_n gives rows a column rank, and the stream has one: uid=y columns=['rank']; ren",
        ),
        (
            lambda s: s.top_n(1, by="n", uid="x", ascending="desc"),
            "top_n takes True or False for ascending: ascending='desc'",
        ),
        (
            lambda s: s.interval_join(s).between("0s", "1s", lower_exclusive="no"),
            "between takes True or False for lower_exclusive: lower_exclusive='no'",
        ),
        (
            lambda s: s.interval_join(s).between("0s", "1s", upper_exclusive=None),
            "between takes True or False for upper_exclusive: upper_exclusive=None",
        ),
        (
            lambda s: s.temporal_join(s, outer="left"),
            "temporal_join takes True or False for outer: outer='left'",
        ),
        (
            lambda s: s.window(PANES, trigger=EachCount(2, cast("Any", "no"))),
            "EachCount takes True or False for purge: purge='no'",
        ),
        (
            lambda s: s.window(Tumbling("1m", time=cast("Any", []))),
            "windows go by event time or processing time: time=[]",
        ),
        (
            lambda s: s.temporal_join(s, time=[]),
            "a temporal join goes by 'event' or 'processing' time: time=[]",
        ),
    ],
)
def test_a_call_that_is_wrong_is_named_with_what_to_write(call, said):
    assert said in building(lambda stream: call(timed(stream)))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.max("user", uid="x"), "user=max_('user') columns=['user']; name it otherwise"),
        (lambda s: s.max("user", uid="x"), ", as in aggregate(uid='x', user_max=max_('user'))"),
        (lambda s: s.aggregate(uid="x", User=count()), "User=count() columns=['user']"),
        (lambda s: s.aggregate(uid="x", n=count(), N=sum_("n")), "N=sum_('n') columns=['user', 'n"),
        (
            lambda s: s.window(PANES).aggregate(uid="x", window_start=count()),
            "window_start=count() columns=['user', 'window_start', 'window_end']; name it",
        ),
        (
            lambda s: s.aggregate(uid="x", n_sum=sum_("n"), n=avg("n")),
            "n=avg('n') names=['n_sum']; rename one of the two",
        ),
    ],
)
def test_a_result_that_has_the_name_of_another_column_is_told_another(call, said):
    assert said in building(lambda stream: call(timed(stream)))


def test_windows_without_times_leave_their_names_free():
    def build(env):
        stream = env.read_stream("in", "json", schema="user string, n long", path="in")
        windows = stream.key_by("user").window(Count(2))
        windows.aggregate(uid="x", window_end=max_("n")).sink_to(FileSink("out"), uid="out")

    assert run_job(build, {"in": [("a", 1), ("a", 5)]})["out"] == [("a", 5)]


@pytest.mark.parametrize(
    ("named", "left"),
    [
        ({}, [("a", 1, 1)]),
        ({"by": "n"}, [("a", 1, 1), ("a", 2, 1)]),
        ({"by": ["n", "m"]}, [("a", 1, 1), ("a", 1, 2), ("a", 2, 1)]),
    ],
)
def test_deduplicate_takes_its_columns_one_after_another_or_by_name(named, left):
    def build(env):
        stream = env.read_stream("in", "json", schema="user string, n long, m long", path="in")
        columns = [named["by"]] if isinstance(named.get("by"), str) else named.get("by", ())
        keyed = stream.key_by("user")
        keyed.deduplicate(uid="named", **named).sink_to(FileSink("named"), uid="as-named")
        keyed.deduplicate(*columns, uid="listed").sink_to(FileSink("listed"), uid="as-listed")

    out = run_job(build, {"in": [("a", 1, 1), ("a", 1, 2), ("a", 2, 1), ("a", 1, 1)]})
    assert sorted(out["as-named"]) == sorted(out["as-listed"]) == left


LETTERS = "['user', 'n']; did you mean "


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.key_by("usr"), f"missing=['usr'] columns={LETTERS}user?"),
        (lambda s: s.with_event_time("nn"), f"column=nn columns={LETTERS}n?"),
        (lambda s: s.with_event_time("n", per="use"), f"per='use' columns={LETTERS}user?"),
        (lambda s: timed(s).aggregate(uid="x", n=sum_("nn")), f"column='nn' columns={LETTERS}n?"),
        (lambda s: chosen(s, n="left.usr"), "n='left.usr'; did you mean left.user?; these are"),
        (lambda s: chosen(s, n="user"), "did you mean left.user or right.user?"),
        (lambda s: chosen(s, n="lft.n"), "did you mean left.n or right.n?"),
        (lambda s: chosen(s, n="window.strt"), "did you mean window.start?"),
        (lambda s: chosen(s, n="zzz"), "n='zzz'; these are there: ['left.user', "),
    ],
)
def test_a_column_that_is_not_there_is_told_with_the_one_that_is_meant(call, said):
    assert said in building(call)


def chosen(stream, **named):
    return timed(stream).join(timed(stream)).window(PANES).select(uid="x", **named)


def test_keys_of_different_numbers_of_columns_are_no_matter_of_types():
    told = building(lambda s: s.key_by("user", "n").join(s.key_by("user")))
    assert "different numbers of columns: first={'user': 'string', 'n': 'bigint'} second=" in told
    assert "name as many in both calls of key_by" in told
    assert "cast" not in told
    told = building(lambda s: s.key_by("n").join(s.key_by("user")))
    assert "have the same types; cast one in transform: first={'n': 'bigint'}" in told


def timed(stream):
    return stream.with_event_time("n").key_by("user")


@pytest.mark.parametrize(
    ("made", "first"),
    [
        (lambda one, _: one.window(Tumbling("1m")), 'aggregate(uid="...", n=count())'),
        (lambda one, two: one.connect(two), 'process(function, uid="...", output="...")'),
        (lambda one, two: one.connect(two.stream, STATE), "process(function, "),
        (lambda one, two: one.join(two), 'window(Tumbling("1h"))'),
        (lambda one, two: one.join(two).window(Tumbling("1m")), "select(uid="),
        (lambda one, two: one.co_group(two), 'window(Tumbling("1h"))'),
        (lambda one, two: one.co_group(two).window(Tumbling("1m")), "apply(function, "),
        (lambda one, two: one.interval_join(two), 'between("-5m", "1h")'),
        (lambda one, two: one.interval_join(two).between("0s", "1m"), "or process(function, "),
        (lambda one, two: one.temporal_join(two), "or apply(function, "),
    ],
)
def test_what_is_no_stream_yet_says_which_call_makes_it_one(made, first):
    def sink(stream):
        made(timed(stream), timed(stream)).sink_to(FileSink("out"), uid="x")

    told = building(sink)
    assert "sink_to comes too early on a " in told
    assert first in told


@pytest.mark.parametrize("call", ["join", "co_group", "interval_join", "temporal_join"])
def test_a_join_with_a_stream_without_a_key_says_that_it_lacks_one(call):
    told = building(lambda stream: getattr(timed(stream), call)(stream))
    assert told.startswith(
        f"{call} takes another keyed stream: got=DataStream; call key_by(column)"
    )


def test_a_stream_without_key_and_states_may_be_meant_either_way():
    told = building(lambda stream: timed(stream).connect(stream))
    assert "needs the MapStateDescriptor" in told
    assert "call key_by(column) on the other one" in told


def test_other_names_are_no_attributes_as_anywhere():
    def build(env):
        stream = env.read_stream("in", "json", schema="user string", path="in")
        assert not hasattr(stream, "nonsense")
        assert not hasattr(stream.key_by("user"), "__deepcopy__")
        stream.nonsense()

    with pytest.raises(AttributeError, match=re.escape("'DataStream' object has no attribute")):
        run_job(build, {})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda env: env.readStream, 'env has no readStream: call read_stream("uid", "json"'),
        (lambda env: env.execute("job"), "env has no execute: leave it out: the job runs when"),
        (lambda env: env.from_collection([]), "moorage.testing.run_job(build, "),
        (lambda env: env.set_parallelism(2), "for the manifest to say: spec.scaling.parallelism"),
        (lambda env: env.enable_checkpointing(1), "for the manifest to say: spec.checkpoint"),
        (lambda env: env.sql("select 1"), "Spark's session is env.spark"),
        (
            lambda env: env.read_steam("in", "json"),
            "env has no read_steam: did you mean read_stream",
        ),
        (lambda env: env.arg[0], "env has no arg: did you mean args?"),
    ],
)
def test_what_env_has_not_is_told_with_what_there_is(call, said):
    with pytest.raises(UserError, match=re.escape(said)):
        run_job(call, {})


def test_what_nobody_means_is_pythons_own_to_tell():
    with pytest.raises(AttributeError, match="has no attribute 'zzz'"):
        run_job(lambda env: getattr(env, "zz" + "z"), {})
