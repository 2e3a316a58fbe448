"""Timers of many keys at once: what is due, and every stored byte, as a dict of sets says."""

from random import Random
from typing import Any

import pytest
from moorage_testing.fake_range import FakeRange

from moorage.engine.chunk_timers import KINDS, ChunkTimers
from moorage_state.keyed import KeyedStateStore, KeyTimers, TimeDomain
from moorage_state.keyed.many_timers import stored_timers
from moorage_state.keyed.timers import TIMERS_STATE
from moorage_state.keylayout import key_prefix, state_id, timer_entry

EVENT, PROCESSING = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME
NOW = 100


class Model:
    """By key its timers of each domain, and those that wait for the next epoch."""

    def __init__(self, keys):
        self.timers: dict[Any, tuple[set[int], set[int]]] = {key: (set(), set()) for key in keys}
        self.held: dict[Any, set[int]] = {key: set() for key in keys}

    def pop_due(self, keys, domain, up_to):
        found = []
        for position, key in keys:
            due = sorted(t for t in self.timers[key][domain] if t <= up_to)
            self.timers[key][domain].difference_update(due)
            found += [(position, t) for t in due]
        return found

    def stored(self):
        entries = {}
        for (group, key), timers in self.timers.items():
            if not any(timers):
                continue
            cell = key_prefix(group, key) + state_id(TIMERS_STATE)
            for rest, value in stored_timers(*map(sorted, timers)):
                entries[cell + rest] = value
            for kind, times in zip(KINDS, timers, strict=True):
                entries |= {timer_entry(group, t, key, kind): b"" for t in times}
        return entries


def times(rng, key):
    # One key has very many, so that it has an entry for each.
    return rng.sample(range(200, 2000), 600) if key == KEYS[1] else rng.choices(range(200), k=3)


KEYS = [(1, b"a"), (1, b"b"), (2, b"c"), (3, b"d"), (3, b"e")]


@pytest.mark.parametrize("seed", range(12))
def test_timers_of_many_keys_are_those_of_a_dict_of_sets(seed):
    rng, server, model = Random(seed), FakeRange(), Model(KEYS)
    for epoch in range(5):
        store = KeyedStateStore(server, epoch)
        timers, last = ChunkTimers(store), None
        keys = list(KEYS)
        while keys:
            # A key whose rows run on is the last of a chunk and the first of the next.
            chunk = ([last] if last else []) + [keys.pop(0) for _ in range(min(2, len(keys)))]
            step(rng, timers, model, chunk, runs_on=last is not None)
            last = chunk[-1] if rng.random() < 0.5 else None
            if last is None:
                timers.finish()
        timers.finish()
        store.finish()
        server.commit()
        for key, held in model.held.items():
            model.timers[key][PROCESSING].update(held)
            held.clear()
        assert server.entries == model.stored()
    assert len(server.entries) > 600


def step(rng, timers, model, chunk, *, runs_on):
    timers.begin([key_prefix(*key) for key in chunk], runs_on=runs_on)
    assert timers.touched or not runs_on or not any(model.held[chunk[0]])
    for _ in range(rng.randint(0, 4)):
        domain, given = rng.choice([EVENT, PROCESSING]), rng.choices(range(len(chunk)), k=2)
        pairs = [(p, t) for p in given for t in times(rng, chunk[p])]
        positions, at = zip(*pairs, strict=True)
        doing = rng.choice(["register", "register", "fire", "delete"])
        if doing == "fire":
            due = model.pop_due(list(enumerate(chunk)), domain, NOW)
            assert fired(timers, chunk, domain) == due
            with timers.firing(quiesced=False):
                timers.register(positions, at, domain, NOW)
            for p, t in pairs:
                hold = domain is PROCESSING and t <= NOW
                (model.held[chunk[p]] if hold else model.timers[chunk[p]][domain]).add(t)
        elif doing == "register":
            timers.register(positions, at, domain, NOW)
            for p, t in pairs:
                if domain is EVENT or t not in model.held[chunk[p]]:
                    model.timers[chunk[p]][domain].add(t)
        else:
            timers.delete(positions, at, domain)
            for p, t in pairs:
                model.timers[chunk[p]][domain].discard(t)
                if domain is PROCESSING:
                    model.held[chunk[p]].discard(t)
    timers.end()


def fired(timers, chunk, domain):
    due, _ = timers.pop_due(range(len(chunk)), domain, NOW)
    return [] if due is None else list(zip(due.key_index.tolist(), due.times.tolist(), strict=True))


