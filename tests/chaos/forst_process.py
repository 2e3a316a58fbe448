"""A range of `forst` in a process of its own, killed where its files come, go and are rewritten.

    python forst_process.py URL FOLDER RUN

Restores what FOLDER/saved says was completed last, reads all of it, then writes, reads and takes
checkpoints for some epochs. Prints `right`, or what is wrong.
"""

import pickle
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moorage_testing.parts import handles_of

from moorage_state.deltas import encode_frame
from moorage_state.forst import compaction
from moorage_state.rocks import RocksOptions
from moorage_state.server import RangeHost, RangeSpec, UploadLimits, UploadRequest, Version
from moorage_state.server.operations import RestoreBase
from moorage_state.state_backends import ForStStateBackend

KIB = 1 << 10
EPOCHS, KEYS = 24, 3000
BACKEND = ForStStateBackend(
    cache_limit=100 * KIB,
    cache_reserve=0,
    tuned=RocksOptions(
        block_cache_bytes=64 * KIB,
        write_buffers_bytes=1024 * KIB,
        write_buffer_bytes=128 * KIB,
        target_file_bytes=32 * KIB,
        block_bytes=1 * KIB,
        slices=True,
    ),
)
APART = UploadLimits(inline_range=0, inline_file=-1, merge_below=0)
SPEC = RangeSpec("op", 0, 0)


@dataclass
class Saved:
    """The checkpoint that was completed last, and all that it has."""

    checkpoint_id: int = 0
    base: RestoreBase | None = None
    model: Mapping[bytes, bytes] | None = None


def key(number: int) -> bytes:
    return b"\x00\x00\x01" + number.to_bytes(6, "big")


def main(url: str, folder: Path, run: str) -> str:
    compaction.SECOND_LEVEL_BYTES = 64 * KIB
    path, rng = folder / "saved", random.Random(run)
    saved: Saved = pickle.loads(path.read_bytes()) if path.exists() else Saved()
    with RangeHost(folder / "local", BACKEND) as host:
        version = host.open_range(SPEC, run, saved.base, [], url).version
        opened = host.range(SPEC.lease(run))
        model = dict(saved.model or {})
        every = [key(number) for number in range(KEYS)]
        if opened.get_many(version, every) != [model.get(one) for one in every]:
            return "what was restored is not what was saved"
        for _ in range(EPOCHS):
            wanted = rng.sample(every, 300)
            if opened.get_many(version, wanted) != [model.get(one) for one in wanted]:
                return f"wrong at epoch {version.epoch}"
            changes = {one: rng.randbytes(rng.randrange(400)) for one in rng.sample(every, 400)}
            epoch, frame = version.epoch + 1, encode_frame([], [*changes], [*changes.values()])
            opened.stage(epoch, "a", frame, 0)
            version = Version(epoch, opened.prepare(epoch, "a", version.digest, 1).digest)
            opened.commit(*version, True)
            model |= changes
            if version.epoch % 3 == 0:
                saved = checkpoint(host, url, run, version, saved, model)
                fresh = path.with_suffix(".new")
                fresh.write_bytes(pickle.dumps(saved))
                fresh.replace(path)
                host.notify_complete(saved.checkpoint_id, run)
        if opened.get_many(version, every) != [model.get(one) for one in every]:
            return "wrong in the end"
    return "right"


def checkpoint(
    host: RangeHost, url: str, run: str, version: Version, saved: Saved, model: dict[bytes, bytes]
) -> Saved:
    number = saved.checkpoint_id + 1
    host.range(SPEC.lease(run)).snapshot(number, version)
    known = [file for one in saved.base.handles for file in one.files] if saved.base else []
    shared = [file for file in known if file.shared]
    request = UploadRequest(SPEC.uid, SPEC.start, shared)
    (handle,) = handles_of(url, host.upload_many(run, number, url, [request], APART))
    return Saved(number, RestoreBase(number, version.epoch, [handle]), dict(model))


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))  # noqa: T201
