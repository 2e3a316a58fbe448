"""A database whose checkpoints go to a store, without a state server."""

import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from moorage_state.database import StoredFile
from moorage_state.deltas import Frame
from moorage_state.errors import StoreUnavailable
from moorage_state.forst import CacheLimits, FileCache, ForStDatabase, detach
from moorage_state.rocks import ProcessMemory, RocksOptions
from moorage_state.rocks.sliced import SlicedDatabase
from moorage_state.server.local_files import digests_of
from moorage_state.snapshots import FileRef
from moorage_state.stores import open_store

KIB = 1 << 10
OPTIONS = RocksOptions(
    block_cache_bytes=64 * KIB,
    write_buffers_bytes=1024 * KIB,
    write_buffer_bytes=128 * KIB,
    target_file_bytes=32 * KIB,
    block_bytes=1 * KIB,
    slices=True,
)
UPPER = b"\xff" * 8


class FlakyStore:
    """A store that does not answer while `broken`, takes `delay`, and counts what is read of it."""

    def __init__(self, store):
        self.store = store
        self.broken = False
        self.delay = 0.0
        self.gets = 0
        self.at_once = self.most_at_once = 0

    def __getattr__(self, name):
        return getattr(self.store, name)

    def get(self, key, **kwargs):
        self.gets += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.delay)
        self.at_once -= 1
        if self.broken:
            raise StoreUnavailable(f"the store does not answer: key={key}")
        return self.store.get(key, **kwargs)

    def copied(self, key):
        """Another object with its bytes; this one is deleted."""
        self.store.put(f"copy-of-{key}", self.store.get(key))
        self.store.delete(key)
        return f"copy-of-{key}"


class Kept:
    """A database, what it should hold, and its last checkpoint."""

    def __init__(
        self, folder: Path, limits=None, free=None, blocks=OPTIONS.block_cache_bytes, work=None
    ):
        (folder / "store").mkdir()
        self.folder = folder
        self.work = work or folder
        self.memory = ProcessMemory(replace(OPTIONS, block_cache_bytes=blocks))
        self.cache = FileCache(limits or CacheLimits(reserve=0), free)
        self.store = FlakyStore(open_store(f"file://{folder}/store"))
        self.model: dict[bytes, bytes] = {}
        self.saved: dict[bytes, bytes] = {}
        self.refs: list[FileRef] = []
        self.openings = 0
        self.copies = 0
        self.db = self._open({})

    @property
    def ghosts(self):
        return self.db._files.ghosts

    def _open(self, stored):
        self.openings += 1
        path = self.work / f"work-{self.openings}"
        if stored:
            path.mkdir()
            for ref in self.refs:
                if ref.name.endswith(".sst"):
                    (path / ref.name).touch()
                else:
                    shutil.copyfile(self.work / "copy" / ref.name, path / ref.name)
        return ForStDatabase(SlicedDatabase(path, OPTIONS, self.memory), self.cache, stored)

    def reopen(self):
        """From the store, on a volume with nothing on it."""
        self.db.close()
        # RocksDB may be about to delete something itself.
        shutil.rmtree(self.work / f"work-{self.openings}", ignore_errors=True)
        self.model = dict(self.saved)
        self.db = self._open(self.places())

    def write(self, changes, ranges=()):
        self.db.apply([Frame(list(ranges), list(changes), list(changes.values()))])
        for start, end in ranges:
            self.model = {k: v for k, v in self.model.items() if not start <= k < end}
        self.model.update(changes)
        self.model = {k: v for k, v in self.model.items() if v is not None}

    def checkpoint(self):
        """Copy, upload what is new, and complete."""
        self.db.flush()
        copy = self.work / "next"
        self.db.checkpoint(copy)
        known = {ref.name: ref for ref in self.refs}
        refs = []
        for path in sorted(copy.iterdir()):
            if path.name in known and path.name.endswith(".sst"):
                refs.append(known[path.name])
                continue
            self.copies += 1
            key, found = f"{self.copies}-{path.name}", digests_of(path)
            self.store.put_file(key, path)
            shared = path.name.endswith(".sst")
            refs.append(
                FileRef(name=path.name, key=key, shared=shared, size=found.size,
                        sha256=found.sha256, xxh3=found.xxh3)
            )  # fmt: skip
        shutil.rmtree(self.work / "copy", ignore_errors=True)
        copy.rename(self.work / "copy")
        self.refs, self.saved = refs, dict(self.model)
        self.db.located(self.places())

    def places(self):
        return {ref.name: StoredFile(self.store, ref) for ref in self.refs}

    def settle(self):
        """Have everything in the last level, and in the store."""
        self.db.flush()
        while any(file.level < 2 for file in self.db._database.files()):
            self.db.compact_slice()
        self.checkpoint()

    def open_copy(self, path, stored):
        detach(path, stored)
        copy = SlicedDatabase(path, OPTIONS, self.memory, read_only=True)
        return ForStDatabase(copy, self.cache, stored, copy=True)

    def scan(self, lower=b"", upper=UPPER, database=None):
        with (database or self.db).cursor(lower, upper) as cursor:
            cursor.seek(lower)
            keys, values, complete = cursor.take(upper, 1 << 30, 1 << 40)
        assert complete
        return dict(zip(keys, values, strict=True))


@pytest.fixture
def make(tmp_path):
    made = []

    def make(limits=None, free=None, **other):
        made.append(Kept(tmp_path, limits, free, **other))
        return made[-1]

    yield make
    for kept in made:
        kept.db.close()


@pytest.fixture
def filled(make):
    """2,000 keys in some ten files of the last level."""

    def filled(limits=None, free=None, **other):
        kept = make(limits, free, **other)
        rng = random.Random(3)
        kept.write({n.to_bytes(8, "big"): rng.randbytes(150) for n in range(2000)})
        kept.settle()
        return kept

    return filled
