"""Acknowledgements: an epoch commits only when all subtasks agree on what happened."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.engine.acks import (
    Ack,
    EpochConflict,
    EpochIncomplete,
    OddCounts,
    decode_ack,
    encode_ack,
    verify,
)
from moorage_state.errors import Retryable
from moorage_state.keyed.schema import StateSchema


def ack(uid="count", subtask=0, delta="d", **fields):
    return Ack(uid=uid, subtask=subtask, run="f1r0", epoch=7, delta=delta, **fields)


def check(acks, **parallelism):
    return verify(acks, parallelism, "f1r0", 7)


def chained(*, first=("d0", "d1"), seen=(("d0", "d1"), ("d0", "d1"))):
    """Two subtasks of `a`, read by two of `b`; `seen` is what each of `b` consumed."""
    upstream = [ack("a", i, delta, output="o") for i, delta in enumerate(first)]
    digests = [[ack("a", i, d, output="o").digest for i, d in enumerate(ds)] for ds in seen]
    forwarded = [encode_ack(a) for a in upstream]
    return [
        ack("b", 0, consumed={"a": dict(enumerate(digests[0]))}, forwarded=forwarded),
        ack("b", 1, consumed={"a": dict(enumerate(digests[1]))}),
    ]


def deltas(outcome, uid):
    return {i: ack.delta for (one, i), ack in outcome.acks.items() if one == uid}


def test_an_ack_reads_back_as_it_was_sent():
    sent = ack(
        output="o",
        rows_in=5,
        max_event_time={"clicks": -3},
        schemas=[StateSchema("n", "map", "bigint", "string")],
        committables={"sink": [{"file": "a", "rows": 1}]},
        consumed={"up": {0: "x", 11: "y"}},
        forwarded=[b"\x00"],
    )
    assert decode_ack(encode_ack(sent)) == sent


def test_one_ack_for_each_subtask_is_enough():
    outcome = check([ack(subtask=i, rows_in=i) for i in range(3)], count=3)
    assert deltas(outcome, "count") == {0: "d", 1: "d", 2: "d"}
    assert outcome.rows_in({"count"}) == 3


def test_the_same_ack_may_arrive_twice():
    assert len(check([ack(), ack()], count=1).acks) == 1


@pytest.mark.parametrize(
    ("acks", "words"),
    [
        ([], "uid=count missing=[0, 1, 2] of=3"),
        ([ack(subtask=1)], "uid=count missing=[0, 2] of=3"),
        ([ack(subtask=i) for i in range(4)], "subtasks that do not exist: [('count', 3)]"),
        ([ack(subtask=i) for i in range(-1, 3)], "subtasks that do not exist: [('count', -1)]"),
    ],
)
def test_a_missing_or_surplus_subtask_fails_the_attempt(acks, words):
    with pytest.raises(EpochIncomplete, match=re.escape(words)):
        check(acks, count=3)


@pytest.mark.parametrize("fields", [{"run": "f1r1"}, {"epoch": 6}])
def test_an_ack_of_another_run_or_epoch_fails_the_attempt(fields):
    foreign = Ack(**({"uid": "count", "subtask": 0, "run": "f1r0", "epoch": 7} | fields))
    with pytest.raises(EpochIncomplete, match="another run or epoch arrived: uid=count"):
        check([ack(), foreign], count=1)
    with pytest.raises(EpochIncomplete, match="another run or epoch"):
        check([ack(forwarded=[encode_ack(foreign)])], count=1)


@pytest.mark.parametrize("other", [{"delta": "e"}, {"output": "o"}])
def test_two_attempts_of_a_subtask_with_different_results_are_a_conflict(other):
    with pytest.raises(
        EpochConflict, match=r"uid=count subtask=0 .* seen_by=the driver; a function"
    ):
        check([ack(), ack(**other)], count=1)


def test_two_attempts_with_one_result_agree_whatever_else_they_counted():
    assert check([ack(rows_in=1), ack(rows_in=2)], count=1).rows_in({"count"}) == 1


def test_a_chain_of_operators_agrees():
    outcome = check(chained(), a=2, b=2)
    assert deltas(outcome, "a") == {0: "d0", 1: "d1"}
    assert deltas(outcome, "b") == {0: "d", 1: "d"}


@pytest.mark.parametrize(
    ("seen", "where"),
    [
        ((("d0", "x"), ("d0", "d1")), "subtask=1 .* seen_by=b\\[0\\]"),
        ((("d0", "d1"), ("x", "d1")), "subtask=0 .* seen_by=b\\[1\\]"),
    ],
)
def test_consumers_of_different_attempts_are_a_conflict(seen, where):
    with pytest.raises(EpochConflict, match=where):
        check(chained(seen=seen), a=2, b=2)


def test_an_upstream_ack_that_nobody_forwards_is_missing():
    _, second = chained()
    with pytest.raises(EpochIncomplete, match=r"uid=a missing=\[0, 1\]"):
        check([second, ack("b", 0)], a=2, b=2)


@pytest.mark.parametrize("consumed", [{"ghost": {0: "x"}}, {"count": {9: "x"}}])
def test_consuming_what_nobody_acknowledged_fails_the_attempt(consumed):
    with pytest.raises(EpochIncomplete, match=r"consumed what no operator .* seen_by=count\[0\]"):
        check([ack(consumed=consumed)], count=1)


def test_acks_are_forwarded_through_several_operators():
    a = ack("a", output="o")
    b = ack("b", output="p", consumed={"a": {0: a.digest}}, forwarded=[encode_ack(a)])
    c = ack("c", consumed={"b": {0: b.digest}}, forwarded=[encode_ack(b)])
    assert {uid for uid, _ in check([c], a=1, b=1, c=1).acks} == {"a", "b", "c"}


def test_disagreements_are_tried_again():
    assert issubclass(EpochConflict, Retryable)
    assert issubclass(EpochIncomplete, Retryable)


def test_sinks_without_an_operator_report_beside_it():
    direct = [ack("raw", 0, "", rows_in=2, committables={"raw": [{"file": f}]}) for f in "ab"]
    outcome = check([*direct, ack(rows_in=1, committables={"s": [{"file": "c"}]})], count=1)
    assert outcome.rows_in({"raw", "count"}) == 5
    assert outcome.rows_in({"count"}) == 1
    assert outcome.committables() == {"raw": [{"file": "a"}, {"file": "b"}], "s": [{"file": "c"}]}


def test_a_job_of_sinks_only_needs_no_acks():
    assert check([]).committables() == {}


def test_committables_come_in_the_order_of_subtasks():
    acks = [ack(subtask=i, committables={"s": [{"file": i}]}) for i in (2, 0, 1)]
    assert check(acks, count=3).committables() == {"s": [{"file": 0}, {"file": 1}, {"file": 2}]}


def test_the_newest_event_time_of_an_input_is_that_of_any_subtask():
    acks = [ack(subtask=i, max_event_time=t) for i, t in enumerate([{"a": -5}, {"a": -9, "b": 0}])]
    assert check(acks, count=2).max_event_time == {"a": -5, "b": 0}


def test_odd_rows_are_counted_by_operator_where_there_are_any():
    acks = [
        ack(null_keys=2, null_rows=1, bad_broadcasts=1, bad_broadcast="rule"),
        ack(subtask=1, null_keys=3, bad_times=4, bad_time="key='a'"),
        ack("other"),
    ]
    counts = OddCounts(5, 1, 4, "key='a'", 1, "rule")
    assert check(acks, count=2, other=1).odd_rows() == {"count": counts}


def test_schemas_are_merged_over_subtasks_and_sorted_by_name():
    one, two = StateSchema("b", "value", "bigint"), StateSchema("a", "list", "string")
    acks = [ack(schemas=[one]), ack(subtask=1, schemas=[two, one]), ack("other")]
    assert check(acks, count=2, other=1).schemas() == {"count": [two, one], "other": []}


@given(st.permutations(range(4)), st.lists(st.sampled_from("de"), min_size=4, max_size=4))
def test_the_order_of_arrival_changes_nothing(order, deltas):
    acks = [ack(subtask=i // 2, delta=d) for i, d in enumerate(deltas)]
    agree = deltas[0] == deltas[1] and deltas[2] == deltas[3]
    verdict: Callable[[], object] = lambda: check([acks[i] for i in order], count=2)  # noqa: E731
    if agree:
        verdict()
    else:
        with pytest.raises(EpochConflict):
            verdict()
