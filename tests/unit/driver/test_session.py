"""Which settings go to Spark in a file, and how that is written."""

import os
import shlex
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.driver import session
from moorage.driver.session import engine_conf, hidden, out_of_sight, properties

VARIABLE = "PYSPARK_SUBMIT_ARGS"


def test_only_settings_with_a_secrets_name_are_hidden():
    conf = {"spark.hadoop.fs.s3a.secret.key": "a", "spark.executor.memory": "1g"}
    assert hidden(conf) == {"spark.hadoop.fs.s3a.secret.key": "a"}


def test_a_password_within_an_address_is_hidden_as_well():
    conf = {"spark.jars": "https://me:s3cret@host/a.jar", "spark.app": "https://host/a@b"}
    assert hidden(conf) == {"spark.jars": "https://me:s3cret@host/a.jar"}


def test_the_file_is_for_this_user_alone_and_goes_with_the_start(monkeypatch):
    monkeypatch.setenv(VARIABLE, "--jars mine.jar pyspark-shell")
    with out_of_sight({"spark.x.token": "t"}):
        *before, file, jars, jar, shell = os.environ[VARIABLE].split()
        assert before == ["--load-spark-defaults", "--properties-file"]
        assert (jars, jar, shell) == ("--jars", "mine.jar", "pyspark-shell")
        assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600
        assert Path(file).read_text() == "spark.x.token=t\n"
    assert not Path(file).exists()
    assert os.environ[VARIABLE] == "--jars mine.jar pyspark-shell"


def test_a_start_that_fails_leaves_neither_file_nor_variable(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    files = []

    def start():
        files.append(Path(os.environ[VARIABLE].split()[2]))
        raise ValueError("no java")

    with pytest.raises(ValueError, match="no java"), out_of_sight({"spark.x.token": "t"}):
        start()
    assert VARIABLE not in os.environ
    assert [file.exists() for file in files] == [False]


def test_without_secrets_nothing_is_done(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with out_of_sight({}):
        assert VARIABLE not in os.environ


def test_every_character_survives_the_file():
    text = properties({"a:b=c d": " \\x\n\u00e4\U0001f511#"})
    assert text == "a\\:b\\=c\\ d=\\ \\\\x\\n\\u00e4\\ud83d\\udd11#\n"


@pytest.mark.parametrize("given", [{}, {"spark.log.level": "INFO"}])
def test_the_driver_logs_warnings_unless_the_job_says_otherwise(given):
    settings: Any = SimpleNamespace(spark_conf=given, parallelism=2)
    conf = engine_conf(settings)
    assert conf["spark.log.level"] == given.get("spark.log.level", "WARN")


def retained(given):
    settings: Any = SimpleNamespace(spark_conf=given, parallelism=2)
    return {name: value for name, value in engine_conf(settings).items() if ".retained" in name}


def test_of_what_has_ended_little_is_remembered_where_nobody_can_see_it():
    assert retained({}) == {
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
    }


def test_who_shows_the_ui_or_says_how_much_has_as_much():
    assert retained({"spark.ui.enabled": "true"}) == {}
    assert retained({"spark.ui.retainedStages": "7"})["spark.ui.retainedStages"] == "7"


def test_the_places_of_a_run_may_have_blanks_in_their_names(tmp_path, monkeypatch):
    installed, scratch = tmp_path / "it's my venv", tmp_path / "run of mine"
    monkeypatch.setattr(session, "files", lambda _package: installed)
    settings: Any = SimpleNamespace(spark_conf={}, driver_memory_mb=1024)
    conf = session._local_conf(settings, scratch)
    # As Spark splits them: like a shell.
    options = shlex.split(conf["spark.driver.extraJavaOptions"])
    assert f"-Dlog4j2.configurationFile={installed}/log4j2.properties" in options
    assert f"-Dmoorage.log={scratch}/spark.log" in options
    assert f"-Djava.io.tmpdir={scratch}/tmp" in options


def test_places_without_blanks_are_told_as_they_are(monkeypatch):
    monkeypatch.setattr(session, "files", lambda _package: Path("/venv"))
    settings: Any = SimpleNamespace(spark_conf={}, driver_memory_mb=1024)
    conf = session._local_conf(settings, Path("/tmp/run-1"))
    assert " -Dmoorage.log=/tmp/run-1/spark.log " in conf["spark.driver.extraJavaOptions"]
