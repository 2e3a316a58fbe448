"""What a fleet does with its other ranges when one of them fails."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.engine.fleet import RangeFleet
from moorage_state.errors import LocalDiskError, StoreUnavailable


class TwoServers:
    """Subtasks take turns; the first server fails, the second is slow."""

    def __init__(self):
        self.failed = threading.Event()
        self.opened = []
        self.ended = []

    def place(self, parallelism):
        return [subtask % 2 for subtask in range(parallelism)]

    def connect(self, index):
        def open_range(spec, *_rest):
            if index == 0:
                self.failed.set()
                raise StoreUnavailable("the store is away")
            assert self.failed.wait(20)
            self.opened.append(spec.start)
            # The caller, were it not to wait, would be gone by now.
            threading.Event().wait(0.2)
            self.ended.append(spec.start)

        return SimpleNamespace(open_range=open_range, close=lambda: None, ping=lambda: 1)

    def gone(self):
        return frozenset()


def test_when_one_range_fails_no_other_is_still_being_opened_and_no_further_one_is_begun():
    servers: Any = TwoServers()
    fleet = RangeFleet(servers, ["counts"], 6, 6, "memory://x")
    with pytest.raises(StoreUnavailable):
        fleet.open("f1r0", 0, {}, 0)
    assert servers.ended == servers.opened
    assert len(servers.opened) <= 1


def test_a_range_that_cannot_be_released_keeps_no_other_one_open():
    released: list[int] = []

    def release_range(lease):
        released.append(lease.start)
        raise LocalDiskError("could not delete a directory")

    client = SimpleNamespace(
        open_range=lambda *_: None,
        release_range=release_range,
        close=lambda: None,
        ping=lambda: 1,
    )
    servers: Any = SimpleNamespace(
        place=lambda n: [0] * n, connect=lambda _: client, gone=frozenset
    )
    fleet = RangeFleet(servers, ["counts"], 3, 3, "memory://x")
    fleet.open("f1r0", 0, {}, 0)
    fleet.close()
    assert released == [0, 1, 2]
