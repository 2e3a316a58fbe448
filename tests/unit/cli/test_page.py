"""`moorage report`, `moorage ui`, and the page of `moorage run`."""

import json
import re
import socket
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from urllib.request import urlopen

import msgspec
import pytest
import yaml
from moorage_testing.page_samples import GRAPH

from moorage.cli import app as cli
from moorage.cli import page as cli_page
from moorage.driver.types import JobProgress, RunOutcome, RunResult
from moorage.page.store_views import page_of_store
from moorage_state.errors import UserError

FINISHED = RunResult(RunOutcome.FINISHED, 41, 5, 1.0)


def test_a_report_of_a_store_is_one_file(moorage, directory, tmp_path):
    path = tmp_path / "out.html"
    status, out, _ = moorage("report", directory, "--out", path)
    assert (status, out.strip()) == (0, str(path))
    html = path.read_text()
    assert "<td>--restore chk-3</td>" in html
    assert "<td>--restore chk-2</td>" in html
    assert "<dt>Restore point</dt><dd>chk-3 at epoch" in html
    assert "<dt>Newest event time of in</dt><dd>2013-01-01 10:00:00 UTC</dd>" in html
    assert re.search(r"<td>\d+ to \d+</td><td class=\"number\">[\d.]+ K?i?B</td>", html)


def test_a_stores_page_draws_the_graph_that_its_restore_point_has(directory):
    found, newest = cli_page._look(str(directory), datetime.now(UTC))
    assert newest is not None
    told = {"format": 1, **json.loads(msgspec.json.encode(GRAPH))}
    for extra, sections in (({"graph": told}, 1), ({"graph": {"nodes": 7}}, 0), ({}, 0)):
        page = page_of_store(found, replace(newest, extra=extra), datetime.now(UTC), str)
        drawn = [one.drawing for one in page.sections if one.drawing is not None]
        assert len(drawn) == sections
        for drawing in drawn:
            assert [box.lines[0] for box in drawing.boxes] == [node.uid for node in GRAPH.nodes]


def test_a_report_that_cannot_be_written_is_a_clear_error(moorage, directory, tmp_path):
    status, _, err = moorage("report", directory, "--out", tmp_path / "nowhere" / "out.html")
    assert status != 0
    assert "the report cannot be written" in err
    assert "name another file with --out" in err


def test_where_a_report_is_is_told_to_programs(moorage, directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, _ = moorage("report", directory, "-o", "json")
    assert status == 0
    assert json.loads(out) == {"format": 1, "command": "report", "file": "report.html"}
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["report.html"]


def test_a_run_shows_its_page_while_it_runs(moorage, job_file, free_port):
    seen = []

    def runner(_job, _directory, _options, heard):
        known = JobProgress(configuration=(("Kept", "the newest 3"),))
        heard(known)
        heard(replace(known, phase="running", epochs=1, epoch=41, epoch_rows=5))
        with urlopen(f"http://localhost:{free_port}/", timeout=5) as answer:
            seen.append(answer.read().decode())
        return FINISHED

    status, _, err = moorage("run", job_file, "--page", free_port, runner=runner)
    assert status == 0, err
    assert err.count(f"page: http://localhost:{free_port}") == 1
    assert "epoch 41" in seen[0]


def test_the_page_of_a_run_blanks_secrets_of_its_manifest(moorage, job_file, free_port):
    seen = []
    manifest = yaml.safe_load(job_file.read_text())
    secret = {"name": "DB_PASSWORD", "value": "hunter2hunter2"}
    manifest["spec"]["application"]["env"] = [secret]
    job_file.write_text(yaml.safe_dump(manifest))

    def runner(_job, _directory, _options, heard):
        heard(JobProgress(configuration=(("Kept", "the newest 3"),)))
        heard(JobProgress(phase="running", message="refused: key=hunter2hunter2"))
        with urlopen(f"http://localhost:{free_port}/", timeout=5) as answer:
            seen.append(answer.read().decode())
        return FINISHED

    status, _, err = moorage("run", job_file, "--page", free_port, runner=runner)
    assert status == 0, err
    assert "refused: key=***" in seen[0]
    assert "hunter2" not in seen[0]


def test_a_run_that_is_refused_names_no_page(moorage, job_file, free_port):
    def runner(_job, _directory, _options, heard):
        heard(JobProgress(message="looking"))
        raise UserError("there is no savepoint of this name")

    status, _, err = moorage("run", job_file, "--page", free_port, runner=runner)
    assert (status, "no savepoint of this name" in err, "page:" in err) == (2, True, False)


@pytest.mark.parametrize(("options", "port"), [((), 7780), (("--page", "99"), 99)])
def test_a_run_has_its_page_at_7780_unless_told_otherwise(monkeypatch, job_file, options, port):
    asked = []

    def watched(runner, _job, port, _say):
        asked.append(port)
        return nullcontext(runner)

    monkeypatch.setattr(cli, "watched", watched)
    monkeypatch.setattr(cli, "_driver", lambda: lambda *_: FINISHED)
    for more in ((), ("--no-page",)):
        monkeypatch.setattr(sys, "argv", ["moorage", "run", str(job_file), *options, *more])
        assert cli.run_app() == 0
    assert asked == [port, None]


def test_a_run_whose_port_is_taken_goes_on_without_its_page_and_says_so(moorage, job_file):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = moorage("run", job_file, "--page", port, runner=lambda *_: FINISHED)
    assert (status, "clicks finished" in out) == (0, True)
    assert f"port={port} error=Address already in use; choose another port with --page PORT" in err
    assert "the job runs without it" in err


def test_a_store_is_served_without_a_job(moorage, directory, free_port, monkeypatch):
    seen = []

    def look():
        with urlopen(f"http://localhost:{free_port}/", timeout=5) as answer:
            seen.append(answer.read().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_page, "_wait", look)
    status, out, _ = moorage("ui", directory, "--page", free_port)
    assert (status, out) == (0, f"http://localhost:{free_port}\n")
    assert "chk-3" in seen[0]
    status, out, _ = moorage("ui", directory, "--page", free_port, "-o", "json")
    assert (status, len(seen)) == (0, 2)
    assert json.loads(out) == {
        "format": 1,
        "command": "ui",
        "url": f"http://localhost:{free_port}",
    }


def test_what_is_no_store_is_told_and_not_served(moorage, tmp_path, free_port):
    status, out, err = moorage("ui", tmp_path / "nowhere", "--page", free_port)
    assert status != 0
    assert (out, "nowhere" in err) == ("", True)
