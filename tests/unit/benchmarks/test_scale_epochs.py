"""What the coordination of an epoch costs, counted on the driver's own code."""

import threading
from functools import partial

import pytest
from benchmarks.scale.epochs import epochs

SERVERS = {8: 2, 64: 16}


@pytest.fixture(scope="module")
def drivers():
    """With chains of three operators on so many subtasks, after a first epoch."""
    here = partial(epochs, latency=0.0, worker=threading.Thread)
    with here(3, 8) as small, here(3, 64) as large:
        for driver in (small, large):
            driver.run()
        yield {8: small, 64: large}


def test_an_epoch_moves_less_than_a_kilobyte_for_each_subtask_whatever_their_number(drivers):
    moved = {size: driver.run().moved / (3 * size) for size, driver in drivers.items()}
    assert moved[64] <= moved[8] < 1000


@pytest.mark.parametrize("size", SERVERS)
def test_commits_checkpoints_and_looks_take_one_message_for_each_server(drivers, size):
    driver = drivers[size]
    assert driver.run().messages == SERVERS[size]
    assert driver.messages(lambda: driver.fleet.snapshot(1)) == SERVERS[size]
    assert driver.messages(driver.fleet.stats) == SERVERS[size]
    assert driver.messages(lambda: driver.fleet.aborted(1)) == SERVERS[size]


@pytest.mark.parametrize("size", SERVERS)
def test_a_recovery_asks_who_is_there_how_ranges_are_and_opens_them(drivers, size):
    driver = drivers[size]
    assert driver.messages(driver.fleet.recover) == 3 * SERVERS[size]
