"""Published output after random crashes, rewinds and stalled drivers is what it would be without.

A model of the driver stages epochs, completes checkpoints, retires old ones, goes back and forward
and starts empty. At a random place of any of these the process ends, or another driver takes over
while this one stalls and then goes on. Places are the named fail points and, on a store, before
and after every write.
"""

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from moorage import api, sinks
from moorage.api import foreach_sinks as foreach_module
from moorage.api.file_sink import FileSink
from moorage.api.foreach_sinks import ForeachCheckpoint
from moorage.api.sinks import LiveOutput, SinkContext, SinkRestore, SinkRetire, StageId
from moorage.sinks import bucket as bucket_module
from moorage.sinks import metadata_log, records
from moorage_state import failpoints
from moorage_state.errors import MoorageError
from moorage_state.stores import MemoryStore, open_store
from moorage_state.stores.base import delete_each

# Where a test may stop, kill or interrupt a sink.
PLACES = {
    "sink.staged": "a file is staged durably and not acknowledged",
    "sink.before_publish": "the checkpoint exists, a file sink has done nothing for it",
    "sink.recorded": "the record names the files (or what was handed over), nothing else is done",
    "sink.renamed": "one file of a directory is visible",
    "sink.before_commit": "the list of visible files does not have the entry",
    "sink.committed": "the list has the entry",
    "sink.before_call": "the function was not called",
    "sink.after_call": "the function was called, nothing says so",
    "sink.dropped": "one file of rows for a function is gone",
    "sink.marked": "a run has left its mark on a store, older marks are there",
    "sink.moved": "a restore moved one file of a directory, to or from where readers look",
    "sink.taken_back": "all files that the restore point does not cover are out of sight",
    "sink.brought_back": "all files that it covers are in sight",
    "sink.unread": "a retirement found no newer run, and has read no record",
    "sink.forgotten": "taken-back files, or a record of what was handed over, are gone",
    "sink.swept": "one file that nothing can ask for is gone from a store",
    "sink.compacted": "the records are written together, the single ones are there",
}

SCHEMA = pa.schema([("n", pa.int64()), ("part", pa.string())])
LINEAGE = "0f3c"
RETAINED = 3
SEEDS = {"directory": 50, "memory store": 50, "local store": 6, "function": 50}
"""A local store syncs every write; the same code runs on the memory store."""

STEPS = 25


class ProcessEnds(BaseException):
    """Not an Exception: no code of ours may go on after it."""


class WatchedStore:
    """A store with a place before and after each write."""

    def __init__(self, store):
        self._store = store

    def delete_many(self, keys):
        return delete_each(self.delete, keys)

    def __getattr__(self, name):
        value = getattr(self._store, name)
        if name not in {"put", "put_file", "put_if_absent", "delete"}:
            return value

        def passing(*args):
            failpoints.hit(f"store.before_{name}")
            value(*args)
            failpoints.hit(f"store.after_{name}")

        return passing


@dataclass
class Checkpoint:
    history: tuple[int, ...]
    committables: list[dict[str, Any]]
    rows: list[int]


