import io
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from moorage.cli.progress import LiveDisplay, PlainDisplay, live_view, open_display, plain_line
from moorage.driver.types import JobProgress
from moorage.driver.views import (
    CheckpointView,
    GraphView,
    NodeView,
    OddRows,
    SubtaskView,
    WatermarkView,
)
from moorage.redaction import Redactor

PLAIN = Redactor({})
NOW = datetime(2026, 11, 20, 10, 0, 0, tzinfo=UTC)


def checkpoint(age_seconds=3):
    return CheckpointView(
        checkpoint_id=7,
        epoch=40,
        completed_at=NOW - timedelta(seconds=age_seconds),
        bytes_total=2**30,
        bytes_uploaded=1_572_864,
        duration_seconds=0.4,
    )


RUNNING = JobProgress(
    epoch=42,
    rows_total=1_234_567,
    rows_per_second=98_765.4,
    state_bytes=12_897_484,
    last_checkpoint=checkpoint(),
    phase="running",
    epochs=2,
    bound=(1_234_567, 2_000_000),
    restored_from="chk-5",
)


def test_a_line_says_where_the_run_is():
    assert plain_line(RUNNING, NOW) == (
        "running: epoch 42, 1,234,567 rows, 61 %, 98,765 rows/s, state 12.3 MiB, "
        "checkpoint 7 (3s ago, 1.0 GiB, 1.5 MiB new), restored from chk-5"
    )


def test_a_line_says_that_processing_time_stands_still_while_it_does():
    behind = replace(RUNNING, clock_behind_seconds=25 * 3600)
    told = "processing time stands still: clock 25h00m behind"
    assert plain_line(behind, NOW).endswith(told)
    assert told in render(behind)


def test_a_line_says_what_is_odd_about_rows_where_anything_is():
    odd = OddRows(late=1_200, null_keys=5, null_rows=1, bad_times=2)
    rows = "1,234,567 rows (1,200 late) and 7 not processed ("
    kinds = "5 with a null key, 1 of these all null, 2 without a time)"
    assert f"epoch 42, {rows}{kinds}, 61 %" in plain_line(replace(RUNNING, odd=odd), NOW)
    assert rows in render(replace(RUNNING, odd=odd))
    late = replace(RUNNING, odd=OddRows(late=3, late_dropped=2))
    assert "rows (3 late, 2 dropped as too late), 61 %" in plain_line(late, NOW)


def silent(rows_out=0, time_ms=None, held_by="payments", **changes):
    """A run whose operator after another has rows, and gives some or none."""
    pairs = SubtaskView("pair", 0, (0, 127), "", rows_in=9, rows_out=rows_out)
    first = SubtaskView("first", 0, (0, 127), "", rows_in=9, rows_out=9)
    marks = (WatermarkView("first", 0, "orders"), WatermarkView("pair", time_ms, held_by))
    known: dict[str, Any] = {"epochs": 3, "subtasks": (first, pairs), "watermarks": marks}
    return replace(RUNNING, **(known | changes))


def test_a_line_says_why_nothing_comes_out():
    told = "no output of pair yet, and no watermark: it waits for payments"
    assert plain_line(silent(), NOW).endswith(f", {told}")
    assert told in render(silent())


@pytest.mark.parametrize(
    "changes",
    [
        {"rows_out": 1},
        {"time_ms": 1_767_261_600_000},
        {"held_by": ""},
        {"epochs": 2},
        {"phase": "stopping"},
        {"subtasks": ()},
        {"subtasks": (SubtaskView("pair", 0, (0, 127), ""),)},
        {"watermarks": ()},
        {"graph": GraphView((NodeView("operator", "pair"),))},
    ],
)
def test_a_line_says_so_only_where_rows_came_and_nothing_was_given_for_some_epochs(changes):
    assert "no output" not in plain_line(silent(**changes), NOW)


def test_a_run_that_has_just_begun_has_a_line_too():
    begun = JobProgress(phase="running")
    assert plain_line(begun, NOW) == "running: waiting for the first rows"
    begun = replace(begun, epoch_began=NOW - timedelta(seconds=75))
    told = "epoch 1 under way for 1m15s (the first one takes longest: Spark compiles what it runs)"
    assert plain_line(begun, NOW) == f"running: {told}"
    assert "epoch 1 under way for 1m15s" in render(begun)


def test_an_epoch_that_takes_long_is_told_of_before_it_ends():
    assert "under way" not in plain_line(
        replace(RUNNING, epoch_began=NOW - timedelta(seconds=4)), NOW
    )
    long = replace(RUNNING, epoch_began=NOW - timedelta(seconds=12))
    assert "state 12.3 MiB, epoch 43 under way for 12s, checkpoint 7" in plain_line(long, NOW)
    assert "42, epoch 43 under way for 12s" in render(long)


