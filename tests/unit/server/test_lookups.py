"""Look-ups beside the epochs: what is committed, in turns that let others have the range."""

from contextlib import contextmanager
from typing import Any

import pytest

from moorage_state.database import Scan
from moorage_state.errors import StaleLease
from moorage_state.rocks import RocksOptions
from moorage_state.server import RangeHost, RangeSpec, Version, lookups, open_range
from moorage_state.server.lookups import HOLD_SECONDS
from moorage_state.state_backends import EmbeddedRocksDBStateBackend

MUCH = 1 << 30
LITTLE = RocksOptions(
    block_cache_bytes=16 << 20, write_buffers_bytes=16 << 20, write_buffer_bytes=4 << 20
)


@pytest.fixture
def op(api, drive):
    driven = drive(api)
    driven.open()
    yield driven
    api.release_range(driven.lease)


def wait_for_all(op, key):
    """Until what was committed is applied: till then keys are shown by the epoch before."""
    op.range.look_under(key(1, 0)[:3], b"", 1, MUCH)


def test_what_an_epoch_committed_is_found_with_its_number(op, key):
    op.epoch({key(1, 1): b"one", key(2, 1): b"two"})
    op.epoch({key(1, 1): b"uno"})
    wait_for_all(op, key)
    assert op.range.look_up([key(2, 1), key(1, 1), key(3, 1)], MUCH) == (2, [b"two", b"uno", None])
    assert op.range.look_under(key(1, 0)[:3], b"", 10, MUCH) == (
        2,
        Scan([key(1, 1)], [b"uno"], complete=True),
    )


def test_what_is_staged_or_prepared_is_not_seen(op, key):
    op.epoch({key(1, 1): b"one"})
    prepared = op.prepare({key(1, 1): b"two", key(1, 2): b"new"})
    assert op.range.look_up([key(1, 1), key(1, 2)], MUCH) == (1, [b"one", None])
    assert op.range.look_under(key(1, 0)[:3], b"", 10, MUCH).scan.values == [b"one"]
    op.commit(prepared)
    wait_for_all(op, key)
    assert op.range.look_up([key(1, 1), key(1, 2)], MUCH) == (2, [b"two", b"new"])


@pytest.fixture(params=["ROCKSDB", "HEAP"])
def rocks(request, tmp_path, drive):
    backend = EmbeddedRocksDBStateBackend(tuned=LITTLE, timer_service=request.param)
    with RangeHost(tmp_path / "rocks", backend) as host:
        driven = drive(host)
        driven.open()
        yield driven


def test_from_the_second_time_on_a_look_up_waits_for_nobody_who_works_with_the_range(rocks, key):
    rocks.commit(rocks.prepare({key(1, 1): b"one"}), wait=True)
    assert rocks.range.look_up([key(1, 1)], MUCH) == (1, [b"one"])
    with rocks.range.at(rocks.version):
        rocks.commit(rocks.prepare({key(1, 1): b"two"}))
        assert rocks.range.look_up([key(1, 1), key(1, 2)], MUCH) == (1, [b"one", None])
    rocks.range.apply_pending()
    assert rocks.range.look_up([key(1, 1)], MUCH) == (2, [b"two"])


def test_a_large_epoch_that_is_being_applied_is_not_waited_for(rocks, key, monkeypatch):
    monkeypatch.setattr(open_range, "_FRESH_SECONDS", 3600.0)
    rocks.commit(rocks.prepare({key(1, 1): b"one"}), wait=True)
    assert rocks.range.look_up([key(1, 1)], MUCH) == (1, [b"one"])
    with rocks.range.at(rocks.version):
        rocks.commit(rocks.prepare({key(1, 1): bytes(1 << 17)}))
        assert rocks.range.look_up([key(1, 1)], MUCH) == (1, [b"one"])
    rocks.range.apply_pending()
    for n in range(3, 10):
        rocks.commit(rocks.prepare({key(1, 1): b"small"}))
        assert rocks.range.look_up([key(1, 1)], MUCH) == (n, [b"small"])


def test_a_view_is_kept_for_as_long_as_somebody_asks(rocks):
    now = [0.0]
    database = rocks.range._database
    kept = lookups.KeptView(lambda: now[0])
    kept.renew(Version(1, "a"), database)
    with kept.seen() as found:
        assert found is None
    kept.renew(Version(2, "b"), database)
    with kept.seen() as found:
        assert found is not None
        assert found[0] == Version(2, "b")
    now[0] += lookups.KEPT_SECONDS
    kept.renew(Version(3, "c"), database)
    with kept.seen() as found:
        assert found is None


def test_the_view_of_a_range_that_was_shut_out_is_gone(rocks, key):
    rocks.epoch({key(1, 1): b"one"})
    rocks.range.look_up([key(1, 1)], MUCH)
    before = rocks.range
    rocks.open(run="f2r0")
    with pytest.raises(StaleLease):
        before.look_up([key(1, 1)], MUCH)
    assert rocks.range.look_up([key(1, 1)], MUCH) == (0, [None])


