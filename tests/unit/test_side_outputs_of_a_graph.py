"""Side outputs as a job declares them: what is a tag, what an operator takes, what streams come."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from moorage import DataStream, KeyedProcessFunction, KeyedStream, MapStateDescriptor, OutputTag
from moorage.api.broadcast import KeyedBroadcastProcessFunction
from moorage.api.graph import JobGraph
from moorage.api.sinks import Sink
from moorage.engine.plan import outlets_of
from moorage_state.errors import UserError

ROWS = StructType([StructField("user", StringType(), False), StructField("n", LongType())])
NUMBERS = StructType([StructField("n", LongType())])
DDL = {"rows": ROWS, "n long": NUMBERS}
LATE = OutputTag("late")
ODD = OutputTag("odd", "n long")


class Echo(KeyedProcessFunction):
    def process(self, row, ctx):
        """Gives nothing."""


class Prices(KeyedBroadcastProcessFunction):
    def process_element(self, row, ctx):
        """Gives nothing."""

    def process_broadcast_element(self, row, ctx):
        """Keeps nothing."""


class Somewhere:
    """A sink that is only declared."""

    def open_writer(self, stage, schema):
        raise AssertionError((stage, schema))


@pytest.fixture(autouse=True)
def _reads_ddl_without_a_jvm(monkeypatch):
    for module in ("streams", "declarations"):
        monkeypatch.setattr(f"moorage.api.{module}.parse_output", lambda _uid, ddl: DDL[ddl])


@pytest.fixture
def stream() -> DataStream:
    env: Any = SimpleNamespace(
        graph=JobGraph(),
        base_dir="",
        staging="",
        claim_uid=lambda _uid: None,
        claim_directory=lambda *_: None,
    )
    return DataStream(env, schema=ROWS)


@pytest.fixture
def keyed(stream) -> KeyedStream:
    return stream.key_by("user")


def process(keyed, uid="count", **options):
    return keyed.process(Echo(), uid=uid, output="rows", **options)


def refused(words):
    return pytest.raises(UserError, match=words)


def a_sink() -> Sink:
    sink: Any = Somewhere()
    return sink


# -- tags -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "ddl"), [("", None), (" ", None), (5, None), ("a", ""), ("a", 5)])
def test_a_tag_has_a_name_and_maybe_columns(name, ddl):
    with refused("an OutputTag has a name, and columns as DDL"):
        OutputTag(name, ddl)


def test_a_tag_travels_with_its_function():
    assert pickle.loads(pickle.dumps(ODD)) == ODD


# -- what an operator declares ----------------------------------------------------------------


def test_a_side_output_is_a_stream_of_its_own_columns(keyed):
    counts = process(keyed, side_outputs=[LATE, ODD])
    assert counts.get_side_output(ODD).schema == NUMBERS
    late = counts.get_side_output(LATE)
    assert late.schema.simpleString() == ROWS.simpleString()
    assert all(field.nullable for field in late.schema.fields)
    assert (late.operator, late.side_output) == (counts.operator, "late")
    assert counts.side_output is None


def test_a_side_output_has_event_time_of_its_own_and_stays_what_it_is(keyed):
    counts = process(keyed, side_outputs=[ODD])
    timed = counts.get_side_output(ODD).with_event_time("n")
    assert (timed.side_output, timed.event_time, counts.event_time) == ("odd", "n", None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (LATE, r"a list of OutputTag\(name, ddl\): uid=count side_outputs=OutputTag"),
        (["late"], r"uid=count side_outputs=\['late'\]"),
        ([LATE, OutputTag("late", "n long")], "have one name; .* uid=count side_output=late"),
        ([LATE, LATE], "have one name"),
    ],
)
def test_what_is_no_list_of_tags_is_refused(keyed, given, words):
    with refused(words):
        process(keyed, side_outputs=given)


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        (LATE, r"operator=count side_output=late declared=\['a', 'odd'\]; give its tag to process"),
        ("odd", r"takes an OutputTag, of the stream that process\(\.\.\.\) gave: got='odd'"),
    ],
)
def test_a_side_output_that_is_not_declared_is_not_to_be_had(keyed, tag, words):
    counts = process(keyed, side_outputs=[ODD, OutputTag("a")])
    with refused(words):
        counts.get_side_output(tag)


def test_an_input_has_no_side_outputs(stream):
    with refused("of the stream that process"):
        stream.get_side_output(LATE)


def test_a_function_over_two_streams_declares_side_outputs_alike(keyed, stream):
    rules = MapStateDescriptor("rules", "string", "long")
    prices = keyed.connect(stream, rules).process(
        Prices(), uid="prices", output="rows", side_outputs=[ODD], null_key=LATE
    )
    assert prices.get_side_output(ODD).schema == NUMBERS
    assert prices.get_side_output(LATE).side_output == "late"


# -- null keys --------------------------------------------------------------------------------


@pytest.mark.parametrize("also", [[], [LATE]])
def test_the_side_output_of_null_keys_is_declared_by_naming_it(keyed, also):
    counts = process(keyed, null_key=LATE, side_outputs=also)
    assert [side.name for side in counts.operator.side_outputs] == ["late"]
    assert counts.operator.null_key == LATE


def test_its_columns_may_be_spelled_out(keyed, monkeypatch):
    whole = StructType([StructField(f.name, f.dataType) for f in reversed(ROWS.fields)])
    monkeypatch.setitem(DDL, "whole", whole)
    tag = OutputTag("nulls", "whole")
    assert process(keyed, null_key=tag).get_side_output(tag).schema == whole


@pytest.mark.parametrize("ddl", ["n long", "rows"])
def test_rows_with_a_null_key_must_fit_their_side_output(keyed, ddl):
    words = r"leave out its DDL: uid=count null_key=nulls declared=struct<.*> stream=struct<user"
    with refused(words):
        process(keyed, null_key=OutputTag("nulls", ddl))


@pytest.mark.parametrize("also", [{}, {"null_key": LATE}, {"side_outputs": [LATE]}])
def test_the_side_output_of_bad_times_is_declared_by_naming_it(keyed, also):
    counts = process(keyed, bad_time=LATE, **also)
    assert [side.name for side in counts.operator.side_outputs] == ["late"]
    assert counts.operator.bad_time == LATE


def test_null_keys_and_bad_times_may_go_to_two_side_outputs(keyed):
    other = OutputTag("untimed")
    counts = process(keyed, null_key=LATE, bad_time=other)
    assert [side.name for side in counts.operator.side_outputs] == ["late", "untimed"]


def test_bad_times_fail_unless_told_otherwise_and_take_no_other_word(keyed, stream):
    assert process(keyed).operator.bad_time == "fail"
    with refused("bad_time is 'fail', 'drop' or the OutputTag of .*: uid=b bad_time='keep'"):
        process(keyed, uid="b", bad_time="keep")
    with refused(r"uid=c bad_time=nulls declared=struct<.*> stream=struct<user"):
        process(keyed, uid="c", bad_time=OutputTag("nulls", "n long"))
    rules = MapStateDescriptor("rules", "string", "long")
    prices = keyed.connect(stream, rules).process(
        Prices(), uid="prices", output="rows", bad_time="drop"
    )
    assert prices.operator.bad_time == "drop"


def test_null_keys_and_a_function_share_a_side_output_only_by_one_tag(keyed):
    with refused("use one tag for both: uid=count side_output=late"):
        process(keyed, null_key=LATE, side_outputs=[OutputTag("late", "n long")])


# -- who takes what ---------------------------------------------------------------------------


def outlets(keyed):
    graph = keyed.stream.env.graph
    return outlets_of(graph, graph.operators[0])


def test_nothing_is_carried_of_side_outputs_that_no_operator_reads(keyed):
    counts = process(keyed, side_outputs=[LATE, ODD])
    counts.get_side_output(ODD).sink_to(a_sink(), uid="odd-out")
    process(counts.key_by("user"), uid="next")
    found = outlets(keyed)
    assert [f.name for f in found.fields] == ["user", "n"]
    assert found.pick(counts) is None
    assert [(s.name, s.used, [uid for uid, _ in s.sinks]) for s in found.sides] == [
        ("late", False, []),
        ("odd", True, ["odd-out"]),
    ]


def test_an_operator_may_read_a_side_output_and_nobody_the_main_one(keyed):
    counts = process(keyed, side_outputs=[LATE, ODD])
    counts.sink_to(a_sink(), uid="out")
    process(counts.get_side_output(ODD).key_by("n"), uid="next")
    found = outlets(keyed)
    assert ([f.name for f in found.fields], found.main_read) == (["_m_o1"], False)
    assert [uid for uid, _ in found.sinks] == ["out"]
    assert [o.uid for o in found.consumers] == ["next"]
