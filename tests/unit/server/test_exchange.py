"""Many servers asked at once: one message each, and what a bad one costs the others."""

import selectors
import socket
import threading
import time
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from moorage_testing.tls import mount

from moorage_state.errors import Bug, Retryable, ServerGone, StaleLease
from moorage_state.server.client import StateClient
from moorage_state.server.exchange import exchange
from moorage_state.server.operations import Call, Lease, OpenResult, RangeSpec, ServerLoad, Version
from moorage_state.server.service import Pulse, Service
from moorage_state.server.tls import Certificates
from moorage_state.server.wire import OPERATIONS, Connection, encode_message

TOKEN = "secret"  # noqa: S105
LEASE = Lease("op", 0, "f1r0")


@pytest.fixture
def connect(tmp_path):
    """Makes clients of hosts that are made of functions."""
    with ExitStack() as stack:

        def make(*, tls=False, patience=None, **operations):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            files = mount(tmp_path / "tls") if tls else None
            certificates = Certificates(files) if files else None
            host: Any = SimpleNamespace(**({"ping": lambda: 7} | operations))
            service = Service(host, TOKEN, certificates=certificates, pulse=Pulse(0.05))
            service.listen(listener)
            address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
            client = StateClient.connect(address, TOKEN, tls=files, **(patience or {}))
            return stack.enter_context(client)

        yield make


def raising(error):
    def fails(*_):
        raise error

    return fails


def commits(count):
    return [Call("commit", (epoch, "d"), LEASE) for epoch in range(count)]


@pytest.mark.parametrize("tls", [False, True])
def test_each_server_gets_one_message_and_gives_one(connect, monkeypatch, tls):
    made: list[tuple[int, int, str]] = []
    messages: list[str] = []
    receive = Connection.receive_request

    def receiving(connection):
        request = receive(connection)
        messages.append(request[0].name)
        return request

    monkeypatch.setattr(Connection, "receive_request", receiving)
    clients = []
    for index in range(3):

        def commit(epoch, digest, _wait, index=index):
            made.append((index, epoch, digest))

        opened = SimpleNamespace(commit=commit)
        clients.append(connect(tls=tls, range=lambda _, opened=opened: opened))
    calls = [Call("ping"), *commits(4)]
    answers = exchange({i: (client, calls) for i, client in enumerate(clients)})
    assert [answers[i].results for i in range(3)] == [[7, None, None, None, None]] * 3
    assert sorted(made) == [(i, epoch, "d") for i in range(3) for epoch in range(4)]
    assert messages == ["together"] * 3
    assert [client.ping() for client in clients] == [7, 7, 7], (
        "the connections can be used as before"
    )


def test_servers_work_side_by_side(connect):
    together = threading.Barrier(8, timeout=20)
    clients = [connect(ping=lambda: together.wait() + 1) for _ in range(8)]
    answers = exchange({i: (client, [Call("ping")]) for i, client in enumerate(clients)})
    assert all(answer.error is None for answer in answers.values())


def test_an_error_ends_the_calls_of_its_server_or_they_go_on(connect):
    client = connect(ping=raising(StaleLease("taken")), load=lambda: ServerLoad(5))
    calls = [Call("load"), Call("ping"), Call("load")]
    (answer,) = exchange({0: (client, calls)}).values()
    assert isinstance(answer.error, StaleLease)
    assert answer.results == [ServerLoad(5), None]
    (answer,) = exchange({0: (client, calls)}, keep_going=True).values()
    assert isinstance(answer.error, StaleLease)
    assert answer.results == [ServerLoad(5), None, ServerLoad(5)]


def test_an_error_of_one_server_ends_the_calls_of_others_early(connect):
    begun, failed = threading.Event(), threading.Event()
    count = []

    def slow(*_):
        count.append(1)
        begun.set()
        assert failed.wait(20)
        time.sleep(0.2)  # for the word to arrive; the next call would begin at once
        return ServerLoad(7)

    def fails():
        assert begun.wait(20)
        failed.set()
        raise Retryable("no")

    asked = {
        0: (connect(ping=fails), [Call("ping")]),
        1: (connect(load=slow), [Call("load")] * 9),
    }
    answers = exchange(asked)
    assert isinstance(answers[0].error, Retryable)
    assert (answers[1].error, answers[1].results, len(count)) == (None, [ServerLoad(7)], 1)
    assert asked[1][0].ping() == 7, "nothing of it is left on the connection"


def test_a_server_that_says_nothing_is_given_up_and_the_others_answer(connect):
    held = threading.Event()
    silent = connect(ping=lambda: held.wait(60), patience={"timeout": 1.0})
    (one, other) = exchange(
        {0: (silent, [Call("ping")]), 1: (connect(), [Call("ping")])}, keep_going=True
    ).values()
    assert isinstance(one.error, ServerGone)
    assert "timed out" in str(one.error)
    assert other.results == [7]
    with pytest.raises(ServerGone, match="timed out; connect again"):
        silent.ping()
    held.set()


def test_all_together_are_waited_for_so_long(connect):
    held = threading.Event()
    clients = [connect(ping=lambda: held.wait(60)) for _ in range(4)]
    began = time.monotonic()
    asked = {i: (client, [Call("ping")]) for i, client in enumerate([*clients, connect()])}
    answers = exchange(asked, seconds=0.3, keep_going=True)
    assert time.monotonic() - began < 2
    assert [type(answer.error) for answer in answers.values()] == [ServerGone] * 4 + [type(None)]
    held.set()


