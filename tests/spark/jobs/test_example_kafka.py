"""The example for Kafka: from topic to topic, its driver killed, and each event counted once.

The commands are those of examples/kafka/README.md.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from moorage_testing.jobs import JobHome, kill_group, wait_until
from moorage_testing.pages import blocks

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "kafka"


@pytest.fixture
def auditor(tmp_path):
    """The address of the brokers, and a call for what they saw last."""
    log = tmp_path / "auditor.log"
    (typed,) = blocks("examples/kafka/README.md", "sh")
    _, brokers, run = (line.partition("  #")[0].split() for line in typed.code.splitlines())
    assert run == ["KAFKA=ADDRESS", "moorage", "run", "job.yaml"]  # what `home` starts
    assert brokers == ["python", "brokers.py"]
    command = [sys.executable, *brokers[1:], "--rate", "50"]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, cwd=EXAMPLE)

    def lines():
        # The last one may not be whole yet.
        return [json.loads(line) for line in log.read_text().splitlines()[:-1]]

    try:
        wait_until(lambda: len(lines()) > 1, 30, "brokers")
        yield lines()[0]["brokers"], lambda: lines()[-1]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


@pytest.fixture
def home(tmp_path):
    made = JobHome(tmp_path)
    (tmp_path / "scratch").mkdir()
    manifest = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    manifest["spec"]["application"]["mainFile"] = f"local://{EXAMPLE}/job.py"
    manifest["spec"]["checkpoint"] = {"interval": "1s", "minPause": "100ms"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
    yield made
    made.end()


def test_events_are_counted_once_though_the_driver_is_killed_between_checkpoint_and_publication(
    home, auditor
):
    brokers, seen = auditor
    killed = home.start(KAFKA=brokers, MOORAGE_FAILPOINT="sink.before_call:kill:2")
    assert killed.wait(120) == -signal.SIGKILL, home.log()
    kill_group(killed)
    before = seen()["sent"]
    wait_until(lambda: seen()["sent"] > before, 20, "a look at what is there without a driver")
    sent, counted = seen()["sent"], seen()["counted"]
    assert counted < sent
    again = home.start(KAFKA=brokers)
    # What was sent until now comes out once, and so does what comes later.
    wait_until(lambda: seen()["counted"] > sent or again.poll() is not None, 120, "the counts")
    again.send_signal(signal.SIGTERM)
    assert again.wait(60) == 0, home.log()
    assert "restored" in home.log()
    last = seen()["sent"]
    wait_until(lambda: seen()["sent"] > last, 20, "the auditor's last look")
    assert seen()["wrong"] == 0, home.log()
    assert seen()["counted"] > sent, home.log()
