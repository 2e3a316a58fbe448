"""docs/disaster-recovery.md and docs/backfill.md, carried out on S3: what is lost comes back."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from moorage_testing.s3_server import S3Server

from moorage_state.stores import S3Store

# Each starts Spark several times: minutes on a busy machine.
pytestmark = [pytest.mark.docs, pytest.mark.timeout(1000)]

MOORAGE = str(Path(sys.executable).parent / "moorage")
SECONDS = 240

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
    source, folder, out = env.args
    clicks = env.read_stream(source, "json", schema="user string", path=folder)
    counts = clicks.key_by("user").process(Count(), uid="count", output="user string, clicks long")
    counts.sink_to(FileSink(out), uid="counts")
"""


class Place:
    """A folder with a job, and the commands that are typed in there."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        self.folder, self.server = folder, server
        self.environment = {**os.environ, "AWS_ENDPOINT_URL": server.endpoint}
        self.environment["AWS_REGION"] = "us-east-1"
        (folder / "job.py").write_text(JOB)
        for name in ("archive", "stream"):
            (folder / name).mkdir()

    def address(self, name: str) -> str:
        """A place in the bucket that is this test's own."""
        return f"s3://{self.server.bucket}/{self.folder.name}/{name}"

    def manifest(self, name: str, source: str = "stream", **spec: Any) -> None:
        """Write `<name>.yaml`, of a job that reads the folder `source`."""
        given: dict[str, Any] = {
            "application": {"mainFile": "job.py", "args": [source, source, f"out-{name}"]},
            "scaling": {"parallelism": 2, "maxParallelism": 16},
            "epoch": {"interval": "100ms"},
            "state": {"checkpointDir": self.address(name)},
            "checkpoint": {"interval": "1s", "minPause": "100ms", "retain": {"count": 50}},
        }
        manifest = {"apiVersion": "moorage.dev/v1alpha1", "kind": "StatefulSparkJob"}
        text = yaml.safe_dump({**manifest, "metadata": {"name": name}, "spec": {**given, **spec}})
        (self.folder / f"{name}.yaml").write_text(text)

    def clicks(self, source: str, number: int, user: str = "ann") -> None:
        """Two clicks of a user, in a file that appears as a whole."""
        half = self.folder / source / f".{number}"
        half.write_text(f'{{"user": "{user}"}}\n' * 2)
        half.rename(self.folder / source / f"{number}.json")

    def type(self, *words: str, expect: int = 0) -> str:
        """What a command says."""
        done = subprocess.run(
            [MOORAGE, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(self, name: str, expect: int = 0) -> str:
        """`moorage run` to its end."""
        return self.type("run", f"{name}.yaml", "--plain", "--no-page", expect=expect)

    def run_until(self, name: str, counts: dict[str, int]) -> str:
        """`moorage run` until its output is so far, then Ctrl-C; what it said."""
        log = self.folder / f"{name}.log"
        with log.open("w") as output:
            job = subprocess.Popen(
                [MOORAGE, "run", f"{name}.yaml", "--plain", "--no-page"],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=output,
            )
            try:
                deadline = time.monotonic() + SECONDS
                while self.counts(name) != counts:
                    assert job.poll() is None, log.read_text()
                    assert time.monotonic() < deadline, f"{self.counts(name)}\n{log.read_text()}"
                    time.sleep(0.2)
                job.send_signal(signal.SIGINT)
                assert job.wait(60) == 0, log.read_text()
            finally:
                job.kill()
                job.wait()
        return log.read_text()

    def counts(self, name: str) -> dict[str, int]:
        """The highest count of each user in a job's output."""
        if not list((self.folder / f"out-{name}").glob("*.parquet")):
            return {}
        try:
            found = pd.read_parquet(self.folder / f"out-{name}").groupby("user")["clicks"].max()
        except FileNotFoundError:  # a job that goes back has just taken it away
            return {}
        return {str(user): int(clicks) for user, clicks in found.items()}

    def checkpoints(self, name: str) -> list[dict[str, Any]]:
        """What `moorage snapshots ls` lists."""
        listed = json.loads(self.type("snapshots", "ls", self.address(name), "-o", "json"))
        return listed["checkpoints"]


@pytest.fixture
def place(tmp_path: Path, s3_server: S3Server) -> Place:
    return Place(tmp_path, s3_server)


def test_a_damaged_checkpoint_is_found_and_an_older_one_or_a_copy_elsewhere_is_gone_on_from(
    place: Place,
) -> None:
    never = {"maxFallbackAge": "0s"}
    place.manifest("clicks", restore=never)
    place.clicks("stream", 0)
    place.run_until("clicks", {"ann": 2})
    older = place.checkpoints("clicks")[-1]["id"]
    place.clicks("stream", 1)
    place.run_until("clicks", {"ann": 4})
    newest = place.checkpoints("clicks")[-1]["id"]
    assert newest > older

    # A copy elsewhere, while all is well.
    copy = place.address("elsewhere")
    place.type("snapshots", "copy", f"{place.address('clicks')}/chk-{newest}", copy)

    # The newest is damaged, in whatever it alone has.
    store = S3Store.at(place.server.url(f"{place.folder.name}/clicks"))
    for found in list(store.list(f"chk-{newest}/")):
        if "MANIFEST" not in found.key:
            store.put(found.key, b"x" * found.size)
    told = place.type(
        "snapshots", "verify", place.address("clicks"), f"chk-{newest}", "--full", expect=5
    )
    assert f"chk-{newest}" in told
    place.type("snapshots", "verify", place.address("clicks"), f"chk-{older}", "--full")
    assert f"next older is chk-{older}" in place.run("clicks", expect=5)

    path = f"{place.address('clicks')}/chk-{older}"
    place.manifest("clicks", restore={**never, "mode": "Path", "path": path, "nonce": 1})
    place.clicks("stream", 2)
    told = place.run_until("clicks", {"ann": 6})
    assert f"chk-{older}" in told

    # The bucket is lost; what is left is the copy.
    for found in list(store.list("")):
        store.delete(found.key)
    place.manifest("restored", restore={"mode": "Path", "path": copy})
    place.run_until("restored", {"ann": 6})


def test_a_job_begins_from_what_a_second_one_made_of_the_archive(place: Place) -> None:
    place.manifest("backfill", "archive", bounded=True, epoch={"interval": "0s"})
    for number, user in enumerate(["ann", "bob", "ann"]):
        place.clicks("archive", number, user)
    place.run("backfill")
    assert place.counts("backfill") == {"ann": 4, "bob": 2}
    made = place.address("savepoints/backfill")
    place.type("snapshots", "copy", place.address("backfill"), made)

    restore = {"mode": "Path", "path": made, "allowNonRestoredState": True}
    place.manifest("live", restore=restore)
    place.clicks("stream", 0, "bob")
    place.clicks("stream", 1, "cleo")
    place.run_until("live", {"bob": 4, "cleo": 2})
    # Without a word that inputs may be left it is refused.
    refused = {"mode": "Path", "path": made}
    place.manifest("strict", restore=refused)
    assert "allowNonRestoredState" in place.run("strict", expect=2)
