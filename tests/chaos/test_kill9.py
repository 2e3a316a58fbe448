"""SIGKILL for the whole process group at a random moment, then a restart: the answer is right.

A seed fixes the moment as a share of an undisturbed run's time. A failing seed replays with
`pytest tests/chaos/test_kill9.py -k seed<N>`.
"""

import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from moorage_testing.jobs import JobHome, kill_group
from moorage_testing.oracle import expected, judge

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

COUNTING_JOB = Path(__file__).parent / "counting_job.py"
QUICK_SEEDS = (1, 2, 3, 4)
SOAK_SEEDS = tuple(range(5, 21))
CHECKPOINTS = {"interval": "2s", "minPause": "500ms"}


@pytest.fixture(scope="module")
def truth(event_files):
    return expected(event_files)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, event_files, truth):
    """How long the job takes when nobody disturbs it; its answer is judged, too."""
    path = tmp_path_factory.mktemp("undisturbed") / "job"
    home = JobHome.make(path, COUNTING_JOB, event_files, checkpoint=CHECKPOINTS)
    try:
        started = time.monotonic()
        home.run()
        seconds = time.monotonic() - started
        assert judge(path, truth) == []
    finally:
        home.end()
    return seconds


def kill_and_finish(seed, home, seconds, truth):
    moment = random.Random(seed).uniform(0.02, 0.98) * seconds
    sys.stdout.write(f"seed={seed} kill after {moment:.2f} s of {seconds:.2f} s\n")
    process = home.start()
    with suppress(subprocess.TimeoutExpired):
        process.wait(moment)
    kill_group(process)
    home.run()
    assert judge(home.path, truth) == [], f"seed={seed}\n{home.log()}"


@pytest.mark.parametrize("seed", QUICK_SEEDS, ids=lambda s: f"seed{s}")
def test_a_job_killed_at_a_random_moment_ends_with_the_right_state_and_output(
    seed, make_home, event_files, undisturbed, truth
):
    home = make_home("job", event_files, checkpoint=CHECKPOINTS)
    kill_and_finish(seed, home, undisturbed, truth)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS, ids=lambda s: f"seed{s}")
def test_a_job_killed_at_more_random_moments_ends_with_the_right_state_and_output(
    seed, make_home, event_files, undisturbed, truth
):
    home = make_home("job", event_files, checkpoint=CHECKPOINTS)
    kill_and_finish(seed, home, undisturbed, truth)
