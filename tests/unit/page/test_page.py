"""The page: what it shows, what it escapes and hides, and that readers cannot exhaust it."""

import re
import socket
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from http.client import HTTPConnection
from typing import get_args

import pytest

from moorage.driver.types import JobProgress
from moorage.driver.views import (
    CheckpointRecord,
    CheckpointTimes,
    FailureView,
    GraphView,
    OddRows,
    ServerPart,
    WatermarkView,
)
from moorage.offline.listing import CheckpointRow, Listing, SavepointRow, WarningCode
from moorage.page.advice import advice_for
from moorage.page.charts import MOST_BARS, percentile
from moorage.page.history import EPOCHS, PROBLEMS, RunHistory
from moorage.page.parts import MOST_ROWS
from moorage.page.render import drawn_run, drawn_store, rendered
from moorage.page.server import PageServer
from moorage.page.store_views import page_of_store
from moorage.page.views import page_of_run
from moorage.redaction import Redactor
from moorage_state.errors import StoreUnavailable, UserError

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def record(number, state="Completed", **more):
    return CheckpointRecord(
        number, "Checkpoint", state, NOW, duration_seconds=number / 10, bytes_total=2048, **more
    )


def run_of(progress, name="clicks", epochs=1):
    history = RunHistory(name)
    for number in range(1, epochs + 1):
        history(replace(progress, epochs=number, epoch=number, epoch_seconds=0.25, epoch_rows=1000))
    return history


def html_of(history, clean=str):
    return rendered(page_of_run(history.facts(), NOW, clean), refresh_seconds=2, nonce="n")


def stored(count, **more):
    rows = [
        CheckpointRow(n, f"chk-{n}", "retained", n, NOW, 0, 1024 * n, 10, 10, 3, 1, 1, **more)
        for n in range(1, count + 1)
    ]
    return Listing("/data/clicks", None, rows, [], None, [])


def test_a_run_shows_its_epochs_checkpoints_and_odd_rows():
    progress = JobProgress(
        phase="running",
        checkpoints=(record(2, "InProgress"), record(1)),
        completed_checkpoints=1,
        odd=OddRows(late=7, null_keys=3),
    )
    html = html_of(run_of(progress, epochs=4))
    assert "epoch 4: 1,000 rows, duration 250 ms" in html
    assert "<td>in progress</td>" in html
    assert "<dt>Late rows</dt><dd>7</dd>" in html
    assert "<dt>Null keys</dt><dd>3</dd>" in html


def test_how_far_event_time_has_come_is_shown_with_what_it_waits_for():
    early = NOW.timestamp() * 1000 - 65_000
    marks = (
        WatermarkView("sums", int(early), "clicks<"),
        WatermarkView("join", None, "payments"),
        WatermarkView("new", None),
        WatermarkView("odd", 1 << 62),
    )
    progress = JobProgress(graph=GraphView(()), watermarks=marks, lag_rows=1200)
    page = page_of_run(run_of(progress).facts(), NOW, str)
    graph = next(section for section in page.sections if section.anchor == "graph")
    assert graph.tables[-1].rows == [
        ("sums", "clicks<", "2026-11-23 11:58:55Z, 1m05s behind the clock"),
        ("join", "payments", "none yet"),
        ("new", "a first row: all inputs are idle", "none yet"),
        (
            "odd",
            "a newer row: all inputs are idle, it stays at the newest less max_delay",
            f"{1 << 62} ms",
        ),
    ]
    html = html_of(run_of(progress))
    assert "clicks&lt;" in html
    assert "<dt>Waiting in sources</dt><dd>1,200 rows</dd>" in html
    assert "Event time" not in html_of(run_of(replace(progress, watermarks=())))


def test_percentiles_are_nearest_ranks_of_completed_checkpoints():
    failed = record(900, "Failed")
    progress = JobProgress(checkpoints=(failed, *(record(n) for n in range(100, 0, -1))))
    page = page_of_run(run_of(progress).facts(), NOW, str)
    figures, _history = next(s for s in page.sections if s.anchor == "checkpoints").tables
    assert figures.header[1:] == ("least", "mean", "p50", "p90", "p95", "p99", "most")
    duration = ("Duration", "100 ms", "5.0 s", "5.0 s", "9.0 s", "9.5 s", "9.9 s", "10.0 s")
    assert figures.rows[0] == duration
    assert percentile([3.0], 0.01) == 3.0


def test_before_anything_has_happened_the_page_says_so():
    html = html_of(RunHistory("clicks"))
    assert "No epoch has been committed yet." in html
    assert "No checkpoint has been triggered yet." in html


def test_what_others_wrote_is_escaped_wherever_it_is_shown():
    progress = JobProgress(
        message=EVIL, storage_error=EVIL, restored_from=EVIL, last_failure=FailureView(EVIL, EVIL)
    )
    for html in (
        html_of(run_of(progress, name=EVIL)),
        rendered(page_of_store(stored(1, problem=EVIL), None, NOW, str)),
    ):
        assert "&lt;script&gt;alert(1)" in html
        assert "<script>alert" not in html
        assert "<img" not in html


def test_secrets_are_masked_in_every_text_of_the_page():
    told = "refused: key=hunter2hunter2"
    progress = JobProgress(
        message=told, storage_error=told, restored_from=told, last_failure=FailureView("io", told)
    )
    html = html_of(run_of(progress), Redactor({"S3_SECRET": "hunter2hunter2"}))
    assert html.count("refused: key=***") >= 4
    assert "hunter2" not in html


