"""Input, truth and judgement for `audited_job`: what every key's state and output must be.

Files of rows, one window of event time each, so that the timers of a file are due with the next
one; then files that carry time on, then one in which every key is asked for its state.
"""

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["EVENTS", "FLUSH", "OUTPUT", "REPORT", "WINDOW_MS", "Audit"]

EVENTS = "key long, value long, at timestamp"
OUTPUT = (
    "key long, event string, number long, amount long, fired long, kept array<long>, "
    "kinds array<long>, subtask int, before long"
)
REPORT = 1_000_000_007
FLUSH = -1
WINDOW_MS = 1000
_BEGIN_MS = 1_700_000_000_000
_SHOWN = 5


@dataclass
class _Truth:
    """What a key must have in the end."""

    total: int = 0
    count: int = 0
    kept: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=lambda: [0] * 5)
    windows: list[int] = field(default_factory=list)


class Audit:
    """Feeds the job whose home is `home`, and judges it.

    Args:
        rows: in each file.
    """

    def __init__(self, home: Path, seed: int, keys: int = 300, rows: int = 1500) -> None:
        self._in, self._out = home / "in", home / "out"
        for folder in (self._in, self._out):
            folder.mkdir(parents=True, exist_ok=True)
        self._rng = np.random.default_rng(seed)
        self._keys, self._rows = keys, rows
        self._truth: defaultdict[int, _Truth] = defaultdict(_Truth)
        self.files = 0

    def feed(self) -> None:
        """One more file of rows."""
        keys = self._rng.integers(0, self._keys, self._rows)
        values = self._rng.integers(-1000, 1000, self._rows)
        begin = self._write(keys, values)
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            truth = self._truth[key]
            truth.count += 1
            truth.total += value
            if value % 10 == 0:
                truth.kept.append(value)
            truth.kinds[value % 5] += 1
        for key in np.unique(keys).tolist():
            self._truth[key].windows.append(begin + WINDOW_MS)

    def close(self) -> None:
        """Carry time on until every timer is due, and ask for all state."""
        for _ in range(2):
            self._write(np.array([FLUSH]), np.array([0]))
        keys = np.array(sorted(self._truth))
        self._write(keys, np.full(len(keys), REPORT))

    @property
    def expected_rows(self) -> int:
        """How many rows of output there will be."""
        return sum(t.count + len(t.windows) + 1 for t in self._truth.values())

    def published_rows(self) -> int:
        """How many there are."""
        return sum(pq.read_metadata(path).num_rows for path in self._out.glob("part-*.parquet"))

    def problems(self) -> list[str]:
        """What is wrong with a job that has published all; nothing, if the list is empty."""
        files = sorted(self._out.glob("part-*.parquet"))
        rows = pa.concat_tables([pq.read_table(path) for path in files]).to_pylist()
        by_key: defaultdict[int, list[dict]] = defaultdict(list)
        for row in rows:
            by_key[row["key"]].append(row)
        problems = []
        if missing := sorted(set(self._truth) ^ set(by_key)):
            problems.append(f"keys that should not be, or should: {missing[:_SHOWN]}")
        before: dict[int, set[int]] = defaultdict(set)
        for key, truth in self._truth.items():
            problems += [f"key {key}: {text}" for text in _judge(truth, by_key[key])]
            for row in by_key[key]:
                if row["event"] == "report":
                    before[row["subtask"]].add(row["before"])
        seen = sum(sum(counts) for counts in before.values())
        counted = sum(truth.count for truth in self._truth.values())
        if any(len(counts) > 1 for counts in before.values()) or seen != counted:
            problems.append(f"operator state has {seen} rows of {counted}: {dict(before)}")
        return problems

    def _write(self, keys: np.ndarray, values: np.ndarray) -> int:
        begin = _BEGIN_MS + self.files * WINDOW_MS
        at = begin + self._rng.integers(0, WINDOW_MS, len(keys))
        moments = pa.array(at * 1000, pa.timestamp("us", "UTC"))
        table = pa.table({"key": keys, "value": values, "at": moments})
        path = self._in / f"{self.files:05d}.parquet"
        # Hidden until it is whole, and as old as its number says, which is the order of reading.
        hidden = path.with_name(f".{path.name}")
        pq.write_table(table, hidden)
        os.utime(hidden, (1.6e9 + self.files, 1.6e9 + self.files))
        hidden.rename(path)
        self.files += 1
        return begin


def _judge(truth: _Truth, rows: list[dict]) -> list[str]:
    problems = []
    told = sorted((r["number"], r["amount"]) for r in rows if r["event"] == "row")
    if [number for number, _ in told] != list(range(1, truth.count + 1)):
        problems.append(f"rows are missing or repeated: {len(told)} of {truth.count}")
    elif told[-1][1] != truth.total:
        problems.append(f"its sum is {told[-1][1]}, not {truth.total}")
    fired = sorted((r["number"], r["amount"]) for r in rows if r["event"] == "timer")
    if fired != list(enumerate(truth.windows, 1)):
        problems.append(f"timers are {fired[:_SHOWN]}, not {truth.windows[:_SHOWN]}")
    reports = [r for r in rows if r["event"] == "report"]
    if len(reports) != 1:
        return [*problems, f"{len(reports)} reports"]
    report = reports[0]
    wanted = {
        "number": truth.count,
        "amount": truth.total,
        "fired": len(truth.windows),
        "kept": sorted(truth.kept),
        "kinds": truth.kinds,
    }
    found = {name: report[name] for name in wanted} | {"kept": sorted(report["kept"])}
    problems += [
        f"state {name} is {found[name]}, not {wanted[name]}"
        for name in wanted
        if found[name] != wanted[name]
    ]
    return problems
