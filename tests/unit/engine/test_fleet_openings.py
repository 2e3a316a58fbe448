"""How a fleet opens its ranges, and what it does with the others when one of them fails."""

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.engine.fleet import RangeFleet
from moorage_state.errors import LocalDiskError, StoreUnavailable
from moorage_state.server.client import StateClient
from moorage_state.server.operations import OpenResult, Version
from moorage_state.server.service import Service

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
