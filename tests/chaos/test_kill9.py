"""SIGKILL for the whole process group at a random moment, then a restart: the answer is right.

A seed fixes the moment: an epoch, and how long after it was said to be done. A failing seed replays
with `pytest tests/chaos/test_kill9.py -k seed<N>`.
"""

import random
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from moorage_testing.jobs import JobHome, kill_group, wait_until, write_events
from moorage_testing.oracle import expected, judge

pytestmark = [pytest.mark.chaos, pytest.mark.soak, pytest.mark.timeout(600)]

COUNTING_JOB = Path(__file__).parent / "counting_job.py"
SEEDS = range(1, 21)
CHECKPOINTS = {"interval": "1s", "minPause": "200ms"}
EPOCHS = 20


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Two million events."""
    home = tmp_path_factory.mktemp("many")
    write_events(home, files=EPOCHS, rows=100_000, keys=50_000)
    return home / "in", expected(home / "in")


LOGGED: dict[str, Any] = {
    "changelog": True,
    "options": {
        "state.changelog.periodic-materialize.interval": "2 s",
        "state.changelog.dstl.dfs.preemptive-persist-threshold": "100 kb",
    },
}
STATES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    (LOGGED, LOGGED),
    ({**LOGGED, "backend": "hashmap"}, {**LOGGED, "backend": "hashmap"}),
    ({}, LOGGED),
    (LOGGED, {}),
)
"""Of each life: what the manifest says of state; a changelog is on, off, or switched."""


def last_epoch(home: JobHome) -> int:
    return max((int(n) for n in re.findall(r": epoch (\d+),", home.log())), default=0)


def kill_and_finish(seed: int, home: JobHome, truth: dict) -> None:
    rng = random.Random(seed)
    epoch, later = rng.randrange(1, EPOCHS), rng.uniform(0, 1)
    before, after = (
        {"checkpointDir": f"file://{home.checkpoints}", **one} for one in STATES[seed % len(STATES)]
    )
    # One of those with a changelog in both lives publishes with each commit.
    with_commit = STATES[seed % len(STATES)][0].get("backend") == "hashmap"
    sinks = {"publishWith": "commit" if with_commit else "checkpoint"}
    home.write_manifest(COUNTING_JOB, checkpoint=CHECKPOINTS, state=before, sinks=sinks)
    sys.stdout.write(f"seed={seed} kill {later:.2f} s after epoch {epoch}\n")
    process = home.start()
    wait_until(
        lambda: last_epoch(home) >= epoch or process.poll() is not None, 240, f"epoch {epoch}"
    )
    with suppress(subprocess.TimeoutExpired):
        process.wait(later)
    kill_group(process)
    home.write_manifest(COUNTING_JOB, checkpoint=CHECKPOINTS, state=after, sinks=sinks)
    home.run()
    assert judge(home.path, truth) == [], f"seed={seed}\n{home.log()}"


@pytest.mark.parametrize("seed", SEEDS, ids=lambda s: f"seed{s}")
def test_a_job_killed_at_a_random_moment_ends_with_the_right_state_and_output(
    seed, make_home, many
):
    events, truth = many
    home = make_home("job", events, checkpoint=CHECKPOINTS)
    kill_and_finish(seed, home, truth)
