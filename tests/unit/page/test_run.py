"""The page of a run: its graph, its subtasks, where time goes, and what can be asked of it."""

import json
import re
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from itertools import combinations
from typing import Any

import pytest
from moorage_testing.page_samples import AT, GRAPH, checkpoint, new_run, sample_run, subtasks

from moorage.driver.lookups import StateLookups
from moorage.driver.types import JobProgress
from moorage.driver.views import (
    CheckpointView,
    FailureView,
    GraphView,
    NodeView,
    QueryableView,
    RestoredView,
    WatermarkView,
)
from moorage.engine.kv_states import UnknownKvState
from moorage.page.charts import stacked
from moorage.page.graph import columns_of, drawing_of
from moorage.page.history import RunHistory
from moorage.page.render import rendered
from moorage.page.server import PageServer
from moorage.page.views import page_of_run
from moorage.texts import size_text

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def section_of(history, anchor):
    page = page_of_run(history.facts(), AT, str)
    return next(one for one in page.sections if one.anchor == anchor)


def html_of(history):
    return rendered(page_of_run(history.facts(), AT, str), refresh_seconds=2, nonce="n")


# -- the graph ---------------------------------------------------------------------------------


def test_each_node_stands_behind_all_that_it_reads_from_and_none_on_another():
    assert columns_of(GRAPH) == [0, 1, 0, 2, 3, 4, 3]
    drawing = drawing_of(GRAPH, {}, str, size_text)
    for one, other in combinations(drawing.boxes, 2):
        apart_x = abs(one.x - other.x) >= one.width
        assert apart_x or abs(one.y - other.y) >= one.height
    assert all(box.x + box.width <= drawing.width for box in drawing.boxes)
    assert all(box.y + box.height <= drawing.height for box in drawing.boxes)
    assert [arrow.label for arrow in drawing.arrows if arrow.label] == ["broadcast", "late rows"]


def test_what_tells_two_sources_apart_is_seen_in_their_boxes():
    folder = "/srv/data/warehouse/landing/2026"
    nodes = [
        NodeView("source", f"a-long-name-of-the-company-{one}", f"parquet {folder}/{one}")
        for one in ("orders", "clicks")
    ]
    boxes = drawing_of(GraphView(tuple(nodes)), {}, str, size_text).boxes
    for box, one in zip(boxes, ("orders", "clicks"), strict=True):
        assert [line.rpartition("…")[2][-6:] for line in box.lines] == [one, one]
        assert box.lines[1].startswith("source")
        assert [len(line) for line in box.lines] == [22, 25]
        assert f"{folder}/{one}" in box.title


def test_nodes_have_rates_and_ends_what_their_neighbours_tell():
    nodes, _event_time = section_of(sample_run(), "graph").tables
    cells = {row[0:2]: row[3:] for row in nodes.rows}
    rows_in, rows_out, busy, skew, late, nulls, state = cells["join", "operator"]
    assert (rows_in, rows_out, busy, skew) == ("5,000", "3,600", "90%", "1.6")
    assert (late, nulls, state) == ("0", "8", "10.0 MiB")
    assert cells["clicks", "source"][1] == "5,000"
    assert cells["payments", "source"][1] == "", "its reader reads another input as well"
    assert cells["files", "sink"][0] == "3,600"
    assert cells["late", "sink"][0] == "", "how many rows went aside nobody says"


def test_rates_are_of_the_last_half_minute_and_nothing_when_nothing_came():
    clock = [0.0]
    history = RunHistory("clicks", lambda: clock[0])
    for number in range(1, 101):
        clock[0] += 1.0
        history(JobProgress(epochs=number, subtasks=subtasks(number)))
    assert history.facts().figures["sessions"].rows_in == pytest.approx(5000)
    clock[0] += 15.0
    assert history.facts().figures["sessions"].rows_in == pytest.approx(2500)
    clock[0] += 15.0
    assert history.facts().figures["sessions"].rows_in == 0
    history(JobProgress(epochs=100, subtasks=history.facts().progress.subtasks, in_epoch=True))
    assert history.facts().figures["sessions"].rows_in > 0, "of a long epoch nothing is known"


def test_another_run_counts_from_nothing_and_has_no_rates_below_it():
    clock = [0.0]
    history = RunHistory("clicks", lambda: clock[0])
    for number in (50, 51, 1, 2):
        clock[0] += 1.0
        history(JobProgress(epochs=number, subtasks=subtasks(number)))
    figures = history.facts().figures["join"]
    assert figures.rows_in == pytest.approx(5000)
    assert figures.busy == pytest.approx(0.9)


