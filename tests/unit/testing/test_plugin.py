"""The plugin of pytest is loaded wherever the package is installed, and asks for nothing there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def imported(done):
    """What of ours, of Spark and of Arrow the process had at its end."""
    return set(done.stdout.splitlines()[-1].split())
