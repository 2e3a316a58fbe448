"""Since when passes of this process have seen to a job."""

import pytest

from moorage_operator.ports import ApiUnavailable

MINUTE = 60.0


@pytest.fixture
def attended(shell):
    """Has a pass after so many seconds; gives for how long the job had been seen to by then."""
    shell.make_job()

    async def later(seconds=0.0):
        shell.clock.advance(seconds)
        await shell.reconcile()
        return (shell.world.now - shell.world.attended_since).total_seconds()

    return later


def pause(shell, value):
    note = {"metadata": {"annotations": {"moorage.dev/paused": value}}}
    shell.api.patch("StatefulSparkJob", "here", "clicks", note)


async def test_from_the_first_pass_of_a_process_on(shell, attended):
    assert [await attended(wait) for wait in (0, 30, 600, 5000)] == [0, 30, 630, 5630]
    shell.reconciler = shell.another()
    assert [await attended(wait) for wait in (9, 30)] == [0, 30]


async def test_not_while_it_is_paused(shell, attended):
    await attended(0)
    await attended(100)
    pause(shell, "true")
    assert [await attended(wait) for wait in (10, 300, 300)] == [110, 0, 0]
    pause(shell, None)
    assert [await attended(wait) for wait in (10, 30)] == [0, 30]


async def test_a_moment_in_which_the_api_server_does_not_answer_counts_for_nothing(shell, attended):
    await attended(100)
    shell.cluster.fail(ApiUnavailable("no"), verb="get", kind="StatefulSparkJob")
    shell.clock.advance(30)
    assert (await shell.reconcile()).problem
    assert await attended(20) == 50


async def test_not_while_the_api_server_does_not_answer(shell, attended):
    await attended(100)
    shell.cluster.fail(ApiUnavailable("no"), verb="get", kind="StatefulSparkJob", times=9)
    for _ in range(9):
        shell.clock.advance(MINUTE)
        assert (await shell.reconcile()).problem
    assert [await attended(wait) for wait in (1, 30)] == [0, 30]


async def test_not_while_its_pods_cannot_be_listed(shell, attended):
    await attended(100)
    shell.cluster.fail(ApiUnavailable("no"), verb="list", kind="Pod", times=3)
    for _ in range(3):
        await attended(MINUTE)
    assert [await attended(wait) for wait in (1, 30)] == [0, 30]


async def test_anew_after_a_clock_was_put_forward(shell, attended):
    await attended(0)
    assert await attended(100) == 100
    shell.clock.put(900)
    assert [await attended(wait) for wait in (30, 30)] == [0, 30]


async def test_not_from_a_time_to_come_after_a_clock_was_put_back(shell, attended):
    await attended(0)
    assert await attended(100) == 100
    shell.clock.put(-900)
    assert [await attended(wait) for wait in (30, 30)] == [0, 30]


async def test_a_clock_that_is_put_right_by_a_little_changes_nothing(shell, attended):
    await attended(0)
    shell.clock.put(20)
    assert await attended(100) == 120
