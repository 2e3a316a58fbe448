"""What a run has open when the next one begins stands, at the state of the restore point."""

import random
from contextlib import suppress

import pytest

from moorage_state import failpoints
from moorage_state.errors import StaleLease
from moorage_state.keylayout import timer_entry
from moorage_state.server import RangeHost, RestoreBase, UploadLimits
from moorage_state.server.operations import RangeSpec, Version

KEYS = 20


@pytest.fixture
def op(host, drive, key):
    """A range with enough state that undoing some epochs costs less than opening it."""
    op = drive(host)
    op.limits = UploadLimits()
    op.open()
    rng = random.Random(1)
    op.epoch({key(g, n): rng.randbytes(300) for g in range(64) for n in range(KEYS)})
    return op


@pytest.fixture
def undoes(small):
    """Whether epochs are undone where the database is open."""
    return small.reads_in_place and not small.stored


def change(op, key, rng, epochs=1):
    """Writes, deletions, deleted ranges and new keys, some of them of a timer."""
    for _ in range(epochs):
        some = [key(rng.randrange(64), rng.randrange(2 * KEYS)) for _ in range(15)]
        writes = {one: rng.choice([None, rng.randbytes(80)]) for one in some}
        group = rng.randrange(64)
        writes[timer_entry(group, rng.randrange(9), b"k")] = b""
        low = rng.randrange(62)
        ranges = [(key(low, 30), key(low + 1, 2))] if rng.random() < 0.5 else []
        op.epoch(writes, ranges)


def work(op, tmp_path):
    (root,) = tmp_path.glob(f"local/ranges/{op.spec.uid}/*")
    return {path.name for path in root.glob("work-*")}, [p.name for p in root.glob("import-*")]


def from_store(op, drive, tmp_path, small):
    """What the restore point has, as a stranger finds it."""
    with RangeHost(tmp_path / "stranger", small) as host:
        other = drive(host, run="f9r9")
        other.open(op.base)
        return other.read()


def test_a_range_at_the_restore_point_stands(op, key, tmp_path, monkeypatch):
    op.log(1)
    change(op, key, random.Random(2), 2)
    op.log(2)
    expected, before = op.read(), work(op, tmp_path)
    monkeypatch.setattr("moorage_state.server.restore.open_store", None)
    opened = op.open(run="f1r1")
    assert (opened.source, opened.bytes_restored) == ("live", 0)
    assert opened.version == Version(op.base.epoch, "")
    assert (op.read(), work(op, tmp_path)) == (expected, before)


def test_epochs_that_do_not_count_are_undone_in_place(op, key, tmp_path, undoes, drive, small):
    rng = random.Random(3)
    op.log(1)
    change(op, key, rng, 2)
    op.log(2)
    expected, before = op.read(), work(op, tmp_path)
    change(op, key, rng, 3)
    assert op.read() != expected
    opened = op.open(run="f1r1")
    assert opened.source == ("live" if undoes else "local")
    assert op.read() == expected == from_store(op, drive, tmp_path, small)
    assert (work(op, tmp_path) == before) == undoes
    change(op, key, rng, 2)
    expected = op.read()
    # The log goes on where it was: the next run, and a stranger, find all of it.
    assert len(op.log(3).deltas) == 4
    change(op, key, rng)
    op.open(run="f1r2")
    assert op.read() == expected == from_store(op, drive, tmp_path, small)


@pytest.mark.parametrize("seed", range(2))
def test_any_life_of_recoveries_ends_with_what_was_logged(
    seed, op, key, tmp_path, drive, small, undoes
):
    rng, number, sources = random.Random(seed), 1, set()
    op.log(1)
    saved = op.read()
    for life in range(14):
        if rng.random() < 0.7:
            change(op, key, rng, rng.randrange(1, 3))
            number += 1
            copies = rng.random() < 0.4
            handle = op.log(number, "log and copy" if copies else "log")
            saved = op.read()
            if copies:
                spec = [RangeSpec(op.spec.uid, op.spec.start, op.spec.end)]
                op.api.materialize_many(op.run, number, op.url, spec, UploadLimits())
            assert handle.logged
        change(op, key, rng, rng.randrange(3))
        if rng.random() < 0.3:
            # One that is under way when the run ends: nobody lists what it uploads.
            op.begin(number + 1)
            op.upload(number + 1)
            op.api.notify_aborted(number + 1)
            number += 1
        sources.add(op.open(run=f"f1r{life + 1}").source)
        assert op.read() == saved
    assert from_store(op, drive, tmp_path, small) == saved
    assert sources == {"live"} if undoes else "live" in sources


