"""A restore point of which something is missing: found before the first epoch, by who reads it."""

import dataclasses
from datetime import timedelta

import pytest
from moorage_testing import journeys
from moorage_testing.journeys import DriverWorld

from moorage.driver import runner
from moorage.driver.housekeeping import Housekeeper
from moorage.driver.refusals import RestorePointCorrupt
from moorage.driver.reporter import Reporter
from moorage.driver.restore_point import choose
from moorage.driver.stream_run import StreamRun
from moorage.driver.types import RunOutcome
from moorage_state.errors import CorruptState
from moorage_state.snapshots import retained


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Two checkpoints, the parts of both gone or not; a host that has no local copies."""
    monkeypatch.setattr(Housekeeper, "after", lambda *_: None)
    monkeypatch.setattr(runner, "_drive_run", lambda *_: RunOutcome.STOPPED)
    # The end of an upload's connection is not that of the host.
    monkeypatch.setattr(journeys._Here, "connect", lambda self, _: journeys._Connection(self._host))
    made = DriverWorld(tmp_path)
    made.found()
    run = made.begin()
    for epoch in (1, 2):
        made.commit(epoch)
        made.checkpoint(run, epoch)
    made.found()
    return made


def lose(world, checkpoint_id):
    entry = next(c for c in retained(world._writer.entries) if c.checkpoint_id == checkpoint_id)
    (part,) = world._store.load_root(entry).parts
    world._objects.delete(part.key)
    return part.key


def started(world, max_age, said):
    policy = dataclasses.replace(world._settings.restore, max_fallback_age=max_age)
    settings = dataclasses.replace(world._settings, restore=policy)
    reporter = Reporter(lambda progress: said.append(progress.message))
    context = dataclasses.replace(world._context, settings=settings, reporter=reporter)
    runner._runs(context, choose(world._store, world._writer.entries, settings))
    return world.fleet.leased("count")[0].version.epoch


def test_what_is_missing_is_named_and_an_older_checkpoint_takes_its_place(world):
    key = lose(world, 2)
    said: list[str] = []
    assert started(world, timedelta(hours=1), said) == 1
    assert any("part of a manifest is missing" in text and key in text for text in said)
    assert any("restoring older checkpoint: path=chk-1" in text for text in said)


def test_no_older_one_takes_its_place_unasked(world):
    key = lose(world, 2)
    with pytest.raises(RestorePointCorrupt, match="no older one may take its place") as caught:
        started(world, None, [])
    assert caught.value.path.endswith(key)


def test_one_after_the_other_is_tried_and_the_first_damage_is_what_fails(world):
    key = lose(world, 2)
    lose(world, 1)
    with pytest.raises(RestorePointCorrupt, match="no older checkpoint is usable") as caught:
        started(world, timedelta(hours=1), [])
    assert caught.value.path.endswith(key)


def test_the_driver_reads_the_root_and_no_part_before_the_first_epoch(world, monkeypatch):
    asked: list[str] = []
    get = world._objects.get

    def counted(key, **options):
        asked.append(key)
        return get(key, **options)

    monkeypatch.setattr(world._objects, "get", counted)
    assert started(world, None, []) == 2
    read = {key.rpartition("/")[2] for key in asked if not key.startswith("log/")}
    assert read == {"MANIFEST"}


def test_output_that_is_damaged_is_told_and_no_older_checkpoint_publishes_it_twice(
    world, monkeypatch
):
    missing = CorruptState("a file of the output is missing", "s3://out/part-7", "put it back")

    def refuse(*_):
        raise missing

    monkeypatch.setattr(StreamRun, "_restore_sinks", refuse)
    said: list[str] = []
    with pytest.raises(CorruptState) as caught:
        started(world, timedelta(hours=1), said)
    assert caught.value is missing
    assert not any("older checkpoint" in text for text in said)