# -- epochs, checkpoints, problems -------------------------------------------------------------


def test_the_parts_of_an_epoch_lie_on_each_other_and_end_at_the_bottom():
    kinds = {"plan": "plan", "subtasks": "subtasks"}
    values = [{"plan": 1.0, "subtasks": 3.0}, {"plan": 0.0, "subtasks": 1.0}, {"plan": 0.0}]
    chart = stacked("Duration", values, ["a", "b", "c"], str, kinds)
    by_x: dict[float, list[Any]] = {}
    for bar in chart.bars:
        by_x.setdefault(bar.x, []).append(bar)
    first, second, third = (by_x[x] for x in sorted(by_x))
    assert [(bar.kind, bar.y, bar.height) for bar in first] == [
        ("plan", 60.0, 20.0),
        ("subtasks", 0.0, 60.0),
    ]
    assert [(bar.kind, bar.height) for bar in second] == [("subtasks", 20.0)]
    assert [bar.height for bar in third] == [1.0], (
        "what took no time can be pointed at all the same"
    )
    assert first[0].title == "a, duration 4.0: plan 1.0, subtasks 3.0"


def test_what_an_epoch_spent_its_time_on_is_told_apart():
    duration = section_of(sample_run(), "epochs").charts[0]
    told = [kind for kind, _ in duration.legend]
    assert told == ["plan", "source", "shuffle", "function", "state", "sink", "commit", "output"]
    assert {bar.kind for bar in duration.bars} == set(told)


def test_how_far_the_job_is_behind_has_a_chart_of_rows_and_one_of_event_time():
    rows, time = section_of(sample_run(), "epochs").charts[2:]
    assert rows.label == "Lag: rows waiting in sources, the last 40: at most 16,200, newest 15,500"
    assert time.label.startswith("Lag: event time behind the clock, the last 40: at most 1m12s")


def test_a_lag_that_nobody_knows_has_no_chart_and_one_of_the_future_is_none():
    history = RunHistory("clicks", wall_clock=lambda: AT)
    late = WatermarkView("sums", 0, "clicks")
    stuck = (late, WatermarkView("join", None, "clicks"))
    history(JobProgress(epochs=1, epoch=1, watermarks=stuck))
    assert len(section_of(history, "epochs").charts) == 2
    ahead = WatermarkView("join", int(AT.timestamp() * 1000) + 60_000, "clicks")
    history(JobProgress(epochs=2, epoch=2, watermarks=(ahead,), lag_rows=0))
    rows, time = section_of(history, "epochs").charts[2:]
    assert rows.label.endswith("the last 1: at most 0, newest 0")
    assert time.label.endswith("the last 1: at most 0s, newest 0s")


def test_a_checkpoint_opens_to_its_servers_slowest_first_and_its_largest_subtasks():
    details = {one.anchor: one for one in section_of(sample_run(), "checkpoints").details}
    servers, ranges = details["checkpoint-9"].tables
    assert [row[0] for row in servers.rows] == ["10.0.0.0:7077", "10.0.0.1:7077"]
    assert [row[2] for row in ranges.rows] == ["4.0 MiB", "3.0 MiB", "2.0 MiB", "1.0 MiB"]
    assert ("Manifest, log, publishing", "1.2 s") in details["checkpoint-9"].pairs
    assert dict(details["checkpoint-11"].pairs)["What to do"].startswith("It took longer than")


def test_problems_say_when_and_what_to_do():
    history = RunHistory("clicks", wall_clock=lambda: AT)
    history(JobProgress(last_failure=FailureView("CHECKPOINT_EXPIRED", "too slow")))
    history(JobProgress(rewinds=1, message="a server is gone", storage_error="no answer"))
    storage, rewind, expired = page_of_run(history.facts(), AT, str).problems
    assert (storage.text, "moorage store check" in storage.advice) == ("no answer", True)
    assert (rewind.text, "Nothing is lost" in rewind.advice) == ("rewind: a server is gone", True)
    assert (expired.at, expired.text) == (
        "2026-11-23 12:00:00 UTC, 0s ago",
        "CHECKPOINT_EXPIRED: too slow",
    )
    assert "checkpoint.timeout" in expired.advice