def test_a_line_names_what_is_being_restored_and_no_size_that_is_not_known():
    restoring = JobProgress(phase="restoring", restoring_from="chk-2")
    assert plain_line(restoring, NOW) == "restoring: from chk-2"
    assert "chk-2" in render(restoring)
    unknown = replace(
        RUNNING, state_bytes=0, last_checkpoint=replace(checkpoint(), bytes_uploaded=0)
    )
    line = plain_line(unknown, NOW)
    assert "98,765 rows/s, checkpoint 7 (3s ago, 1.0 GiB), restored from chk-5" in line
    assert "0 B" not in line + render(unknown)


def test_nothing_but_messages_is_shown_before_there_is_a_run():
    stream = io.StringIO()
    with PlainDisplay(stream) as display:
        display(JobProgress(message="starting empty"))
    assert stream.getvalue() == "starting empty\n"
    terminal = io.StringIO()
    with LiveDisplay(Console(file=terminal, width=100, force_terminal=True)) as display:
        display(JobProgress(message="starting empty"))
    assert "starting empty" in terminal.getvalue()
    assert "phase" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("bound", "shown"),
    [
        ((0, 10), "0 %"),
        ((999, 1000), "99 %"),
        ((10, 10), "100 %"),
        ((11, 10), "100 %"),
        ((0, 0), "100 %"),
    ],
)
def test_a_share_is_rounded_down_so_that_all_means_all(bound, shown):
    assert f", {shown}," in plain_line(JobProgress(bound=bound), NOW)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (59, "59s"), (61, "1m01s"), (3660, "1h01m"), (-5, "0s")]
)
def test_the_age_of_a_checkpoint_is_short_and_never_negative(seconds, shown):
    line = plain_line(JobProgress(last_checkpoint=checkpoint(seconds)), NOW)
    assert f"checkpoint 7 ({shown} ago" in line


def test_a_rate_that_is_no_number_is_not_shown_as_one():
    assert ", - rows/s" in plain_line(JobProgress(rows_per_second=float("nan")), NOW)


def render(progress):
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True, color_system=None)
    console.print(live_view(progress, NOW))
    return stream.getvalue()


def test_the_view_shows_a_bar_where_the_input_is_bounded():
    text = render(RUNNING)
    assert "━" in text
    assert "61 %" in text
    assert "1,234,567 rows, 98,765 per second" in text
    assert "chk-5" in text


def test_the_view_shows_no_bar_where_the_input_has_no_end():
    text = render(JobProgress(phase="running"))
    assert "━" not in text
    assert "%" not in text
    assert "none yet" in text


class Clock:
    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


def lines_of(stream):
    return stream.getvalue().splitlines()


def test_plain_progress_is_at_most_one_line_a_second_and_the_last_is_never_lost():
    stream, clock = io.StringIO(), Clock()
    with PlainDisplay(stream, monotonic=clock, now=lambda: NOW) as display:
        for epoch in range(1, 31):
            display(JobProgress(epoch=epoch, phase="running", epochs=epoch))
            clock.seconds += 0.125
    epochs = [int(line.split("epoch ")[1].split(",")[0]) for line in lines_of(stream)]
    assert epochs == [1, 9, 17, 25, 30]


def test_a_message_is_shown_at_once_and_only_once():
    stream, clock = io.StringIO(), Clock()
    with PlainDisplay(stream, monotonic=clock, now=lambda: NOW) as display:
        display(JobProgress(epoch=1))
        display(JobProgress(epoch=2, message="checkpoint 6 is damaged"))
        display(JobProgress(epoch=3, message="checkpoint 6 is damaged"))
    assert [line for line in lines_of(stream) if "damaged" in line] == ["checkpoint 6 is damaged"]


@pytest.mark.parametrize("plain", [True, False])
def test_what_is_said_has_no_secrets_of_the_job(monkeypatch, plain):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    clean = Redactor({"spark.my.password": "opensesame"})
    with open_display(stream, clean, plain=plain) as display:
        display(JobProgress(message="ValueError: opensesame is not known at s3://me:pw@store/a"))
    shown = stream.getvalue()
    assert "ValueError: *** is not known at s3://***@store/a" in shown
    assert "opensesame" not in shown


def test_a_reader_that_went_away_does_not_stop_the_job():
    class Gone(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError

    with PlainDisplay(Gone(), now=lambda: NOW) as display:
        display(JobProgress(message="hello"))


def test_a_stream_that_is_no_terminal_gets_lines():
    assert isinstance(open_display(io.StringIO(), PLAIN, plain=False), PlainDisplay)


def test_a_terminal_gets_the_view_unless_lines_are_asked_for(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert isinstance(open_display(Terminal(), PLAIN, plain=False), LiveDisplay)
    assert isinstance(open_display(Terminal(), PLAIN, plain=True), PlainDisplay)


def test_the_live_view_ends_with_the_last_report_and_keeps_messages():
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True, color_system=None)
    with LiveDisplay(console, now=lambda: NOW) as display:
        threads = [
            threading.Thread(target=display, args=(JobProgress(epoch=n, message="look here"),))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        display(RUNNING)
    text = stream.getvalue()
    assert "look here" in text
    assert "1,234,567" in text