def test_keys_of_which_some_were_due_as_stored_are_told_once():
    server, keys = FakeRange(), [key_prefix(*key) for key in KEYS]
    for epoch in range(2):
        store = KeyedStateStore(server, epoch)
        timers = ChunkTimers(store)
        timers.begin(keys, runs_on=False)
        if epoch:
            assert timers.pop_due(range(5), EVENT, NOW)[1] == [0, 3]
            assert timers.pop_due(range(5), EVENT, NOW) == (None, [])
        else:
            timers.register([0, 3, 4], [7, 8, NOW + 1], EVENT, NOW)
        timers.end()
        timers.finish()
        store.finish()
        server.commit()


def test_nothing_is_set_when_nothing_comes_after(caplog):
    server = FakeRange()
    store = KeyedStateStore(server, 0)
    timers = ChunkTimers(store)
    timers.begin([key_prefix(*KEYS[0])], runs_on=False)
    timers.register([0, 0], [1, 5], EVENT, NOW)
    due = timers.pop_due(range(1), EVENT, 1)[0]
    assert due is not None
    assert list(due.times) == [1]
    with timers.firing(quiesced=True):
        timers.register([0], [5], EVENT, NOW)
        assert not caplog.messages  # it is set, and will fire
        timers.register([0, 0], [2, 5], EVENT, NOW)
        timers.register([0], [3], EVENT, NOW)
    due = timers.pop_due(range(1), EVENT, 9)[0]
    assert due is not None
    assert list(due.times) == [5]
    timers.end()
    timers.finish()
    store.finish()
    server.commit()
    assert (timers.ignored, server.entries) == (2, {})
    (said,) = caplog.messages
    assert said.startswith("timers set at the end of their keys are ignored: times=1 first=2;")


def entries_after_rows(server, count, fired):
    """By rows a key gets an entry for each of its timers, and keeps them when most have fired."""
    prefix = key_prefix(*KEYS[0])
    for epoch in range(2):
        store = KeyedStateStore(server, epoch)
        timers = KeyTimers(store)
        store.begin_chunk([prefix])
        store.switch_to(0)
        if epoch:
            assert [timers.pop_due(fired - 1) for _ in range(fired)] == list(range(fired))
        else:
            for n in range(count):
                timers.register(n)
                timers.register(10_000 + n, PROCESSING)
        store.finish()
        server.commit()


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("more", [[], [5_000], [600], range(5_000, 6_000)])
def test_a_key_that_has_entries_for_few_timers_has_them_packed_or_all_of_them(more, others):
    server, model = FakeRange(), Model(KEYS)
    entries_after_rows(server, 350, fired=300)
    assert len(server.entries) == 1 + 2 * (50 + 350)
    model.timers[KEYS[0]] = (set(range(300, 350)), set(range(10_000, 10_350)))
    keys = [key_prefix(*key) for key in KEYS]
    if others:
        # One that has the same timers, packed.
        model.timers[KEYS[1]] = model.timers[KEYS[0]]
        server.entries = model.stored() | server.entries
    store = KeyedStateStore(server, 2)
    timers = ChunkTimers(store)
    for runs_on in (False, True):
        timers.begin(keys[:1] if runs_on else keys[:0:-1] + keys[:1], runs_on=runs_on)
        if not runs_on:
            at = len(keys) - 1
            due, _ = timers.pop_due(range(at, at + 1), EVENT, 310)
            assert due is not None
            assert due.times.tolist() == list(range(300, 311))
            timers.register([at] * len(more), list(more), EVENT, NOW)
        timers.end()
    timers.finish()
    store.finish()
    server.commit()
    event, processing = model.timers[KEYS[0]]
    model.timers[KEYS[0]] = (event - set(range(311)) | set(more), processing)
    assert server.entries == model.stored()


def test_a_key_that_has_entries_for_few_timers_has_none_when_all_fired():
    server = FakeRange()
    entries_after_rows(server, 350, fired=300)
    store = KeyedStateStore(server, 2)
    timers = ChunkTimers(store)
    timers.begin([key_prefix(*KEYS[0])], runs_on=False)
    timers.pop_due(range(1), EVENT, 20_000)
    timers.pop_due(range(1), PROCESSING, 20_000)
    timers.end()
    timers.finish()
    store.finish()
    server.commit()
    assert server.entries == {}