def test_what_fails_again_and_again_is_one_problem_with_how_often_and_since_when():
    clock = [AT]
    history = RunHistory("clicks", wall_clock=lambda: clock[0])

    def goes(number, **fields):
        clock[0] = AT + timedelta(minutes=number)
        history(JobProgress(**fields))

    goes(0, last_failure=FailureView("CHECKPOINT_EXPIRED", "of 7"))
    goes(1, rewinds=1, message="a server is gone", last_failure=(lost := FailureView("X", "y")))
    goes(2, rewinds=2, message="no such column", last_failure=lost)
    goes(3, rewinds=2, last_failure=FailureView("CHECKPOINT_EXPIRED", "of 8"))
    found = page_of_run(history.facts(), AT + timedelta(minutes=5), str).problems
    assert [(one.at, one.text) for one in found] == [
        (
            "2026-11-23 12:03:00 UTC, 2m00s ago, 2 times since 2026-11-23 12:00:00 UTC",
            "CHECKPOINT_EXPIRED: of 8",
        ),
        ("2026-11-23 12:02:00 UTC, 3m00s ago", "rewind: no such column"),
        ("2026-11-23 12:01:00 UTC, 4m00s ago", "rewind: a server is gone"),
        ("2026-11-23 12:01:00 UTC, 4m00s ago", "X: y"),
    ]


def test_the_overview_says_how_old_the_newest_checkpoint_and_how_long_an_epoch_is():
    began = AT - timedelta(minutes=12)
    last = CheckpointView(9, 90, AT - timedelta(seconds=90), 1, 1, 1.0)
    history = RunHistory("clicks", wall_clock=lambda: AT)
    history(JobProgress(epoch=40, epoch_began=began, last_checkpoint=last))
    told = dict(page_of_run(history.facts(), AT, str).sections[0].pairs)
    assert told["Under way"] == "epoch 41, for 12m00s"
    assert told["Newest checkpoint"] == "9, 1m30s ago"
    history(JobProgress(epoch=40))
    told = dict(page_of_run(history.facts(), AT, str).sections[0].pairs)
    assert ("Under way" in told, told["Newest checkpoint"]) == (False, "none yet")


def restorable(**progress):
    history = sample_run()
    history(replace(history.facts().progress, **progress))
    found = section_of(history, "savepoints")
    return [row[0] for table in found.tables for row in table.rows]


def test_what_can_be_restored_is_every_checkpoint_that_is_kept_and_every_savepoint():
    (table,) = section_of(sample_run(), "savepoints").tables
    assert [row[-1] for row in table.rows] == [
        "--restore chk-9",
        "--restore chk-8",
        "--restore chk-7",
        "--restore s3://state/savepoints/sp-10",
    ]


def test_what_earlier_runs_left_can_be_restored_until_as_many_checkpoints_have_followed():
    left = (checkpoint(6), checkpoint(5), checkpoint(4), checkpoint(3, kind="Savepoint"))
    told = {"earlier": left, "retain": 3}
    began = ["chk-6", "chk-5", "chk-4", "savepoint 3"]
    assert restorable(checkpoints=(), **told) == began
    assert restorable(checkpoints=(checkpoint(7, "Failed"),), **told) == began
    some = (checkpoint(8, kind="Savepoint"), checkpoint(7))
    expected = ["chk-7", "chk-6", "chk-5", "savepoint 8", "savepoint 3"]
    assert restorable(checkpoints=some, **told) == expected
    many = tuple(checkpoint(n) for n in range(12, 6, -1))
    assert restorable(checkpoints=many, **told) == ["chk-12", "chk-11", "chk-10", "savepoint 3"]


def test_an_older_checkpoint_that_a_person_chose_stays_as_long_as_it_is_kept():
    left = tuple(checkpoint(n) for n in (6, 5, 4))
    told = {"earlier": left, "retain": 2, "restored": RestoredView("chk-4", 4, AT, own=True)}
    assert restorable(checkpoints=(), **told) == ["chk-6", "chk-5", "chk-4"]
    assert restorable(checkpoints=(checkpoint(7),), **told) == ["chk-7", "chk-6", "chk-4"]
    both = (checkpoint(8), checkpoint(7))
    assert restorable(checkpoints=both, **told) == ["chk-8", "chk-7"]


def test_a_driver_that_stands_by_sends_to_the_page_of_the_one_that_has_the_job():
    history = RunHistory("clicks")
    history(JobProgress(standby=True))
    assert section_of(history, "savepoints").empty.startswith("This driver stands by.")


