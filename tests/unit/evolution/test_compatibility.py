"""Which changes of a state's type keep its values, and what is said of the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_state.evolution import compare, declared_over, later_of
from moorage_state.evolution.compatibility import SchemaOutcome
from moorage_state.evolution.generations import MAX_GENERATIONS, StateMigrationError

AS_IS, MIGRATION = SchemaOutcome.AS_IS, SchemaOutcome.MIGRATION
RECONFIGURED, INCOMPATIBLE = SchemaOutcome.RECONFIGURED, SchemaOutcome.INCOMPATIBLE


@pytest.mark.parametrize(
    ("written", "declared", "outcome"),
    [
        ("long", "bigint", AS_IS),
        ("tinyint", "smallint", AS_IS),
        ("int", "long", AS_IS),
        ("float", "double", AS_IS),
        ("decimal(5,2)", "decimal(9,2)", AS_IS),
        ("pickle", "pickle", AS_IS),
        ("array<int>", "array<long>", AS_IS),
        ("map<string,int>", "map<string,long>", AS_IS),
        ("a int, b float", "a long, b double", AS_IS),
        ("decimal(5,2)", "decimal(6,3)", MIGRATION),
        ("int", "double", MIGRATION),
        ("smallint", "float", MIGRATION),
        ("int", "decimal(10,0)", MIGRATION),
        ("tinyint", "decimal(5,2)", MIGRATION),
        ("bigint", "decimal(19,0)", MIGRATION),
        ("a long", "a long, b string", MIGRATION),
        ("a long, b string", "a long", MIGRATION),
        ("a long, b string", "b string, a long", MIGRATION),
        ("array<struct<a:int>>", "array<struct<a:double>>", MIGRATION),
        ("s struct<a:int,b:int>", "s struct<b:int>", MIGRATION),
        ("map<string,struct<a:int>>", "map<string,struct<a:int,b:int>>", MIGRATION),
        ("a long default 1", "a long default 2", RECONFIGURED),
        ("a long", "a long default 2", RECONFIGURED),
        ("a int default 1", "a long", RECONFIGURED),
        ("a long default 1", "a long default 2, b long", MIGRATION),
        ("array<struct<a:long default 1>>", "array<struct<a:long>>", RECONFIGURED),
    ],
)
def test_a_change_that_keeps_all_values_has_its_outcome(written, declared, outcome):
    assert compare(written, declared).outcome is outcome


@pytest.mark.parametrize(
    ("written", "declared", "words"),
    [
        ("long", "int", "written=bigint declared=int: values would not fit"),
        ("long", "double", "large values would lose digits"),
        ("int", "float", "large values would lose digits"),
        ("long", "decimal(18,0)", "large values would lose digits"),
        ("double", "float", "values would lose digits"),
        ("double", "long", "a double has no one reading as a bigint"),
        ("double", "decimal(38,10)", "a double has no one reading as a decimal"),
        ("date", "timestamp", "no point in time without a time zone"),
        ("string", "long", "a string has no one reading as a bigint"),
        ("string", "binary", "has no one reading"),
        ("boolean", "int", "a boolean has no one reading as a int"),
        ("pickle", "binary", "a pickle has no one reading"),
        ("a long", "long", "a struct has no one reading as a bigint"),
        ("array<long>", "a long", "a array has no one reading"),
        ("decimal(5,2)", "decimal(5,3)", "at least 3 digits before the point and 2 behind it"),
        ("decimal(5,2)", "decimal(9,1)", "digits would be lost"),
        ("map<string,long>", "map<long,long>", r"field=\{key\} written=string declared=bigint"),
        ("a long", "b long", r"written \['a'\], declared \['b'\]"),
        ("a long, s struct<x:int>", "a long, s struct<y:int>", "field=s .*no field has kept"),
        ("s struct<x:long>", "s struct<x:int>", r"field=s\.x written=bigint declared=int"),
        ("s array<map<string,double>>", "s array<map<string,float>>", r"field=s\[\]\{\} written"),
    ],
)
def test_a_change_that_would_lose_something_names_the_field_both_types_and_what_to_do(
    written, declared, words
):
    found = compare(written, declared)
    assert found.outcome is INCOMPATIBLE
    with pytest.raises(StateMigrationError, match=words) as caught:
        declared_over("visits", written, (), declared)
    assert "state=visits" in str(caught.value)
    assert "or give the new state another name" in str(caught.value)


def test_all_problems_of_a_type_are_named_at_once():
    found = compare("a long, b double, c int", "a int, b float, c int")
    assert [problem.where for problem in found.problems] == ["a", "b"]


def test_only_a_change_of_bytes_makes_a_generation():
    assert declared_over("s", "int", (), "bigint") == ("bigint", ())
    assert declared_over("s", "int", ("tinyint",), "double") == ("double", ("tinyint", "int"))


def test_defaults_stay_those_of_the_time_when_a_field_came():
    kept = declared_over("s", "struct<a:int DEFAULT 1,b:int>", (), "a long default 2, b int")
    assert kept == ("struct<a:bigint DEFAULT 1,b:int>", ())
    nested = declared_over("s", "array<struct<a:int DEFAULT 1>>", (), "array<struct<a:int>>")
    assert nested == ("array<struct<a:int DEFAULT 1>>", ())


def test_a_type_that_changed_too_often_asks_for_a_canonical_savepoint():
    earlier = ("int",) * MAX_GENERATIONS
    with pytest.raises(StateMigrationError, match="changes=256 most=255; take a canonical"):
        declared_over("s", "int", earlier, "double")
    assert declared_over("s", "int", earlier, "long") == ("long", earlier)


SCHEMAS = [
    ("struct<a:int>", ()),
    ("struct<a:bigint>", ()),
    ("struct<a:bigint,b:int>", ("struct<a:bigint>",)),
    ("struct<b:int>", ("struct<a:bigint>", "struct<a:bigint,b:int>")),
]


@given(st.sampled_from(range(4)), st.sampled_from(range(4)))
def test_of_two_subtasks_the_one_that_declared_the_later_type_is_right(one, other):
    assert later_of("s", SCHEMAS[one], SCHEMAS[other]) == SCHEMAS[max(one, other)]


def test_subtasks_that_declare_types_that_exclude_each_other_are_refused():
    before = ("struct<a:int>",)
    with pytest.raises(StateMigrationError, match="alike in every subtask"):
        later_of("s", ("struct<a:int,b:int>", before), ("struct<a:int,c:int>", before))
