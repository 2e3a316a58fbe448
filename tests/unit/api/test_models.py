import json
from pathlib import Path

import pydantic
import pytest
import yaml

from moorage_api import Application, Duration, Quantity, Restore, Scaling, StatefulSparkJob

EVERYTHING = """
apiVersion: moorage.dev/v1alpha1
kind: StatefulSparkJob
metadata:
  name: clicks
  namespace: streams
  annotations: {moorage.dev/savepoint: "before-black-friday"}
spec:
  image: registry/clicks:1.4.2
  imagePullPolicy: IfNotPresent
  application:
    mainFile: "local:///app/job.py"
    args: ["--fast"]
    pyFiles: ["local:///app/lib.zip"]
    env: [{name: MODE, value: fast}, {name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}]
  sparkConf: {spark.ui.enabled: "false"}
  desiredState: Running
  bounded: true
  scaling:
    parallelism: 8
    maxParallelism: 128
    keyHash: spark-xxhash64
    mode: InPlace
    repartition: Forbidden
    autoscaler: {enabled: false, dryRun: true, min: 2, max: 32, targetUtilization: "0.7",
                 scaleDownDelay: 1h, window: 15m}
  epoch: {interval: 1s, maxRecordsPerEpoch: 1000}
  driver:   {cores: 1, cpuRequest: 500m, memory: 2Gi, podTemplate: {}}
  executor:
    instances: 4
    cores: 2
    cpuRequest: 1
    memory: 4Gi
    podTemplate: {spec: {nodeSelector: {disk: ssd}}}
    sidecar: {resources: {requests: {cpu: 250m, memory: 1Gi}, limits: {memory: 2Gi}}}
  serviceAccountName: spark
  state:
    backend: rocksdb
    options: {write-buffer-size: 64mb}
    changelog: false
    checkpointDir: s3://state/clicks
    savepointDir:  s3://savepoints/clicks
    s3: {endpoint: "http://seaweed:8333", region: eu-west-1, pathStyle: true}
    credentialsSecretRef: {name: s3-creds}
    local: {type: EphemeralPVC, size: 50Gi, storageClassName: fast-local}
  checkpoint:
    interval: 60s
    mode: ExactlyOnce
    maxConcurrent: 1
    timeout: 10m
    minPause: 5s
    tolerableFailures: 3
    onToleranceExceeded: Degrade
    incremental: true
    retain: {count: 3}
  savepoint:
    schedule: {cron: "0 3 * * *", timeZone: UTC, startingDeadline: 1h}
    retain: {count: 10, maxAge: 168h}
    timeout: 30m
  restore:
    mode: Latest
    snapshotName: ""
    path: ""
    nonce: 0
    maxFallbackAge: 30m
    acknowledgeStateLoss: false
    claimMode: NoClaim
    allowNonRestoredState: false
    uidMapping: {old: new}
  upgrade:
    mode: Savepoint
    fallback: LastCheckpoint
    maxCheckpointAge: 5m
    preflight: true
    rollback:
      {enabled: true, readinessTimeout: 10m, stableAfter: {duration: 2m, completedCheckpoints: 1}}
  failurePolicy:
    maxRestarts: -1
    window: 1h
    backoff: {initial: 10s, max: 5m, resetAfter: 30m}
    infrastructure: {countAsRestart: false, nodeLostTimeout: 2m}
    executorFailures: {max: 20, window: 10m}
    health: {noProgressFor: 15m, noCheckpointFor: 15m, actions: {noProgress: Restart}}
  deletion: {policy: Retain, finalSnapshot: Savepoint, timeout: 10m, onTimeout: Proceed}
  ttlAfterFinished: 24h
  observability: {ui: {ingressTemplate: "", className: ""}, metrics: {podMonitor: false}}
"""


def test_a_manifest_with_every_field_is_a_job(write):
    job = write(EVERYTHING)
    assert job.name == "clicks"
    assert job.namespace == "streams"
    assert job.spec.scaling.parallelism == 8
    assert job.spec.application.args == ("--fast",)
    assert job.spec.executor.cpu_request == Quantity("1")
    assert job.spec.restore.uid_mapping == {"old": "new"}


def test_a_job_written_out_and_read_again_is_the_same(write):
    job = write(EVERYTHING)
    text = job.model_dump_json(by_alias=True, exclude_unset=True)
    assert write(text) == job
    given = yaml.safe_load(EVERYTHING)
    given["spec"]["executor"]["cpuRequest"] = "1"
    assert json.loads(text) == given


def test_what_is_left_out_has_the_documented_default(manifest):
    spec = StatefulSparkJob.model_validate(manifest()).spec
    assert spec.scaling.max_parallelism == 128
    assert spec.scaling.key_hash == "spark-xxhash64"
    assert spec.epoch.interval == Duration("1s")
    assert (spec.state.backend, spec.state.effective_backend) == (None, "rocksdb")
    assert spec.checkpoint.interval is None
    assert spec.checkpoint.effective_interval == Duration("60s")
    assert spec.checkpoint.on_tolerance_exceeded == "Degrade"
    assert spec.restore.max_fallback_age == Duration("30m")
    assert spec.restore.claim_mode == "NoClaim"
    assert spec.deletion.policy == "Retain"
    assert spec.image is None


def test_a_cron_replaces_the_interval(manifest):
    job = StatefulSparkJob.model_validate(manifest({"spec.checkpoint.cron": "*/5 * * * *"}))
    assert job.spec.checkpoint.effective_interval is None


def test_models_are_frozen():
    scaling = Scaling(parallelism=2)
    with pytest.raises(pydantic.ValidationError):
        scaling.parallelism = 3


def test_python_code_builds_models_by_their_python_names_and_rules_hold_there_too():
    assert Restore(mode="Path", path="file:///x/chk-3").path == "file:///x/chk-3"
    with pytest.raises(pydantic.ValidationError, match="is above maxParallelism 128"):
        Scaling(parallelism=129)


def test_every_field_has_a_description():
    assert list(_undescribed(StatefulSparkJob, ())) == []


def test_the_json_schema_can_be_made_and_speaks_camel_case():
    schema = json.dumps(StatefulSparkJob.model_json_schema(by_alias=True))
    assert "maxParallelism" in schema
    assert "max_parallelism" not in schema


def test_the_job_file_is_found_in_the_image_or_beside_the_manifest(manifest):
    beside = StatefulSparkJob.model_validate(manifest())
    inside = StatefulSparkJob.model_validate(
        manifest({"spec.application.mainFile": "local:///app/job.py"})
    )
    assert beside.spec.application.main_path(Path("/jobs")) == Path("/jobs/job.py")
    assert inside.spec.application.main_path(Path("/jobs")) == Path("/app/job.py")


def _undescribed(model, above):
    for name, field in model.model_fields.items():
        if not field.description:
            yield ".".join([*above, name])
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            yield from _undescribed(kind, (*above, name))


@pytest.mark.parametrize(
    ("py_files", "paths"),
    [
        ([], ()),
        (["lib.zip", "../shared"], ("lib.zip", "../shared")),
        (["helpers.py", "lib/prices.py", "lib/rates.py"], (".", "lib")),
        (["local:///app/lib/prices.py", "local:///app/more.whl"], ("/app/lib", "/app/more.whl")),
    ],
)
def test_a_module_is_imported_from_its_folder(py_files, paths):
    application = Application.model_validate({"mainFile": "job.py", "pyFiles": py_files})
    assert application.import_paths == paths
