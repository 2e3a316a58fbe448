"""The fleet file: which profile and limits a job has, and every way to get it wrong."""

import pytest
from moorage_testing.manifests import spec_data

from moorage_api import JobSpec
from moorage_api.fleet import limit_problems, read_fleet, with_defaults

FILE = """
profile: standard
profiles:
  standard:
    checkpoint: {interval: 30s}
    sparkConf: {spark.a: "1", spark.b: "1"}
    savepoint: {schedule: {cron: "0 3 * * *"}}
  batch: {upgrade: {mode: LastCheckpoint}}
limits: {executors: 4, images: ["registry.example/*"]}
namespaces:
  team-a: {profile: batch, limits: {executors: 64}}
  team-b: {profile: ""}
"""


def fleet(text=FILE):
    return read_fleet(text.encode())


def job_spec(**changes):
    return JobSpec.model_validate(spec_data(**changes))


@pytest.mark.parametrize(
    ("namespace", "named", "name"),
    [
        ("other", None, "standard"),
        ("other", "batch", "batch"),
        ("other", "none", ""),
        ("team-a", None, "batch"),
        ("team-a", "standard", "standard"),
        ("team-b", None, ""),
    ],
)
def test_a_job_has_its_own_profile_or_its_namespaces_or_everybodys(namespace, named, name):
    assert fleet().profile(namespace, named).name == name


def test_a_namespaces_limits_are_everybodys_but_for_its_own():
    found = fleet().limits("team-a")
    assert (found.executors, found.images) == (64, ("registry.example/*",))
    assert fleet().limits("other").executors == 4


def test_an_empty_file_says_nothing():
    for text in ("", "{}", "# nothing\n"):
        assert fleet(text).problems == ()
        assert fleet(text).profile("a", None).values == {}


@pytest.mark.parametrize(
    ("own", "path", "value"),
    [
        ({}, "checkpoint.interval", "30s"),
        ({"checkpoint": {"interval": "60s"}}, "checkpoint.interval", "60s"),
        ({"checkpoint": {"cron": "* * * * *"}}, "checkpoint.interval", None),
        ({"upgrade": {"mode": "Savepoint"}}, "upgrade.mode", "LastCheckpoint"),
        ({"checkpoint": {"interval": "10s"}}, "checkpoint.interval", "10s"),
        ({"checkpoint": {"timeout": "9m"}}, "checkpoint.interval", "30s"),
        ({"checkpoint": {"timeout": "9m"}}, "checkpoint.timeout", "9m"),
        ({"sparkConf": {"spark.b": "2"}}, "sparkConf", {"spark.a": "1", "spark.b": "2"}),
        # What may be left out is a whole where it is given.
        ({"savepoint": {"schedule": {"cron": "5 5 * * *"}}}, "savepoint.schedule.timeZone", None),
    ],
)
def test_what_a_spec_says_wins_and_what_is_a_default_is_not_said(own, path, value):
    values = fleet().profile("a", "standard").values
    more = {"savepoint": {"schedule": {"timeZone": "CET"}}, "upgrade": {"mode": "LastCheckpoint"}}
    merged: object = with_defaults(own, {**values, **more})
    for part in path.split("."):
        merged = merged.get(part)  # type: ignore[attr-defined]  # a mapping
    assert merged == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profiles: {a: {checkpoint: {intervall: 30s}}}", "did you mean"),
        ("profiles: {a: {checkpoint: {interval: soon}}}", "checkpoint.interval"),
        ("profiles: {a: {scaling: {maxParallelism: 4}}}", "is each job's own"),
        ("profiles: {a: {state: {checkpointDir: 's3://a/b'}}}", "is each job's own"),
        ("profiles: {a: {scaling: 4}}", "scaling"),
        (f"profiles: {{a: {{sparkConf: {{spark.b: '{'x' * 17_000}'}}}}}}", "say less"),
    ],
)
def test_a_wrong_profile_is_its_own_problem_alone(text, words):
    found = fleet(text)
    assert found.problems == ()
    wrong = found.profile("team", "a")
    assert wrong.values is None
    assert words in str(wrong.problems[0])
    assert found.profile("team", None).values == {}


@pytest.mark.parametrize(
    "text",
    [
        "- a",
        "profile: [",
        "profils: {}",
        "limits: {executors: 0}",
        "limits: {memory: much}",
        "a: &a [*a]",
    ],
)
def test_a_wrong_file_is_every_jobs_problem_and_nobody_gets_round_it(text):
    found = fleet(text)
    assert found.problems
    for named in (None, "none", "standard"):
        assert found.profile("team", named).values is None


@pytest.mark.parametrize(
    ("limits", "changes", "field"),
    [
        ("parallelism: 1", {"scaling": {"parallelism": 2}}, "spec.scaling.parallelism"),
        (
            "parallelism: 8",
            {"scaling": {"parallelism": 2, "autoscaler": {"enabled": True, "dryRun": False}}},
            "spec.scaling.autoscaler.max",
        ),
        ("executors: 2", {"executor": {"instances": 3}}, "spec.executor.instances"),
        ("executorMemory: 4Gi", {}, "spec.executor.memory"),
        ("driverMemory: 1Gi", {}, "spec.driver.memory"),
        ("memory: 6Gi", {}, "spec"),
        ("images: []", {}, "spec.image"),
        ("images: ['other/*']", {}, "spec.image"),
        ("serviceAccounts: [streams-*]", {}, "spec.serviceAccountName"),
        ("startTimeout: 5m", {"operator": {"startTimeout": "6m"}}, "spec.operator.startTimeout"),
    ],
)
def test_what_is_beyond_a_limit_is_named_with_both_numbers(limits, changes, field):
    found = fleet(f"limits: {{{limits}}}")
    assert found.problems == ()
    (problem,) = limit_problems(found.limits("team"), job_spec(**changes))
    assert problem.field == field
    assert problem.fix


def test_an_autoscaler_that_only_advises_is_beyond_nothing():
    spec = job_spec(scaling={"parallelism": 2, "autoscaler": {"enabled": True, "max": 32}})
    assert not list(limit_problems(fleet("limits: {parallelism: 4}").limits("a"), spec))