def test_a_size_that_nobody_has_read_is_not_said_to_be_nothing():
    history = new_run()
    history(JobProgress(earlier=(replace(checkpoint(6), bytes_total=0),)))
    (table,) = section_of(history, "savepoints").tables
    assert table.rows == [
        ("chk-6", "checkpoint", "18", "2026-11-23 12:00:20 UTC", "", "--restore chk-6")
    ]


# -- the document ------------------------------------------------------------------------------


def test_every_id_is_there_once_and_every_link_leads_somewhere():
    html = html_of(sample_run())
    ids = Counter(re.findall(r'\sid="([^"]+)"', html))
    assert [one for one, count in ids.items() if count > 1] == []
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(ids)


def test_names_of_nodes_and_states_are_escaped():
    history = sample_run()
    graph = GraphView((NodeView("operator", EVIL, EVIL),), ((0, 0, EVIL),))
    more = replace(
        history.facts().progress,
        graph=graph,
        queryable=(QueryableView(EVIL, EVIL),),
        configuration=((EVIL, EVIL),),
        subtasks=(replace(subtasks(1)[0], uid=EVIL, place=EVIL),),
    )
    history(more)
    html = html_of(history)
    assert "<script>alert" not in html
    assert "<img" not in html


def test_a_run_of_a_thousand_subtasks_is_a_page_of_a_bounded_size():
    history = sample_run()
    many = tuple(replace(subtasks(1)[0], subtask=i) for i in range(1000))
    history(replace(history.facts().progress, subtasks=many))
    html = html_of(history)
    assert "800 more are not shown." in html
    assert len(html) < 300_000


def test_of_a_thousand_subtasks_the_busiest_are_shown():
    clock = [0.0]
    history = RunHistory("clicks", lambda: clock[0])
    for number in (1, 2):
        clock[0] += 1.0
        many = (replace(subtasks(1)[0], subtask=i, busy_seconds=0.0) for i in range(999))
        busy = replace(subtasks(1)[0], subtask=999, busy_seconds=0.5 * number)
        history(JobProgress(epochs=number, subtasks=(*many, busy)))
    (table,) = section_of(history, "subtasks").tables
    assert table.title.startswith("The 200 busiest")
    assert table.rows[0][:2] == ("sessions", "999")


def test_of_a_job_whose_code_was_not_read_nothing_is_claimed():
    pairs = dict(section_of(new_run(), "overview").pairs)
    assert pairs["Parallelism"] == pairs["Restored from"] == "not known yet"


def test_a_value_that_is_long_has_a_line_of_its_own():
    history = sample_run()
    history(replace(history.facts().progress, message="m" * 61))
    assert '<div class="long"><dt>Last message</dt>' in html_of(history)


# -- values ------------------------------------------------------------------------------------


class Answers(StateLookups):
    def submit(self, request):
        if request.name != "counts":
            raise UnknownKvState("no state of the job is queryable by this name")
        return super().submit(request)

    def _step(self, asked):
        answer = {"queryable": asked.request.name, "keys": list(asked.request.keys)}
        return json.dumps(answer).encode()


@pytest.fixture
def server():
    server = PageServer(lambda nonce: nonce, port=0, lookups=Answers())
    yield server
    server.close()


def asked(server, path, **headers):
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=5)) as connection:
        connection.request("GET", path, headers={"Host": f"localhost:{server.port}", **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_values_are_for_who_has_the_whole_address(server):
    token = server.url.partition("#values=")[2]
    assert len(token) > 16
    status, answer = asked(server, "/state/counts?key=ann", Authorization=f"Bearer {token}")
    assert (status, answer) == (200, {"queryable": "counts", "keys": ["ann"]})
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {token}"}):
        status, answer = asked(server, "/state/counts?key=ann", **headers)
        assert (status, answer["error"]["code"]) == (401, "unauthorized")


def test_a_look_up_that_cannot_be_answered_says_why(server):
    opens = {"Authorization": f"Bearer {server.url.partition('#values=')[2]}"}
    status, answer = asked(server, "/state/other?key=ann", **opens)
    assert (status, answer["error"]["code"]) == (404, "unknown_state")
    status, answer = asked(server, "/state/counts?kee=ann", **opens)
    assert (status, answer["error"]["code"]) == (400, "bad_request")


def test_only_a_page_with_states_to_ask_for_has_the_form():
    assert 'id="look-up"' in html_of(sample_run())
    assert 'id="look-up"' not in html_of(RunHistory("clicks"))
    assert 'id="look-up"' not in rendered(page_of_run(sample_run().facts(), datetime.now(UTC), str))
