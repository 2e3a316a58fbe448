"""Watermarks: how far event time has come, and that it never goes back."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.engine.watermarks import Watermarks
from moorage.functions import MAX_WATERMARK, NO_WATERMARK

times = st.integers(NO_WATERMARK, MAX_WATERMARK)


def test_a_watermark_stays_the_delay_and_a_millisecond_behind_the_newest_time():
    marks = Watermarks({"a": 100}).after_epoch({"a": 5000})
    assert marks.current == 4899


def test_there_is_none_before_every_input_has_shown_a_time():
    marks = Watermarks({"a": 0, "b": 0})
    assert marks.current == NO_WATERMARK
    marks = marks.after_epoch({"a": 5000})
    assert marks.current == NO_WATERMARK
    assert marks.after_epoch({"b": 3000}).current == 2999


def test_the_slowest_input_counts_after_its_delay():
    marks = Watermarks({"a": 0, "b": 5000}).after_epoch({"a": 6000, "b": 9000})
    assert marks.current == 3999


def test_a_job_without_event_time_has_no_watermark():
    assert Watermarks({}).after_epoch({"a": 5}).current == NO_WATERMARK


def test_an_epoch_without_rows_keeps_the_watermark():
    marks = Watermarks({"a": 0}).after_epoch({"a": 5000})
    assert marks.after_epoch({}).current == 4999


def test_a_late_row_does_not_move_it_back():
    marks = Watermarks({"a": 0}).after_epoch({"a": 5000}).after_epoch({"a": 10})
    assert marks.current == 4999


def test_inputs_without_event_time_do_not_hold_it_back():
    assert Watermarks({"a": 0}).after_epoch({"a": 5000, "other": 1}).current == 4999


def test_when_inputs_have_ended_every_timer_is_due():
    marks = Watermarks({"a": 0}).after_epoch({"a": 5000}).drain()
    assert marks.current == MAX_WATERMARK
    assert marks.after_epoch({}).current == MAX_WATERMARK


def test_a_drain_is_not_remembered_by_a_manifest():
    marks = Watermarks({"a": 0}).after_epoch({"a": 5000}).after_epoch({})
    drained = marks.drain().after_epoch({})
    assert Watermarks.from_json({"a": 0}, drained.to_json()).current == 4999


def test_a_larger_delay_after_a_restart_does_not_move_it_back():
    kept = Watermarks({"a": 0}).after_epoch({"a": 5000}).after_epoch({}).to_json()
    assert Watermarks.from_json({"a": 4000}, kept).current == 4999


def test_a_new_input_holds_it_where_it_is_until_it_shows_a_time():
    kept = Watermarks({"a": 0}).after_epoch({"a": 5000}).after_epoch({}).to_json()
    marks = Watermarks.from_json({"a": 0, "b": 0}, kept).after_epoch({"a": 9000})
    assert marks.current == 4999
    assert marks.after_epoch({"b": 8000}).current == 7999


def test_an_input_that_is_gone_is_forgotten():
    kept = Watermarks({"a": 0, "b": 0}).after_epoch({"a": 5000, "b": 10}).to_json()
    assert Watermarks.from_json({"a": 0}, kept).current == 4999


def test_progress_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Watermarks({}).floor = 5  # type: ignore[misc]


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 1 << 40), max_size=3),
    st.lists(st.dictionaries(st.sampled_from("abc"), times, max_size=3), max_size=6),
    st.integers(0, 6),
)
def test_it_never_goes_back_and_survives_a_restore_at_any_epoch(delays, observed, at):
    marks = restored = Watermarks(delays)
    reached = marks.current
    for i, seen in enumerate(observed):
        if i == at:
            stored = json.loads(json.dumps(marks.to_json()))
            restored = Watermarks.from_json(delays, stored)
        marks, restored = marks.after_epoch(seen), restored.after_epoch(seen)
        assert NO_WATERMARK <= reached <= marks.current < MAX_WATERMARK
        assert i < at or restored.current == marks.current
        reached = marks.current
