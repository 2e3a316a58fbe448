"""The plugin of pytest is loaded wherever the package is installed, and asks for nothing there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from moorage_testing.processes import run_tests_of

ROOT = Path(__file__).parents[3]
HEAVY = ("pyspark", "pandas", "pyarrow")

RUN = f"""
import sys
from importlib.abc import MetaPathFinder

import pytest

HEAVY = {HEAVY}


class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


if sys.argv[1] == "absent":
    sys.meta_path.insert(0, Absent())
status = pytest.main(["-p", "no:cacheprovider", "-q", *sys.argv[2:]])
print(*sorted(m for m in sys.modules if m in HEAVY or m.partition(".")[0].startswith("moorage")))
sys.exit(int(status))
"""

OF_OTHER_THINGS = """
def test_sums():
    assert 1 + 1 == 2
"""

OF_A_FUNCTION = """
def test_harness(keyed_harness):
    pass
"""

JOB = """
import helper
from moorage import KeyedProcessFunction, ListStateDescriptor
from moorage_state.errors import UserError

class Wrong(KeyedProcessFunction):
    def process(self, row, ctx):
        yield ctx.key, "many"

class Stores(KeyedProcessFunction):
    def open(self, ctx):
        self.seen = ctx.get_list_state(ListStateDescriptor("seen", "long"))

    def process(self, row, ctx):
        self.seen.add("many")
        yield ctx.key, 1

class Raises(KeyedProcessFunction):
    def process(self, row, ctx):
        yield ctx.key, {}["nothing"]

class Loads(KeyedProcessFunction):
    def process(self, row, ctx):
        try:
            yield ctx.key, helper.rate()
        except KeyError as e:
            raise UserError("rates cannot be loaded") from e

class Fails(KeyedProcessFunction):
    def process(self, row, ctx):
        try:
            yield ctx.key, helper.rate()
        except KeyError:
            raise RuntimeError("rates cannot be loaded")

class Handles(Stores):
    def process(self, row, ctx):
        try:
            yield ctx.key, helper.rate()
        except KeyError:
            self.seen.add("many")
"""

HELPER = """
def rate():
    return {}["eur"]
"""

OF_A_JOB = """
import pytest
from job import Fails, Handles, Loads, Raises, Stores, Wrong
from moorage import FileSink
from moorage.testing import KeyedHarness, run_job
from moorage_state.errors import Bug, UserError

GIVEN = {"rows": [("ann",)]}

def of(function, key="k"):
    def build(env):
        rows = env.read_stream("rows", "json", schema="k string", path="in")
        counts = rows.key_by(key).process(function, uid="f", output="k string, n long")
        counts.sink_to(FileSink("out"), uid="out")
    return build

def test_value():
    run_job(of(Wrong()), GIVEN)

def test_build():
    run_job(of(Wrong(), "key"), GIVEN)

def test_state():
    KeyedHarness(Stores(), "k string", "k", "k string, n long").process(("ann",))

def test_raise():
    run_job(of(Raises()), GIVEN)

def test_bug(monkeypatch):
    def broken(*_):
        raise Bug("a rule was broken")
    monkeypatch.setattr("moorage.engine.epoch.verify", broken)
    run_job(of(Wrong()), {"rows": []})

def test_file():
    def build(env):
        try:
            open("rates.csv")
        except OSError as e:
            raise UserError("rates cannot be loaded") from e
    run_job(build, {})

@pytest.mark.parametrize("kind", [Loads, Fails, Handles])
def test_job(kind):
    run_job(of(kind()), GIVEN)

@pytest.mark.parametrize("kind", [Loads, Fails, Handles])
def test_harness(kind):
    KeyedHarness(kind(), "k string", "k", "k string, n long").process(("ann",))

def test_spark(monkeypatch):
    def broken(*_):
        try:
            exec("raise RuntimeError(text)", {"__name__": "pyspark", "text": SPARKS})
        except RuntimeError as e:
            exec("raise error from e", {"__name__": "moorage.engine.epoch", "error": SHORT, "e": e})
    monkeypatch.setattr("moorage.engine.epoch.verify", broken)
    run_job(of(Wrong()), {"rows": []})

def test_context():
    def build(env):
        try:
            open("rates.csv")
        except OSError:
            raise UserError("rates cannot be loaded")
    run_job(build, {})

