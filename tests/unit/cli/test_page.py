"""`moorage report`, and `moorage run --page`."""

from urllib.request import urlopen

from moorage.driver.types import JobProgress, RunOutcome, RunResult


def test_a_report_of_a_store_is_one_file(moorage, directory, tmp_path):
    path = tmp_path / "out.html"
    status, out, _ = moorage("report", directory, "-o", path)
    assert (status, out.strip()) == (0, str(path))
    html = path.read_text()
    assert "chk-3" in html
    assert "chk-2" in html


def test_a_report_that_cannot_be_written_is_a_clear_error(moorage, directory, tmp_path):
    status, _, err = moorage("report", directory, "-o", tmp_path / "nowhere" / "out.html")
    assert status != 0
    assert "the report cannot be written" in err


def test_a_run_shows_its_page_while_it_runs(moorage, job_file, free_port):
    seen = []

    def runner(_job, _directory, _options, heard):
        heard(JobProgress(phase="running", epochs=1, epoch=41, epoch_rows=5))
        with urlopen(f"http://localhost:{free_port}/", timeout=5) as answer:
            seen.append(answer.read().decode())
        return RunResult(RunOutcome.FINISHED, 41, 5, 1.0)

    status, _, err = moorage("run", job_file, "--page", free_port, runner=runner)
    assert status == 0, err
    assert f"page: http://localhost:{free_port}" in err
    assert "epoch 41" in seen[0]