class World:
    """A lineage with one sink; `history` is where it stands, and says what readers should see."""

    def __init__(self, sink, seed, see):
        self.sink, self.random, self._see = sink, random.Random(seed), see
        self.fence = self.epoch = self.last_id = 0
        self.numbers = itertools.count()
        self.number_of: dict[str, int] = {}
        self.staged: list[dict[str, Any]] = []
        self.checkpoints: dict[int, Checkpoint] = {}
        self.retained: list[int] = []
        self.history: tuple[int, ...] = ()
        self.at_place: Callable[[str], None] | None = None
        self.at_once = getattr(sink, "commit", "") == "list"

    def passing(self, name):
        if self.at_place is not None:
            self.at_place(name)

    @property
    def run(self):
        return f"f{self.fence}r0"

    def rows(self, history):
        return sorted(n for i in history for n in self.checkpoints[i].rows)

    def seen(self):
        return sorted(self._see(self))

    def live(self):
        found = (self.checkpoints[i] for i in self.retained)
        return tuple(LiveOutput(c.history, list(c.committables)) for c in found)

    # -- what a driver does ------------------------------------------------------------------

    def stage(self):
        """An epoch; the last of its attempts is the one that is acknowledged."""
        self.epoch += 1
        number = next(self.numbers)
        for attempt in range(self.random.randint(1, 2)):
            stage = StageId(LINEAGE, self.run, self.epoch, "count", attempt)
            writer = self.sink.open_writer(stage, SCHEMA)
            rows = {"n": [number], "part": [self.random.choice(["a/b", "c", None])]}
            writer.write(pa.RecordBatch.from_pydict(rows, schema=SCHEMA))
            items = writer.finish()
            self.number_of.update((item["file"], number) for item in items)
        self.staged += items

    def complete(self):
        """The log entry, the publication, the retirement."""
        fence, epoch, items = self.fence, self.epoch, self.staged
        self.last_id = checkpoint_id = self.last_id + 1
        self.history = (*self.history, checkpoint_id)
        rows = [self.number_of[item["file"]] for item in items]
        self.checkpoints[checkpoint_id] = Checkpoint(self.history, items, rows)
        self.retained.append(checkpoint_id)
        self.staged = []
        self.sink.publish(LINEAGE, checkpoint_id, list(items))
        if self.fence == fence:
            self.retire(checkpoint_id, epoch)

    def retire(self, checkpoint_id, epoch):
        line = [i for i in self.history if i in self.retained][-RETAINED:]
        kept = {*line, *self.retained[-RETAINED:]}
        self.retained = [i for i in self.retained if i in kept]
        self.sink.retire(SinkRetire(LINEAGE, self.run, epoch, checkpoint_id, self.live()))

    def restore(self, history):
        """A new driver claims the fence and goes to a point."""
        left = tuple(i for i in self.history if i not in history)
        self.fence += 1
        self.history, self.staged = history, []
        self.epoch += 10 if self.random.random() < 0.5 else 0
        items = self.checkpoints[history[-1]].committables if history else []
        point = SinkRestore(LINEAGE, self.run, history, list(items), self.live(), left)
        self.sink.restore(point)

    def somewhere(self):
        """Any point that can be restored; most often the newest."""
        newest = self.history if set(self.history[-1:]) <= set(self.retained) else ()
        histories = [self.checkpoints[i].history for i in self.retained]
        return self.random.choice([newest, newest, newest, (), *histories])

    # -- what happens to it --------------------------------------------------------------------

    def interrupted(self, action):
        """The process ends at some place of `action`, or not; then another one starts."""
        before = self.seen()
        self.at_place = _nth(self.random.randint(1, 12), self._end)
        try:
            action()
        except ProcessEnds:
            self.at_place = None
            seen = self.seen()
            assert len(set(seen)) == len(seen)
            if self.at_once:
                assert seen in (before, self.rows(self.history))
            self.interrupted(lambda: self.restore(self.somewhere()))
        finally:
            self.at_place = None

    def stalled(self, action):
        """Another driver takes over at some place of `action`, which then goes on."""
        self.at_place = _nth(self.random.randint(1, 12), self._take_over)
        fence = self.fence
        try:
            action()
        except MoorageError:
            assert self.fence > fence
        finally:
            self.at_place = None

    def _end(self):
        raise ProcessEnds

    def _take_over(self):
        self.at_place = None
        self.restore(self.somewhere())
        if self.random.random() < 0.5:
            self.stage()
            self.complete()


def _nth(number, action):
    passes = itertools.count(1)

    def at_place(_name):
        if next(passes) == number:
            action()

    return at_place


def file_world(sink, seed):
    def see(world):
        return [world.number_of[name] for name in map(relative, sink.files())]

    def relative(path):
        base, _, partitioned = path.rpartition("/part=")
        return f"part={partitioned}" if base else path.rpartition("/")[2]

    return World(sink, seed, see)


