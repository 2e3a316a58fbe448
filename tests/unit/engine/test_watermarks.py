"""Watermarks: how far event time has come, and that it never goes back."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.api.functions import MAX_WATERMARK, NO_WATERMARK
from moorage.driver.figures import watermarks_of
from moorage.driver.views import WatermarkView
from moorage.engine.event_time import MAX_VALUES, InputClock, JobClocks, Watermarks
from moorage_state.errors import UserError

times = st.integers(NO_WATERMARK, MAX_WATERMARK)


def job(delays, limits=None):
    """The clocks of a job with one operator, which reads inputs with these delays and limits."""
    clocks = {uid: InputClock(delay, (limits or {}).get(uid)) for uid, delay in delays.items()}
    return JobClocks(clocks, {"op": tuple(clocks)}, {"op": frozenset(clocks)})


def first(delays, **limits):
    return Watermarks.at_first(job(delays, limits))


def restored(delays, kept, limits=None, idle=()):
    return Watermarks.from_json(job(delays, limits), kept, idle, ["op"])


def test_a_watermark_stays_the_delay_and_a_millisecond_behind_the_newest_time():
    marks = first({"a": 100}).after_epoch({"a": 5000})
    assert marks.of("op") == 4899


def test_there_is_none_before_every_input_has_shown_a_time():
    marks = first({"a": 0, "b": 0})
    assert marks.of("op") == NO_WATERMARK
    marks = marks.after_epoch({"a": 5000})
    assert marks.of("op") == NO_WATERMARK
    assert marks.after_epoch({"b": 3000}).of("op") == 2999


def test_the_slowest_input_counts_after_its_delay():
    marks = first({"a": 0, "b": 5000}).after_epoch({"a": 6000, "b": 9000})
    assert marks.of("op") == 3999


def test_a_job_without_event_time_has_no_watermark():
    assert first({}).after_epoch({"a": 5}).of("op") == NO_WATERMARK


def test_an_epoch_without_rows_keeps_the_watermark():
    marks = first({"a": 0}).after_epoch({"a": 5000})
    assert marks.after_epoch({}).of("op") == 4999


def test_a_late_row_does_not_move_it_back():
    marks = first({"a": 0}).after_epoch({"a": 5000}).after_epoch({"a": 10})
    assert marks.of("op") == 4999


def test_inputs_without_event_time_do_not_hold_it_back():
    assert first({"a": 0}).after_epoch({"a": 5000, "other": 1}).of("op") == 4999


def test_when_inputs_have_ended_every_timer_is_due():
    marks = first({"a": 0}).after_epoch({"a": 5000}).drain()
    assert marks.of("op") == MAX_WATERMARK
    assert marks.after_epoch({}).of("op") == MAX_WATERMARK


def test_a_drain_is_not_remembered_by_a_manifest():
    marks = first({"a": 0}).after_epoch({"a": 5000}).after_epoch({})
    drained = marks.drain().after_epoch({})
    assert restored({"a": 0}, drained.to_json()).of("op") == 4999


def test_a_larger_delay_after_a_restart_does_not_move_it_back():
    kept = first({"a": 0}).after_epoch({"a": 5000}).after_epoch({}).to_json()
    assert restored({"a": 4000}, kept).of("op") == 4999


def test_a_new_input_holds_it_where_it_is_until_it_shows_a_time():
    kept = first({"a": 0}).after_epoch({"a": 5000}).after_epoch({}).to_json()
    marks = restored({"a": 0, "b": 0}, kept).after_epoch({"a": 9000})
    assert marks.of("op") == 4999
    assert marks.after_epoch({"b": 8000}).of("op") == 7999


def test_an_input_that_is_gone_is_forgotten():
    kept = first({"a": 0, "b": 0}).after_epoch({"a": 5000, "b": 10}).to_json()
    assert restored({"a": 0}, kept).of("op") == 4999


def test_progress_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        first({}).drained = True


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 1 << 40), max_size=3),
    st.lists(st.dictionaries(st.sampled_from("abc"), times, max_size=3), max_size=6),
    st.integers(0, 6),
)
def test_it_never_goes_back_and_survives_a_restore_at_any_epoch(delays, observed, at):
    marks = again = first(delays)
    reached = marks.of("op")
    for i, seen in enumerate(observed):
        if i == at:
            stored = json.loads(json.dumps(marks.to_json()))
            again = restored(delays, stored)
        marks, again = marks.after_epoch(seen), again.after_epoch(seen)
        assert NO_WATERMARK <= reached <= marks.of("op") < MAX_WATERMARK
        assert i < at or again.of("op") == marks.of("op")
        reached = marks.of("op")


# -- idle inputs ------------------------------------------------------------------------------


def two(**limits):
    """Two inputs, of which a brought 9000 and b 3000 in an epoch at 0 that took 10."""
    marks = first({"a": 0, "b": 0}, **limits)
    return marks.after_epoch({"a": 9000, "b": 3000}, 0, 10)


@pytest.mark.parametrize(("at", "reached"), [(109, 2999), (110, 9499)])
def test_a_silent_input_holds_the_watermark_for_as_long_as_it_declares(at, reached):
    assert two(b=100).after_epoch({"a": 9500}, at, at + 1).of("op") == reached


def test_an_input_that_declares_nothing_holds_it_for_ever():
    at = 10**12
    marks = two(a=100).after_epoch({}, at, at)
    assert (marks.idle, marks.of("op")) == ({"a"}, 2999)


def test_time_that_an_epoch_took_is_no_silence_of_what_is_read_after_it():
    marks = two(b=100).after_epoch({"a": 9500}, 20, 5000)
    assert marks.idle == frozenset()
    assert two(b=100).after_epoch({"b": 3001}, 20, 5000).after_epoch({}, 5001, 5002).idle == set()


def test_an_input_that_comes_back_counts_again_and_time_does_not_go_back():
    idle = two(b=100).after_epoch({"a": 9500}, 200, 210)
    back = idle.after_epoch({"b": 3100}, 300, 310)
    assert (back.idle, back.of("op")) == (frozenset(), 9499)
    ahead = back.after_epoch({"a": 20_000, "b": 12_000}, 320, 330)
    assert ahead.of("op") == 11_999


def test_what_a_watermark_waits_for_is_the_slowest_that_is_not_idle():
    assert first({"a": 0, "b": 0}).after_epoch({"a": 5000}).held_by("op") == "b"
    assert two(b=100).held_by("op") == "b"
    assert two(b=100).after_epoch({"a": 9500}, 110, 111).held_by("op") == "a"
    assert two(a=100, b=100).quiet_at(500).held_by("op") == ""
    assert two().drain().held_by("op") == ""


def test_of_operators_with_event_time_people_are_told_how_far_it_has_come():
    clocks = {"a": InputClock(0), "b": InputClock(0)}
    readers = {"both": frozenset(clocks), "one": frozenset({"a"}), "timeless": frozenset[str]()}
    marks = Watermarks.at_first(JobClocks(clocks, {}, readers)).after_epoch({"a": 5000})
    assert watermarks_of(marks) == (
        WatermarkView("both", None, "b"),
        WatermarkView("one", 4999, "a"),
    )
    assert watermarks_of(marks.drain()) == ()


def test_when_all_are_idle_the_furthest_counts():
    assert two(a=100, b=100).quiet_at(500).of("op") == 8999


def test_an_input_that_never_brought_anything_can_be_idle():
    marks = first({"a": 0, "b": 0}, b=100)
    marks = marks.after_epoch({"a": 9000}, 0, 10)
    assert marks.of("op") == NO_WATERMARK
    assert marks.quiet_at(109).of("op") == NO_WATERMARK
    assert marks.quiet_at(110).of("op") == 8999
    silent = first({"a": 0}, a=100).quiet_at(0).quiet_at(1000)
    assert silent.idle == {"a"}
    assert silent.of("op") == NO_WATERMARK


def test_looking_at_a_quiet_job_is_not_an_epoch():
    quiet = two(b=100).quiet_at(500)
    assert (quiet.of("op"), quiet.before("op")) == (8999, NO_WATERMARK)


def test_what_was_idle_is_after_a_restore_and_the_time_between_is_no_silence():
    marks = two(a=1000, b=100).quiet_at(500)
    kept = json.loads(json.dumps(marks.to_json()))
    again = restored(dict.fromkeys("ab", 0), kept, {"a": 1000, "b": 100}, sorted(marks.idle))
    assert again.idle == {"b"}
    assert again.of("op") == 8999
    assert again.quiet_at(10**12).idle == {"b"}
    assert again.quiet_at(10**12).quiet_at(10**12 + 1000).idle == {"a", "b"}


def test_an_input_that_no_longer_declares_it_is_not_idle_after_a_restore():
    kept = two(b=100).quiet_at(500).to_json()
    assert restored({"a": 0, "b": 0}, kept, {}, ["b"]).of("op") == 2999


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 50)),
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), st.integers(-1000, 1000)), st.integers(0, 40)
        ),
        max_size=12,
    ),
)
def test_whoever_falls_silent_it_never_goes_back(limits, epochs):
    marks = first(dict.fromkeys("abc", 5), **limits)
    now, reached = 0, marks.of("op")
    for observed, seconds in epochs:
        now += seconds
        marks = marks.quiet_at(now) if not observed else marks.after_epoch(observed, now, now)
        marks = marks.after_epoch({}, now, now)
        assert marks.before("op") >= reached
        assert marks.of("op") >= marks.before("op")
        reached = marks.before("op")


# -- by the values of a column ----------------------------------------------------------------


def by_part(delay=0, idle_after=None, per="part"):
    clocks = {"in": InputClock(delay, idle_after, per)}
    return JobClocks(clocks, {"op": ("in",)}, {"op": frozenset({"in"})})


def parts(times, began=0, ended=0, marks=None, **declared):
    """Progress after an epoch that showed these newest times by value."""
    marks = marks or Watermarks.at_first(by_part(**declared))
    return marks.after_epoch({}, began, ended, {"in": times})


def test_an_input_is_as_far_as_the_slowest_of_its_values():
    marks = parts({"0": 9000, "1": 3000, None: 5000}, delay=10)
    assert marks.of("op") == 2989
    marks = parts({"1": 7000}, marks=marks)
    assert marks.of("op") == 4989
    # The null is a value like others.
    assert parts({None: 8000}, marks=marks).of("op") == 6989


def test_a_value_counts_from_its_first_epoch_on_and_time_does_not_go_back():
    marks = parts({"0": 9000})
    assert marks.of("op") == 8999
    marks = parts({"1": 3000}, marks=marks)
    assert marks.of("op") == 8999
    marks = parts({"0": 20_000, "1": 10_000}, marks=marks)
    assert marks.of("op") == 9999


def test_an_input_that_counts_by_value_holds_time_until_it_shows_one():
    job = JobClocks(
        {"in": InputClock(per="part"), "b": InputClock()},
        {"op": ("in", "b")},
        {"op": frozenset({"in", "b"})},
    )
    marks = Watermarks.at_first(job).after_epoch({"b": 5000})
    assert marks.of("op") == NO_WATERMARK
    assert parts({"0": 900}, marks=marks).of("op") == 899


def test_each_value_is_idle_by_itself_and_the_input_when_all_are():
    marks = parts({"0": 9000, "1": 3000}, 0, 10, idle_after=100)
    marks = parts({"0": 9500}, 110, 120, marks=marks)
    assert (marks.of("op"), marks.idle) == (9499, frozenset())
    back = parts({"1": 9600}, 130, 140, marks=marks)
    assert back.of("op") == 9499
    quiet = marks.quiet_at(10_000)
    assert (quiet.of("op"), quiet.idle) == (9499, {"in"})


def test_values_are_after_a_restore_what_they_were():
    marks = parts({"0": 9000, "1": 3000, None: 5000}, 0, 10, idle_after=100)
    marks = parts({"0": 9500, None: 6000}, 110, 120, marks=marks)
    kept, values = json.loads(json.dumps([marks.to_json(), marks.values_to_json()]))
    assert kept["in"] == 6000
    again = Watermarks.from_json(by_part(idle_after=100), kept, (), ["op"], values)
    assert again.of("op") == marks.of("op") == 5999
    assert again.values_to_json() == values
    # Where none may be idle any more, the one that was holds time where it is.
    awake = Watermarks.from_json(by_part(), kept, (), ["op"], values)
    assert parts({"0": 9900, None: 9900}, marks=awake).of("op") == awake.before("op")


def test_what_a_manifest_keeps_of_values_is_read_as_it_was_written():
    kept = {"in": 6000, "op": 2999, "": 2999}
    values = {
        "in": {"per": "part", "values": [["0", 9500, False], ["1", 3000, True], [None, 6, False]]}
    }
    marks = Watermarks.from_json(by_part(idle_after=100), kept, (), ["op"], values)
    assert (marks.values_to_json(), marks.of("op")) == (values, 2999)
    assert parts({None: 8000}, marks=marks).of("op") == 7999


def test_per_that_is_new_goes_on_from_what_was_known_of_the_whole_input():
    kept = first({"in": 0}).after_epoch({"in": 5000}).to_json()
    marks = Watermarks.from_json(by_part(), kept, (), ["op"])
    assert marks.of("op") == 4999
    marks = parts({"0": 7000, "1": 6000}, marks=marks)
    assert marks.of("op") == 5999


@pytest.mark.parametrize("per", ["other", ""])
def test_per_that_changed_or_is_gone_forgets_the_values(per):
    marks = parts({"0": 9000, "1": 3000})
    kept, values = marks.to_json(), marks.values_to_json()
    again = Watermarks.from_json(by_part(per=per), kept, (), ["op"], values)
    assert again.of("op") == 2999
    assert again.values_to_json() == {}


def test_a_manifest_from_before_it_counted_by_value_has_no_values():
    assert first({"a": 0}).after_epoch({"a": 5}).values_to_json() == {}


def test_more_values_than_can_count_at_once_are_refused():
    most: dict[str | None, int] = {str(i): 5 for i in range(MAX_VALUES)}
    marks = Watermarks.at_first(by_part())
    marks.require_room({"in": most})
    marks = parts(most, marks=marks)
    words = f"input=in per=part values={MAX_VALUES + 1} most={MAX_VALUES}; count by a column of"
    with pytest.raises(UserError, match=words):
        marks.require_room({"in": {"more": 5}})


def test_values_that_are_idle_make_room_the_longest_silent_first():
    most = {f"{i:04}": 5 for i in range(MAX_VALUES)}
    marks = parts(most, 0, 0, idle_after=100)
    marks = parts({"0001": 6}, 50, 50, marks=marks)
    marks = parts({"0002": 6}, 200, 200, marks=marks)
    marks.require_room({"in": {"new": 7, "newer": 7}})
    marks = parts({"new": 7, "newer": 7}, 210, 210, marks=marks)
    left = {value for value, _, _ in marks.values_to_json()["in"]["values"]}
    assert left == (most.keys() | {"new", "newer"}) - {"0000", "0003"}
