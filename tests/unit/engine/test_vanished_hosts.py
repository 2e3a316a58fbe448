"""Hosts that vanish without a word: what they cost the run that ends and the one that follows."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from moorage_testing.black_hole import BlackHole

from moorage.driver.housekeeping import Background
from moorage.engine.fleet import RangeFleet
from moorage.engine.range_access import ServerDoor
from moorage_state.deltas import encode_frame
from moorage_state.errors import Retryable, ServerGone
from moorage_state.server import Lease, RangeHost, RangeSpec
from moorage_state.server.client import StateClient
from moorage_state.server.service import Service
from moorage_state.server.wire import Connection
from moorage_state.state_backends import HashMapStateBackend

HOSTS = 8
PATIENCE = 3.0  # seconds: of a slow machine less is spent otherwise
TOKEN = "secret"  # noqa: S105


class SlowHost(RangeHost):
    """Its uploads begin and take as long as the test says."""

    begun: threading.Semaphore
    goes_on: threading.Event

    def upload_many(self, *arguments):
        self.begun.release()
        self.goes_on.wait(60)
        return super().upload_many(*arguments)


class Hosts:
    """Eight hosts with a state server each, and a ninth that takes their place."""

    def __init__(self, folder, stack):
        self.told = False
        self.vanished = False
        (folder / "store").mkdir()
        self.url = f"file://{folder}/store"
        self.ways = []
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        stack.callback(self.go_on.set)
        for number in range(HOSTS + 1):
            host = stack.enter_context(SlowHost(folder / str(number), HashMapStateBackend()))
            host.begun, host.goes_on = self.begun, self.go_on
            listener = socket.create_server(("127.0.0.1", 0))
            stack.callback(listener.close)
            Service(host, TOKEN, f"s-{number}").listen(listener)
            name = f"127.0.0.1:{listener.getsockname()[1]}"
            self.ways.append(stack.enter_context(BlackHole(name)))

    def vanish(self, *, told):
        for way in self.ways[:HOSTS]:
            way.vanish()
        self.vanished, self.told = True, told

    def place(self, groups, _checkpoint_id):
        hosts = [HOSTS] if self.vanished else range(HOSTS)
        return [hosts[i % len(hosts)] for i in range(len(groups))]

    def door(self, index):
        return ServerDoor(self.ways[index].address)

    def connect(self, index):
        return StateClient.connect(self.ways[index].address, TOKEN)

    def ensure_alive(self, well=()):  # noqa: ARG002
        return []

    def gone(self):
        return frozenset(range(HOSTS)) if self.told else frozenset()

    def refuse_lost(self):
        pass

    def wants_to_move(self, *, busy=False):
        return busy


@pytest.fixture
def hosts(tmp_path):
    with ExitStack() as stack:
        yield Hosts(tmp_path, stack)


@pytest.fixture
def fleet(hosts):
    made = RangeFleet(hosts, ["op"], 16, 128, hosts.url, answer_seconds=PATIENCE)
    made.open("f1r0", 0, {}, 0)
    yield made
    made.close()


def seconds(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began


@pytest.mark.scenario(42)
@pytest.mark.parametrize(("told", "most"), [(True, PATIENCE), (False, HOSTS * PATIENCE)])
def test_eight_hosts_that_vanish_under_an_upload_do_not_hold_up_the_next_run(
    hosts, fleet, told, most
):
    """Known to be lost they cost nothing; else one patience for all, and not one for each."""
    fleet.snapshot(1)
    results: list[object] = []
    background = Background()
    background.run("upload-1", lambda: fleet.upload(1, {}), results.append)
    assert all(hosts.begun.acquire(timeout=20) for _ in range(HOSTS))
    hosts.vanish(told=told)

    def recover():
        fleet.abandon([1])
        background.join(20.0)
        fleet.open("f1r1", 0, {}, 0)

    assert seconds(recover) < most
    background.take()
    (result,) = results
    assert isinstance(result, Retryable)
    assert {stats.run for stats in fleet.stats()} == {"f1r1"}


def test_a_look_and_a_notice_take_one_patience_for_all_hosts_together(hosts, fleet):
    hosts.vanish(told=False)
    assert seconds(fleet.stats) < HOSTS * PATIENCE
    assert fleet.stats() == []
    assert seconds(lambda: fleet.aborted(1)) < PATIENCE, "who did not answer is not asked again"


@pytest.mark.parametrize("failed", [True, False])
def test_how_a_checkpoint_ends_is_told_to_no_host_that_is_gone(hosts, fleet, failed):
    """The run hears of the checkpoint before it ends: its connections are still there."""
    hosts.vanish(told=True)
    assert seconds(lambda: fleet.aborted(1) if failed else fleet.complete(1, 0, {})) < PATIENCE


def test_an_upload_that_fails_on_one_host_does_not_wait_for_the_others(hosts, fleet):
    fleet.snapshot(1)
    with ThreadPoolExecutor(1) as pool:
        upload = pool.submit(fleet.upload, 1, {})
        assert all(hosts.begun.acquire(timeout=20) for _ in range(HOSTS))
        hosts.ways[0].close()
        with pytest.raises(ServerGone):
            upload.result(10)


def test_closing_a_client_frees_who_waits_for_its_answer(hosts):
    client = hosts.connect(0)
    hosts.vanish(told=False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.ping)
        while not client._lock.locked():
            time.sleep(0.001)
        client.close()
        with pytest.raises(ServerGone, match="the client was closed"):
            waiting.result(10)


def test_both_ends_of_a_connection_notice_a_lost_host_within_twenty_seconds():
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as near,
        listener.accept()[0] as far,
    ):
        for end in (near, far):
            Connection(end)
            idle, interval, count, bound = (
                end.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names
            )
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert (idle + interval * count, bound) == (20, 20_000)


def test_who_stages_for_a_slow_disk_is_not_cut_off_by_a_peer_that_reads_nothing_for_a_while(hosts):
    client = hosts.connect(0)
    option = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    client.ping()
    assert client._connection.socket.getsockopt(*option) == 20_000
    client.range(Lease("op", 0, "f1r0")).stage(1, "a", b"", 0)
    assert client._connection.socket.getsockopt(*option) == 0
    assert client._connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    client.close()


def test_once_what_was_staged_has_an_answer_a_lost_host_is_noticed_as_soon_as_before(hosts):
    with hosts.connect(0) as client:
        op = client.range(RangeSpec("op", 0, 127).lease("f1r0"))
        client.open_range(RangeSpec("op", 0, 127), "f1r0", None, [], hosts.url)
        for attempt in ("a", "b"):
            op.stage(1, attempt, encode_frame([], [b"\0\0\1k"], [b"v"]), 0)
            op.prepare(1, attempt, "", 1)
            bound = client._connection.socket.getsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
            )
            assert bound == 20_000


def test_what_was_cancelled_is_waited_for_so_long_and_what_writes_to_its_end():
    background, stuck, writes = Background(), threading.Event(), threading.Event()
    ended: list[object] = []
    background.run("upload", lambda: stuck.wait(60), ended.append)
    assert seconds(lambda: background.join(0.2)) < 5
    background.run("finalize", lambda: writes.wait(60), ended.append, writes=True)
    threading.Timer(0.3, writes.set).start()
    background.join(0.0)
    background.take()
    assert ended == [True]
    stuck.set()
