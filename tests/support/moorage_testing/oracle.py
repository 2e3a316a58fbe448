"""What must be true of a finished counting job, computed with NumPy from its input."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from moorage_state.codecs import decoder
from moorage_state.keylayout import state_id
from moorage_state.keys import KeyCodec
from moorage_state.server import RangeHost
from moorage_state.server.operations import Lease, RangeSpec, RestoreBase
from moorage_state.snapshots import CheckpointStore, LineageLog, Manifest, retained
from moorage_state.stores import open_store


def expected(events: Path) -> dict[int, tuple[int, int]]:
    """By key: how many events and the sum of their values."""
    tables = [pq.read_table(p) for p in sorted(events.glob("*.parquet"))]
    keys = np.concatenate([t["key"].to_numpy() for t in tables])
    values = np.concatenate([t["value"].to_numpy() for t in tables])
    unique, where = np.unique(keys, return_inverse=True)
    counts = np.bincount(where)
    sums = np.zeros(len(unique), dtype=np.int64)
    np.add.at(sums, where, values)
    return dict(zip(unique.tolist(), zip(counts.tolist(), sums.tolist(), strict=True), strict=True))


def newest_manifest(checkpoints: Path | str) -> Manifest:
    """The manifest of the newest retained checkpoint in a directory or at an address."""
    store = open_store(_address(checkpoints))
    entries = [entry for _, entry in LineageLog.open(store).read()]
    return CheckpointStore(store).load(retained(entries)[0])


def _address(checkpoints: Path | str) -> str:
    return checkpoints if isinstance(checkpoints, str) else f"file://{checkpoints}"


def stored_values(checkpoints: Path | str, uid: str, state: str, ddl: str) -> dict[int, object]:
    """A value state by its long key, read from the newest checkpoint alone."""
    manifest = newest_manifest(checkpoints)
    decode, keys, sid = decoder(ddl), KeyCodec(["long"]), state_id(state)
    found: dict[int, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        host = RangeHost(Path(folder))
        for handle in manifest.operators[uid].subtasks:
            spec = RangeSpec(uid, handle.start, handle.end)
            base = RestoreBase(manifest.checkpoint_id, manifest.epoch, [handle])
            opened = host.open_range(spec, "f999999r0", base, [], _address(checkpoints))
            entries = host.range(spec.lease("f999999r0"))
            for group in range(handle.start, handle.end + 1):
                prefix, after = group.to_bytes(2, "big") + b"\x01", b""
                while True:
                    scan = entries.scan_from(opened.version, prefix, after)
                    for key, value in zip(scan.keys, scan.values, strict=True):
                        length = int.from_bytes(key[3:7], "big")
                        if key[7 + length : 11 + length] == sid:
                            found[keys.decode(key[7 : 7 + length])[0]] = decode(value)
                    if scan.complete:
                        break
                    after = scan.keys[-1]
        for handle in manifest.operators[uid].subtasks:
            host.release_range(Lease(uid, handle.start, "f999999r0"))
    return found


def judge(home: Path, truth: dict[int, tuple[int, int]], url: str = "") -> list[str]:
    """What is wrong with a finished job: nothing, if the list is empty.

    `url` is where its checkpoints are, if not in its home.
    """
    problems = []
    checkpoints = url or home / "checkpoints"
    counts = stored_values(checkpoints, "count", "count", "long")
    totals = stored_values(checkpoints, "count", "total", "long")
    if counts != {key: count for key, (count, _) in truth.items()}:
        problems.append("counts in state differ from the oracle's")
    if totals != {key: total for key, (_, total) in truth.items()}:
        problems.append("sums in state differ from the oracle's")
    return problems + _judge_output(home / "out", truth)


def _judge_output(out: Path, truth: dict[int, tuple[int, int]]) -> list[str]:
    """Each key's rows must be numbered 1, 2, ... n and end with the right sum."""
    files = sorted(out.glob("part-*.parquet"))
    tables = [pq.read_table(path) for path in files]
    keys = np.concatenate([t["key"].to_numpy() for t in tables])
    numbers = np.concatenate([t["count"].to_numpy() for t in tables])
    totals = np.concatenate([t["total"].to_numpy() for t in tables])
    order = np.lexsort((numbers, keys))
    keys, numbers, totals = keys[order], numbers[order], totals[order]
    last = np.flatnonzero(np.append(keys[1:] != keys[:-1], True))
    first = np.concatenate(([0], last[:-1] + 1))
    problems = []
    if not np.array_equal(numbers, np.arange(len(keys)) - np.repeat(first, last - first + 1) + 1):
        problems.append("published rows are missing or repeated")
    published = {int(keys[i]): (int(numbers[i]), int(totals[i])) for i in last}
    if published != truth:
        problems.append("the last published row of some key differs from the oracle's")
    return problems
