"""Reads per second of a range that was restored, beside the one that wrote the state.

    python -m benchmarks.reads [--keys 500000] [--rounds 7]

The same state in four forms, each in a state server's host of its own with the default options: as
it was written, opened again from the local copy, fetched from the store, and joined from two
ranges. Reads are sorted multi-gets of keys chosen at random, of keys that are there and of keys
that never were. The forms take turns within a round and ratios are taken within a round, so that a
disturbance hits all. The goal is that no form reads slower than nine tenths of the one that was
written; the exit status says whether it was reached.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from moorage_state.deltas import encode_frame
from moorage_state.server import (
    RangeHost,
    RangeSpec,
    RestoreBase,
    UploadLimits,
    UploadRequest,
    Version,
)
from moorage_state.snapshots import RangeHandle
from moorage_state.snapshots.parts import read_part
from moorage_state.stores import open_store

GOAL = 0.9
FORMS = ("written", "local", "store", "ranges")
_EPOCH_KEYS = 50_000
_READ_KEYS = 20_000
_GROUPS = 64
_VALUE_BYTES = 150


class Range(NamedTuple):
    """An open range at a version."""

    host: RangeHost
    spec: RangeSpec
    run: str
    version: Version

    def read(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of sorted keys."""
        return self.host.range(self.spec.lease(self.run)).get_many(self.version, keys)

    def checkpoint(self, number: int, url: str) -> RangeHandle:
        """Snapshot and upload."""
        self.host.range(self.spec.lease(self.run)).snapshot(number, self.version)
        request = [UploadRequest(self.spec.uid, self.spec.start, [])]
        written = self.host.upload_many(self.run, number, url, request, UploadLimits())
        return read_part(open_store(url), written.part.ref).handles[0]


def key_of(number: int) -> bytes:
    """The stored key of an even number; those of odd ones are never written."""
    return (number % _GROUPS).to_bytes(2, "big") + b"\x01" + number.to_bytes(8, "big")


def _opened(
    host: RangeHost,
    run: str,
    url: str,
    base: RestoreBase | None = None,
    first: int = 0,
    last: int = 63,
) -> Range:
    spec = RangeSpec("reads", first, last)
    return Range(host, spec, run, host.open_range(spec, run, base, [], url).version)


def _write(opened: Range, numbers: list[int]) -> Range:
    range_ = opened.host.range(opened.spec.lease(opened.run))
    rng, version = random.Random(1), opened.version  # noqa: S311 - the same in every run
    for at in range(0, len(numbers), _EPOCH_KEYS):
        keys = sorted(map(key_of, numbers[at : at + _EPOCH_KEYS]))
        frame = encode_frame([], keys, [rng.randbytes(_VALUE_BYTES) for _ in keys])
        epoch = version.epoch + 1
        range_.stage(epoch, "a", frame, 0)
        made = range_.prepare(epoch, "a", version.digest, 1)
        version = Version(epoch, made.digest)
        range_.commit(epoch, made.digest, True)
    return opened._replace(version=version)


@contextmanager
def forms(folder: Path, numbers: list[int]) -> Iterator[dict[str, Range]]:
    """The state in all forms, open."""
    (folder / "objects").mkdir()
    url = f"file://{folder}/objects"
    with ExitStack() as stack:

        def host(name: str) -> RangeHost:
            return stack.enter_context(RangeHost(folder / name))

        first = _write(_opened(host("first"), "f1r0", url), numbers)
        base = RestoreBase(1, first.version.epoch, [first.checkpoint(1, url)])
        first.host.notify_complete(1)
        local = _opened(first.host, "f2r0", url, base)
        # The one that wrote it was ended by its successor: written anew, in the same order.
        written = _write(_opened(host("written"), "f1r0", url), numbers)
        written.checkpoint(1, url)
        halves = host("halves")
        parts = [_opened(halves, "f3r0", url, base, at, at + 31) for at in (0, 32)]
        joined = RestoreBase(2, base.epoch, [part.checkpoint(2, url) for part in parts])
        yield {
            "written": written,
            "local": local,
            "store": _opened(host("store"), "f4r0", url, base),
            "ranges": _opened(host("ranges"), "f5r0", url, joined),
        }


def reads_per_second(opened: Range, batches: list[list[bytes]]) -> float:
    """Keys by the seconds that they took."""
    began = time.perf_counter()
    for keys in batches:
        opened.read(keys)
    return sum(map(len, batches)) / (time.perf_counter() - began)


def measured(keys: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Reads per second by what was read and form, one for each round."""
    numbers = [2 * n for n in range(keys)]
    rng = random.Random(2)  # noqa: S311 - the same in every run
    rng.shuffle(numbers)
    found: dict[str, dict[str, list[float]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="moorage-bench-") as folder,
        forms(Path(folder), numbers) as opened,
    ):
        for _ in range(rounds + 1):
            some = [
                sorted(map(key_of, rng.sample(numbers, min(keys, _READ_KEYS)))) for _ in range(5)
            ]
            absent = [sorted(key_of(2 * rng.randrange(keys) + 1) for _ in batch) for batch in some]
            for what, batches in (("present", some), ("absent", absent)):
                for form in FORMS:
                    figure = reads_per_second(opened[form], batches)
                    found.setdefault(what, {}).setdefault(form, []).append(figure)
    # The first round fills the caches.
    return {what: {form: each[1:] for form, each in by.items()} for what, by in found.items()}


def main(arguments: list[str] | None = None) -> int:
    """Measure all, print a table; 0 if the goal was reached."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(arguments)
    print(f"keys={given.keys} rounds={given.rounds} load={os.getloadavg()[0]:.1f}")
    worst = float("inf")
    for what, figures in measured(given.keys, given.rounds).items():
        for form in FORMS:
            pairs = zip(figures[form], figures["written"], strict=True)
            ratio = statistics.median(one / other for one, other in pairs)
            worst = min(worst, ratio)
            print(f"{what:8} {form:8} {statistics.median(figures[form]):12,.0f}/s {ratio:6.2f}")
    print(f"goal: at least {GOAL} of the reads of the state as it was written; worst {worst:.2f}")
    return 0 if worst >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
