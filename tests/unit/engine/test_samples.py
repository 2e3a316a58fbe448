"""Samples of output: equal rows are told alike however they come, and different ones are not."""

import datetime
import decimal
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from moorage.engine.acks import Ack, EpochOutcome, decode_ack, encode_ack
from moorage.engine.samples import (
    MOST_ROWS,
    SampledRows,
    Sampler,
    Sampling,
    row_hashes,
    together,
)

AT = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
COLUMNS: dict[str, tuple[list[Any], pa.DataType]] = {
    "int": ([1, None, -3], pa.int32()),
    "long": ([1, None, 1 << 62], pa.int64()),
    "flag": ([True, None, False], pa.bool_()),
    "double": ([1.5, None, float("nan")], pa.float64()),
    "text": (["a", None, "ä b"], pa.string()),
    "bytes": ([b"a", None, b"\xff"], pa.binary()),
    "decimal": ([decimal.Decimal("1.20"), None, decimal.Decimal("-3.00")], pa.decimal128(20, 2)),
    "date": ([AT.date(), None, AT.date()], pa.date32()),
    "time": ([AT, None, AT + datetime.timedelta(days=1)], pa.timestamp("us", "UTC")),
    "duration": ([datetime.timedelta(1), None, datetime.timedelta(2)], pa.duration("us")),
    "list": ([[1, 2], None, []], pa.list_(pa.int32())),
    "struct": (
        [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}],
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
    ),
    "map": ([[("a", 1), ("b", None)], None, [("c", 3)]], pa.map_(pa.string(), pa.int32())),
    "deep": ([[[{"a": 1}], None], None, [[]]], pa.list_(pa.list_(pa.struct([("a", pa.int8())])))),
    "nothing": ([None, None, None], pa.null()),
    "empty": ([{}, {}, {}], pa.struct([])),
}

HASHES = {
    "int": ["b0c5074769cb5ec2", "b5014eade0dfcfc5", "f8fe079ad6f54032"],
    "long": ["b0c5074769cb5ec2", "b5014eade0dfcfc5", "d66734ea312af110"],
    "flag": ["b0c5074769cb5ec2", "b5014eade0dfcfc5", "c2abefcf84bb8c90"],
    "double": ["20f857138832350c", "b5014eade0dfcfc5", "6c05d134195cf321"],
    "text": ["cee27123a56857ac", "b5014eade0dfcfc5", "40e94a4199a41fd4"],
    "bytes": ["cee27123a56857ac", "b5014eade0dfcfc5", "6fc389b5baf26071"],
    "decimal": ["ad3c02f84f23db69", "b5014eade0dfcfc5", "89bd5e742d49b038"],
    "date": ["d4ed8c6612c84c9b", "b5014eade0dfcfc5", "d4ed8c6612c84c9b"],
    "time": ["685d913c03aaa6d5", "b5014eade0dfcfc5", "e7378361e4df0baf"],
    "duration": ["88351d8e202f610c", "b5014eade0dfcfc5", "06ce1b41b36095df"],
    "list": ["805cd22d3e4b34b7", "b5014eade0dfcfc5", "c2abefcf84bb8c90"],
    "struct": ["41466421bb8fde23", "b5014eade0dfcfc5", "f5b9259889a72d59"],
    "map": ["0a863b40664f482a", "b5014eade0dfcfc5", "afec95ef2f7c4d3d"],
    "deep": ["f286c679de564f6e", "b5014eade0dfcfc5", "7e8cef28874e82b7"],
    "nothing": ["b5014eade0dfcfc5", "b5014eade0dfcfc5", "b5014eade0dfcfc5"],
    "empty": ["8f9f243138a74b88", "8f9f243138a74b88", "8f9f243138a74b88"],
}


def batch(**columns):
    return pa.record_batch(columns)


def hashes(values, kind):
    return row_hashes(batch(a=pa.array(values, kind))).tolist()


@pytest.mark.parametrize("name", COLUMNS)
def test_a_row_has_one_hash_wherever_it_lies_in_a_batch(name):
    values, kind = COLUMNS[name]
    whole = pa.array(values, kind)
    found = row_hashes(batch(a=whole)).tolist()
    assert len(found) == 3
    for index, value in enumerate(values):
        assert row_hashes(batch(a=whole.slice(index, 1))).tolist() == [found[index]]
        assert hashes([value], kind) == [found[index]]
    assert len(set(found)) == len({repr(value) for value in values})


