"""Connections that show no token: a bounded number of them, and one deadline for all they do."""

import contextlib
import errno
import socket
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moorage_testing.jobs import wait_until

from moorage_state.errors import ServerGone
from moorage_state.server import ServerGroup
from moorage_state.server.client import StateClient
from moorage_state.server.service import Service
from moorage_state.server.sidecar import _health
from moorage_state.server.wire import PROTOCOL_VERSION

TOKEN = "the token"  # noqa: S105


@pytest.fixture
def crowd():
    """Connects many times to one address."""
    with contextlib.ExitStack() as stack:

        def come(count, port):
            return [
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                for _ in range(count)
            ]

        yield come


@pytest.fixture
def serve():
    """A service that answers pings on a free port; returns the port."""
    with contextlib.ExitStack() as stack:

        def start(**bounds):
            service = Service(SimpleNamespace(ping=lambda: 7), TOKEN, **bounds)
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            service.listen(listener)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return listener.getsockname()[1]

        yield start


def client_of(port):
    return StateClient.connect(f"tcp:127.0.0.1:{port}", TOKEN)


def threads(name):
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def is_hung_up(stranger):
    """Whether the server has closed it; what it said before is passed over."""
    stranger.setblocking(False)
    try:
        while stranger.recv(1 << 10):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def threads_of(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Threads")).split()[1])


def test_four_hundred_strangers_hold_no_more_threads_than_there_is_room(tmp_path, crowd):
    with ServerGroup(1, tmp_path, tcp_host="127.0.0.1") as group:
        before = threads_of(group.pids[0])
        port = int(group.tcp_addresses[0].rpartition(":")[2])
        strangers = crowd(400, port)
        wait_until(lambda: sum(map(is_hung_up, strangers)) >= 400 - 64)
        assert threads_of(group.pids[0]) <= before + 64 + 2
        with StateClient.connect(group.tcp_addresses[0], group.token) as client:
            assert client.ping() == group.pids[0]
        with group.connect(0) as client:
            assert client.ping() == group.pids[0]


def test_a_byte_now_and_then_holds_a_thread_no_longer_than_a_handshake_may_take(serve, crowd):
    (stranger,) = crowd(1, serve(seconds=0.4))
    began = time.monotonic()
    stranger.sendall((1000).to_bytes(4, "big") + bytes(8))  # a hello of a thousand bytes
    while not is_hung_up(stranger):
        assert time.monotonic() - began < 5
        with contextlib.suppress(OSError):
            stranger.sendall(b"\0")
        time.sleep(0.02)
    assert time.monotonic() - began >= 0.3


def test_who_has_shown_the_token_stays_whatever_strangers_do(serve, crowd):
    port = serve(strangers=2, seconds=0.2)
    with client_of(port) as client:
        strangers = crowd(8, port)
        wait_until(lambda: all(map(is_hung_up, strangers)))
        assert client.ping() == 7


def test_the_oldest_stranger_makes_room(serve, crowd):
    port = serve(strangers=2, seconds=60)
    one, two = crowd(2, port)
    for stranger in (one, two):
        assert stranger.recv(1) == b"M"
    (three,) = crowd(1, port)
    wait_until(lambda: is_hung_up(one))
    assert three.recv(1) == b"M"
    assert not is_hung_up(two)


def test_a_crowd_on_one_listener_leaves_the_other_ones_room(crowd):
    service = Service(SimpleNamespace(ping=lambda: 7), TOKEN, strangers=1, seconds=60)
    one, other = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    with one, other:
        service.listen(one)
        service.listen(other)
        (quiet,) = crowd(1, other.getsockname()[1])
        assert quiet.recv(1) == b"M"
        strangers = crowd(5, one.getsockname()[1])
        wait_until(lambda: sum(map(is_hung_up, strangers)) == 4)
        assert not is_hung_up(quiet)
        for listener in (one, other):
            listener.shutdown(socket.SHUT_RDWR)


def test_threads_of_strangers_end(serve, crowd):
    before = threads("serve")
    strangers = crowd(20, serve(strangers=4, seconds=0.2))
    wait_until(lambda: all(map(is_hung_up, strangers)))
    wait_until(lambda: threads("serve") <= before)


def test_a_process_without_a_free_descriptor_accepts_again_when_there_is_one(caplog):
    listener = socket.create_server(("127.0.0.1", 0))
    failures = [OSError(errno.EMFILE, "too many open files")]

    def accept():
        if failures:
            raise failures.pop()
        return listener.accept()

    hindered: Any = SimpleNamespace(accept=accept)
    Service(SimpleNamespace(ping=lambda: 7), TOKEN).listen(hindered)
    with client_of(listener.getsockname()[1]) as client:
        assert client.ping() == 7
    assert "connection not accepted" in caplog.text
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_a_client_waits_for_a_dripping_server_no_longer_than_a_handshake_may_take(monkeypatch):
    monkeypatch.setattr("moorage_state.server.client._CONNECT_SECONDS", 0.3)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip():
            connected, _ = listener.accept()
            with connected, contextlib.suppress(OSError):
                connected.sendall(b"MOORSTA" + bytes([PROTOCOL_VERSION]) + bytes(32) + b"\xff")
                while not over.wait(0.02):
                    connected.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        with pytest.raises(ServerGone, match=r"takes too long|timed out"):
            client_of(listener.getsockname()[1])
        assert time.monotonic() - began < 3
        over.set()
        thread.join()


@pytest.fixture
def health():
    """The sidecar's health, with room for two connections of half a second."""
    well: Any = SimpleNamespace(health=lambda: (True, "well"))
    server = _health("127.0.0.1", 0, well, most=2, seconds=0.5)
    yield server.server_port
    server.shutdown()
    server.server_close()


def asked(port):
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/healthz")
        return connection.getresponse().read()


def test_health_is_told_while_a_crowd_holds_its_connections(health, crowd):
    strangers = crowd(30, health)
    assert asked(health) == b"well\n"
    wait_until(lambda: all(map(is_hung_up, strangers)))


def test_a_dripping_request_for_health_has_one_deadline(health, crowd):
    (stranger,) = crowd(1, health)
    began = time.monotonic()
    while not is_hung_up(stranger):
        assert time.monotonic() - began < 5
        with contextlib.suppress(OSError):
            stranger.sendall(b"G")
        time.sleep(0.02)