def test_a_look_up_needs_no_version(op, key):
    op.epoch({key(1, 1): b"one"})
    for n in range(3):
        op.epoch({key(1, 2): str(n).encode()})
        wait_for_all(op, key)
        assert op.range.look_up([key(1, 1)], MUCH) == (2 + n, [b"one"])


def test_entries_come_in_pages(op, key):
    op.epoch({key(1, n): str(n).encode() for n in range(2500)})
    found, after = [], b""
    while True:
        _, scan = op.range.look_under(key(1, 0)[:3], after, 1000, MUCH)
        found += scan.values
        if scan.complete:
            break
        assert len(scan.keys) == 1000
        after = scan.keys[-1]
    assert found == [str(n).encode() for n in range(2500)]


def test_values_beyond_the_bytes_that_are_wanted_are_left_out(op, key):
    op.epoch({key(1, n): b"x" * 1000 for n in range(2000)})
    keys = [key(1, n) for n in range(2000)]
    found = op.range.look_up(keys, 10_000).values
    assert 10 <= len(found) < 2000
    assert not op.range.look_under(key(1, 0)[:3], b"", 2000, 10_000).scan.complete


def test_the_key_of_another_range_is_refused(op, key):
    with pytest.raises(StaleLease, match="key group is in another range"):
        op.range.look_up([key(1, 1), key(64, 1)], MUCH)
    with pytest.raises(StaleLease, match="key group is in another range"):
        op.range.look_under(key(64, 1), b"", 1, MUCH)


def test_who_was_shut_out_gets_no_answer(op, key):
    op.epoch({key(1, 1): b"one"})
    before = op.range
    op.open(run="f2r0")
    with pytest.raises(StaleLease):
        before.look_up([key(1, 1)], MUCH)


class Held:
    """A range whose every read takes its time by a clock of its own; says how long it was held."""

    def __init__(self, seconds_each, count=0, commits=()):
        self.now, self.each = 0.0, seconds_each
        self.holds, self.rests, self.commits = [], [], list(commits)
        self.entries = [(b"\0\1\1" + n.to_bytes(4, "big"), b"v") for n in range(count)]

    @contextmanager
    def view(self):
        began = self.now
        yield Version(self.commits.pop(0) if self.commits else 7, "d"), self
        self.holds.append(self.now - began)

    def rest(self, seconds):
        self.rests.append(seconds)
        self.now += seconds

    def get_many(self, keys):
        self.now += self.each * len(keys)
        return [b"v"] * len(keys)

    @contextmanager
    def cursor(self, _lower, _upper):
        yield self

    def seek(self, key):
        self.at = next((i for i, (k, _) in enumerate(self.entries) if k >= key), len(self.entries))

    def take(self, _end, entries, _size):
        some = self.entries[self.at : self.at + entries]
        self.at += len(some)
        self.now += self.each * len(some)
        whole = self.at == len(self.entries)
        return [k for k, _ in some], [v for _, v in some], whole


SPEC = RangeSpec("op", 0, 9)


@pytest.mark.parametrize("microseconds", [1, 20, 300, 1900])
def test_a_range_is_held_two_milliseconds_at_a_time(microseconds):
    held = Held(microseconds / 1e6, count=3000)
    times: Any = {"clock": lambda: held.now, "rest": held.rest}
    keys = [k for k, _ in held.entries]
    assert len(lookups.cells(SPEC, held.view, keys, MUCH, **times).values) == 3000
    found = lookups.under(SPEC, held.view, b"\0\1\1", b"", 10_000, MUCH, **times)
    assert found.scan.keys == keys
    assert max(held.holds) <= HOLD_SECONDS + 1e-9
    assert len(held.holds) >= 2


def test_between_two_turns_the_range_is_left_to_others_for_as_long_as_it_was_held():
    held = Held(100e-6, count=1000)
    keys = [k for k, _ in held.entries]
    lookups.cells(SPEC, held.view, keys, MUCH, clock=lambda: held.now, rest=held.rest)
    assert sum(held.rests) == pytest.approx(sum(held.holds[:-1]))


@pytest.mark.parametrize("what", ["cells", "under"])
def test_one_answer_is_never_of_two_versions(what):
    held = Held(1e-3, count=100, commits=[7, 7, 8])
    times: Any = {"clock": lambda: held.now, "rest": held.rest}
    keys = [k for k, _ in held.entries]
    if what == "cells":
        epoch, values = lookups.cells(SPEC, held.view, keys, MUCH, **times)
    else:
        epoch, scan = lookups.under(SPEC, held.view, b"\0\1\1", b"", 1000, MUCH, **times)
        assert not scan.complete
        values = [*scan.values]
    assert epoch == 7
    assert 0 < len(values) < 100
