"""Every rule of the API: what is refused, at which field, and what the message says."""

import pytest
import yaml

from moorage_api import ManifestError
from moorage_api.manifest import parse_manifest

REFUSED = [
    ("metadata.name", "x" * 46, "metadata.name", "46 characters"),
    ("metadata.name", "a.b", "metadata.name", "is not a name"),
    ("metadata.name", "1x", "metadata.name", "is not a name"),
    ("metadata.name", "x-", "metadata.name", "is not a name"),
    ("spec.scaling.parallelism", 129, "spec.scaling.parallelism", "above maxParallelism 128"),
    ("spec.scaling.parallelism", 0, "spec.scaling.parallelism", "0 is too small; write 1 or more"),
    ("spec.scaling.maxParallelism", 32769, "spec.scaling.maxParallelism", "write 32768 or less"),
    ("spec.scaling.parallelism", "8", "spec.scaling.parallelism", "take the quotes away"),
    ("spec.scaling.parallelism", 8.0, "spec.scaling.parallelism", "not a whole number"),
    ("spec.scaling.parallelism", True, "spec.scaling.parallelism", "not a whole number"),
    ("spec.scaling.keyHash", "murmur", "spec.scaling.keyHash", "is not one of its values"),
    ("spec.scaling.mode", "inplace", "spec.scaling.mode", "did you mean InPlace?"),
    (
        "spec.scaling.autoscaler",
        {"enabled": True, "max": 200},
        "spec.scaling.autoscaler.max",
        "above maxParallelism",
    ),
    ("spec.scaling.autoscaler", {"min": 40}, "spec.scaling.autoscaler.min", "above max 32"),
    (
        "spec.scaling.autoscaler",
        {"targetUtilization": 0.7},
        "spec.scaling.autoscaler.targetUtilization",
        "put it in quotes",
    ),
    ("spec.state.checkpointDir", "s3://state/clicks/", "spec.state.checkpointDir", "ends in '/'"),
    ("spec.state.checkpointDir", "hdfs://a/b", "spec.state.checkpointDir", "write s3://"),
    ("spec.state.checkpointDir", "s3:///b/k", "spec.state.checkpointDir", "write s3://"),
    ("spec.state.checkpointDir", "s3://b1b/k ", "spec.state.checkpointDir", "write s3://"),
    ("spec.state.checkpointDir", "s3://b1b//k", "spec.state.checkpointDir", "write s3://"),
    ("spec.state.checkpointDir", "file:///a/../b", "spec.state.checkpointDir", "write s3://"),
    ("spec.state.checkpointDir", "file:///../b", "spec.state.checkpointDir", "write s3://"),
    ("spec.state.checkpointDir", "file://./../b", "spec.state.checkpointDir", "write s3://"),
    ("spec.state.checkpointDir", "file://a/b", "spec.state.checkpointDir", "where it starts"),
    ("spec.state.checkpointDir", "/a/b", "spec.state.checkpointDir", "write s3://"),
    ("spec.state.savepointDir", "file:///var/lib/clicks", "spec.state.savepointDir", "the same"),
    ("spec.state.savepointDir", "file:///var/lib", "spec.state.savepointDir", "in the other"),
    ("spec.state.backend", "rocskdb", "spec.state.backend", "did you mean rocksdb?"),
    ("spec.state.local", {"type": "EphemeralPVC"}, "spec.state.local.size", "type is EphemeralPVC"),
    ("spec.state.local", {"type": "HostPath"}, "spec.state.local.path", "type is HostPath"),
    ("spec.state.local", {"size": "fifty"}, "spec.state.local.size", "is not a quantity"),
    ("spec.upgrade.standby", {"observeFor": "0s"}, "spec.upgrade.standby.observeFor", "1ms or"),
    ("spec.upgrade.standby", {"observeFor": "1h"}, "spec.upgrade.standby.observeFor", "raise"),
    ("spec.upgrade.strategy", "BlueGreen", "spec.upgrade.strategy", "is not one of its values"),
    ("spec.state.options", {"a": 64}, "spec.state.options.a", "put it in quotes"),
    (
        "spec.checkpoint",
        {"interval": "60s", "cron": "0 3 * * *"},
        "spec.checkpoint.cron",
        "is given beside interval; keep one of them",
    ),
    ("spec.checkpoint.interval", "500ms", "spec.checkpoint.interval", "write 1s or more"),
    ("spec.checkpoint.interval", 60, "spec.checkpoint.interval", "has no unit: 60"),
    ("spec.checkpoint.interval", "1d", "spec.checkpoint.interval", "is not a duration: '1d'"),
    ("spec.checkpoint.cron", "0 3 * *", "spec.checkpoint.cron", "has 4 fields"),
    ("spec.checkpoint.cron", "0 25 * * *", "spec.checkpoint.cron", "hour"),
    ("spec.checkpoint.cron", "*/0 * * * *", "spec.checkpoint.cron", "minute"),
    ("spec.checkpoint.cron", "0 0 * * fri-mon", "spec.checkpoint.cron", "day of week"),
    ("spec.checkpoint.retain.count", 0, "spec.checkpoint.retain.count", "write 1 or more"),
    ("spec.epoch.maxRecordsPerEpoch", 0, "spec.epoch.maxRecordsPerEpoch", "write 1 or more"),
    ("spec.restore.mode", "Snapshot", "spec.restore.snapshotName", "missing for mode Snapshot"),
    ("spec.restore.mode", "Path", "spec.restore.path", "missing for mode Path"),
    ("spec.restore.uidMapping", {"a": "x", "b": "x"}, "spec.restore.uidMapping", "the same name"),
    ("spec.restore.uidMapping", {"a": "-x"}, "spec.restore.uidMapping.a", "not an operator uid"),
    ("spec.restore.nonce", -1, "spec.restore.nonce", "write 0 or more"),
    (
        "spec.sparkConf",
        {"spark.master": "local"},
        "spec.sparkConf['spark.master']",
        "is not the job's to set",
    ),
    (
        "spec.sparkConf",
        {"spark.sql.shuffle.partitions ": "8"},
        "spec.sparkConf['spark.sql.shuffle.partitions ']",
        "use scaling.parallelism",
    ),
    ("spec.sparkConf", {"foo": "1"}, "spec.sparkConf.foo", "is not a Spark setting"),
    ("spec.sparkConf", {"spark.x": True}, "spec.sparkConf['spark.x']", "put it in quotes"),
    ("spec.driver.memory", "2g", "spec.driver.memory", "did you mean 2Gi?"),
    ("spec.driver.memory", "100Mi", "spec.driver.memory", "write 450Mi or more"),
    ("spec.executor.memory", 4, "spec.executor.memory", "write 450Mi or more"),
    (
        "spec.executor.sidecar.resources",
        {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}},
        "spec.executor.sidecar.resources.requests.memory",
        "above the limit 1Gi",
    ),
    (
        "spec.application.mainFile",
        "/app/job.py",
        "spec.application.mainFile",
        "local:///app/job.py",
    ),
    ("spec.application.mainFile", "s3://b/job.py", "spec.application.mainFile", "has the scheme"),
    ("spec.application.mainFile", "job.jar", "spec.application.mainFile", "is not a Python file"),
    ("spec.application.args", "--fast", "spec.application.args", "is text and not a list"),
    ("spec.application.args", [1], "spec.application.args[0]", "put it in quotes"),
    (
        "spec.application.env",
        [{"name": "A", "value": "x", "valueFrom": {}}],
        "spec.application.env[0].value",
        "keep one of them",
    ),
    (
        "spec.application.env",
        [{"name": "A"}, {"name": "A"}],
        "spec.application.env",
        "names A twice",
    ),
    (
        "spec.failurePolicy.backoff",
        {"initial": "10m"},
        "spec.failurePolicy.backoff.initial",
        "above max 5m",
    ),
    ("spec.state.s3.endpoint", "seaweed:8333", "spec.state.s3.endpoint", "write https://host:port"),
    ("spec.bounded", "yes", "spec.bounded", "write true or false, without quotes"),
]


