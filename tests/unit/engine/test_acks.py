"""Acknowledgements: an epoch commits only when all subtasks agree on what happened."""

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.engine.acks import (
    Ack,
    EpochConflict,
    EpochIncomplete,
    OddCounts,
    ReadRows,
    Tally,
    decode_ack,
    encode_ack,
    mark_of,
    tally,
    tally_of,
    verify,
)
from moorage_state.errors import Retryable
from moorage_state.keyed.schema import StateSchema


def ack(uid="count", subtask=0, delta="d", **fields):
    return Ack(uid=uid, subtask=subtask, run="f1r0", epoch=7, delta=delta, **fields)


def check(acks, **parallelism):
    return verify(acks, parallelism, "f1r0", 7)


MARKS = [mark_of(digest, i) for i, digest in enumerate((1 << 60, 77, 9))]


def chained(*, read=(MARKS, MARKS), side="", **changes):
    """Three subtasks of `a`, each of which sends a row to each of two of `b`.

    `read` are the marks of the rows that each of `b` read.
    """
    sent = [{side: tally_of(mark, 2)} for mark in MARKS]
    upstream = [ack("a", i, output="o", sent=some) for i, some in enumerate(sent)]
    rows = [ReadRows("a", side, tally(np.array(marks, np.uint64))) for marks in read]
    return [*upstream, *(ack("b", i, read=(some,), **changes) for i, some in enumerate(rows))]


def deltas(outcome, uid):
    return {i: ack.delta for (one, i), ack in outcome.acks.items() if one == uid}


def test_an_ack_reads_back_as_it_was_sent():
    sent = ack(
        output="o",
        rows_in=5,
        max_event_time={"clicks": -3},
        schemas=[StateSchema("n", "map", "bigint", "string")],
        committables={"sink": [{"file": "a", "rows": 1}]},
        sent={"": Tally(1, (1 << 64) - 1, 5), "side": Tally(3)},
        read=(ReadRows("up", "side", Tally(2, 1 << 63, 0)), ReadRows("other", "", Tally())),
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


@pytest.mark.parametrize("other", [{"delta": "e"}, {"output": "o"}])
def test_two_attempts_of_a_subtask_with_different_results_are_a_conflict(other):
    with pytest.raises(
        EpochConflict, match=r"uid=count subtask=0 .* seen_by=the driver; a function"
    ):
        check([ack(), ack(**other)], count=1)


def test_two_attempts_with_one_result_agree_whatever_else_they_counted():
    assert check([ack(rows_in=1), ack(rows_in=2)], count=1).rows_in({"count"}) == 1


# -- rows between operators -------------------------------------------------------------------


@pytest.mark.parametrize("side", ["", "odd"])
def test_operators_that_read_what_was_sent_agree(side):
    outcome = check(chained(side=side), a=3, b=2)
    assert deltas(outcome, "a") == {0: "d", 1: "d", 2: "d"}
    assert deltas(outcome, "b") == {0: "d", 1: "d"}


def test_it_does_not_matter_which_subtask_reads_what():
    check(chained(read=([MARKS[2], MARKS[0]], [*MARKS, MARKS[1]])), a=3, b=2)
    check(chained(read=(MARKS * 2, [])), a=3, b=2)


@pytest.mark.parametrize("upstream", range(3))
def test_rows_of_another_attempt_are_a_conflict_that_names_the_subtask(upstream):
    other = [*MARKS]
    other[upstream] = mark_of(8, upstream)
    words = f"uid=a subtask={upstream} rows_sent=6 rows_read=6 seen_by=b; a function"
    for read in ((other, MARKS), (MARKS, other)):
        with pytest.raises(EpochConflict, match=re.escape(words)):
            check(chained(read=read), a=3, b=2)


def test_other_attempts_of_several_subtasks_are_a_conflict_of_the_operator():
    other = [mark_of(8, 0), mark_of(12345, 1), MARKS[2]]
    with pytest.raises(EpochConflict, match="uid=a subtask=several rows_sent=6"):
        check(chained(read=(other, MARKS)), a=3, b=2)


@pytest.mark.parametrize(
    ("read", "subtask", "rows"),
    [((MARKS[:2], MARKS), 2, 5), ((MARKS, [*MARKS, MARKS[1]]), 1, 7)],
)
def test_a_row_that_was_lost_or_read_twice_is_a_conflict(read, subtask, rows):
    words = f"uid=a subtask={subtask} side_output=odd rows_sent=6 rows_read={rows} seen_by=b"
    with pytest.raises(EpochConflict, match=words):
        check(chained(read=read, side="odd"), a=3, b=2)


def test_a_conflict_is_found_in_whichever_output_was_read():
    acks = chained()
    wrong = ReadRows("a", "", tally_of(MARKS[0], 5))
    acks.append(ack("c", read=(wrong,)))
    with pytest.raises(EpochConflict, match="seen_by=c"):
        check(acks, a=3, b=2, c=1)


def test_an_upstream_ack_that_nobody_forwards_is_missing():
    with pytest.raises(EpochIncomplete, match=r"uid=a missing=\[0, 1\]"):
        check(chained()[2:], a=3, b=2)


def test_reading_what_nobody_acknowledged_fails_the_attempt():
    with pytest.raises(EpochIncomplete, match=r"read what no operator .*uid=ghost seen_by=count"):
        check([ack(read=(ReadRows("ghost", "", Tally()),))], count=1)


WORDS = st.integers(0, (1 << 64) - 1)


@given(st.lists(st.tuples(WORDS, st.integers(1, 9000)), min_size=1, max_size=6), st.randoms())
def test_sums_of_marks_are_the_same_however_rows_are_spread(batches, random):
    marks = [mark_of(digest, i) for i, (digest, _) in enumerate(batches)]
    sent = sum((tally_of(m, n) for m, (_, n) in zip(marks, batches, strict=True)), Tally())
    rows = np.repeat(np.array(marks, np.uint64), [n for _, n in batches])
    cut = random.randrange(len(rows) + 1)
    assert tally(rows[:cut]) + tally(rows[cut:]) == sent


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
        ack(null_feeds={0: 2}, null_rows=1, bad_broadcasts=1, bad_broadcast="rule"),
        ack(subtask=1, null_feeds={0: 2, 1: 1}, bad_times=4, bad_time="key='a'"),
        ack("other"),
    ]
    counts = OddCounts({0: 4, 1: 1}, 1, 4, "key='a'", 1, "rule")
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
