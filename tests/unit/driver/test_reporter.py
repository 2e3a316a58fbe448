"""A clock that went back holds processing time up, and nobody has to guess that."""

import logging

import pytest
from moorage_testing.manifests import checkpoint_manifest

from moorage.driver.reporter import Reporter
from moorage.driver.types import JobProgress
from moorage.driver.views import SampleView, WatermarkView

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def heard() -> list[JobProgress]:
    return []


@pytest.fixture
def reporter(heard: list[JobProgress]) -> Reporter:
    return Reporter(heard.append)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_it_is_told_once_with_how_far_and_the_gap_goes_on_to_be_shown(
    reporter: Reporter, heard: list[JobProgress], caplog: pytest.LogCaptureFixture
) -> None:
    for behind_ms in range(DAY_MS + 5_000, DAY_MS, -100):
        reporter.clock(behind_ms)
    (text,) = told(caplog)
    assert "by=1 day, 0:00:05" in text
    assert "timers of processing time and time to live wait" in text
    assert heard[0].message == text
    seconds = [progress.clock_behind_seconds for progress in heard]
    assert seconds == [DAY_MS // 1000 + n for n in (5, 4, 3, 2, 1, 0)], "not at every look"


def test_it_is_told_when_the_clock_has_caught_up_and_of_the_next_time(
    reporter: Reporter, caplog: pytest.LogCaptureFixture
) -> None:
    for behind_ms in (60_000, 1_000, 0, 0, 60_000, 0):
        reporter.clock(behind_ms)
    assert ["stands still" in text for text in told(caplog)] == [True, False, True, False]
    assert reporter.progress.clock_behind_seconds == 0


@pytest.mark.parametrize("behind_ms", [0, 999, 9_999])
def test_what_clocks_are_corrected_by_every_day_is_not_worth_a_word(
    reporter: Reporter, caplog: pytest.LogCaptureFixture, behind_ms: int
) -> None:
    reporter.clock(behind_ms)
    assert told(caplog) == []
    assert reporter.progress.clock_behind_seconds == behind_ms // 1000


def test_event_time_is_told_between_epochs_where_it_is_news(
    reporter: Reporter, heard: list[JobProgress]
) -> None:
    waits, idle = (WatermarkView("pairs", 4_999, "orders"),), (WatermarkView("pairs", 4_999),)
    for found in (waits, waits, idle, idle):
        reporter.watermarks(found)
    assert [progress.watermarks for progress in heard] == [waits, idle]


def test_what_is_restored_and_the_epoch_under_way_are_told_while_they_last(
    reporter: Reporter, heard: list[JobProgress]
) -> None:
    reporter.restoring("chk-2")
    assert [one.restoring_from for one in heard] == ["chk-2"], "never a phase that restores nothing"
    assert (reporter.progress.phase, reporter.progress.restoring_from) == ("restoring", "chk-2")
    assert reporter.progress.restored_from is None, "nothing is restored yet"
    reporter.phase("running")
    assert reporter.progress.restoring_from is None
    reporter.epoch_began()
    assert reporter.progress.epoch_began is not None
    reporter.epoch(1, 10, 0, None)
    assert reporter.progress.epoch_began is None
    reporter.epoch_began()
    reporter.phase("rewinding")
    assert reporter.progress.epoch_began is None


@pytest.mark.parametrize(("own", "last"), [(True, 3), (False, None)])
def test_what_is_restored_from_elsewhere_is_no_checkpoint_of_the_job(
    reporter: Reporter, *, own: bool, last: int | None
) -> None:
    manifest = checkpoint_manifest("theirs", 3)
    reporter.restored("file:///theirs/chk-3", manifest, own=own)
    found = reporter.progress.last_checkpoint
    assert (found.checkpoint_id if found else None) == last
    assert reporter.progress.restored_from == "file:///theirs/chk-3"


def test_of_each_input_with_strange_times_people_are_told_once(
    reporter: Reporter, heard: list[JobProgress]
) -> None:
    for found in ({}, {"a": "of a"}, {"a": "of a, later"}, {"a": "of a", "b": "of b"}):
        reporter.strange_rows(found)
    assert [progress.message for progress in heard] == ["of a", "of b"]


def test_a_sample_is_told_until_the_driver_that_stood_by_leads(reporter: Reporter) -> None:
    reporter.standby(stands_by=True)
    reporter.sample(SampleView(10))
    reporter.standby(stands_by=True)
    assert reporter.progress.sample == SampleView(10)
    reporter.standby(stands_by=False)
    assert reporter.progress.sample is None
