"""Asking a running job for savepoints, and what it answers."""

import json
import socket
import tempfile
import threading
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path

import pytest

from moorage.driver.control import (
    ControlServer,
    ask_for_savepoint,
    ask_for_state,
    ask_to_rescale,
    control_path,
)
from moorage.driver.local import Scratch
from moorage.driver.lookup_requests import LookupRequest
from moorage.driver.lookups import StateLookups
from moorage.driver.requests import (
    JobRequest,
    Requests,
    RescaleRefused,
    RescaleRequest,
    RestartNeeded,
    SavepointRequest,
)
from moorage.driver.run_status import RunStatus, run_status
from moorage.driver.types import JobProgress
from moorage.driver.views import SavepointView
from moorage_state.errors import CorruptState, MoorageError, Retryable, UserError
from moorage_state.stores.addresses import address

VIEW = SavepointView("before", "file:///savepoints/before", 7, 41, 1234, 0.5)


@pytest.fixture
def short_path():
    """A directory whose path leaves room for a socket's name, wherever the tests run."""
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp") as path:
        yield Path(path)


def status() -> RunStatus:
    """How a job is of which nothing is known yet."""
    return run_status("clicks", "file:///state", JobProgress(), datetime.now(UTC))


@pytest.fixture
def requests():
    return Requests()


@pytest.fixture
def server(short_path, requests):
    with ControlServer(short_path / "job.sock", requests, StateLookups(), status):
        yield short_path / "job.sock"


def job(requests: Requests, *results: SavepointView | MoorageError) -> threading.Thread:
    """A job that takes up a request for each of `results` and answers so."""

    def work() -> None:
        left = list(results)
        while left:
            for request in requests.take():
                request.answer(left.pop(0))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_who_asks_gets_the_savepoint(server, requests):
    job(requests, VIEW)
    assert ask_for_savepoint(server, SavepointRequest("before"), 10) == VIEW


def test_the_request_arrives_as_it_was_asked(server, requests):
    asked: list[SavepointRequest] = []

    def work() -> None:
        while not asked:
            asked.extend(requests.take())
        asked[0].answer(VIEW)

    threading.Thread(target=work, daemon=True).start()
    ask_for_savepoint(server, SavepointRequest("x", "native", stop=True), 10)
    assert (asked[0].name, asked[0].format, asked[0].stop) == ("x", "native", True)


@pytest.mark.parametrize(
    "error", [UserError("no place"), CorruptState("damaged", "a/b", "look"), Retryable("later")]
)
def test_who_asks_gets_the_jobs_error_as_it_is(server, requests, error):
    job(requests, error)
    with pytest.raises(type(error), match=str(error)):
        ask_for_savepoint(server, SavepointRequest("before"), 10)


def test_who_asks_for_another_parallelism_waits_until_the_job_has_it(server, requests):
    asked: list[JobRequest] = []

    def work() -> None:
        while not asked:
            asked.extend(requests.take())
        asked[0].answer(None)

    threading.Thread(target=work, daemon=True).start()
    ask_to_rescale(server, 4, 10)
    assert isinstance(asked[0], RescaleRequest)
    assert (asked[0].parallelism, asked[0].executors) == (4, None)


@pytest.mark.parametrize("error", [RescaleRefused("too many"), RestartNeeded("another mode")])
def test_who_asks_for_one_that_cannot_be_hears_why(server, requests, error):
    job(requests, error)
    with pytest.raises(type(error), match=str(error)):
        ask_to_rescale(server, 4, 10)


def test_no_answer_in_time_does_not_undo_a_rescale(server):
    with pytest.raises(Retryable, match="may still do it: parallelism=4"):
        ask_to_rescale(server, 4, 0.05)


def test_without_a_job_one_is_told_to_start_it(tmp_path):
    with pytest.raises(UserError, match="start it with moorage run"):
        ask_for_savepoint(tmp_path / "none.sock", SavepointRequest("x"), 1)


def test_a_job_that_has_ended_refuses_what_waits_and_what_comes(server, requests):
    waiting = requests.put(SavepointRequest("early"))
    requests.close("the job has ended: job=clicks")
    with pytest.raises(UserError, match="has ended"):
        waiting.wait(1)
    with pytest.raises(UserError, match="has ended"):
        ask_for_savepoint(server, SavepointRequest("late"), 10)


