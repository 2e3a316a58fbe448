"""Every rule of the definitions on objects and edits that keep it and that break it."""

from typing import Any

import pytest
from moorage_testing.crd import nodes
from pydantic import ValidationError

from moorage_api import StatefulSparkJob
from moorage_api.crds import job_crd, snapshot_crd

S = "spec."
EMPTY = {"mode": "Empty", "acknowledgeStateLoss": True, "nonce": 1}
WIDE = {"parallelism": 8, "maxParallelism": 256}

REFUSED = {
    "spec.scaling.parallelism": {"spec.scaling": {"parallelism": 9, "maxParallelism": 8}},
    "spec.scaling.autoscaler.min": {"spec.scaling.autoscaler": {"min": 5, "max": 4}},
    "spec.scaling.autoscaler.max": {"spec.scaling.autoscaler": {"enabled": True, "max": 200}},
    "spec.scaling.floor": {"spec.scaling.floor": 200},
    "spec.state.savepointDir": {"spec.state.savepointDir": None},
    "spec.checkpoint.cron": {"spec.checkpoint": {"interval": "60s", "cron": "@daily"}},
    "spec.restore.snapshotName": {"spec.restore.mode": "Snapshot"},
    "spec.restore.path": {"spec.restore.mode": "Path"},
    "spec.restore.uidMapping": {"spec.restore.uidMapping": {"a b": "c"}},
    "spec.state.local.size": {"spec.state.local": {"type": "EphemeralPVC"}},
    "spec.state.local.path": {"spec.state.local": {"type": "HostPath"}},
    "spec.state.local.storageClassName": {"spec.state.local": {"type": "ReusedPVC", "size": "1Gi"}},
    "spec.upgrade.standby.observeFor": {"spec.upgrade.standby": {"observeFor": "30m"}},
    "spec.failurePolicy.backoff.initial": {"spec.failurePolicy.backoff": {"initial": "10m"}},
    "spec.application.env[0].value": {
        "spec.application.env": [{"name": "A", "value": "", "valueFrom": {"fieldRef": {}}}]
    },
    "spec.epoch.interval": {"spec.epoch.interval": "87601h"},
    "spec.checkpoint.interval": {"spec.checkpoint.interval": "900ms"},
    "spec.driver.memory": {"spec.driver.memory": "400Mi"},
    "spec.executor.memory": {"spec.executor.memory": 1024},
    "spec.executor.sidecar.resources": {
        "spec.executor.sidecar.resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}
    },
    "spec.executor.sidecar.resources.requests.cpu": {
        "spec.executor.sidecar.resources": {"requests": {"cpu": -1}}
    },
}


STANDBY = {"spec.upgrade.strategy": "WarmStandby"}
NOT_BESIDE: list[dict[str, Any]] = [
    {"spec.bounded": True},
    {"spec.state.local": {"type": "HostPath", "path": "/mnt/nvme"}},
    {"spec.state.backend": "forst"},
]


@pytest.mark.parametrize("change", NOT_BESIDE)
def test_two_versions_of_a_job_run_beside_each_other_only_where_they_can(change, jobs, job):
    assert jobs.faults(job(STANDBY)) == jobs.faults(job(change)) == []
    (fault,) = jobs.faults(job({**STANDBY, **change}))
    assert fault.startswith(".spec.upgrade.strategy: ")
    assert "use upgrade.strategy Restart" in fault
    with pytest.raises(ValidationError, match="is WarmStandby, and"):
        StatefulSparkJob.model_validate(job({**STANDBY, **change}))


def test_a_job_is_edited_whatever_its_next_upgrade_has_too_little_time_for(jobs, job):
    late = {"catchUpTimeout": "10m", "maxOutputDifferencePercent": 10}
    before = job({**STANDBY, "spec.upgrade.standby": late})
    after = job({**STANDBY, "spec.upgrade.standby": late, "spec.desiredState": "Suspended"})
    assert jobs.faults(before) == jobs.faults(after, before) == []
    StatefulSparkJob.model_validate(after)


@pytest.mark.parametrize("field", REFUSED)
@pytest.mark.scenario(50)
def test_a_job_that_breaks_one_rule_is_refused_at_its_field(field, jobs, job):
    (fault,) = jobs.faults(job(REFUSED[field]))
    assert fault.startswith(f".{field}: ")


