"""The demo around the job: reading its lines, ending it, telling what came out."""

import io
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from moorage.cli.app import _summary
from moorage.cli.progress import plain_line
from moorage.driver.types import JobProgress, RunOutcome, RunResult
from moorage_api import load_manifest

ROOT = Path(__file__).parents[3]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOW = datetime(2013, 12, 31, tzinfo=UTC)


@pytest.fixture
def process(example):
    return example("process")


@pytest.fixture
def report(example):
    return example("report")


def shown(*renderables):
    file = io.StringIO()
    Console(file=file, width=80, highlight=False).print(*renderables)
    return file.getvalue()


def test_progress_is_read_from_what_moorage_run_prints(process):
    progress = JobProgress(
        phase="running",
        epoch=12,
        epochs=9,
        rows_total=75_000,
        bound=(84, 366),
        restored_from="chk-3",
    )
    line = process.parse_line(plain_line(progress, NOW))
    assert (line.phase, line.epoch, line.rows, line.percent) == ("running", 12, 75_000, 22)
    assert line.restored_from == "chk-3"


def test_progress_without_a_bound_and_a_restore_is_read(process):
    line = process.parse_line(plain_line(JobProgress(phase="starting"), NOW))
    assert (line.phase, line.epoch, line.rows, line.percent) == ("starting", 0, 0, 0)
    assert line.restored_from is None


def test_the_line_that_sums_up_is_read(process):
    job = load_manifest(ROOT / "examples" / "flights" / "job.yaml")
    result = RunResult(RunOutcome.FINISHED, epoch=55, rows_total=328_521, seconds=41.5)
    line = process.parse_line(_summary(job, result))
    assert (line.phase, line.epoch, line.rows, line.percent) == ("finished", 55, 328_521, 100)


def test_other_lines_say_nothing_about_progress(process):
    text = "SIGTERM: taking a last checkpoint"
    assert process.parse_line(text) == process.Line(text)


def test_a_directory_that_is_not_there_has_no_checkpoint(process, tmp_path):
    assert process.last_checkpoint(tmp_path / "none") is None


def test_a_job_that_fails_is_reported_with_its_last_lines(process, tmp_path, monkeypatch):
    roots = [str(ROOT / name) for name in ("backends", "operator", "runtime")]
    monkeypatch.setenv("PYTHONPATH", ":".join(roots))
    with process.JobProcess(tmp_path / "none.yaml", tmp_path) as job:
        lines = [line.text for line in job.lines()]
        with pytest.raises(process.JobFailed, match=r"status 2(.|\n)*none\.yaml"):
            job.check()
    assert any("does not exist" in line for line in lines)


def test_rows_done_before_the_kill_and_again_are_told(report):
    text = shown(
        report.steps(
            laid_out=report.Step("stream", rows=1000, seconds=1),
            first=report.Step("first", rows=600, seconds=1, first_epoch=1, last_epoch=6),
            left=report.Left(checkpoint_id=2, epoch=5, published=500, staged=2),
            second=report.Step("second", rows=500, seconds=1, first_epoch=6, last_epoch=12),
            checked=report.Step("checked", rows=1000, seconds=1),
        )
    )
    again = next(line for line in text.splitlines() if "again" in line)
    assert "6 to 6" in again
    assert again.split()[-1] == "100"


def test_the_verdict_names_what_is_wrong(report, example, departures):
    oracle = example("oracle")
    expected = oracle.logbooks(departures("N1 2013-01-01T08:00 LAX 1", "N2 2013-01-01T09:00 A 1"))
    assert "All 2 aircraft are right" in shown(report.verdict(oracle.compare(expected, expected)))
    comparison = oracle.compare(expected.head(1), expected)
    text = shown(report.verdict(comparison))
    assert "1 aircraft are WRONG: N2" in text
    assert "aircraft N2, entry 1: was not published" in text


def test_tables_fit_a_terminal_of_eighty_columns(report, example, departures):
    oracle = example("oracle")
    table = oracle.logbooks(departures("N725MQ 2013-01-01T08:00 LAX 30000"))
    text = shown(report.samples(table), report.differences(oracle.compare(table, table)))
    assert "…" not in text
    assert "N725MQ" in text


class TestMain:
    @pytest.fixture
    def demo(self, example, monkeypatch, tmp_path):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        before = {number: signal.getsignal(number) for number in SIGNALS}
        yield example("demo")
        for number, handler in before.items():
            signal.signal(number, handler)

    @pytest.mark.parametrize(("right", "status"), [(True, 0), (False, 1)])
    def test_the_status_says_whether_the_answer_is_right(self, demo, monkeypatch, right, status):
        monkeypatch.setattr(demo, "run", lambda *_: right)
        assert demo.main([]) == status

    def test_a_step_that_does_not_come_about_is_told(self, demo, monkeypatch, capsys):
        def run(*_):
            raise demo.JobFailed("no checkpoint is left")

        monkeypatch.setattr(demo, "run", run)
        assert demo.main([]) == 1
        assert "the demo failed: no checkpoint is left" in capsys.readouterr().out

    @pytest.mark.parametrize("number", SIGNALS)
    def test_a_signal_removes_everything(self, demo, monkeypatch, tmp_path, number):
        def run(place, *_):
            assert place.manifest.exists()
            signal.raise_signal(number)

        monkeypatch.setattr(demo, "run", run)
        assert demo.main([]) == 130
        assert list(tmp_path.iterdir()) == []

    def test_everything_is_kept_on_request(self, demo, monkeypatch, tmp_path, capsys):
        monkeypatch.setattr(demo, "run", lambda *_: True)
        demo.main(["--keep"])
        (kept,) = tmp_path.iterdir()
        assert (kept / "job.yaml").exists()
        assert str(kept) in capsys.readouterr().out.replace("\n", "")