SHORT = UserError("spark could not run the epoch: division by zero")
SPARKS = 'division by zero\\n== DataFrame ==\\n"__truediv__" was called from job.py:11'
"""


@pytest.fixture
def run(tmp_path):
    """Runs a file of tests as a person does, with the plugin loaded by its entry point."""

    def in_process_of_its_own(heavy, text):
        (tmp_path / "run.py").write_text(RUN)
        (tmp_path / "test_it.py").write_text(text)
        left_out = {"PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"}
        kept = {k: v for k, v in os.environ.items() if k not in left_out}
        # This checkout's, where the environment is one of another.
        path = os.pathsep.join(f"{ROOT}/{name}" for name in ("backends", "operator", "runtime"))
        return subprocess.run(
            [sys.executable, "run.py", heavy, "test_it.py"],
            cwd=tmp_path,
            env={**kept, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    return in_process_of_its_own


def test_tests_run_where_there_is_no_spark_and_no_arrow(run):
    done = run("absent", OF_OTHER_THINGS)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_tests_of_other_things_import_nothing_but_the_plugin(run):
    done = run("installed", OF_OTHER_THINGS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert imported(done) == {"moorage", "moorage.testing", "moorage.testing.plugin"}


def test_a_test_that_takes_a_harness_has_them(run):
    done = run("installed", OF_A_FUNCTION)
    assert done.returncode == 0, done.stdout + done.stderr
    assert imported(done) >= {*HEAVY, "moorage.testing.keyed_harness"}


def failures(folder, *arguments):
    """By test of a job's, what pytest shows of its failure."""
    (folder / "job.py").write_text(JOB)
    (folder / "helper.py").write_text(HELPER)
    (folder / "test_it.py").write_text(OF_A_JOB)
    said = run_tests_of(folder, *arguments).stdout
    parts = re.split(r"(?m)^_+ (test_\S+) _+$", said.partition("short test summary")[0])
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_an_error_to_be_mended_is_shown_by_lines_of_the_job_and_of_the_test(tmp_path):
    shown = failures(tmp_path)
    for test, lines in {
        "test_value": ["run_job(of(Wrong()), GIVEN)", "job.py line=7 in Wrong.process"],
        "test_build": ['run_job(of(Wrong(), "key"), GIVEN)', "rows.key_by(key)"],
        "test_state": ["KeyedHarness(Stores()", 'self.seen.add("many")'],
    }.items():
        text = shown[test]
        assert all(line in text for line in lines), text
        assert "/moorage/" not in text, text
        assert "/moorage_state/" not in text, text
        assert "exception" not in text, text  # was the cause of another
    assert '> yield ctx.key, {}["nothing"]' in " ".join(shown["test_raise"].split())
    assert "engine/epoch.py" in shown["test_bug"]


def test_what_an_error_to_be_mended_was_raised_from_is_shown_by_its_own_lines(tmp_path):
    shown = failures(tmp_path, "-k", "file or job or harness or spark or context")
    why, key = '"rates cannot be loaded"', ['> return {}["eur"]', "KeyError: 'eur'"]
    opened = ['> open("rates.csv")', "FileNotFoundError: [Errno 2]"]
    loads, handles = ["UserError", f"UserError({why}) from e"], ["StateTypeError", 'add("many")']
    for test, lines in {
        "test_file": [f"> raise UserError({why}) from e", *opened],
        "test_context": [f"> raise UserError({why})", *opened, "During handling"],
        "test_job[Loads]": [*loads, *key],
        "test_harness[Loads]": [*loads, *key],
        "test_job[Fails]": [f"> raise RuntimeError({why})", *key],
        "test_harness[Fails]": [f"> raise RuntimeError({why})", *key],
        "test_job[Handles]": [*handles, *key],
        "test_harness[Handles]": [*handles, *key],
        "test_spark": ["run_job(of(Wrong())", '"__truediv__" was called from job.py:11'],
    }.items():
        text = shown[test]
        assert all(line in " ".join(text.split()) for line in lines), text
        assert "/moorage/" not in text or "Fails" in test, text  # an error of any other type


def test_a_full_trace_has_the_lines_of_the_engine(tmp_path):
    shown = failures(tmp_path, "--full-trace", "-k", "value")
    assert "engine/subtask.py" in shown["test_value"]


def imported(done):
    """What of ours, of Spark and of Arrow the process had at its end."""
    return set(done.stdout.splitlines()[-1].split())
