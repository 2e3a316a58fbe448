"""What tasks are told of ranges: all of them are sent, one is unpacked."""

import pickle
from unittest.mock import sentinel

import pytest

from moorage.engine import range_access
from moorage.engine.range_access import LeasedRange, LeasedRanges, ServerDoor
from moorage_state.server.operations import Lease, Version
from moorage_state.server.tls import TlsFiles

TLS = TlsFiles("/etc/moorage/tls", "clicks")


def leased(count, servers):
    doors = {
        7 * i: ServerDoor(f"tcp:10.0.0.{i}:7071", f"id-{i}.0", "", TLS) for i in range(servers)
    }
    places = [(8 * n, 7 * (n % servers), Version(n, f"{n:032x}")) for n in range(count)]
    expected = [
        LeasedRange(Lease("op", start, "f1r0"), doors[server], version)
        for start, server, version in places
    ]
    return LeasedRanges("op", "f1r0", doors, places), expected


@pytest.mark.parametrize(("count", "servers"), [(1, 1), (5, 2), (300, 60)])
def test_a_task_finds_its_range_as_the_driver_knows_it(count, servers):
    ranges, expected = leased(count, servers)
    received = pickle.loads(pickle.dumps(ranges))
    assert [*received] == expected == [*ranges]
    assert (len(received), received[-1], received[1:3]) == (count, expected[-1], (*expected[1:3],))
    with pytest.raises(IndexError):
        received[count]


def test_ranges_that_have_moved_on_are_told_where_they_begin():
    ranges = LeasedRanges("op", "f1r0", {0: ServerDoor("a")}, [(0, 0, Version(9, ""))])
    assert ranges[0].version == Version(9, "")


def test_a_task_unpacks_nothing_but_its_own(monkeypatch):
    ranges, expected = leased(300, 60)
    received = pickle.loads(pickle.dumps(ranges))
    unpacked: list[object] = []
    for name in ("_decode_door", "_decode_range"):
        decode = getattr(range_access, name)

        def noting(raw, decode=decode):
            unpacked.append(sentinel.unpacked)
            return decode(raw)

        monkeypatch.setattr(range_access, name, noting)
    assert received[123] == expected[123]
    assert len(unpacked) == 2


def test_what_all_tasks_are_sent_grows_by_some_bytes_for_each_range():
    sizes = [len(pickle.dumps(leased(count, 60)[0])) for count in (100, 1100)]
    assert (sizes[1] - sizes[0]) / 1000 < 60