def test_a_run_that_committed_nothing_is_followed_by_one_that_finds_the_same(op, key):
    change(op, key, random.Random(4))
    op.log(1)
    expected = op.read()
    for number in range(1, 4):
        assert op.open(run=f"f1r{number}").source == "live"
        assert op.read() == expected


def test_the_run_before_is_shut_out(op, key):
    op.log(1)
    old, version = op.range, op.version
    prepared = op.prepare({key(1, 1): b"late"})
    op.range.stage(version.epoch + 1, "half", b"\x93\x90\x90\x90", 0)
    expected = op.read()
    op.open(run="f1r1")
    attempts = [
        lambda: old.commit(version.epoch + 1, prepared.digest),
        lambda: old.stage(version.epoch + 1, "half", b"\x93\x90\x90\x90", 1),
        lambda: old.prepare(version.epoch + 1, "b", version.digest, 0),
        lambda: old.get_many(version, [key(1, 1)]),
        lambda: old.snapshot(7, version, "log"),
    ]
    for attempt in attempts:
        with pytest.raises(StaleLease, match="took over"):
            attempt()
    assert op.read() == expected
    op.epoch({key(1, 1): b"new"})
    assert op.read() == {**expected, key(1, 1): b"new"}


def test_timers_in_memory_go_back_too(op):
    op.epoch({timer_entry(3, 5, b"kept"): b""})
    op.log(1)
    op.epoch({timer_entry(3, 5, b"kept"): None})
    op.epoch({timer_entry(3, 4, b"later"): b""})
    op.open(run="f1r1")
    found = op.range.due_timers(op.version, 9, 10)
    assert [key.endswith(b"kept") for key in found] == [True]


def damaged(path):
    path.write_bytes(path.read_bytes()[:-9] + b"xxxxxxxxx")


@pytest.mark.parametrize("what", ["delta to undo", "delta before", "copy", "older"])
def test_a_range_that_cannot_go_back_in_place_is_opened_anew(op, key, tmp_path, drive, small, what):
    rng = random.Random(5)
    op.log(1)
    first, then = op.base, op.read()
    change(op, key, rng)
    op.log(2)
    expected = op.read()
    change(op, key, rng)
    op.read()
    (root,) = tmp_path.glob(f"local/ranges/{op.spec.uid}/*")
    deltas = sorted(root.glob("deltas/*/*.delta"))
    if what == "copy":
        for path in root.glob("ckpt/*/CURRENT"):
            path.unlink()
    elif what == "older":
        first, expected = RestoreBase(1, first.epoch, first.handles, builds=True), then
    else:
        damaged(deltas[-1 if what == "delta to undo" else 0])
    opened = op.open(first if what == "older" else None, run="f1r1")
    assert opened.source in ("local", "store")
    assert op.read() == expected == from_store(op, drive, tmp_path, small)
    assert not work(op, tmp_path)[1]


class Interrupted(BaseException):
    """As the end of a process comes."""


@pytest.mark.parametrize("place", ["recover.before_undo", "recover.after_undo"])
@pytest.mark.parametrize("run", ["f1r1", "f1r2"])
def test_a_recovery_that_ends_half_way_is_followed_by_one_that_is_right(
    op, key, tmp_path, undoes, place, run
):
    rng = random.Random(7)
    op.log(1)
    change(op, key, rng, 2)
    op.log(2)
    expected = op.read()
    change(op, key, rng, 2)
    op.read()

    def end(hit):
        if hit == place:
            raise Interrupted

    with failpoints.watched(end), suppress(Interrupted):
        op.open(run="f1r1")
        assert not undoes
    opened = op.open(run=run)
    assert opened.source == ("local" if undoes else "live")
    assert op.read() == expected
    assert not work(op, tmp_path)[1]


def test_a_range_is_opened_anew_where_most_of_it_would_have_to_be_undone(op, key):
    op.log(1)
    expected = op.read()
    rng = random.Random(6)
    op.epoch({key(g, n): rng.randbytes(1200) for g in range(64) for n in range(KEYS)})
    assert op.read() != expected
    assert op.open(run="f1r1").source == "local"
    assert op.read() == expected
