"""What an edit of a running job means, and when two specs are the same job."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moorage_testing.manifests import changed

from moorage_api import JobSpec
from moorage_api.changes import KINDS, classify, declared, is_same_job, refreshed, spec_hash

BASE: dict[str, Any] = {
    "image": "clicks:1",
    "application": {"mainFile": "local:///app/job.py"},
    "scaling": {"parallelism": 2},
    "state": {"checkpointDir": "s3://state/clicks", "savepointDir": "s3://saves/clicks"},
}


def spec(changes=None):
    return JobSpec.model_validate(changed(BASE, changes))


EDITS = [
    ({}, "Ignore", ()),
    ({"restore.allowNonRestoredState": True}, "Ignore", ("spec.restore.allowNonRestoredState",)),
    ({"desiredState": "Suspended"}, "Live", ("spec.desiredState",)),
    ({"failurePolicy.maxRestarts": 3}, "Live", ("spec.failurePolicy.maxRestarts",)),
    ({"savepoint.schedule": {"cron": "@daily"}}, "Live", ("spec.savepoint.schedule",)),
    ({"upgrade.mode": "LastCheckpoint"}, "Live", ("spec.upgrade.mode",)),
    ({"scaling.parallelism": 4}, "Rescale", ("spec.scaling.parallelism",)),
    ({"executor.instances": 4}, "Rescale", ("spec.executor.instances",)),
    ({"image": "clicks:2"}, "Upgrade", ("spec.image",)),
    ({"checkpoint.interval": "30s"}, "Upgrade", ("spec.checkpoint.interval",)),
    (
        {"failurePolicy.executorFailures.max": 3},
        "Upgrade",
        ("spec.failurePolicy.executorFailures.max",),
    ),
    ({"application.env": [{"name": "A", "value": "b"}]}, "Upgrade", ("spec.application.env",)),
    ({"restore.nonce": 1}, "Redeploy", ("spec.restore.nonce",)),
]


@pytest.mark.parametrize(("edit", "kind", "fields"), EDITS)
def test_an_edit_is_of_the_kind_that_its_field_declares(edit, kind, fields):
    change = classify(spec(), spec(edit))
    assert (change.kind, change.fields) == (kind, fields)


def test_the_strongest_of_several_edits_decides():
    edits = {"desiredState": "Suspended", "image": "clicks:2", "scaling.parallelism": 4}
    change = classify(spec(), spec(edits))
    assert change.kind == "Upgrade"
    assert change.fields == ("spec.image", "spec.desiredState", "spec.scaling.parallelism")


SAME = [
    {"driver.memory": "2048Mi"},
    {"checkpoint.timeout": "600s"},
    {"upgrade": {"mode": "Savepoint", "preflight": False}},
    {"executor.sidecar.resources": {"requests": {}}},
    {"sparkConf": {}},
]

# What definitions of older releases wrote into every object. An operator fills the field in.
ONCE_DEFAULT = {"state.backend": "rocksdb"}


@pytest.mark.parametrize("edit", SAME)
def test_another_spelling_or_a_default_written_out_is_no_edit(edit):
    assert classify(spec(), spec(edit)).fields == ()
    assert spec_hash(spec()) == spec_hash(spec(edit))


@pytest.mark.parametrize(("edit", "kind"), [edit[:2] for edit in EDITS])
def test_the_hash_changes_with_what_needs_a_new_revision_and_with_nothing_else(edit, kind):
    same = spec_hash(spec()) == spec_hash(spec(edit))
    assert same == (kind in ("Ignore", "Live"))


@given(st.lists(st.sampled_from([edit for edit, _, _ in EDITS]), min_size=2, max_size=2))
def test_hash_and_kind_agree_about_any_two_specs(edits):
    one, other = map(spec, edits)
    assert (spec_hash(one) == spec_hash(other)) == (classify(one, other).kind in ("Ignore", "Live"))


def test_the_hash_is_that_of_every_release():
    """A change of it would start every job of an upgraded operator anew."""
    digest = "44b7eee6"
    assert spec_hash(spec()).startswith(digest)


def test_a_default_that_older_definitions_filled_in_does_not_change_the_hash():
    assert spec_hash(spec(ONCE_DEFAULT)) == spec_hash(spec())
    assert spec_hash(spec({"state.backend": "hashmap"})) != spec_hash(spec())


def test_a_field_that_a_later_release_adds_does_not_change_the_hash(monkeypatch):
    from moorage_api.compute import EpochSpec

    before = spec_hash(spec())
    fields = dict(EpochSpec.model_fields)
    del fields["max_records_per_epoch"]
    monkeypatch.setattr(EpochSpec, "__pydantic_fields__", fields)
    assert spec_hash(spec()) == before


def test_every_field_declares_a_known_kind_and_the_page_says_it():
    page = (Path(__file__).parents[3] / "docs" / "crd.md").read_text()
    table = list(declared())
    assert len(table) > 80
    for path, kind in table:
        assert kind in KINDS
        assert f"| `{path}` | {kind} |" in page


def test_the_driver_takes_nothing_live():
    """Fields that only a driver reads are never Live: it would never hear of them."""
    live = {path for path, kind in declared() if kind == "Live"}
    parts = {path.split(".")[1] for path in live}
    assert not {"application", "checkpoint", "driver", "epoch", "executor", "state"} & parts


def test_a_stored_spec_takes_what_needs_no_revision_from_the_newest():
    newest = spec({"image": "clicks:2", "failurePolicy.maxRestarts": 3, "restore.nonce": 7})
    mixed = refreshed(spec(), newest)
    assert (mixed.image, mixed.failure_policy.max_restarts, mixed.restore.nonce) == (
        "clicks:1",
        3,
        0,
    )
    assert spec_hash(mixed) == spec_hash(spec())


def test_a_stored_spec_stays_as_it_is_where_the_newest_does_not_fit():
    newest = spec(
        {"scaling.maxParallelism": 512, "scaling.autoscaler": {"enabled": True, "max": 256}}
    )
    assert refreshed(spec(), newest) == spec()


@pytest.mark.parametrize(("changes", "kind", "_fields"), EDITS)
def test_specs_are_the_same_job_as_long_as_what_differs_needs_no_restart(changes, kind, _fields):
    assert is_same_job(spec(), spec(changes)) == (kind in ("Ignore", "Live"))


def test_no_default_changes_that_an_older_runtime_has():
    """A driver is told only what its job says beyond the defaults, which are then its own.

    So a default that was released stays as it is: give what is to be new a field of its own. Fields
    that are new are added to the file.
    """
    known = json.loads((Path(__file__).parent / "golden" / "defaults-v1.json").read_text())
    assert spec().model_dump(mode="json", by_alias=True, exclude_none=True) == known