def test_rows_that_differ_in_anything_have_other_hashes():
    pairs = [
        ([["a", "b"]], [["a", "bc"]], pa.list_(pa.string())),
        ([["ab"]], [["a", "b"]], pa.list_(pa.string())),
        ([[1, 2]], [[2, 1]], pa.list_(pa.int64())),
        ([[None]], [[]], pa.list_(pa.int64())),
        ([[0]], [[]], pa.list_(pa.int64())),
        ([[0]], [[0, 0]], pa.list_(pa.int64())),
        ([[(0, 0)]], [[]], pa.map_(pa.int64(), pa.int64())),
        ([{"a": None}], [None], pa.struct([("a", pa.int64())])),
        ([[("a", 1), ("b", 2)]], [[("a", 2), ("b", 1)]], pa.map_(pa.string(), pa.int64())),
        ([0], [None], pa.int64()),
        ([""], [None], pa.string()),
        ([1.0], [1.0001], pa.float64()),
    ]
    for one, other, kind in pairs:
        assert hashes(one, kind) != hashes(other, kind), kind
    swapped = batch(a=pa.array(["x"]), b=pa.array(["y"])), batch(a=["y"], b=["x"])
    assert row_hashes(swapped[0]).tolist() != row_hashes(swapped[1]).tolist()
    for value in (0, 1):
        first = row_hashes(batch(n=[value])).tolist()
        assert first != row_hashes(batch(none=[0], n=[value])).tolist()
        assert first != row_hashes(batch(n=[value], none=[0])).tolist()


@pytest.mark.parametrize("name", COLUMNS)
def test_another_release_of_moorage_has_the_same_hashes(name):
    """Never change these: versions of two releases are compared by them."""
    assert [f"{one:016x}" for one in hashes(*COLUMNS[name])] == HASHES[name]


def test_what_another_order_of_adding_up_or_another_width_changes_is_the_same():
    forth, back = sum([0.1] * 10), 1.0
    assert forth != back
    assert hashes([forth, 0.0], pa.float64()) == hashes([back, -0.0], pa.float64())
    assert hashes([[forth]], pa.list_(pa.float64())) == hashes([[back]], pa.list_(pa.float64()))
    assert hashes([7], pa.int8()) == hashes([7], pa.int64())
    kind = pa.map_(pa.string(), pa.int64())
    assert hashes([[("a", 1), ("b", 2)]], kind) == hashes([[("b", 2), ("a", 1)]], kind)
    assert hashes([1e300], pa.float64()) == hashes([float("inf")], pa.float64())


def test_columns_that_do_not_count_change_nothing():
    one = batch(key=pa.array([1, 2]), at=pa.array([5, 6]))
    other = batch(key=pa.array([1, 2]), at=pa.array([7, 8]))
    assert row_hashes(one).tolist() != row_hashes(other).tolist()
    except_at = row_hashes(one, ["at", "of no sink"]).tolist()
    assert (
        except_at == row_hashes(other, ["at"]).tolist() == row_hashes(one.select(["key"])).tolist()
    )


def sampled(sampling, *batches):
    sampler = Sampler(sampling)
    for one in batches:
        sampler.add(["out"], one)
    return sampler.taken()["out"]


def test_the_same_rows_are_sampled_in_any_order_and_any_cut():
    numbers = np.random.default_rng(1).permutation(4000)
    sampling = pickle.loads(pickle.dumps(Sampling(5)))
    whole = sampled(sampling, batch(n=pa.array(np.arange(4000))))
    cut = sampled(sampling, *(batch(n=pa.array(part)) for part in np.array_split(numbers, 7)))
    assert whole == cut
    assert list(whole.rows) == list(cut.rows), "acknowledgements of two attempts are the same bytes"
    assert 120 < len(whole.rows) < 280
    assert max(whole.rows) <= whole.limit == Sampling(5).limit("out")


def test_rows_that_are_there_often_are_counted():
    found = sampled(Sampling(100), batch(n=pa.array([1, 1, 2])), batch(n=pa.array([2, 1])))
    assert sorted(found.rows.values()) == [2, 3]
    assert found.limit == (1 << 64) - 1


def test_of_too_many_rows_those_of_the_lowest_hashes_stay():
    every = batch(n=pa.array(np.arange(20_000)))
    found = sampled(Sampling(100), every)
    assert MOST_ROWS / 4 < len(found.rows) <= MOST_ROWS
    low = sorted(h for h in row_hashes(every).tolist() if h <= found.limit)
    assert list(found.rows) == low
    # The next epoch begins with what was found out.
    later = sampled(Sampling(100, limits={"out": found.limit}), every)
    assert later == found


def test_each_sink_has_its_own():
    sampler = Sampler(Sampling(100, limits={"thin": 0}))
    sampler.add(["out", "thin"], batch(n=pa.array([1, 2])))
    taken = sampler.taken()
    assert len(taken["out"].rows) == 2
    assert taken["thin"] == SampledRows(0, {})
    assert together([taken["out"], taken["out"]], 5).rows == dict.fromkeys(taken["out"].rows, 2)


def test_they_travel_in_acknowledgements_and_are_added_up_over_subtasks():
    mine = sampled(Sampling(100), batch(n=pa.array([1, 2])))
    acks = [Ack(uid="op", subtask=i, run="r", epoch=1, samples={"out": mine}) for i in (0, 1)]
    outcome = EpochOutcome({(a.uid, a.subtask): decode_ack(encode_ack(a)) for a in acks})
    assert outcome.samples() == {"out": SampledRows(mine.limit, dict.fromkeys(mine.rows, 2))}
    bare = Ack(uid="op", subtask=0, run="r", epoch=1)
    assert b"samples" not in encode_ack(bare)
    assert EpochOutcome({("op", 0): bare}).samples() == {}
