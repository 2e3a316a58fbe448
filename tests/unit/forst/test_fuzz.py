"""Random reads, writes, evictions, compactions, rewinds and failures beside an oracle."""

import random

import pytest

from moorage_state.errors import StoreUnavailable
from moorage_state.forst import CacheLimits, compaction


class Walk:
    """Steps on a database, each of which checks what it reads."""

    READS = ("read", "read_one", "scan")

    def __init__(self, make, seed, keys):
        self.rng = random.Random(seed)
        self.keys = keys
        size = self.rng.choice([0, 300 << 10, 100 << 10])
        self.kept = make(CacheLimits(size=size, reserve=0))
        self.unanswered = 0

    def step(self, name):
        """One step; a store that does not answer makes reads fail, and nothing else."""
        self.kept.store.broken = name in self.READS and self.rng.random() < 0.1
        try:
            getattr(self, name)()
        except StoreUnavailable:
            self.unanswered += 1
        self.kept.store.broken = False

    def key(self):
        return self.rng.randrange(self.keys).to_bytes(8, "big")

    def write(self):
        rng = self.rng
        changes = {self.key(): rng.randbytes(rng.randrange(300)) for _ in range(rng.randrange(200))}
        self.kept.write(changes | {self.key(): None for _ in range(rng.randrange(20))})

    def write_range(self):
        start = self.rng.randrange(self.keys)
        end = start + self.rng.randrange(self.keys // 20)
        self.kept.write(
            {self.key(): b"after"}, [(start.to_bytes(8, "big"), end.to_bytes(8, "big"))]
        )

    def read(self):
        asked = [self.key() for _ in range(self.rng.randrange(1, 300))]
        if self.rng.random() < 0.5:
            asked.sort()
        assert self.kept.db.get_many(asked) == [self.kept.model.get(one) for one in asked]

    def read_one(self):
        one = self.key()
        assert self.kept.db.get(one) == self.kept.model.get(one)

    def scan(self):
        lower, upper = sorted([self.key(), self.key()])
        model = self.kept.model
        expected = [(key, model[key]) for key in sorted(model) if lower <= key < upper]
        assert list(self.kept.scan(lower, upper).items()) == expected

    def evict(self):
        self.kept.db.evict(lambda _: self.rng.random() < 0.7)

    def checkpoint(self):
        self.kept.checkpoint()

    def rewind(self):
        if self.kept.refs:
            self.kept.reopen()

    def flush(self):
        self.kept.db.flush()

    def compact(self):
        self.kept.db.compact_slice()


ONCE = ("write_range", "checkpoint", "rewind", "flush", "compact")
STEPS = {"write": 6, "read": 6, "read_one": 3, "scan": 2, "evict": 3, **dict.fromkeys(ONCE, 1)}


def walked(make, monkeypatch, seed, steps, keys):
    """A walk of so many steps, at whose end everything is read."""
    monkeypatch.setattr(compaction, "SECOND_LEVEL_BYTES", 64 << 10)
    walk = Walk(make, seed, keys)
    for name in walk.rng.choices(list(STEPS), list(STEPS.values()), k=steps):
        walk.step(name)
    assert walk.kept.scan() == dict(sorted(walk.kept.model.items()))
    return walk


@pytest.mark.parametrize("seed", range(4))
def test_no_answer_is_wrong_whatever_is_away(make, monkeypatch, seed):
    walk = walked(make, monkeypatch, seed, 600, 3000)
    assert walk.kept.cache.misses > 20
    assert walk.unanswered


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 130))
def test_no_answer_is_wrong_for_long(make, monkeypatch, seed):
    walked(make, monkeypatch, seed, 3000, 20_000)
