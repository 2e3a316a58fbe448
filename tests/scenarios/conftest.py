"""Scenarios of the control plane: each test is one, told on a world of its own."""

import pytest
from moorage_testing.world import World


@pytest.fixture
def world():
    world = World()
    yield world
    world.buckets.forget()


@pytest.fixture
async def running(world):
    """A world in which a job runs and has completed checkpoints."""
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    return world
