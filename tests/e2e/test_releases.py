"""The operator of this release takes over from the one before, and makes room for it again."""

from pathlib import Path

import pytest

from .e2e_install import CHART, replace_release
from .ticker import Ticker

PREVIOUS = ("--previous-chart", "--previous-operator-image", "--previous-image")


@pytest.fixture(scope="module")
def previous(request):
    """The chart, the operator's image and the job's image of the release before."""
    found = [request.config.getoption(name) for name in PREVIOUS]
    if not all(found):
        pytest.skip(f"needs the release before: {', '.join(PREVIOUS)} (see tests/e2e/README.md)")
    chart, operator, job = found
    return Path(chart).absolute(), operator, job


@pytest.fixture(scope="module")
def switch(cluster, system, operator, images, pull_policy, previous):  # noqa: ARG001 - installed first
    """Brings definitions and operator of one of the two releases."""

    def to(which):
        chart, image = (CHART, images["operator"]) if which == "this" else previous[:2]
        replace_release(cluster, system, image, pull_policy, chart)

    yield to
    to("this")


@pytest.fixture(scope="module")
def of_before(namespace, switch, previous, pull_policy, s3):
    """A job of the release before, under its operator."""
    switch("previous")
    ticker = Ticker(namespace, previous[2], pull_policy, s3, "spark")
    ticker.start()
    ticker.wait_ready()
    ticker.wait_checkpoints()
    return ticker


def untouched(ticker, before):
    """Nothing but the operator is another one, and that one has the job."""
    ticker.wait_checkpoints(2)
    ticker.wait_ready()
    return (ticker.attempt, ticker.driver["metadata"]["uid"]) == before


@pytest.mark.scenario(76)
def test_a_job_runs_on_while_definitions_and_operator_become_those_of_this_release(
    of_before, switch, images
):
    ticker = of_before
    before = ticker.attempt, ticker.driver["metadata"]["uid"]
    switch("this")
    assert untouched(ticker, before)
    ticker.take_savepoint("under-the-new-one")
    assert untouched(ticker, before)
    ticker.audit()
    switch("previous")
    assert untouched(ticker, before)
    ticker.take_savepoint("under-the-old-one")
    switch("this")
    assert untouched(ticker, before)
    ticker.namespace.edit({"image": images["job"]})
    ticker.image = images["job"]
    ticker.wait_ready(attempt=before[0] + 1)
    ticker.wait_checkpoints(2)
    ticker.audit()
