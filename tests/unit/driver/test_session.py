"""Which settings go to Spark in a file, and how that is written."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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
