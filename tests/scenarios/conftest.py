"""Scenarios of the control plane: each test is one, told on a world of its own.

With `--kubeconfig FILE` each is told a second time, in a namespace of that cluster. What it takes
to see a thing on a real server that the test cannot do there is said by its mark `in_memory`.
"""

import pytest
from moorage_testing.world import RealSite, World


def pytest_generate_tests(metafunc):
    if "world" not in metafunc.fixturenames or not metafunc.config.getoption("--kubeconfig"):
        return
    reason = next(metafunc.definition.iter_markers("in_memory"), None)
    skipped = [pytest.mark.skip(reason=f"in memory only: {reason.args[0]}")] if reason else []
    real = pytest.param("real", marks=[pytest.mark.timeout(600), *skipped])
    metafunc.parametrize("world", ["memory", real], indirect=True)


@pytest.fixture
async def world(request):
    if getattr(request, "param", "memory") == "memory":
        world = World()
        yield world
        world.buckets.forget()
        return
    option = request.config.getoption
    site = await RealSite.open(option("--kubeconfig"), option("--kube-context"))
    world = World(site)
    try:
        if rival := site.rival():
            pytest.skip(f"an operator of this cluster would take up the jobs: {rival}")
        yield world
    finally:
        world.buckets.forget()
        await site.close()


@pytest.fixture
async def running(world):
    """A world in which a job runs and has completed checkpoints."""
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    return world