def test_the_page_needs_nothing_else():
    html = rendered(page_of_store(stored(3), None, NOW, str))
    assert not re.search(r"(?:src|href)=\"(?!#|data:,)", html)
    assert "<script" not in html


def test_memory_is_bounded_however_long_the_run():
    history = RunHistory("clicks")
    for number in range(1, 1000):
        history(JobProgress(epochs=number, last_failure=FailureView(f"x{number}", str(number))))
    facts = history.facts()
    assert len(facts.epochs) == EPOCHS
    newest = range(999, 999 - PROBLEMS, -1)
    assert [one.message for one in facts.problems] == [str(n) for n in newest]


def test_ten_thousand_checkpoints_are_drawn_as_the_newest():
    html = rendered(page_of_store(stored(10_000), None, NOW, str))
    assert html.count("<rect") == 2 * MOST_BARS
    assert f"{10_000 - MOST_ROWS} more are not shown." in html
    assert ">10000</td>" in html
    assert len(html) < 150_000


def test_a_store_that_can_no_longer_be_read_says_so_on_its_page():
    def look(_now):
        raise StoreUnavailable("no answer: key=hunter2hunter2")

    html = drawn_store(look, Redactor({"S3_SECRET": "hunter2hunter2"}), "n")
    assert "no answer: key=***" in html
    assert "<br>See whether the store answers: moorage store check DIR." in html


def test_what_is_wrong_with_a_store_says_what_to_do_whatever_it_is():
    codes = get_args(WarningCode)
    found = replace(stored(1), warnings=[f"told {code}" for code in codes], codes=codes)
    told = page_of_store(found, None, NOW, str).problems
    assert [one.text for one in told] == found.warnings
    assert all(one.advice.endswith(".") for one in told)
    for code in ("corrupt_state", "newer_format", "store_denied", "store_unavailable"):
        assert advice_for(code)


def test_what_cannot_be_read_is_among_the_problems_newest_first_and_not_all_of_a_thousand():
    found = replace(
        stored(20, problem="manifest is missing"),
        savepoints=[SavepointRow("sp", "/data/sp", "damaged", problem="as well")],
    )
    told = page_of_store(found, None, NOW, str).problems
    assert told[0].text == "chk-20 cannot be read: manifest is missing"
    assert "moorage snapshots verify" in told[0].advice
    assert len(told) == 10
    told = page_of_store(replace(found, checkpoints=[]), None, NOW, str).problems
    assert [one.text for one in told] == ["sp cannot be read: as well"]


@pytest.fixture
def server():
    server = PageServer(lambda nonce: f"<p>{nonce}</p>", port=0, seconds=0.5, most=2)
    yield server
    server.close()


def asked(server, method="GET", path="/", host=None):
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=5)) as connection:
        connection.request(method, path, headers={"Host": host or f"localhost:{server.port}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def test_style_and_script_are_allowed_by_a_nonce_of_one_answer(server):
    (_, first, headers), (_, second, _) = asked(server), asked(server)
    assert first != second
    nonce = first.removeprefix("<p>").removesuffix("</p>")
    assert f"script-src 'nonce-{nonce}'" in headers["Content-Security-Policy"]
    assert "unsafe-inline" not in headers["Content-Security-Policy"]


def test_the_page_is_kept_as_one_file_that_needs_no_other(server):
    status, text, headers = asked(server, path="/report.html")
    assert (status, text) == (200, "<p></p>")
    assert headers["Content-Disposition"] == "attachment; filename=report.html"
    assert "script-src" not in headers["Content-Security-Policy"]
    history = RunHistory("clicks")
    history(JobProgress(epochs=7))
    assert 'href="report.html" download' in drawn_run(history, str, "n")
    html = drawn_run(history, str, "")
    assert "<script" not in html
    assert not re.search(r"(?:src|href)=\"(?!#|data:,)", html)


def test_only_the_page_is_served_and_only_to_who_asked_this_machine_for_it(server):
    assert asked(server, path="/../../etc/passwd")[0] == 404
    assert asked(server, method="POST")[0] == 405
    assert asked(server, host="evil.example:7780")[0] == 403
    assert asked(server, host="localhost.evil.example")[0] == 403


def test_a_page_that_cannot_be_drawn_is_an_answer_too(caplog):
    def broken(_nonce):
        raise ValueError("no such page")

    server = PageServer(broken, port=0)
    try:
        assert asked(server)[0] == 500
    finally:
        server.close()
    assert "page_failed" in caplog.text


def test_readers_that_say_nothing_are_hung_up_on_and_leave_room_for_others(server):
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(3)]
    with closing(silent[0]), closing(silent[1]), closing(silent[2]):
        assert asked(server)[0] == 200
        for connection in silent:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def test_a_port_that_is_taken_is_a_clear_error(server):
    with pytest.raises(UserError, match=r"cannot be served.*choose another port with --page PORT"):
        PageServer(str, port=server.port)


def test_a_stored_checkpoint_opens_to_what_its_servers_took_where_it_says_so():
    servers = (ServerPart("host:1", 0.25, 3, 2048), ServerPart("host:2", 1.5, 1, 10))
    for said, expected in ((CheckpointTimes(0.02, 1.6, servers), 12), (None, 0)):
        page = page_of_store(stored(12, times=said), None, NOW, str)
        details = next(s for s in page.sections if s.anchor == "checkpoints").details
        assert len(details) == min(expected, 10)
        if details:
            assert details[0].summary == "Checkpoint 12"
            assert list(details[0].pairs)[1] == ("Upload", "1.6 s")
            assert details[0].tables[0].rows[0] == ("host:2", "1.5 s", "10 B", "1")
