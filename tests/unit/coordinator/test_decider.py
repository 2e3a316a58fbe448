"""Which request starts, which waits, which is turned away."""

from math import inf

import pytest

from moorage_state.coordinator import CheckpointFailureReason, CheckpointProperties
from moorage_state.coordinator.trigger import CheckpointRequestDecider, Load, TriggerRequest

PLAIN = CheckpointProperties()
FORCED = CheckpointProperties(forced=True)
SAVEPOINT = CheckpointProperties.for_savepoint(forced=False)
FORCED_SAVEPOINT = CheckpointProperties.for_savepoint()
IDLE = Load(now=0.0, is_triggering=False, pending=0, last_completion=-inf)
BUSY = IDLE._replace(is_triggering=True)


def request(name, properties=PLAIN, at=0.0, *, periodic=False):
    return TriggerRequest(properties, periodic, at, name)


def filled(*requests, **settings):
    decider = CheckpointRequestDecider(
        settings.get("max_concurrent", 1),
        settings.get("min_pause", 0.0),
        settings.get("room", 1000),
    )
    for one in requests:
        decider.submit(one, BUSY)
    return decider


def test_the_queue_is_in_the_golden_order():
    golden = [
        request(1, FORCED_SAVEPOINT, at=9),
        request(2, SAVEPOINT, at=1),
        request(3, SAVEPOINT, at=8),
        request(4, FORCED, at=9),
        request(5, FORCED, at=0, periodic=True),
        request(6, at=7),
        request(7, at=7),
        request(8, at=1, periodic=True),
        request(9, at=2, periodic=True),
    ]
    assert filled(*reversed(golden)).queued == tuple(golden)


def test_requests_start_in_the_order_of_the_queue():
    decider = filled(request(3, periodic=True), request(2), request(1, SAVEPOINT))
    assert [decider.choose(IDLE).start.number for _ in range(3)] == [1, 2, 3]


def test_a_new_request_may_let_an_older_one_start():
    decider = filled(request(1))
    assert decider.submit(request(2), IDLE).start.number == 1


def test_a_queue_full_of_people_turns_the_new_one_away_though_it_would_be_first():
    decider = filled(request(1), request(2), room=2)
    decision = decider.submit(request(3, FORCED_SAVEPOINT), IDLE)
    assert [(r.number, reason) for r, reason in decision.rejected] == [
        (3, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS)
    ]
    assert decision.start is None


def test_a_full_queue_with_a_periodic_request_evicts_the_worst():
    decider = filled(request(1), request(2, at=1, periodic=True), room=2)
    decision = decider.submit(request(3, at=5), BUSY)
    assert [one.number for one, _ in decision.rejected] == [2]
    assert [one.number for one in decider.queued] == [1, 3]


def test_the_worst_may_be_the_new_one():
    decider = filled(request(1), request(2, at=1, periodic=True), room=2)
    decision = decider.submit(request(3, at=5, periodic=True), BUSY)
    assert [one.number for one, _ in decision.rejected] == [3]


def test_the_queue_holds_a_thousand():
    decider = filled(*(request(n) for n in range(1000)))
    assert decider.submit(request(1000), BUSY).rejected


@pytest.mark.parametrize(
    ("load", "properties", "starts"),
    [
        (BUSY, FORCED_SAVEPOINT, False),
        (IDLE._replace(pending=1), PLAIN, True),
        (IDLE._replace(pending=2), PLAIN, False),
        (IDLE._replace(pending=2), SAVEPOINT, False),
        (IDLE._replace(pending=9), FORCED, True),
    ],
)
def test_a_start_needs_no_trigger_under_way_and_room_or_force(load, properties, starts):
    decision = filled(max_concurrent=2).submit(request(1, properties), load)
    assert (decision.start is not None) == starts
    assert not decision.rejected


def test_at_the_limit_a_forced_request_behind_another_does_not_overtake_it():
    decider = filled(request(1, SAVEPOINT), request(2, FORCED))
    assert decider.choose(IDLE._replace(pending=1)).start is None


def test_a_periodic_request_within_the_pause_is_rejected_until_the_pause_is_over():
    decider = filled(min_pause=10.0)
    decision = decider.submit(
        request(1, periodic=True), IDLE._replace(now=7.0, last_completion=2.0)
    )
    assert decision.start is None
    assert decision.retry_at == 12.0
    assert decision.rejected[0][1] is CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS


@pytest.mark.parametrize(
    ("one", "now"),
    [
        (request(1), 7.0),
        (request(1, SAVEPOINT), 7.0),
        (request(1, FORCED, periodic=True), 7.0),
        (request(1, periodic=True), 12.0),
    ],
    ids=["asked for", "savepoint", "forced", "after the pause"],
)
def test_other_requests_do_not_wait_for_the_pause(one, now):
    decider = filled(min_pause=10.0)
    assert decider.submit(one, IDLE._replace(now=now, last_completion=2.0)).start is one
