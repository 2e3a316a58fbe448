"""Build what is published, and try it as a stranger would.

    make dist       # wheel and sdist, and whether all is in them
    make package    # the same, and all that follows

Both leave the wheel and the sdist in `dist/`; the second also, for each way of installing (`run`,
`operator`, `dev`), a bill of materials (CycloneDX) and a list of licences. Each way is installed
from the wheel into an empty environment and used there without this checkout: a job counts, the
operator says how it is used, the tests of a new job pass.
"""

import argparse
import email
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints.txt"
PACKAGES = (
    "backends/moorage_state",
    "operator/moorage_api",
    "operator/moorage_operator",
    "runtime/moorage",
)
# What looks at an environment without being installed in it.
TOOLS = ("build==1.6.1", "cyclonedx-bom==7.5.0", "pip-licenses==5.5.5")

JOB = """
from moorage import FileSink, KeyedProcessFunction, ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, ctx):
        self.clicks = ctx.get_state(ValueStateDescriptor("clicks", "long"))

    def process(self, row, ctx):
        clicks = (self.clicks.value() or 0) + 1
        self.clicks.update(clicks)
        yield ctx.key, clicks


def build(env):
    clicks = env.read_stream("clicks", "json", schema="user string", path="in")
    counts = clicks.key_by("user").process(Count(), uid="count", output="user string, clicks long")
    counts.sink_to(FileSink("out"), uid="counts")
"""

MANIFEST = """
apiVersion: moorage.dev/v1alpha1
kind: StatefulSparkJob
metadata: {name: clicks}
spec:
  application: {mainFile: job.py}
  scaling: {parallelism: 1, maxParallelism: 8}
  state: {checkpointDir: file://./state}
  checkpoint: {interval: 2s}
"""

READ = """
import glob, pandas
print(pandas.read_parquet("out").clicks.max() if glob.glob("out/*.parquet") else 0)
"""
PATIENCE_SECONDS = 300


def say(text: str) -> None:
    """Tell who waits what is done."""
    print(f"package: {text}", flush=True)


def call(command: Sequence[str | Path], folder: Path, **variables: str) -> str:
    """What a program says, in an environment that knows nothing of this checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"package: {command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(folder: Path, *packages: str) -> Path:
    """An empty environment with these packages, at the versions that are tested; its Python."""
    venv.create(folder)
    python = folder / "bin" / "python"
    uv = ROOT / ".venv" / "bin" / "uv"
    if uv.exists():
        install: list[str | Path] = [uv, "pip", "install", "--python", python]
    else:
        install = [sys.executable, "-m", "pip", "--python", python, "install"]
    call([*install, "-q", "-c", CONSTRAINTS, *packages], folder)
    return python


def built(tools: Path, *options: str) -> Path:
    """The wheel, made from the sdist, as an index would have both."""
    shutil.rmtree(DIST, ignore_errors=True)
    say("building the sdist, and the wheel from it")
    call([tools, "-m", "build", *options, "--outdir", DIST, ROOT], ROOT)
    (wheel,) = DIST.glob("*.whl")
    check_whole(wheel)
    return wheel


def check_whole(wheel: Path) -> None:
    """Every file of our packages is in the wheel, and so is what an index shows of it."""
    tracked = call(["git", "ls-files", *PACKAGES], ROOT).split()
    wanted = {path.partition("/")[2] for path in tracked}
    with zipfile.ZipFile(wheel) as archive:
        found = set(archive.namelist())
        (name,) = (one for one in found if one.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    if missing := sorted(wanted - found):
        sys.exit(f"package: not in {wheel.name}: {missing[:10]}")
    typed = {f"{Path(one).name}/py.typed" for one in PACKAGES}
    if untyped := sorted(typed - found):
        sys.exit(f"package: no py.typed in {wheel.name}: {untyped}")
    told = ("Summary", "License-Expression", "Requires-Python", "Classifier", "Project-URL")
    if absent := [field for field in told if not metadata.get_all(field)]:
        sys.exit(f"package: {wheel.name} does not tell: {absent}")
    say(f"{wheel.name}: {len(wanted)} files of ours, all there")


def described(tools: Path, python: Path, way: str) -> None:
    """Leave the bill of materials and the licences of what was installed."""
    bill = DIST / f"moorage-{way}.cdx.json"
    beside = tools.parent
    call(
        [beside / "cyclonedx-py", "environment", python, "--output-reproducible", "-o", bill], ROOT
    )
    licences = DIST / f"moorage-{way}.licences.md"
    options = ["--format=markdown", f"--output-file={licences}", "--with-system"]
    call([beside / "pip-licenses", f"--python={python}", *options], ROOT)
    parts = len(json.loads(bill.read_text())["components"])
    say(f"{way}: {parts} packages in {bill.name}, their licences in {licences.name}")


def try_run(python: Path, folder: Path) -> None:
    """A job counts to three, is started again, and counts on."""
    work = folder / "work"
    (work / "in").mkdir(parents=True)
    (work / "job.py").write_text(JOB)
    (work / "job.yaml").write_text(MANIFEST)
    for n, seen in enumerate((3, 6)):
        (work / "in" / f"{n}.json").write_text('{"user": "ann"}\n' * 3)
        run_until(python, work, str(seen))
    say("run: a job counted, ended, and counted on from its checkpoint")


def run_until(python: Path, work: Path, seen: str) -> None:
    """Run the job until its output has this count, and end it as a person would."""
    log = work / "log"
    with log.open("w") as output:
        command = [str(python.parent / "moorage"), "run", "job.yaml", "--plain"]
        job = subprocess.Popen(command, cwd=work, stdout=output, stderr=output)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := call([python, "-c", READ], work).strip()) != seen:
            if job.poll() is not None or time.monotonic() > deadline:
                job.kill()
                sys.exit(f"package: counted {found}, not {seen}:\n{log.read_text()}")
            time.sleep(1)
        job.send_signal(signal.SIGINT)
        job.wait(PATIENCE_SECONDS)


def try_operator(python: Path, folder: Path) -> None:
    """The operator starts far enough to say how it is used, and has no Spark with it."""
    call([python, "-m", "moorage_operator", "--help"], folder)
    absent = "import importlib.util as u; print(u.find_spec('pyspark') is None)"
    if call([python, "-c", absent], folder).strip() != "True":
        sys.exit("package: the operator's extra brings pyspark")
    say("operator: starts, without Spark and Java")


def try_dev(python: Path, folder: Path) -> None:
    """A new job is written, and its tests pass."""
    call([python.parent / "moorage", "init", "clicks"], folder)
    told = call([python, "-m", "pytest", "-q"], folder / "clicks").strip().splitlines()[-1]
    say(f"dev: the tests of a new job: {told}")


def main() -> None:
    """Build, install each way, try it, describe it."""
    parser = argparse.ArgumentParser(prog="make package")
    parser.add_argument("--only-build", action="store_true", help="with what is installed here")
    if parser.parse_args().only_build:
        built(Path(sys.executable), "--no-isolation")
        return
    ways = {"run": try_run, "operator": try_operator, "dev": try_dev}
    with tempfile.TemporaryDirectory(prefix="moorage-package-") as name:
        folder = Path(name)
        tools = environment(folder / "tools", *TOOLS)
        wheel = built(tools)
        for way, attempt in ways.items():
            say(f"installing {wheel.name}[{way}] into an empty environment")
            python = environment(folder / way, f"moorage[{way}] @ {wheel.as_uri()}")
            attempt(python, folder / way)
            described(tools, python, way)
    say(f"ready in {DIST.relative_to(ROOT)}/")


if __name__ == "__main__":
    main()
