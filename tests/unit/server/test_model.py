"""Random lives of an operator against a dictionary: epochs, crashes, rewinds and rescales."""

import random

import pytest

from moorage_state.deltas import encode_frame
from moorage_state.server import RangeHost, RestoreBase, UploadLimits

LIMITS = [
    UploadLimits(),
    UploadLimits(inline_range=0, inline_file=100, merge_below=4096, pack=8192),
    UploadLimits(inline_range=0, inline_file=-1, merge_below=0),
]


class Life:
    """An operator over the key groups 0 to 15, and what its state must be."""

    def __init__(self, seed, root, small, drive, key):
        self.rng = random.Random(seed)
        self.root, self.small, self.drive, self.key = root, small, drive, key
        self.host = RangeHost(root, small)
        self.fence, self.checkpoint_id = 1, 0
        self.model, self.saved = {}, {}
        self.base, self.epoch = None, 0
        self.parts = []
        self.begin(self.rng.randint(1, 4))

    def begin(self, parallelism):
        """Another run, from the last checkpoint if there is one."""
        cuts = [16 * i // parallelism for i in range(parallelism + 1)]
        run = f"f{self.fence}r0"
        self.fence += 1
        self.parts = [
            self.drive(self.host, cuts[i], cuts[i + 1] - 1, run) for i in range(parallelism)
        ]
        for part in self.parts:
            part.open(self.base)
        self.model = dict(self.saved)

    def step_epoch(self):
        for part in self.parts:
            writes = {
                self.key(
                    self.rng.randint(part.spec.start, part.spec.end), self.rng.randrange(30)
                ): self.rng.choice([None, self.rng.randbytes(self.rng.randrange(300))])
                for _ in range(self.rng.randrange(40))
            }
            lower, upper = sorted(
                self.key(self.rng.randint(part.spec.start, part.spec.end), self.rng.randrange(30))
                for _ in range(2)
            )
            ranges = [(lower, upper)] if self.rng.random() < 0.2 else []
            self.loser(part)
            part.epoch(writes, ranges)
            for low, high in ranges:
                self.model = {k: v for k, v in self.model.items() if not low <= k < high}
            self.model |= writes
        self.model = {k: v for k, v in self.model.items() if v is not None}

    def loser(self, part):
        """An attempt that is prepared or half staged, and never committed."""
        epoch = part.version.epoch + 1
        frame = encode_frame([], [self.key(part.spec.start, 99)], [b"loser"])
        if self.rng.random() < 0.3:
            part.range.stage(epoch, "loser", frame, 0)
            if self.rng.random() < 0.5:
                part.range.prepare(epoch, "loser", part.version.digest, 1)

    def step_checkpoint(self):
        self.checkpoint_id += 1
        for part in self.parts:
            part.range.snapshot(self.checkpoint_id, part.version)
        base = [ref for handle in (self.base.handles if self.base else []) for ref in handle.files]
        for part in self.parts:
            part.limits = self.rng.choice(LIMITS)
        handles = [part.checkpoint(self.checkpoint_id, base) for part in self.parts]
        self.base = RestoreBase(self.checkpoint_id, self.parts[0].version.epoch, handles)
        self.saved = dict(self.model)

    def step_restart(self):
        """The server comes back; the run goes on where it was."""
        self.host.close()
        self.host = RangeHost(self.root, self.small)
        for part in self.parts:
            version, part.api = part.version, self.host
            assert part.open().version == version

    def step_rewind(self):
        self.begin(len(self.parts))

    def step_rescale(self):
        self.begin(self.rng.randint(1, 5))

    def check(self):
        assert {k: v for part in self.parts for k, v in part.read().items()} == self.model


@pytest.mark.parametrize("seed", range(3))
def test_state_equals_the_model_through_any_life(seed, tmp_path, small, drive, key):
    life = Life(seed, tmp_path / "local", small, drive, key)
    steps = [life.step_epoch] * 12 + [life.step_checkpoint] * 4 + [life.step_restart] * 2
    steps += [life.step_rewind, life.step_rescale]
    for _ in range(40):
        life.rng.choice(steps)()
        life.check()
    life.host.close()
