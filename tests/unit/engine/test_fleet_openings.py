"""How a fleet opens its ranges, and what it does with the others when one of them fails."""

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.engine.fleet import RangeFleet
from moorage_state.errors import LocalDiskError, Retryable, StoreUnavailable
from moorage_state.server.client import StateClient
from moorage_state.server.operations import OpenResult, SnapshotSync, Version
from moorage_state.server.service import Service
from moorage_state.snapshots import PartRef, RangeInPart

TOKEN = "secret"  # noqa: S105


class Served:
    """State servers made of functions; subtasks take turns. Notes the messages that they get."""

    def __init__(self, stack: ExitStack, hosts: list[dict[str, Callable[..., Any]]]) -> None:
        self.addresses = []
        for host in hosts:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            whole: Any = SimpleNamespace(ping=lambda: 1, **host)
            Service(whole, TOKEN).listen(listener)
            self.addresses.append(f"tcp:127.0.0.1:{listener.getsockname()[1]}")

    def place(self, groups, _checkpoint_id):
        return [subtask % len(self.addresses) for subtask in range(len(groups))]

    def connect(self, index):
        return StateClient.connect(self.addresses[index], TOKEN)

    def gone(self):
        return frozenset()


@pytest.fixture
def serve():
    with ExitStack() as stack:
        yield lambda *hosts: Served(stack, list(hosts))


def test_when_one_range_fails_no_other_is_still_being_opened_and_no_further_one_is_begun(serve):
    """The first server fails, the second is slow."""
    began, opened, ended = threading.Event(), [], []

    def fails(*_):
        assert began.wait(20)
        raise StoreUnavailable("the store is away")

    def slow(spec, *_):
        opened.append(spec.start)
        began.set()
        # The caller, were it not to wait, would be gone by now.
        threading.Event().wait(0.2)
        ended.append(spec.start)
        return OpenResult(Version(0, ""), "empty", 0, 0.0)

    servers: Any = serve({"open_range": fails}, {"open_range": slow})
    fleet = RangeFleet(servers, ["counts"], 6, 6, "memory://x")
    with pytest.raises(StoreUnavailable):
        fleet.open("f1r0", 0, {}, 0)
    assert ended == opened == [1]


def test_a_range_that_cannot_be_released_keeps_no_other_one_open(serve):
    released: list[int] = []

    def release_range(lease):
        released.append(lease.start)
        raise LocalDiskError("could not delete a directory")

    def open_range(*_):
        return OpenResult(Version(0, ""), "empty", 0, 0.0)

    servers: Any = serve({"open_range": open_range, "release_range": release_range})
    fleet = RangeFleet(servers, ["counts"], 3, 3, "memory://x")
    fleet.open("f1r0", 0, {}, 0)
    fleet.close()
    assert released == [0, 1, 2]


def opens(*_):
    return OpenResult(Version(0, ""), "empty", 0, 0.0)


def test_what_a_server_did_not_hear_of_is_not_yet_read_instead_of_what_was_before(serve):
    def busy(checkpoint_id, _run):
        if checkpoint_id in {2, 3}:
            raise Retryable("at work")

    hosts = [{"open_range": opens, "notify_complete": one} for one in (lambda *_: None, busy)]
    servers: Any = serve(*hosts)
    fleet = RangeFleet(servers, ["counts"], 2, 2, "memory://x")
    fleet.open("f1r0", 0, {}, 0)
    found = []
    for checkpoint_id in (1, 2, 3, 4):
        fleet.complete(checkpoint_id, checkpoint_id, {})
        found.append(fleet.reads_from)
    assert found == [{1}, {1, 2}, {1, 2, 3}, {4}]


def test_what_a_run_was_restored_from_is_read_until_all_have_heard_of_a_checkpoint(serve):
    def busy(checkpoint_id, _run):
        if checkpoint_id == 2:
            raise Retryable("at work")

    hosts = [{"open_range": opens, "notify_complete": one} for one in (lambda *_: None, busy)]
    servers: Any = serve(*hosts)
    fleet = RangeFleet(servers, ["counts"], 2, 2, "memory://x")
    part = RangeInPart("counts", 0, 1, 1, PartRef(key="part", size=1, sha256="0" * 64), "counts")
    fleet.open("f1r0", 1, {"counts": [part]}, 1, "memory://savepoint")
    found = [(set(fleet.reads_from), fleet.reads_elsewhere)]
    for checkpoint_id in (2, 3):
        fleet.complete(checkpoint_id, checkpoint_id, {})
        found.append((set(fleet.reads_from), fleet.reads_elsewhere))
    assert found == [(set(), True), ({2}, True), ({3}, False)]


def test_a_checkpoint_that_was_taken_before_a_range_was_opened_again_is_not_what_it_reads(serve):
    """Its files are those of the database of before."""
    took = SimpleNamespace(snapshot=lambda *_: SnapshotSync(0, 0.0, 0.0))
    host = {
        "open_range": opens,
        "notify_complete": lambda *_: None,
        "stats": list,
        "range": lambda _lease: took,
    }
    servers: Any = serve(host)
    servers.ensure_alive = lambda _answering: []
    fleet = RangeFleet(servers, ["counts"], 1, 1, "memory://x")
    part = RangeInPart("counts", 0, 0, 1, PartRef(key="part", size=1, sha256="0" * 64), "counts")
    handles = {"counts": [part]}
    fleet.open("f1r0", 1, handles, 1)
    fleet.snapshot(2)
    fleet.recover()
    fleet.complete(2, 2, handles)
    assert fleet.reads_from == {1}
    fleet.snapshot(3)
    fleet.complete(3, 3, handles)
    assert fleet.reads_from == {3}
