"""A job whose parallelism the autoscaler decides: first as advice, then while the job runs.

The clock's load is what one subtask bears, so it is the bounds that speak: they do so at once.
"""

import pytest

from .e2e_cluster import wait_until
from .ticker import Ticker

SCALER = {"enabled": True, "dryRun": True, "min": 4, "max": 8}
STABLE_SOON = {"rollback": {"stableAfter": {"duration": "5s"}}}


@pytest.fixture(scope="module")
def ticker(namespace, images, pull_policy, s3):
    """As everywhere, with an autoscaler that only says what it would do."""
    ticker = Ticker(namespace, images["job"], pull_policy, s3, "spark")
    scaling = {"mode": "InPlaceParallelism", "parallelism": 2, "maxParallelism": 16}
    ticker.start(scaling={**scaling, "autoscaler": SCALER}, upgrade=STABLE_SOON)
    ticker.wait_ready()
    ticker.wait_checkpoints()
    return ticker


def scaling(ticker):
    return ticker.namespace.status()["scaling"]


def events(ticker, reason):
    return [e["message"] for e in ticker.namespace.every("Event") if e["reason"] == reason]


@pytest.mark.scenario(67)
def test_a_dry_run_says_how_many_subtasks_there_should_be_and_leaves_the_job_alone(ticker):
    wait_until(lambda: bool(events(ticker, "AutoscalerAdvised")), 300, "it is advised")
    (advice,) = events(ticker, "AutoscalerAdvised")
    assert advice.startswith("2 to 4 subtasks")
    assert advice.endswith("dryRun: nothing is done")
    decided = scaling(ticker)["autoscaler"]
    assert (decided["target"], decided["dryRun"]) == (4, True)
    ticker.wait_checkpoints()
    assert scaling(ticker)["observedParallelism"] == 2
    ticker.audit()


@pytest.mark.scenario(66)
def test_what_it_decides_is_done_while_the_job_runs_and_never_written_to_the_spec(ticker):
    before, driver = ticker.attempt, ticker.driver
    ticker.namespace.edit({"scaling": {"autoscaler": {"dryRun": False}}})
    wait_until(lambda: scaling(ticker)["observedParallelism"] == 4, 300, "four subtasks")
    assert events(ticker, "AutoscalerDecided")
    assert not events(ticker, "RescaleFallback")
    assert ticker.namespace.job()["spec"]["scaling"]["parallelism"] == 2
    assert ticker.attempt == before
    assert ticker.driver["metadata"]["uid"] == driver["metadata"]["uid"]
    ticker.wait_checkpoints()
    ticker.audit()


def test_switched_off_the_number_of_the_spec_holds_again(ticker):
    before = ticker.attempt
    ticker.namespace.edit({"scaling": {"autoscaler": {"enabled": False}}})
    wait_until(lambda: scaling(ticker)["observedParallelism"] == 2, 300, "two subtasks")
    assert ticker.attempt == before
    ticker.wait_checkpoints()
    ticker.audit()
