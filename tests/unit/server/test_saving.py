"""Savepoints of a server's ranges: complete in themselves, whatever checkpoints do meanwhile."""

import random

import pytest

from moorage_state.canonicalspec import CanonicalSpec
from moorage_state.server import RestoreBase
from moorage_state.snapshots import object_keys
from moorage_state.stores import open_store


def fill(parts, key, size):
    rng = random.Random(1)
    for part in parts:
        part.open()
        part.epoch({key(part.spec.start, n): rng.randbytes(size) for n in range(10)})


def specs(parts):
    return [
        CanonicalSpec(
            uid=part.spec.uid,
            start=part.spec.start,
            end=part.spec.end,
            epoch=part.version.epoch,
            max_parallelism=64,
            key_types=("bigint",),
            states=(),
        )
        for part in parts
    ]


@pytest.fixture
def url(tmp_path):
    (tmp_path / "savepoint").mkdir()
    return f"file://{tmp_path}/savepoint"


@pytest.mark.parametrize("size", [50, 5_000, 200_000])
def test_a_native_savepoint_of_any_size_is_whole_and_restores(host, drive, key, url, size):
    parts = [drive(host, 8 * n, 8 * n + 7) for n in range(4)]
    fill(parts, key, size)
    api, run = parts[0].api, parts[0].run
    for part in parts:
        api.range(part.lease).snapshot(6, part.version)
    saved = api.save_many(run, 6, url, specs(parts), False)
    files = [file for handle in saved.handles for file in handle.files]
    assert not any(file.shared for file in files)
    stored = {info.key for info in open_store(url).list("")}
    assert object_keys(saved.handles) == stored
    api.notify_aborted(6, run)
    whole = drive(host, 0, 31)
    base = RestoreBase(6, parts[0].version.epoch, saved.handles)
    opened = api.open_range(whole.spec, "f2r0", base, [], url)
    assert opened.source == "store"
    asked = [key(8 * n, 3) for n in range(4)]
    values = api.range(whole.spec.lease("f2r0")).get_many(opened.version, asked)
    assert all(value is not None and len(value) == size for value in values)


@pytest.mark.parametrize("canonical", [False, True])
def test_a_checkpoint_that_completes_first_leaves_the_savepoint_its_copy(
    host, drive, url, canonical
):
    parts = [drive(host, 8 * n, 8 * n + 7) for n in range(2)]
    for part in parts:
        part.open()
    api, run = parts[0].api, parts[0].run
    for part in parts:
        api.range(part.lease).snapshot(6, part.version)
        api.range(part.lease).snapshot(7, part.version)
    api.notify_complete(7, run)
    saved = api.save_many(run, 6, url, specs(parts), canonical)
    assert len(saved.handles) == 2