@pytest.mark.parametrize(("path", "value", "field", "words"), REFUSED)
def test_a_manifest_that_breaks_a_rule_is_refused_at_its_field(manifest, path, value, field, words):
    text = yaml.safe_dump(manifest({path: value}), sort_keys=False)
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text.encode(), "job.yaml")
    (problem,) = caught.value.problems
    assert problem.field == field
    assert words in f"{problem.reason}; {problem.fix}"
    assert problem.line is not None


ACCEPTED = [
    ("metadata.name", "x" * 45),
    ("spec.scaling", {"parallelism": 32768, "maxParallelism": 32768}),
    ("spec.state.checkpointDir", "memory://test"),
    ("spec.state.checkpointDir", "file://./state/clicks"),
    ("spec.state.checkpointDir", "s3://my.bucket-1/a/b=c/d@e"),
    ("spec.state.savepointDir", "file:///var/lib/clicks-savepoints"),
    ("spec.state.backend", "my_company.backends.Factory"),
    ("spec.checkpoint.cron", "*/15 8-18 * jan-jun mon-fri"),
    ("spec.checkpoint.cron", "@hourly"),
    ("spec.epoch.interval", "0s"),
    ("spec.application.mainFile", "../shared/job.py"),
    ("spec.image", None),
    ("spec.restore", {"mode": "Empty", "acknowledgeStateLoss": True}),
    ("status", {"phase": "Running"}),
]


@pytest.mark.parametrize(("path", "value"), ACCEPTED)
def test_a_manifest_within_the_rules_is_accepted(manifest, path, value):
    text = yaml.safe_dump(manifest({path: value}))
    assert parse_manifest(text.encode(), "job.yaml").kind == "StatefulSparkJob"


def test_an_object_as_kubectl_exports_it_can_be_read(manifest):
    exported = manifest()
    exported["metadata"] |= {
        "uid": "0b6f",
        "resourceVersion": "1207",
        "generation": 3,
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
    }
    text = yaml.safe_dump(exported) + "  \n"
    text = text.replace("  uid: 0b6f", "  uid: 0b6f\n  creationTimestamp: 2026-11-20T10:00:00Z")
    assert parse_manifest(text.encode(), "job.yaml").metadata.uid == "0b6f"
