"""Requests are remembered by their ids, wait for a boundary, and always get an answer."""

import threading

import pytest

from moorage.driver.requests import (
    KEPT,
    CheckpointRequest,
    JobEnding,
    RequestConflict,
    Requests,
    RescaleRequest,
    SavepointRequest,
    StopRequest,
    TooManyRequests,
)
from moorage.driver.views import SavepointView
from moorage_state.errors import UserError

VIEW = SavepointView("before", "file:///s/before", 7, 41, 1234, 0.5)


@pytest.fixture
def requests():
    return Requests()


def test_the_same_id_is_the_same_request_answered_or_not(requests):
    first = requests.ask(SavepointRequest("before", request_id="a"))
    assert requests.ask(SavepointRequest("before", request_id="a")) is first
    first.answer(VIEW)
    assert requests.ask(SavepointRequest("before", request_id="a")).result == VIEW
    assert requests.take() == [first]


@pytest.mark.parametrize(
    "other",
    [
        SavepointRequest("after", request_id="a"),
        SavepointRequest("before", "native", request_id="a"),
        SavepointRequest("before", stop=True, request_id="a"),
        CheckpointRequest(request_id="a"),
        StopRequest("Savepoint", SavepointRequest("before"), request_id="a"),
    ],
)
def test_another_request_under_the_same_id_is_refused(requests, other):
    requests.ask(SavepointRequest("before", request_id="a"))
    with pytest.raises(RequestConflict, match="request=a"):
        requests.ask(other)


def test_requests_that_differ_in_anything_are_not_the_same():
    contents = [
        StopRequest().content(),
        StopRequest(release=True).content(),
        StopRequest("None").content(),
        StopRequest("Savepoint", SavepointRequest("a", stop=True)).content(),
        StopRequest("Savepoint", SavepointRequest("b", stop=True)).content(),
        RescaleRequest(executors=2).content(),
        RescaleRequest(parallelism=2).content(),
    ]
    assert len(set(contents)) == len(contents)


def test_the_oldest_answered_ones_are_forgotten_and_no_other(requests):
    made = [requests.ask(CheckpointRequest(request_id=f"r{n}")) for n in range(KEPT)]
    with pytest.raises(TooManyRequests):
        requests.ask(CheckpointRequest(request_id="more"))
    for request in made[10:12]:
        request.answer(None)
    requests.ask(CheckpointRequest(request_id="more"))
    assert requests.get("r10") is None
    assert [r.request_id for r in requests.latest()][-2:] == ["r99", "more"]
    assert len(requests.latest()) == KEPT


def test_an_unheard_of_name_is_refused_wherever_it_is(requests):
    for request in (
        SavepointRequest("../x"),
        StopRequest("Savepoint", SavepointRequest("", stop=True)),
    ):
        with pytest.raises(UserError, match="not a name"):
            requests.ask(request)
    assert requests.latest() == []


def test_a_job_that_ends_answers_all_that_wait_also_what_it_had_taken(requests):
    taken = requests.ask(CheckpointRequest(request_id="taken"))
    requests.take_one()
    taken.running()
    waiting = requests.ask(CheckpointRequest(request_id="waiting"))
    requests.close("the job has ended")
    for request in (taken, waiting):
        assert request.state == "Failed"
        with pytest.raises(JobEnding, match="has ended"):
            request.wait(0)
    with pytest.raises(JobEnding):
        requests.ask(CheckpointRequest(request_id="late"))
    assert requests.ask(CheckpointRequest(request_id="taken")) is taken
    requests.put_back([taken])
    assert requests.take() == []


def test_while_it_ends_what_was_asked_for_goes_on(requests):
    early = requests.ask(CheckpointRequest(request_id="early"))
    requests.refuse("ending")
    with pytest.raises(JobEnding, match="ending"):
        requests.ask(CheckpointRequest(request_id="late"))
    assert requests.take_one() is early
    assert early.state == "Pending"


def test_what_is_put_back_waits_again(requests):
    request = requests.ask(CheckpointRequest())
    requests.take_one()
    request.running()
    requests.put_back([request])
    assert request.state == "Pending"
    assert requests.take() == [request]


def test_what_is_put_back_goes_before_what_came_since(requests):
    first, second = [requests.ask(CheckpointRequest()) for _ in range(2)]
    assert requests.take() == [first, second]
    later = requests.ask(CheckpointRequest())
    requests.put_back([first, second])
    assert requests.take() == [first, second, later]


def test_the_first_answer_counts(requests):
    request = requests.ask(SavepointRequest("before"))
    request.answer(VIEW)
    request.answer(UserError("too late"))
    request.running()
    assert (request.state, request.wait(0)) == ("Completed", VIEW)


def test_a_stop_without_a_checkpoint_is_seen_at_once(requests):
    requests.ask(StopRequest())
    assert requests.stop_at_once is None
    asked = requests.ask(StopRequest("None", request_id="now"))
    assert requests.stop_at_once is asked


def test_many_who_ask_at_once_under_one_id_get_one_request(requests):
    found: list[object] = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        found.append(requests.ask(CheckpointRequest(request_id="a")))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert len(requests.take()) == 1
