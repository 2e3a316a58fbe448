"""Scans under prefixes, and due timers over all key groups of a range."""

import itertools
import random

import pytest

from moorage_state.database import Scan
from moorage_state.keylayout import timer_entry


@pytest.fixture
def op(api, drive):
    driven = drive(api, 2, 40)
    driven.open()
    yield driven
    api.release_range(driven.lease)


def prefixed(name, count):
    return {b"\x00\x05\x01" + name + bytes([n]): bytes([n]) * 10 for n in range(count)}


def scan(op, prefixes, *limits):
    return op.range.scan_many(op.version, prefixes, *limits)


def test_each_prefix_gets_its_own_entries(op):
    op.epoch(prefixed(b"aa", 3) | prefixed(b"ab", 2) | prefixed(b"ac", 1))
    head = b"\x00\x05\x01"
    found = scan(op, [head + b"ac", head + b"aa", head + b"zz", head + b"ab"])
    assert [len(s.keys) for s in found] == [1, 3, 0, 2]
    assert found[1] == Scan(
        [head + b"aa" + bytes([n]) for n in range(3)], [bytes([n]) * 10 for n in range(3)], True
    )
    assert all(s.complete for s in found)


def test_a_hot_prefix_is_cut_and_paged(op):
    op.epoch(prefixed(b"hot", 100))
    prefix = b"\x00\x05\x01hot"
    (first,) = scan(op, [prefix], 30, 1 << 20)
    keys, complete = first.keys, first.complete
    assert (len(keys), complete) == (30, False)
    while not complete:
        page = op.range.scan_from(op.version, prefix, keys[-1], 30)
        keys, complete = keys + page.keys, page.complete
    assert keys == sorted(prefixed(b"hot", 100))


def test_a_scan_that_ends_exactly_at_the_limit_is_complete(op):
    op.epoch(prefixed(b"x", 30) | prefixed(b"y", 1))
    (found,) = scan(op, [b"\x00\x05\x01x"], 30, 1 << 20)
    assert (len(found.keys), found.complete) == (30, True)


def test_the_whole_answer_is_bounded_in_bytes(op):
    op.epoch(prefixed(b"a", 10) | prefixed(b"b", 10))
    first, second = scan(op, [b"\x00\x05\x01a", b"\x00\x05\x01b"], 100, 1)
    assert (len(first.keys), first.complete) == (1, False)
    assert second == Scan([], [], False)
    page = op.range.scan_from(op.version, b"\x00\x05\x01b")
    assert (len(page.keys), page.complete) == (10, True)


def test_a_page_is_bounded_in_bytes_however_large_its_entries_are(op):
    head = b"\x00\x05\x01big"
    op.epoch({head + bytes([n]): bytes([n]) * (3 << 20) for n in range(4)})
    page = op.range.scan_from(op.version, head)
    assert (len(page.keys), page.complete) == (3, False)
    last = op.range.scan_from(op.version, head, page.keys[-1])
    assert (len(last.keys), last.complete) == (1, True)


def test_a_prefix_of_0xff_bytes_after_the_key_group_is_scanned(op):
    keys = {b"\x00\x05\x01\xff\xff" + bytes([n]): b"v" for n in range(3)}
    op.epoch(keys | {b"\x00\x05\x02": b"other"})
    assert scan(op, [b"\x00\x05\x01\xff\xff"])[0].keys == sorted(keys)


def due(op, up_to, limit=1000, after=b""):
    return op.range.due_timers(op.version, up_to, limit, after)


def test_due_timers_come_by_key_group_time_and_key(op):
    rng = random.Random(7)
    entries = [
        (rng.randint(2, 40), rng.choice([-(1 << 63), -5, 0, 1, 5, 9, 10, 11, (1 << 63) - 1]), k)
        for k in (b"a", b"b", b"")
        for _ in range(40)
    ]
    noise = {
        g.to_bytes(2, "big") + kind + b"n": b"" for g in range(2, 41) for kind in (b"\1", b"\3")
    }
    op.epoch(noise | {timer_entry(*entry): b"" for entry in entries})
    for up_to in (-(1 << 63), -6, 0, 10, (1 << 63) - 1):
        expected = sorted(timer_entry(*e) for e in set(entries) if e[1] <= up_to)
        assert due(op, up_to) == expected
        paged: list[bytes] = []
        after = b""
        while page := due(op, up_to, 7, after):
            paged, after = paged + page, page[-1]
        assert paged == expected


def test_a_range_without_timers_has_none_due(op, key):
    assert due(op, 1 << 40) == []
    op.epoch({key(40, 1): b"x", key(2, 1): b"x"})
    assert due(op, 1 << 40) == []


def test_the_limit_is_kept_across_key_groups(op):
    op.epoch({timer_entry(group, 1, b"k"): b"" for group in range(2, 41)})
    assert due(op, 1, 10) == [timer_entry(group, 1, b"k") for group in range(2, 12)]


def test_the_next_timer_is_the_earliest_of_its_kind_over_all_key_groups(op):
    rng = random.Random(11)
    times: dict[int, list[int]] = {2: [], 3: []}
    entries = {}
    for kind, group in itertools.product((2, 3), range(2, 41, 3)):
        for time in rng.sample(range(-50, 50), 3):
            times[kind].append(time)
            entries[timer_entry(group, time, b"k", kind)] = b""
    op.epoch(entries | {group.to_bytes(2, "big") + b"\1n": b"" for group in range(2, 41)})
    for kind, after in itertools.product((2, 3), (-(1 << 63), -20, 0, 30, 60, (1 << 63) - 1)):
        found = op.range.next_timer(op.version, after, kind)
        assert found == min((t for t in times[kind] if t > after), default=None)


def test_a_range_without_timers_has_no_next_one(op, key):
    assert op.range.next_timer(op.version, 0, 3) is None
    op.epoch({key(40, 1): b"x", key(2, 1): b"x"})
    assert op.range.next_timer(op.version, 0, 3) is None
