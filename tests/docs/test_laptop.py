"""What pages and the READMEs of new jobs have people type on a laptop is typed, line by line.

Blocks of README.md, docs/cli.md, docs/object-stores.md, docs/queryable-state.md,
docs/quickstart.md, docs/rescaling.md, docs/upgrading-jobs.md, and of every README.md of
examples that names this test, as run by it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from moorage_testing.mock_kafka import mock_kafka
from moorage_testing.pages import ROOT, blocks

from moorage.cli.init import TEMPLATES, write

# Each starts Spark once or more: minutes on a busy machine.
pytestmark = [pytest.mark.docs, pytest.mark.timeout(1000)]

HERE = "tests/docs/test_laptop.py"
BIN = Path(sys.executable).parent
SECONDS = 600
RUN = re.compile(r"(\S*moorage (?:run|restore) [^&]*)$")
OF_A_CLUSTER = re.compile(r"--for cluster|--pod")
# What another place than this machine answers, and what is installed here already.
NOT_HERE = re.compile(r"^(kubectl|curl|pip install)\b|\| kubectl ")
READS_OUTPUT = re.compile(r"read_parquet|SELECT ")


class Person:
    """Somebody with two terminals: jobs run in one of them, the rest is typed in the other."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.job: subprocess.Popen[bytes] | None = None
        self.jobs: list[subprocess.Popen[bytes]] = []
        self.said = ""
        self.log = folder / "terminal.log"
        # `restore` asks whether to go on.
        self.answers = folder / "answers"
        self.answers.write_text("y\n")
        self.environment = {
            **os.environ,
            **environment,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            # Nobody's cluster is asked.
            "KUBECONFIG": str(folder / "no-kubeconfig"),
        }

    def type_in(self, code: str) -> None:
        """Every line of a block that this machine alone can carry out."""
        for line in code.replace("\\\n", " ").splitlines():
            line = re.sub(r"(^|\s{2,})#.*", "", line).strip()  # noqa: PLW2901
            if not line or NOT_HERE.search(line):
                continue
            if line.startswith("cd "):
                moved, _, line = line.partition(" && ")  # noqa: PLW2901
                self.folder = self.folder / moved.removeprefix("cd ")
            if found := RUN.search(line):
                self.start(found[1])
            elif line:
                self.said = self.call(line)

    def call(self, line: str) -> str:
        """What a line says, which does what it is to; output is looked for until it is there."""
        deadline = time.monotonic() + SECONDS
        while (done := self._called(line)).returncode and READS_OUTPUT.search(line):
            assert time.monotonic() < deadline, done.stderr + self.log.read_text()
            time.sleep(0.5)
        # Without a cluster it is said that there is none; no other fault has this status here.
        expected = {2} if OF_A_CLUSTER.search(line) else {0}
        assert done.returncode in expected, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _called(self, line: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-c", f"set -e -o pipefail; {line}"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )

    def start(self, line: str) -> None:
        """Run a job, after the one before it, until its first checkpoint, or its input's end."""
        words = [*line.split(), "--plain", "--no-page"]
        before = self.job
        if words[1] == "run":  # `restore` ends another run by itself
            self.interrupt()
        with self.log.open("wb") as output, self.answers.open("rb") as typed_there:
            self.job = subprocess.Popen(
                [shutil.which(words[0], path=self.environment["PATH"]) or words[0], *words[1:]],
                cwd=self.folder,
                env=self.environment,
                stdin=typed_there,
                stdout=output,
                stderr=output,
            )
        self.jobs.append(self.job)
        if "bounded: true" in (self.folder / words[2]).read_text():
            assert self.job.wait(SECONDS) == 0, self.log.read_text()
            return
        deadline = time.monotonic() + SECONDS
        while not self.saved(words[2]):
            assert self.job.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.5)
        assert before is None or before.wait(SECONDS) == 0

    def saved(self, manifest: str) -> bool:
        """Whether the run says that it has completed a checkpoint."""
        done = subprocess.run(
            [BIN / "moorage", "status", manifest, "-o", "json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            check=False,
        )
        found = json.loads(done.stdout) if done.returncode == 0 else {}
        run = found["run"] if found.get("running") else {}
        mine = self.job is not None and run.get("pid") == self.job.pid
        return mine and run["completed_checkpoints"] > 0

    def interrupt(self) -> None:
        """Ctrl-C in the job's terminal."""
        if self.job is not None and self.job.poll() is None:
            self.job.send_signal(signal.SIGINT)
            assert self.job.wait(SECONDS) == 0, self.log.read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The root of a checkout, as far as what is typed names it."""
    (tmp_path / ".venv").symlink_to(BIN.parent)
    return tmp_path


@pytest.fixture
def person(folder: Path) -> Iterator[Person]:
    person = Person(folder)
    yield person
    for job in person.jobs:
        job.kill()
        job.wait()


def typed(page: str) -> list[str]:
    """The blocks of a page that name this test."""
    found = [one.code for one in blocks(page, "sh") if one.options.get("run-by") == HERE]
    assert found, page
    return found


def test_the_job_of_the_readme(folder, person):
    out = str(folder / "clicks")
    job, manifest = blocks("README.md", "python")[0], blocks("README.md", "yaml")[0]
    (folder / "job.py").write_text(job.code.replace("/tmp/clicks", out))
    # Output appears with a checkpoint: sooner than on the page.
    (folder / "job.yaml").write_text(manifest.code.replace("interval: 10s", "interval: 1s"))
    first, second = typed("README.md")
    person.type_in(first.replace("/tmp/clicks", out))
    assert "ann" in person.said
    person.type_in(second)
    person.interrupt()


def test_the_commands_of_the_command_lines_page(folder, person):
    write("counting", folder, "here")
    for code in typed("docs/cli.md"):
        person.type_in(code)
    person.interrupt()


def test_the_windowed_join_of_the_quickstart(folder, person):
    person.folder = folder / "clicks"
    person.folder.mkdir()
    (code,) = typed("docs/quickstart.md")
    person.type_in(code)
    assert "/cart" in person.said
    person.interrupt()


def test_a_manifest_is_held_to_the_rules_of_a_cluster(folder, person):
    write("counting", folder, "here")
    for code in typed("docs/upgrading-jobs.md"):
        person.type_in(code)


def test_a_store_is_tried(folder, s3_server):
    person = Person(folder, AWS_ENDPOINT_URL=s3_server.endpoint, AWS_REGION="us-east-1")
    for code in typed("docs/object-stores.md"):
        code = code.replace("s3://bucket/", f"s3://{s3_server.bucket}/laptop/")  # noqa: PLW2901
        person.type_in(code.replace("http://host:9000", s3_server.endpoint))
    assert json.loads(person.said)["command"] == "store check"


def test_a_running_job_is_asked_for_its_state_and_rescaled(folder, person):
    write("counting", folder, "here")
    job, manifest = folder / "job.py", folder / "job.yaml"
    asked = 'ValueStateDescriptor("clicks", "long")'
    assert asked in job.read_text()
    job.write_text(job.read_text().replace(asked, f'{asked}.queryable("counts")'))
    scaling = "scaling:\n"
    manifest.write_text(
        manifest.read_text().replace(scaling, f"{scaling}    mode: InPlaceParallelism\n")
    )
    clicks = folder / "in" / "2.json"
    clicks.write_text('{"user": "user-7", "page": "/"}\n')
    person.start("moorage run job.yaml")
    (code,) = typed("docs/queryable-state.md")
    person.type_in(code)
    assert "1" in person.said.split()
    (code,) = typed("docs/rescaling.md")
    person.type_in(code)
    assert "has 4 subtasks" in person.said
    person.interrupt()


WRITTEN = ("__pycache__", "in", "out", "checkpoints", "initial", "entries", "counts", "*.db")
EXAMPLES = [
    path.parent.name
    for path in sorted(ROOT.glob("examples/*/README.md"))
    if any(one.options.get("run-by") == HERE for one in blocks(str(path.relative_to(ROOT)), "sh"))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_run_as_its_readme_says(folder, person, example):
    # All of them, as they lie beside each other: some name another one's files.
    ignored = shutil.ignore_patterns(*WRITTEN)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=ignored)
    for code in typed(f"examples/{example}/README.md"):
        person.type_in(code)
    person.interrupt()


TO_BE_RUN = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_readme_of_a_new_job(folder, person, template):
    write(template, folder, "new")
    manifest = folder / "job.yaml"
    with mock_kafka() as kafka:
        if template == "kafka-to-parquet":
            kafka.create("events", 2)
            kafka.produce("events", 0, b'{"id": "a", "body": "one"}')
            # As the README says: brokers and topic go into the manifest first.
            manifest.write_text(manifest.read_text().replace("localhost:9092", kafka.servers))
        for code in TO_BE_RUN.findall((folder / "README.md").read_text()):
            person.type_in(code)
            if "pandas" in code:
                assert len(person.said.splitlines()) > 1, person.said
        person.interrupt()
