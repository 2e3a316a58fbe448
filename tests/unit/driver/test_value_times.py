"""Event times by the values of a column, on their way through a manifest."""

from msgspec.structs import replace

from moorage.driver.manifests import watermarks_at
from moorage.engine.event_time import InputClock, JobClocks, Watermarks
from moorage_state.snapshots import decode_snapshot, encode_manifest

CLOCKS = JobClocks({"in": InputClock(per="part")}, {}, {"op": frozenset({"in"})})


def test_a_manifest_has_the_newest_time_of_each_value(made_at):
    marks = Watermarks.at_first(CLOCKS).after_epoch({}, values={"in": {"0": 700, None: 900}})
    made = decode_snapshot(encode_manifest(made_at(marks)), "it")
    again = watermarks_at(CLOCKS, made).after_epoch({}, values={"in": {"0": 1000}})
    assert (watermarks_at(CLOCKS, made).of("op"), again.of("op")) == (699, 899)


def test_a_manifest_from_before_values_were_kept_restores_with_the_input_as_one(made_at):
    marks = Watermarks.at_first(CLOCKS).after_epoch({}, values={"in": {"0": 700, None: 900}})
    older = replace(made_at(marks), extra={})
    assert watermarks_at(CLOCKS, older).of("op") == 699


def test_a_manifest_of_a_job_that_counts_by_no_value_says_nothing_of_it(made_at):
    assert "value_times" not in made_at(Watermarks({}, {})).extra
