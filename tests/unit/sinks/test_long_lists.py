"""The list of visible files after very many checkpoints: what it costs, and that readers follow."""

import functools
import random

import pytest

from moorage.sinks import metadata_log, records
from moorage.sinks.metadata_log import LOG_PREFIX, MetadataLog
from moorage_state.stores import open_store

LINE = '{"path":"%s","action":"add"}'


@pytest.fixture
def store(store_url):
    return CountedStore(open_store(store_url))


class CountedStore:
    """A store that counts what goes through it."""

    def __init__(self, store):
        self._store = store
        self.requests = self.written = self.read = 0

    def __getattr__(self, name):
        value = getattr(self._store, name)
        return self._counted(value) if callable(value) else value

    def _counted(self, call):
        def counted(*args, **kwargs):
            self.requests += 1
            self.written += sum(len(arg) for arg in args if isinstance(arg, bytes))
            answer = call(*args, **kwargs)
            self.read += len(answer) if isinstance(answer, bytes) else 0
            return answer

        return counted

    def cost(self):
        spent = self.requests, self.written + self.read
        self.requests = self.written = self.read = 0
        return spent


def as_spark_reads(store, own_interval=10):
    """What `CompactibleFileStreamLog.allFiles` comes to, from the names that a listing shows."""
    names = [info.key.removeprefix(LOG_PREFIX) for info in store.list(LOG_PREFIX)]
    compacts = sorted(int(name.removesuffix(".compact")) for name in names if "." in name)
    assert len(compacts) > 1, f"readers would take an interval of their own: {own_interval}"
    interval = compacts[-1] - compacts[-2]
    latest = max(int(name.partition(".")[0]) for name in names)
    files = []
    for number in range(max(0, (latest + 1) // interval * interval - 1), latest + 1):
        name = f"{number}.compact" if (number + 1) % interval == 0 else str(number)
        assert name in names, f"readers of {latest} at {interval} look for {name}: {names}"
        files += store.get(LOG_PREFIX + name).decode().split("\n")[1:]
    return files


def lines(*paths):
    return {path: LINE % path for path in paths}


def without(gone, seen):
    return {path: line for path, line in seen.items() if path not in gone}


def nothing():
    pass


def test_spark_reads_the_list_at_every_length(store, monkeypatch):
    monkeypatch.setattr(metadata_log, "GROW_BYTES", 100)
    log, expected = MetadataLog(store), []
    log.begin()
    for n in range(1200):
        log.add(lines(str(n)), nothing, new=True)
        expected.append(LINE % n)
        assert as_spark_reads(store) == expected
        if n % 16 == 0:
            log.expire()
    assert sorted(log.read()) == sorted(map(str, range(1200)))
    assert log._look().interval >= 160


def test_a_checkpoint_costs_the_same_however_long_the_list_is(store, monkeypatch):
    monkeypatch.setattr(metadata_log, "GROW_BYTES", 1000)
    log = MetadataLog(store)
    log.begin()
    costs = []
    for checkpoint in range(8 * 1024):
        log.add(lines(f"file-{checkpoint:08d}"), nothing, new=True)
        if checkpoint % 16 == 0:
            log.expire()
        if checkpoint.bit_count() == 1 and checkpoint >= 1024:
            costs.append([value / (checkpoint / 2) for value in store.cost()])
    requests, moved = zip(*costs[1:], strict=True)
    assert max(requests) < 6
    # What it reads and writes of the list, and what listings cost.
    assert max(moved) < 6 * 1000
    assert max(moved) < 2 * min(moved)


def test_many_files_a_checkpoint_cost_a_few_times_their_own_lines(store, monkeypatch):
    monkeypatch.setattr(metadata_log, "GROW_BYTES", 10)
    log = MetadataLog(store)
    log.begin()
    own = 0
    for checkpoint in range(2000):
        added = lines(*(f"{checkpoint}-{i}" for i in range(20)))
        own += sum(map(len, added.values()))
        log.add(added, nothing, new=True)
    assert sum([store.written, store.read]) < 12 * own


def test_writers_who_know_where_the_list_ends_and_others_lose_nothing(store, monkeypatch):
    monkeypatch.setattr(metadata_log, "GROW_BYTES", 60)
    seeded = random.Random(3)
    logs = [MetadataLog(store) for _ in range(3)]
    logs[0].begin()
    wanted: dict[str, str] = {}
    for n in range(600):
        log = seeded.choice(logs)
        if seeded.random() < 0.02:
            gone = set(seeded.sample(sorted(wanted), len(wanted) // 3))
            wanted = {path: line for path, line in wanted.items() if path not in gone}
            log.replace(functools.partial(without, gone), nothing)
        else:
            log.add(lines(str(n)), nothing, new=True)
            wanted |= lines(str(n))
        if seeded.random() < 0.1:
            log.expire()
        assert sorted(as_spark_reads(store)) == sorted(wanted.values())


def test_a_writer_that_stalls_at_its_put_while_the_interval_grows_looks_again(store, monkeypatch):
    """Both go on from one end, so both name the next entry alike, whatever its number is."""
    monkeypatch.setattr(metadata_log, "GROW_BYTES", 1)
    slow, quick = MetadataLog(store), MetadataLog(store)
    slow.begin()
    put = store.put_if_absent
    for n in range(90):
        refused: list[str] = []

        def stalling(key, data, n=n, refused=refused):
            if not refused:
                refused.append(key)
                quick.add(lines(f"quick-{n}"), nothing)
            put(key, data)

        with monkeypatch.context() as patch:
            patch.setattr(slow, "_store", Stalling(store, stalling))
            slow.add(lines(f"slow-{n}"), nothing, new=True)
        assert len(as_spark_reads(store)) == 2 * (n + 1)


class Stalling:
    def __init__(self, store, put_if_absent):
        self._store, self.put_if_absent = store, put_if_absent

    def __getattr__(self, name):
        return getattr(self._store, name)


def test_a_list_of_ten_thousand_checkpoints_from_before_intervals_grew_is_gone_on_with(
    store, monkeypatch
):
    monkeypatch.setattr(metadata_log, "GROW_BYTES", 100)
    before = [LINE % n for n in range(500)]
    store.put(f"{LOG_PREFIX}5009.compact", "\n".join(["v1", *before[:490]]).encode())
    store.put(f"{LOG_PREFIX}5019.compact", "\n".join(["v1", *before]).encode())
    store.put(f"{LOG_PREFIX}5020", "\n".join(["v1", LINE % "last"]).encode())
    log = MetadataLog(store)
    for n in range(1000, 1600):
        log.add(lines(str(n)), nothing, new=True)
        assert len(as_spark_reads(store)) == 501 + n - 999


def test_a_list_that_was_deleted_under_a_writer_begins_anew(store):
    log = MetadataLog(store)
    log.begin()
    log.add(lines("a"), nothing, new=True)
    for info in list(store.list(LOG_PREFIX)):
        store.delete(info.key)
    log.begin()
    log.add(lines("b"), nothing, new=True)
    assert as_spark_reads(store) == [LINE % "b"]


def test_records_are_written_again_as_often_as_the_logarithm_of_their_number_says():
    files: dict[str, str] = {}
    written = most = 0
    for checkpoint in range(1, 4097):
        data = records.encode(checkpoint, ["part-0"])
        files[records.record_name(checkpoint)] = data
        names = records.together({name: len(data) for name, data in files.items()})
        held = records.decode(((name, files[name].encode()) for name in names), "")
        plan = records.compaction(names, held, set(range(1, checkpoint + 1)))
        if plan is not None:
            files[plan.name] = plan.data
            written += len(plan.data)
            for name in plan.obsolete:
                del files[name]
        most = max(most, len(files))
    everything = records.decode(((name, data.encode()) for name, data in files.items()), "")
    assert everything == {n: ["part-0"] for n in range(1, 4097)}
    assert most <= 20 + 12
    assert written <= 12 * sum(map(len, files.values()))


def test_records_that_a_compaction_left_behind_never_replace_a_larger_compact_one():
    names = {f"{n:020d}.json": 10 for n in range(21, 41)} | {f"{40:020d}.compact.json": 9000}
    assert f"{40:020d}.compact.json" in records.together(names)
    assert f"{9:020d}.compact.json" not in records.together(
        names | {f"{9:020d}.compact.json": 10**6}
    )


def test_all_files_are_looked_at_less_and_less_often():
    due = [n for n in range(1, 200_000) if records.sweep_is_due(n - 1, n, every=16)]
    assert due[:3] == [16, 32, 48]
    for start in (1000, 10_000, 100_000):
        # Each look costs as many files as there are: so many for each checkpoint.
        assert sum(n for n in due if start <= n < 2 * start) / start < 64
