"""The API server and the models say the same of any spec, as far as both can say it.

What only the operator can see is kept out of what is generated: the inside of pod templates, cron
ranges that go downwards, two uids mapped to one name, features that this release lacks.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moorage_testing.crd import Judge
from pydantic import ValidationError

from moorage_api import StatefulSparkJob, cluster_problems
from moorage_api.crds import job_crd

JUDGE = Judge(job_crd())

DURATION = st.sampled_from(
    ["0s", "1ms", "900ms", "1s", "60s", "1h30m", "87600h", "87601h", "1d", "-1s", "5", "1.5s", ""]
)
QUANTITY = st.sampled_from(
    [
        "1",
        "500m",
        "100Mi",
        "450Mi",
        "2Gi",
        "4G",
        "1.5Gi",
        "1e9",
        "-1",
        "4g",
        "",
        1,
        0,
        -2,
        4294967296,
    ]
)
COUNT = st.sampled_from([-2, -1, 0, 1, 2, 8, 32, 128, 129, 10_000, 32_768, 32_769, 2**31])
WORD = st.sampled_from(["", "a", "clicks", "A", "a b", "x" * 300, "a.b", "a\n"])
URL = st.sampled_from(
    [
        "s3://state/clicks",
        "s3://state/clicks/saves",
        "s3://saves/clicks",
        "s3://state/clicks-2",
        "file:///var/lib/x",
        "file://./x",
        "memory://x",
        "s3://b/",
        "s3://state/a/../b",
        "s3://state/a\n",
    ]
)
CONF = st.dictionaries(
    st.sampled_from(
        [
            "spark.sql.ansi.enabled",
            "spark.master",
            "spark.task.cpus",
            "spark.kubernetes.executor.label.moorage.dev/x",
            "spark.executorEnv.A",
            "hadoop.x",
            "spark.x ",
        ]
    ),
    WORD,
    max_size=2,
)


def some(**fields):
    return st.fixed_dictionaries({}, optional=fields)


RESOURCES = some(
    requests=some(cpu=QUANTITY, memory=QUANTITY), limits=some(cpu=QUANTITY, memory=QUANTITY)
)
PARTS = {
    "image": st.sampled_from(["", "a b", "clicks:2"]),
    "imagePullPolicy": st.sampled_from(["Always", "Sometimes"]),
    "sparkConf": CONF,
    "desiredState": st.sampled_from(["Running", "Suspended", "running"]),
    "bounded": st.sampled_from([True, "yes"]),
    "epoch": some(interval=DURATION, maxRecordsPerEpoch=COUNT),
    "driver": some(cores=COUNT, cpuRequest=QUANTITY, memory=QUANTITY),
    "executor": some(
        instances=COUNT,
        cores=st.sampled_from([0, 1, 2]),
        memory=QUANTITY,
        sidecar=some(resources=RESOURCES),
    ),
    "serviceAccountName": WORD,
    "checkpoint": some(
        interval=DURATION,
        timeout=DURATION,
        minPause=DURATION,
        maxConcurrent=COUNT,
        tolerableFailures=COUNT,
        retain=some(count=COUNT),
    ),
    "savepoint": some(
        schedule=st.fixed_dictionaries(
            {"cron": st.sampled_from(["@daily", "0 3 * * *", "0 3 * *", "@never"])},
            optional={"timeZone": st.sampled_from(["UTC", "Europe/Paris", "5", ""])},
        ),
        timeout=DURATION,
    ),
    "restore": some(
        mode=st.sampled_from(["Latest", "Snapshot", "Path", "Empty", "Newest"]),
        snapshotName=WORD,
        path=WORD,
        nonce=COUNT,
        maxFallbackAge=DURATION,
        uidMapping=st.dictionaries(WORD, st.just("b"), max_size=1),
    ),
    "upgrade": some(mode=st.sampled_from(["Savepoint", "LastCheckpoint", "Stateless"])),
    "failurePolicy": some(
        maxRestarts=COUNT,
        backoff=some(initial=DURATION, max=DURATION),
        executorFailures=some(max=COUNT, window=DURATION),
    ),
    "ttlAfterFinished": DURATION,
    "unknown": st.just(1),
}
STATE = st.fixed_dictionaries(
    {"checkpointDir": URL},
    optional={
        "savepointDir": URL,
        "local": some(
            type=st.sampled_from(["EmptyDir", "EphemeralPVC", "ReusedPVC", "HostPath"]),
            size=QUANTITY,
            storageClassName=WORD,
            path=st.sampled_from(["/mnt/x", "mnt", "/a b"]),
        ),
        "credentialsSecretRef": some(name=WORD),
        "s3": some(
            endpoint=st.sampled_from(["https://s3:8333", "http://[fd00::1]:8333", "s3:8333"]),
            region=WORD,
        ),
    },
)
SCALING = st.fixed_dictionaries(
    {"parallelism": COUNT},
    optional={
        "maxParallelism": COUNT,
        "autoscaler": some(min=COUNT, max=COUNT, targetUtilization=st.sampled_from(["0.7", "7"])),
    },
)
APPLICATION = st.fixed_dictionaries(
    {"mainFile": st.sampled_from(["local:///app/job.py", "local:///x.jar", "job.py", "/job.py"])},
    optional={
        "args": st.lists(WORD, max_size=2),
        "pyFiles": st.lists(st.sampled_from(["local:///a.zip", "a.zip"]), max_size=2),
        "env": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["A", "B", "1", ""])},
                optional={
                    "value": WORD,
                    "valueFrom": st.just({"fieldRef": {"fieldPath": "status.podIP"}}),
                },
            ),
            max_size=2,
        ),
    },
)
GOOD = {
    "image": "clicks:1",
    "application": {"mainFile": "local:///app/job.py"},
    "scaling": {"parallelism": 8},
    "state": {"checkpointDir": "s3://state/clicks", "savepointDir": "s3://saves/clicks"},
}
ALL = {**PARTS, "application": APPLICATION, "scaling": SCALING, "state": STATE}
# Most of a spec is right and a few parts are odd: all odd would never be accepted by anyone.
SPEC = st.sets(st.sampled_from(sorted(ALL)), min_size=1, max_size=3).flatmap(
    lambda names: st.fixed_dictionaries({name: ALL[name] for name in sorted(names)}).map(
        lambda parts: {**GOOD, **parts}
    )
)

# What is too small to start, and directories of the node: arithmetic that CEL is spared.
OPERATORS_OWN = ("too small for", "belongs to the node", "is not a plain directory")


def models_accept(job):
    try:
        parsed = StatefulSparkJob.model_validate(job, by_alias=True, by_name=False)
    except ValidationError:
        return False
    said = [str(problem) for problem in cluster_problems(parsed)]
    return not [text for text in said if not any(own in text for own in OPERATORS_OWN)]


def object_of(spec):
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "StatefulSparkJob",
        "metadata": {"name": "clicks"},
        "spec": spec,
    }


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SPEC)
def test_models_and_api_server_agree_about_a_spec(spec):
    job = object_of(spec)
    faults = JUDGE.faults(job)
    if "unknown" in spec:
        # The server drops it with a warning, or refuses it where the client asks for strictness.
        faults = [*faults, "unknown field"]
    assert models_accept(job) == (faults == []), faults