DIRECTORIES = [
    "s3:///b/k",
    "s3://b/k ",
    "s3://bucket//k",
    "s3://bucket/k/",
    "s3://bucket/a/../k",
    "s3://bucket/.",
    "s3://bucket/k\n",
    "file://relative",
    "file://./relative",
    "memory://x",
    "",
]


@pytest.mark.parametrize("url", DIRECTORIES)
def test_a_directory_that_no_store_has_is_refused(url, jobs, job):
    assert jobs.faults(job({"spec.state.checkpointDir": url}))


@pytest.mark.parametrize(
    "savepoints",
    ["s3://state/clicks", "s3://state/clicks/saves", "s3://state"],
)
def test_savepoints_in_or_around_checkpoints_are_refused(savepoints, jobs, job):
    (fault,) = jobs.faults(job({"spec.state.savepointDir": savepoints}))
    assert "side by side" in fault


def test_a_directory_that_only_begins_alike_is_another_one(jobs, job):
    assert jobs.faults(job({"spec.state.savepointDir": "s3://state/clicks-saves"})) == []


CONF = {
    "spark.sql.ansi.enabled": True,
    "spark.executorEnv.A_B": True,
    "spark.kubernetes.executor.node.selector.topology.kubernetes.io/zone": True,
    "spark.master": False,
    "spark.master ": False,
    "sparkmaster": False,
    "spark.executor.memory": False,
    "spark.kubernetes.executor.label.moorage.dev/role": False,
}


@pytest.mark.parametrize("key", CONF)
def test_settings_that_the_operator_decides_are_refused(key, jobs, job):
    assert (jobs.faults(job({"spec.sparkConf": {key: "x"}})) == []) == CONF[key]


