"""Jobs are type-checked against the wheel as it is installed: its types are there, and are used."""

import os
import subprocess
import sys
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("moorage", "moorage_api", "moorage_operator", "moorage_state")

WRONG = """
from moorage import KeyedProcessFunction, StreamEnvironment, Tumbling, ValueStateDescriptor


class Count(KeyedProcessFunction):
    pass


def build(env: StreamEnvironment) -> None:
    ValueStateDescriptor(5, "long")
    clicks = env.read_stream("clicks", "json")
    clicks.key_by("user").process(Count(), uid="count")
    clicks.no_such_method()
    clicks.key_by("user").window(Tumbling("1m")).sink_to()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A Python that has the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("typed")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv")
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return folder, site


def check(installed, file):
    folder, _ = installed
    command = [sys.executable, "-m", "mypy", "--python-executable", f"{folder}/venv/bin/python"]
    # PySpark's own types are not what is asked, and would take most of the time.
    command += ["--strict", "--ignore-missing-imports", "--allow-subclassing-any"]
    command += ["--config-file=", f"--cache-dir={folder}/cache", str(file)]
    environment = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "MYPYPATH"}}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_every_package_of_the_wheel_says_that_it_has_types(installed):
    _, site = installed
    assert [name for name in PACKAGES if not (site / name / "py.typed").is_file()] == []


def test_an_example_passes_the_type_checker_against_the_wheel(installed):
    done = check(installed, ROOT / "examples" / "ticker" / "job.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_wrong_calls_do_not_pass(installed):
    folder, _ = installed
    (folder / "wrong.py").write_text(textwrap.dedent(WRONG))
    found = check(installed, folder / "wrong.py").stdout
    errors = [line.split(":")[1] for line in found.splitlines() if ": error:" in line]
    assert errors == ["10", "12", "13", "14"], found