def test_a_call_that_gets_on_may_take_longer_than_a_server_may_be_silent(connect):
    def open_range(*_):
        time.sleep(0.4)
        return OpenResult(Version(0, ""), "empty", 0, 0.0)

    client = connect(open_range=open_range, patience={"store_timeout": 1.2})
    spec = RangeSpec("op", 0, 9)
    calls = [Call("open_range", (spec, "f1r0", None, [], "memory://x"))] * 6
    (answer,) = exchange({0: (client, calls)}).values()
    assert (answer.error, len(answer.results)) == (None, 6)


def test_closing_a_client_frees_who_waits_for_its_part(connect):
    begun, held = threading.Event(), threading.Event()

    def ping():
        begun.set()
        return held.wait(60)

    client = connect(ping=ping)
    threading.Thread(target=lambda: begun.wait(20) and client.close()).start()
    (answer,) = exchange({0: (client, [Call("ping")])}).values()
    assert "the client was closed" in str(answer.error)
    held.set()


def test_who_is_gone_is_not_found_ready_again_and_again(connect, monkeypatch):
    looks: list[float | None] = []
    select = selectors.PollSelector.select

    def looking(self, timeout=None):
        looks.append(timeout)
        return select(self, timeout)

    monkeypatch.setattr(selectors.PollSelector, "select", looking)
    begun, closed, held = threading.Event(), threading.Event(), threading.Event()

    def ping():
        begun.set()
        return held.wait(60)

    gone = connect(ping=ping)

    def leave():
        begun.wait(20)
        gone.close()
        closed.set()

    def slow():
        closed.wait(20)
        time.sleep(0.3)
        return 7

    threading.Thread(target=leave).start()
    asked = {0: (gone, [Call("ping")]), 1: (connect(ping=slow), [Call("ping")])}
    answers = exchange(asked, keep_going=True)
    held.set()
    assert isinstance(answers[0].error, ServerGone)
    assert answers[1].results == [7]
    assert len(looks) < 10


@pytest.mark.parametrize("together", [False, True])
def test_who_waits_for_a_socket_closes_it_and_nobody_else(connect, monkeypatch, together):
    # Else it may come to wait for whatever has the number of the socket's file by then.
    begun, held = threading.Event(), threading.Event()
    closed_by: list[threading.Thread] = []
    close = Connection.close

    def closing(connection):
        closed_by.append(threading.current_thread())
        close(connection)

    def ping():
        begun.set()
        return held.wait(60)

    def waits():
        with suppress(ServerGone):
            exchange({0: (client, [Call("ping")])}) if together else client.ping()

    client = connect(ping=ping)
    monkeypatch.setattr(Connection, "close", closing)
    waiting = threading.Thread(target=waits)
    waiting.start()
    assert begun.wait(20)
    client.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert closed_by[0] is waiting, "who closes it once more changes nothing"
    assert client._connection.socket.fileno() < 0
    held.set()


@pytest.mark.parametrize("together", [False, True])
def test_a_client_that_is_closed_while_its_answer_comes_leaves_no_socket_open(
    connect, monkeypatch, together
):
    client = connect()
    receive = Connection.receive_reply

    def then_close(connection):
        answer = receive(connection)
        client.close()
        assert connection.socket.fileno() >= 0
        return answer

    if together:
        with client.lent(None) as lent:
            client.close()
            assert lent.fileno() >= 0
    else:
        monkeypatch.setattr(Connection, "receive_reply", then_close)
        client.ping()
    assert client._connection.socket.fileno() < 0


def test_messages_may_be_larger_than_what_sockets_hold(connect):
    seen = []
    client = connect(notify_aborted=lambda _, run: seen.append(len(run)))
    many = [Call("notify_aborted", (1, "x" * 1_000_000))] * 12
    (answer,) = exchange({0: (client, many)}).values()
    assert answer.error is None
    assert seen == [1_000_000] * 12


def test_calls_that_move_bulk_are_made_alone(connect):
    with pytest.raises(Bug, match="alone: operation=get_many"):
        exchange({0: (connect(), [Call("get_many", (Version(1, ""), []), LEASE)])})


def test_a_connection_that_is_gone_is_told_and_nothing_is_begun(connect):
    begun = []
    gone, well = connect(), connect(ping=lambda: begun.append(1))
    gone.close()
    answers = exchange({0: (gone, [Call("ping")]), 1: (well, [Call("ping")])})
    assert isinstance(answers[0].error, ServerGone)
    assert (answers[1].error, begun) == (None, [])


@pytest.mark.parametrize("piece", [1 << 20, 70_000, 5_000, 13])
def test_requests_are_told_apart_however_their_bytes_come(piece):
    large = bytes(range(256)) * 600
    requests = [
        ("ping", ()),
        ("stage", (LEASE, 1, "a", large, 0)),
        ("union_list", ("op", "n", "v")),
        ("stage", (LEASE, 1, "a", b"", 1)),
        ("ping", ()),
    ]
    sent = b"".join(
        encode_message(*OPERATIONS[name].encode_request(arguments)) for name, arguments in requests
    )
    near, far = socket.socketpair()
    with near, far:
        connection = Connection(near)

        def send():
            for at in range(0, len(sent), piece):
                far.sendall(sent[at : at + piece])

        sending = threading.Thread(target=send)
        sending.start()
        for name, arguments in requests:
            operation, raw, payload = connection.receive_request()
            assert (operation.name, operation.arguments_of(raw, payload)) == (name, arguments)
        sending.join()
        assert not connection.has_more()


def test_what_was_received_with_the_request_before_counts_as_sent_since():
    ping = encode_message(*OPERATIONS["ping"].encode_request(()))
    near, far = socket.socketpair()
    with near, far:
        connection = Connection(near)
        far.sendall(ping + ping)
        connection.receive_request()
        assert connection.has_more()
        connection.receive_request()
        assert not connection.has_more()