ACCEPTED = {
    "the smallest job": {},
    "a cron in place of an interval": {"spec.checkpoint": {"cron": "*/5 * * * *"}},
    "a whole number for a quantity": {
        "spec.driver.memory": 4294967296,
        "spec.driver.cpuRequest": 1,
    },
    "a request equal to the limit in another unit": {
        "spec.executor.sidecar.resources": {
            "requests": {"cpu": "2000m", "memory": "1Gi"},
            "limits": {"cpu": 2, "memory": "1024Mi"},
        }
    },
    "any pod template": {"spec.driver.podTemplate": {"spec": {"x": [1, {"y": None}]}}},
    "no savepoints, as upgrades do not take them": {
        "spec.state.savepointDir": None,
        "spec.upgrade.mode": "LastCheckpoint",
    },
    "no wait": {"spec.epoch.interval": "0s"},
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_what_is_right_is_accepted(what, jobs, job):
    assert jobs.faults(job(ACCEPTED[what])) == []


EDITS = [
    ("maxParallelism alone", {}, {"spec.scaling": WIDE}, "spec.scaling.maxParallelism"),
    (
        "maxParallelism, rewriting the state",
        {},
        {"spec.scaling": {**WIDE, "repartition": "Offline"}},
        "",
    ),
    ("maxParallelism, starting empty", {}, {"spec.scaling": WIDE, "spec.restore": EMPTY}, ""),
    (
        "maxParallelism, starting empty without a new nonce",
        {"spec.restore": EMPTY},
        {"spec.restore": EMPTY, "spec.scaling": WIDE},
        "spec.scaling.maxParallelism",
    ),
    (
        "maxParallelism by leaving it out",
        {"spec.scaling": WIDE},
        {},
        "spec.scaling.maxParallelism",
    ),
    (
        "the hash of keys",
        {},
        {"spec.scaling": {"parallelism": 8, "keyHash": "flink-murmur"}},
        "spec.scaling.keyHash",
    ),
    ("the directory", {}, {"spec.state.checkpointDir": "s3://new/dir"}, "spec.state.checkpointDir"),
    (
        "the directory, saying what to begin from",
        {},
        {"spec.state.checkpointDir": "s3://new/dir", "spec.restore": {"nonce": 1}},
        "",
    ),
    ("a higher nonce", {"spec.restore.nonce": 1}, {"spec.restore.nonce": 2}, ""),
    ("a lower nonce", {"spec.restore.nonce": 2}, {"spec.restore.nonce": 1}, "spec.restore.nonce"),
    ("the restore block taken out", {"spec.restore.nonce": 2}, {}, "spec.restore.nonce"),
    ("the image", {}, {"spec.image": "clicks:2"}, ""),
    (
        "a cron later on",
        {"spec.checkpoint": {"timeout": "5m"}},
        {"spec.checkpoint.cron": "@daily"},
        "",
    ),
]


@pytest.mark.parametrize(
    ("before", "after", "refused"), [e[1:] for e in EDITS], ids=[e[0] for e in EDITS]
)
@pytest.mark.scenario(51)
def test_an_edit_of_a_job(before, after, refused, jobs, job):
    assert jobs.faults(job(before)) == []
    faults = jobs.faults(job(after), job(before))
    assert [fault.partition(":")[0] for fault in faults] == ([f".{refused}"] if refused else [])


SNAPSHOT_EDITS = {
    "jobRef": {"name": "other"},
    "type": "Checkpoint",
    "name": "after",
    "format": "native",
    "existingPath": "s3://saves/x",
    "backoffLimit": 5,
    "startDeadline": "1h",
}


@pytest.mark.parametrize("field", SNAPSHOT_EDITS)
def test_a_snapshot_is_fixed_once_made(field, snapshots, snapshot):
    edited = snapshot({f"spec.{field}": SNAPSHOT_EDITS[field]})
    assert snapshots.faults(edited) == []
    (fault,) = snapshots.faults(edited, snapshot())
    assert "is fixed" in fault


def test_a_snapshots_name_cannot_be_taken_out(snapshots, snapshot):
    assert snapshots.faults(snapshot({"spec.name": None}), snapshot())


@pytest.mark.parametrize("edit", [{"spec.pinned": True}, {"spec.deletionPolicy": "Retain"}])
def test_a_snapshot_can_be_pinned_and_its_data_kept(edit, snapshots, snapshot):
    assert snapshots.faults(snapshot(edit), snapshot()) == []


def test_only_a_savepoint_can_be_registered(snapshots, snapshot):
    given = {"spec.type": "Checkpoint", "spec.existingPath": "s3://saves/x"}
    (fault,) = snapshots.faults(snapshot(given))
    assert "Savepoint" in fault


def test_only_a_savepoint_can_be_pinned(snapshots, snapshot):
    (fault,) = snapshots.faults(snapshot({"spec.type": "Checkpoint", "spec.pinned": True}))
    assert "checkpoint.retain; use type Savepoint" in fault
    assert snapshots.faults(snapshot({"spec.type": "Checkpoint", "spec.pinned": False})) == []


@pytest.mark.parametrize("crd", [job_crd(), snapshot_crd()], ids=["job", "snapshot"])
def test_a_rule_sits_on_the_lowest_node_that_sees_all_it_needs(crd):
    """A stored object that breaks a new rule is judged again when that node changes, not before."""
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, node in nodes(schema):
        for rule in node.get("x-kubernetes-validations", []):
            children = node.get("properties", {})
            used = {name for name in children if f"self.{name}" in rule["rule"]}
            inner = [name for name in used if children[name].get("properties")]
            assert not (len(used) == 1 and inner and "oldSelf" not in rule["rule"]), (path, rule)


def test_every_rule_of_a_job_is_broken_by_an_example(jobs, job):
    broken = [text for changes in REFUSED.values() for text in jobs.broken(job(changes))]
    for _, before, after, _ in EDITS:
        broken += jobs.broken(job(after), job(before))
    for changes in OTHERS:
        broken += jobs.broken(job(changes))
    rules = [r for _, n in nodes(jobs.schema) for r in n.get("x-kubernetes-validations", [])]
    assert {rule["message"] for rule in rules} - set(broken) == set()


TOLD = [
    ({"spec.scaling": {"parallelism": 9, "maxParallelism": 8}}, "parallelism 9 is above", "8"),
    ({"spec.scaling.autoscaler": {"min": 5, "max": 4}}, "min 5 is above max 4", "lower min"),
    ({"spec.scaling.autoscaler": {"enabled": True, "max": 200}}, "autoscaler.max 200", "128"),
    ({"spec.scaling": WIDE}, "maxParallelism is 256 and was 128", "set it back"),
    ({"spec.scaling.keyHash": "flink-murmur"}, "is flink-murmur and was spark-xx", "set it back"),
    ({"spec.state.checkpointDir": "s3://new/w"}, "s3://new/w", "s3://state/clicks"),
    ({"spec.restore": {"nonce": 3}}, "restore.nonce is 3 and was 4", "raise it"),
    ({"spec.state.savepointDir": "s3://state"}, "is s3://state and checkpointDir is", "two"),
    ({"spec.state.savepointDir": "s3://abc/../k"}, "is s3://abc/../k, with a step", "write the"),
    ({"spec.checkpoint": {"interval": "9s", "cron": "@daily"}}, "cron @daily", "interval 9s"),
    ({"spec.state.local": {"type": "ReusedPVC"}}, "type is ReusedPVC", "add a size"),
    ({"spec.failurePolicy.backoff": {"initial": "10m"}}, "initial 10m is above max 5m", "raise"),
    ({"spec.restore.uidMapping": {"a b": "c"}}, '["a b"], which is no operator uid', "letters"),
    ({"spec.sparkConf": {"spark.master": "x", "y": "z"}}, '"spark.master"', '"y"'),
    (
        {"spec.executor.sidecar.resources": {"requests": {"cpu": 2}, "limits": {"cpu": "500m"}}},
        "requests.cpu 2 is above limits.cpu 500m",
        "raise the limit",
    ),
    (
        {"spec.application.env": [{"name": "A", "value": "", "valueFrom": {"fieldRef": {}}}]},
        "value of A is given",
        "keep one",
    ),
    ({"spec.checkpoint.timeout": "0s"}, "is below 1ms", "write 1ms or more"),
    ({"spec.epoch.interval": "87601h"}, "longer than ten years", "write 87600h or less"),
]


@pytest.mark.parametrize(("changes", "value", "fix"), TOLD, ids=[told[1] for told in TOLD])
def test_a_refusal_names_the_value_and_the_fix(changes, value, fix, jobs, job):
    before = {"spec.restore": {"nonce": 4}}
    told = " ".join(jobs.faults(job({"spec.restore": {"nonce": 4}, **changes}), job(before)))
    assert value in told
    assert fix in told


def test_an_edit_of_a_snapshot_is_told_what_it_changes(snapshots, snapshot):
    (fault,) = snapshots.faults(
        snapshot({"spec.name": "after", "spec.type": "Checkpoint"}), snapshot()
    )
    assert "changes type name, and" in fault


OTHERS = [
    {"spec.sparkConf": {"spark.master": "x"}},
    {"spec.state.checkpointDir": "s3://bucket/a/../k"},
    {"spec.state.savepointDir": "s3://bucket/a/../k"},
    {"spec.state.savepointDir": "s3://state"},
    {"spec.checkpoint.timeout": "0s"},
    {"spec.driver.cpuRequest": 0},
    {"spec.operator.startTimeout": "9s"},
    {"spec.state.local": {"type": "EmptyDir", "size": "1k"}},
    {
        "spec.executor.sidecar.resources": {
            "requests": {"memory": "2Gi"},
            "limits": {"memory": "1Gi"},
        }
    },
    *({**STANDBY, **change} for change in NOT_BESIDE),
    {"spec.savepoint.schedule": {"cron": "@daily", "startingDeadline": "0s"}},
    {"spec.scaling.autoscaler": {"window": "0s"}},
]


@pytest.mark.parametrize("name", ["a.b", "1x", "Clicks", "x" * 46, "x-"])
def test_a_name_that_pods_cannot_be_made_from_is_refused(name, jobs, job):
    assert jobs.faults(job({"metadata.name": name}))


def test_defaults_are_those_of_the_models(jobs, job):
    from moorage_api import JobSpec

    given = job()["spec"]
    wanted = JobSpec.model_validate(given).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert _without_empty(jobs.stored(job())["spec"]) == _without_empty(wanted)


def _without_empty(value):
    if isinstance(value, dict):
        inner = {key: _without_empty(part) for key, part in value.items()}
        return {key: part for key, part in inner.items() if part not in ({}, [])}
    return value
