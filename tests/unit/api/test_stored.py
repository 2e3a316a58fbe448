"""What an earlier release stored is read for good, whatever rules have come since.

The golden file only grows: the first spec is one that a release accepted, the others have values
that no rule of today takes. A field or a choice that is new is added to it, in a spec of its own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from moorage_testing.manifests import spec_data
from pydantic import ValidationError

from moorage_api import JobSpec
from moorage_api.changes import refreshed
from moorage_api.compute import Scaling
from moorage_api.model import Model, Violation
from moorage_api.stored import read_stored

GOLDEN = json.loads((Path(__file__).parent / "golden" / "stored-specs-v1.json").read_text())


def written(spec):
    return spec.model_dump(mode="json", by_alias=True, exclude_none=True)


@pytest.mark.parametrize("stored", GOLDEN, ids=range(len(GOLDEN)))
def test_what_was_stored_is_read_and_nothing_of_it_is_lost(stored):
    found = read_stored(JobSpec, stored)
    shown = written(found)
    assert {name: shown[name] for name in stored} == stored


@pytest.mark.parametrize("stored", GOLDEN[1:], ids=range(1, len(GOLDEN)))
def test_rules_of_today_are_for_what_is_written_today(stored):
    with pytest.raises(ValidationError):
        JobSpec.model_validate(stored)


def test_a_rule_that_is_new_refuses_nothing_that_is_stored(monkeypatch):
    def never(_self):
        yield Violation(("parallelism",), "is refused from now on", "write another")

    monkeypatch.setattr(Scaling, "_rules", never)
    with pytest.raises(ValidationError):
        JobSpec.model_validate(GOLDEN[0])
    assert written(read_stored(JobSpec, GOLDEN[0])) == GOLDEN[0]


def test_what_is_stored_is_read_as_what_was_accepted():
    assert read_stored(JobSpec, GOLDEN[0]) == JobSpec.model_validate(GOLDEN[0])
    assert read_stored(JobSpec, spec_data()) == JobSpec.model_validate(spec_data())


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        spec_data(scaling={"parallelism": "2"}),
        spec_data(scaling={"parallelism": True}),
        spec_data(scaling={"parallelism": 2, "cooldown": "soon"}),
        spec_data(desiredState="Dancing"),
        spec_data(application={"mainFile": "local:///app/job.py", "args": "all"}),
    ],
)
def test_what_no_release_stored_is_refused(stored):
    with pytest.raises(ValueError, match=r"no |not a duration"):
        read_stored(JobSpec, stored)


@pytest.mark.parametrize("value", [2, 0.5])
def test_a_number_with_a_fraction_may_be_whole(value):
    class Share(Model):
        percent: float

    assert read_stored(Share, {"percent": value}).percent == value
    with pytest.raises(ValueError, match="no <class 'float'>"):
        read_stored(Share, {"percent": True})


def test_a_later_releases_fields_are_passed_over():
    found = read_stored(JobSpec, spec_data(another={"a": 1}))
    assert found == JobSpec.model_validate(spec_data())


def all_of(kind: Any, path: str) -> set[str]:
    """The fields below, and the choices of each, as `spec.a.b` and `spec.a.b=Choice`."""
    if isinstance(kind, type) and issubclass(kind, Model):
        inner = (
            (f.annotation, f"{path}.{f.alias or name}") for name, f in kind.model_fields.items()
        )
        return {path}.union(*(all_of(one, below) for one, below in inner))
    choices = get_args(kind)
    if get_origin(kind) is Literal:
        return {path, *(f"{path}={one}" for one in choices)}
    if get_origin(kind) in (dict, Mapping):
        choices = choices[1:]  # its values
    return {path}.union(*(all_of(one, path) for one in choices if one is not ...))


def given(data: Any, path: str) -> set[str]:
    if isinstance(data, Mapping):
        return {path}.union(*(given(one, f"{path}.{name}") for name, one in data.items()))
    if isinstance(data, list):
        return {path}.union(*(given(one, path) for one in data))
    return {path, f"{path}={data}"}


def test_every_field_and_every_choice_is_in_the_golden_file():
    known = set().union(*(given(one, "spec") for one in GOLDEN))
    missing = all_of(JobSpec, "spec") - known
    assert not missing, f"add a spec with these to the end of the golden file: {sorted(missing)}"


def test_policies_of_the_newest_spec_hold_for_a_stored_one_that_todays_rules_refuse():
    twice = {"mainFile": "local:///app/job.py", "env": [{"name": "A"}, {"name": "A"}]}
    stored = read_stored(JobSpec, spec_data(application=twice, serviceAccountName="No Name"))
    with pytest.raises(ValidationError):
        JobSpec.model_validate(spec_data(application=twice))
    newest = JobSpec.model_validate(spec_data(failurePolicy={"maxRestarts": 3}))
    mixed = refreshed(stored, newest)
    assert mixed.failure_policy.max_restarts == 3
    assert mixed.application == stored.application
