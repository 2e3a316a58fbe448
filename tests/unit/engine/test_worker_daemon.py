"""The daemon of Python workers: which jobs have it, and which archives it leaves on the path."""

import zipfile
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.driver.session import engine_conf
from moorage.engine.worker_daemon import DAEMON_MODULE, without_archives


@pytest.fixture
def path(tmp_path):
    """As Spark sets it, with version 1 of PySpark in an archive and installed."""
    for package in ("pyspark", "py4j"):
        (tmp_path / "site" / package).mkdir(parents=True)
        (tmp_path / "site" / package / "__init__.py").touch()
    (tmp_path / "site" / "pyspark" / "version.py").write_text("1")
    with zipfile.ZipFile(tmp_path / "pyspark.zip", "w") as archive:
        archive.writestr("pyspark/version.py", "1")
    names = ["pyspark.zip", "py4j-0.10-src.zip", "spark-core.jar", "files.zip", "site"]
    return [str(tmp_path / name) for name in names]


def test_what_is_installed_takes_the_place_of_sparks_archives(path):
    assert without_archives(path) == path[3:]


def test_archives_of_another_version_stay(path, tmp_path):
    (tmp_path / "site" / "pyspark" / "version.py").write_text("2")
    assert without_archives(path) == path


@pytest.mark.parametrize("package", ["pyspark", "py4j"])
def test_archives_stay_where_nothing_else_has_what_they_have(path, tmp_path, package):
    (tmp_path / "site" / package).rename(tmp_path / "elsewhere")
    assert without_archives(path) == path


def test_names_of_archives_that_are_not_there_are_dropped(path, tmp_path):
    (tmp_path / "pyspark.zip").unlink()
    assert without_archives(path) == path[3:]


@pytest.mark.parametrize(
    ("conf", "daemon"),
    [({}, "moorage.engine.worker_daemon"), ({DAEMON_MODULE: "my.daemon"}, "my.daemon")],
)
def test_a_job_has_our_daemon_unless_it_names_another(conf, daemon):
    settings: Any = SimpleNamespace(spark_conf=conf, parallelism=1)
    assert engine_conf(settings)[DAEMON_MODULE] == daemon