def function_world(url, seed):
    """A function that keeps rows by checkpoint id, as it is told to."""
    kept: dict[int, list[int]] = {}

    def function(tables, info):
        rows = sorted(n for table in tables for n in table.column("n").to_pylist())
        failpoints.hit("function.in_call")
        assert kept.setdefault(info.checkpoint_id, rows) == rows
        assert info.lineage == LINEAGE

    sink = ForeachCheckpoint(function).bind(SinkContext("calls", "", url, SCHEMA))
    return World(sink, seed, lambda world: [n for i in world.history for n in kept.get(i, [])])


def make_world(kind, seed, tmp_path, monkeypatch):
    MemoryStore.forget("crashes")
    # Often enough that every run passes there.
    monkeypatch.setattr(records, "COMPACT_AT", 3)
    monkeypatch.setattr(bucket_module, "_SWEEP_EVERY", 2)
    monkeypatch.setattr(metadata_log, "GROW_BYTES", 400)
    monkeypatch.setattr(
        bucket_module, "open_output", lambda url: WatchedStore(open_store(url, create=True))
    )
    monkeypatch.setattr(foreach_module, "open_output", bucket_module.open_output)
    if kind == "function":
        world = function_world("memory://crashes", seed)
    else:
        places: dict[str, tuple[Any, Any]] = {
            "directory": (tmp_path / f"out-{seed}", "rename"),
            "local store": (tmp_path / f"out-{seed}", "list"),
            "memory store": ("memory://crashes", "list"),
        }
        path, commit = places[kind]
        partition_by = ["part"] if seed % 2 else []
        world = file_world(FileSink(path, partition_by=partition_by, commit=commit), seed)
    monkeypatch.setattr(failpoints, "hit", world.passing)
    return world


def step(world):
    kind = world.random.choice(["stage", "stage", "stage", "complete", "complete", "restore"])
    if kind == "stage":
        world.stage()
        return
    action = world.complete if kind == "complete" else lambda: world.restore(world.somewhere())
    how = world.random.random()
    if how < 0.4:
        world.interrupted(action)
    elif how < 0.6:
        world.stalled(action)
    else:
        action()


@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, seed) for kind, seeds in SEEDS.items() for seed in range(seeds)]
)
def test_readers_see_what_the_current_history_published(kind, seed, tmp_path, monkeypatch):
    world = make_world(kind, seed, tmp_path, monkeypatch)
    world.restore(())
    for _ in range(STEPS):
        step(world)
        assert world.seen() == world.rows(world.history), f"seed={seed} kind={kind}"
    everything_is_needed(world, kind, tmp_path)


def everything_is_needed(world, kind, tmp_path):
    """After a quiet checkpoint, what is stored is what live points can ask for."""
    world.restore(world.history if set(world.history[-1:]) <= set(world.retained) else ())
    world.last_id += 16 - world.last_id % 16 - 1  # a sweep comes with every sixteenth
    world.complete()
    assert world.seen() == world.rows(world.history)
    wanted = {i for point in world.retained for i in world.checkpoints[point].history}
    covered = {item["file"] for i in wanted for item in world.checkpoints[i].committables}
    if kind == "directory":
        folder = tmp_path / Path(world.sink.path).name
        stored = {path.name for path in folder.rglob("*.parquet")}
    else:
        url = "memory://crashes" if kind != "local store" else f"file://{world.sink.path}"
        stored = {i.key.rpartition("/")[2] for i in open_store(url, create=True).list("")}
        stored = {name for name in stored if name.endswith(".parquet")}
    if kind == "function":
        waiting = set(world.retained) - set(world.sink._handed(LINEAGE))
        covered = {item["file"] for i in waiting for item in world.checkpoints[i].committables}
    assert stored == {file.rpartition("/")[2] for file in covered}


def test_the_list_of_places_is_that_of_the_code():
    folders = [Path(package.__path__[0]) for package in (api, sinks)]
    calls = {
        name
        for folder in folders
        for path in folder.glob("*.py")
        for name in re.findall(r'failpoints\.hit\("([^"]+)"\)', path.read_text())
    }
    assert calls == set(PLACES)
