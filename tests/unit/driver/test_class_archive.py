"""Which JVMs are told of the archive of Java classes."""

import shlex
import subprocess
from pathlib import Path

import pytest

from moorage import class_archive
from moorage.class_archive import sharing_options


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "spark.jsa"
    monkeypatch.setattr(class_archive, "archive_path", lambda: path)
    return path


@pytest.mark.usefixtures("archive")
def test_without_an_archive_a_jvm_is_told_nothing() -> None:
    assert sharing_options() == []


def test_an_archive_is_used_where_there_is_one(archive: Path) -> None:
    archive.touch()
    assert sharing_options("-Xss4m")[0] == f"-XX:SharedArchiveFile={archive}"


def test_an_archive_may_lie_in_a_folder_with_blanks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "it's my venv" / "spark.jsa"
    path.parent.mkdir()
    path.touch()
    monkeypatch.setattr(class_archive, "archive_path", lambda: path)
    # As Spark splits them: like a shell.
    assert shlex.split(" ".join(sharing_options()))[0] == f"-XX:SharedArchiveFile={path}"


@pytest.mark.parametrize("option", ["SharedArchiveFile", "ArchiveClassesAtExit"])
def test_a_jobs_own_archive_is_left_to_it(archive: Path, option: str) -> None:
    archive.touch()
    assert sharing_options(f"-XX:{option}=/mine.jsa -Xss4m") == []


def test_an_archive_belongs_to_one_version_of_spark() -> None:
    assert class_archive.archive_path().name.startswith("spark-4.")


def test_a_job_that_does_not_end_is_told_with_what_to_do(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "_LIMIT_SECONDS", 0.01)
    with pytest.raises(SystemExit, match=r"limit=0.01 s; try again .* -m moorage.class_archive"):
        class_archive.main()
    assert not archive.exists()


def test_nothing_of_a_job_that_does_not_end_is_left() -> None:
    # As the driver starts its JVM: in a session of its own.
    script = "setsid sleep 1000 & echo $!; wait"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        jvm = int(job.stdout.readline())
        class_archive._kill(job)
        # Both had it open: it ends when neither is there any more.
        assert job.stdout.read() == ""
    assert not Path(f"/proc/{jvm}/fd/1").exists()
