"""Checkpoints by `checkpoint.cron`, in place of an interval."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.driver.coordination import calendar_of
from moorage.driver.settings import JobSettings
from moorage_api import StatefulSparkJob


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def calendar(cron, *, in_one_epoch=False):
    settings: Any = SimpleNamespace(checkpoint_cron=cron, in_one_epoch=in_one_epoch)
    return calendar_of(settings)


def test_checkpoints_come_at_the_times_of_the_calendar():
    following = calendar("*/15 8-18 * * mon-fri")
    assert following(at("2026-11-20T18:44:59")) == at("2026-11-20T18:45")
    assert following(at("2026-11-20T18:45")) == at("2026-11-23T08:00")


@pytest.mark.parametrize(("cron", "in_one_epoch"), [(None, False), ("@daily", True)])
def test_without_a_cron_and_in_one_epoch_there_is_no_calendar(cron, in_one_epoch):
    assert calendar(cron, in_one_epoch=in_one_epoch) is None


def test_a_day_that_never_comes_is_no_error():
    now = at("2026-11-20T00:00")
    assert calendar("0 0 30 2 *")(now) > now


def test_a_manifest_with_a_cron_has_no_interval(tmp_path):
    (tmp_path / "job.py").write_text("def build(env): ...")
    spec = {
        "application": {"mainFile": "job.py"},
        "scaling": {"parallelism": 1},
        "state": {"checkpointDir": tmp_path.as_uri()},
        "checkpoint": {"cron": "@hourly"},
    }
    body = {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "StatefulSparkJob",
        "metadata": {"name": "clicks"},
        "spec": spec,
    }
    settings = JobSettings.of(StatefulSparkJob.model_validate(body), tmp_path)
    assert (settings.checkpoint_cron, settings.interval_seconds) == ("@hourly", None)