def test_no_answer_in_time_is_not_a_failure_of_the_savepoint(server):
    with pytest.raises(Retryable, match="may still complete"):
        ask_for_savepoint(server, SavepointRequest("slow"), 0.05)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"[]\n",
        b"{}\n",
        b'{"format": 9, "savepoint": {}}\n',
        b'{"format": 1, "savepoint": {"name": "x", "format": "xml", "stop": false}}\n',
        b'{"format": 1, "savepoint": {"name": "../x", "format": "native", "stop": false}}\n',
        b'{"format": 1, "rescale": {"parallelism": "many"}}\n',
        b'{"format": 1, "rescale": {"parallelism": true}}\n',
        b'{"format": 1, "rescale": null}\n',
        b"\xff\xfe\n",
        b"x" * 70_000 + b"\n",
    ],
)
def test_nonsense_is_refused_and_the_next_request_served(server, requests, line):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(str(server))
        peer.settimeout(10)
        peer.sendall(line)
        reply = json.loads(peer.makefile("rb").readline())
    assert reply["ok"] is False
    assert reply["error"]["code"] == UserError.code
    job(requests, VIEW)
    assert ask_for_savepoint(server, SavepointRequest("before"), 10) == VIEW


def test_a_socket_that_a_killed_run_left_is_replaced_and_ours_is_removed(short_path, requests):
    path = short_path / "job.sock"
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(path))
    left.close()
    with ControlServer(path, requests, StateLookups(), status):
        job(requests, VIEW)
        assert ask_for_savepoint(path, SavepointRequest("before"), 10) == VIEW
    assert not path.exists()


def test_the_socket_lies_where_only_its_user_looks(short_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    path = control_path("file:///state/clicks")
    assert path == control_path("file:///state/clicks") != control_path("file:///state/views")
    assert path.parent.stat().st_mode & 0o077 == 0
    path.parent.chmod(0o755)
    with pytest.raises(UserError, match="open to others"):
        control_path("file:///state/clicks")


def test_a_directory_has_one_socket_however_its_path_is_written(short_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    folder = short_path / "clé = a@b+c"
    folder.mkdir()
    (short_path / "link").symlink_to(folder)
    path = control_path(f"file://{folder}")
    assert path == control_path(address(folder)) == control_path(f"file://{short_path}/link")
    assert path != control_path(f"file://{short_path}")


def test_scratch_lies_where_only_its_user_looks(tmp_path):
    Scratch("file:///state/clicks", tmp_path).remove()
    (folder,) = {path.parent for path in (Scratch("file:///state/clicks", tmp_path).path,)}
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)
    with pytest.raises(UserError, match="folder of scratch is open to others"):
        Scratch("file:///state/clicks", tmp_path)


def test_scratch_does_not_follow_a_link_that_somebody_planted(tmp_path):
    made = Scratch("file:///state/clicks", tmp_path)
    folder = made.path.parent
    made.remove()
    (tmp_path / "theirs").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(UserError, match="open to others"):
        Scratch("file:///state/clicks", tmp_path)
    assert list((tmp_path / "theirs").iterdir()) == []


@pytest.mark.parametrize("name", ["", ".x", "-x", "a/b", "..", "ä", "x" * 64, "a b"])
def test_what_is_no_name_is_refused_before_anybody_is_asked(requests, name):
    with pytest.raises(UserError, match="not a name for a savepoint"):
        requests.put(SavepointRequest(name))


def test_a_request_is_answered_once():
    request = SavepointRequest("x")
    request.answer(VIEW)
    request.answer(UserError("too late"))
    assert request.wait() == VIEW
    assert SavepointRequest("y").wait(0.01) is None


def test_paths_are_short_enough_for_a_socket(short_path, monkeypatch):
    deep = short_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    path = control_path("s3://" + "b" * 900)
    assert len(str(path)) < 100
    assert not path.is_relative_to(deep)


def test_state_is_looked_up_over_the_socket(short_path, requests):
    asked: list[LookupRequest] = []
    many = {"results": [{"key": ["a"], "value": "x" * 300_000}]}

    class Answers(StateLookups):
        def submit(self, request):
            asked.append(request)
            answered: Future[bytes] = Future()
            answered.set_result(json.dumps(many).encode())
            return answered

    request = LookupRequest("counts", ["a", 'b"\n'], True, "7")
    with ControlServer(short_path / "job.sock", requests, Answers(), status):
        assert ask_for_state(short_path / "job.sock", request, 10) == many
    assert asked == [request]


def test_a_look_up_before_the_job_runs_says_so(server):
    with pytest.raises(Retryable, match="the job is not running"):
        ask_for_state(server, LookupRequest("counts", ["a"]), 10)


def test_a_look_up_that_is_wrong_is_refused(server):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(str(server))
        peer.sendall(b'{"format": 1, "lookup": {"name": "n", "body": "{}"}}\n')
        assert json.loads(peer.recv(4096))["error"]["code"] == "bad_request"


def test_a_look_up_without_a_job_says_how_to_start_it(tmp_path):
    with pytest.raises(UserError, match="start it with moorage run"):
        ask_for_state(tmp_path / "none.sock", LookupRequest("counts", ["a"]), 1)
