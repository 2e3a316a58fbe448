"""What the operator, the runtime and Spark rely on in a pod, whatever a user's template says."""

import base64
import json
import re
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from moorage_testing.attempts import META, ORDER, REVISION, SMALL

from moorage.driver.settings import JobSettings
from moorage.driver.types import Orders
from moorage_api import JobSpec
from moorage_api.driver import RestoreOrder, StartOrder
from moorage_api.manifest import parse_manifest
from moorage_api.reserved import LOCAL_DIR, TOKEN_DIR
from moorage_operator.children import bodies, config_map
from moorage_operator.children.pods import driver_pod, executor_template
from moorage_operator.children.secrets import config_owner, derived, token_secret
from moorage_operator.children.spark_conf import spark_settings
from moorage_state.errors import IllegalConfigurationError
from moorage_state.server import sidecar

TOKEN = "t0ken-of-the-job"  # noqa: S105
NAMES = st.sampled_from(
    ["driver", "executor", "state-server", "logs", "moorage-config", "moorage-local", "other"]
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
ENV = st.fixed_dictionaries(
    {"name": st.sampled_from(["MOORAGE_POD_IP", "MODE", "AWS_ACCESS_KEY_ID", "TZ"])},
    optional={"value": st.text(max_size=3), "valueFrom": JUNK},
)
MOUNT = st.fixed_dictionaries(
    {
        "name": NAMES,
        "mountPath": st.sampled_from([TOKEN_DIR, LOCAL_DIR, "/etc/moorage/config", "/models"]),
    }
)
CONTAINER = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "image": st.just("evil:1"),
        "command": st.just(["sh"]),
        "args": st.just(["-c", "true"]),
        "env": st.lists(ENV, max_size=4) | JUNK,
        "ports": st.just([{"containerPort": 7780, "name": "mine"}]) | JUNK,
        "volumeMounts": st.lists(MOUNT, max_size=4) | JUNK,
        "readinessProbe": st.just({"exec": {"command": ["false"]}}),
        "restartPolicy": st.just("OnFailure"),
        "terminationMessagePolicy": st.just("FallbackToLogsOnError"),
        "resources": st.just({"limits": {"memory": "1Mi", "gpu": "1"}}) | JUNK,
        "securityContext": st.just({"runAsUser": 0}) | JUNK,
    },
)
TEMPLATE = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {"name": st.just("mine")},
            optional={
                "namespace": st.just("theirs"),
                "labels": st.just({"moorage.dev/job-uid": "forged", "team": "web"}) | JUNK,
                "ownerReferences": JUNK,
            },
        )
        | JUNK,
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.lists(CONTAINER, max_size=3) | JUNK,
                "initContainers": st.lists(CONTAINER, max_size=3) | JUNK,
                "volumes": st.lists(
                    st.fixed_dictionaries({"name": NAMES, "emptyDir": st.just({})}), max_size=4
                )
                | JUNK,
                "restartPolicy": st.just("Always"),
                "serviceAccountName": st.just("admin"),
                "automountServiceAccountToken": st.booleans(),
                "terminationGracePeriodSeconds": st.integers(0, 600) | JUNK,
                "activeDeadlineSeconds": st.just(60),
                "securityContext": JUNK,
            },
        )
        | JUNK,
    },
)
UNTOUCHED = (
    "image",
    "imagePullPolicy",
    "command",
    "readinessProbe",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "restartPolicy",
)


def spec_with(part, template):
    return JobSpec.model_validate({**SMALL, part: {"podTemplate": template}})


def by(items, key):
    found = {item[key]: item for item in items}
    assert len(found) == len(items), f"two of one {key}"
    return found


def assert_contains(container, ours):
    """The container does all that ours does; only variables, mounts and the like are added."""
    for field in UNTOUCHED:
        assert container.get(field) == ours.get(field), field
    assert "args" not in container
    for field, key in (("env", "name"), ("ports", "containerPort"), ("volumeMounts", "mountPath")):
        merged = by(container.get(field, []), key)
        for name, item in by(ours.get(field, []), key).items():
            assert merged[name] == item
    for bound, amounts in ours.get("resources", {}).items():
        assert amounts.items() <= container["resources"][bound].items()


@settings(max_examples=150, deadline=None)
@given(TEMPLATE)
def test_no_template_changes_what_the_driver_pod_is_for(template):
    ours = driver_pod(META, spec_with("driver", {}), REVISION, ORDER)
    pod = driver_pod(META, spec_with("driver", template), REVISION, ORDER)
    assert {k: v for k, v in pod["metadata"].items() if k not in ("labels", "annotations")} == {
        k: v for k, v in ours["metadata"].items() if k not in ("labels", "annotations")
    }
    assert ours["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
    for field in ("restartPolicy", "serviceAccountName", "automountServiceAccountToken"):
        assert pod["spec"][field] == ours["spec"][field]
    assert pod["spec"]["terminationGracePeriodSeconds"] >= ORDER.grace_seconds
    assert "activeDeadlineSeconds" not in pod["spec"]
    assert pod["spec"]["containers"][0]["name"] == "driver"
    assert_contains(pod["spec"]["containers"][0], ours["spec"]["containers"][0])
    volumes = by(pod["spec"]["volumes"], "name")
    assert all(volumes[volume["name"]] == volume for volume in ours["spec"]["volumes"])


@settings(max_examples=150, deadline=None)
@given(TEMPLATE)
def test_no_template_changes_what_an_executor_is_for(template):
    ours = executor_template(META, spec_with("executor", {}), REVISION, 7)
    pod = executor_template(META, spec_with("executor", template), REVISION, 7)
    assert set(pod["metadata"]) <= {"labels", "annotations"}
    assert ours["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
    for field in ("containers", "initContainers"):
        merged = by(pod["spec"][field], "name")
        for container in ours["spec"][field]:
            assert_contains(merged[container["name"]], container)
    assert pod["spec"]["initContainers"][-1]["name"] == "state-server"
    volumes = by(pod["spec"]["volumes"], "name")
    assert all(volumes[volume["name"]] == volume for volume in ours["spec"]["volumes"])


@settings(max_examples=50, deadline=None)
@given(TEMPLATE)
def test_a_template_is_not_changed_by_being_merged(template):
    spec = spec_with("driver", template)
    before = json.dumps(spec.driver.pod_template, default=str)
    driver_pod(META, spec, REVISION, ORDER)["spec"]["containers"][0]["env"].append("mine")
    assert json.dumps(spec.driver.pod_template, default=str) == before


def test_the_job_file_is_the_job_itself(meta, spec, order):
    wanted = spec({"executor.memory": "6Gi", "state.local": {"type": "EmptyDir", "size": "20Gi"}})
    files = config_map(meta, wanted, REVISION, order)["data"]
    job = parse_manifest(files["job.yaml"].encode(), "job.yaml")
    assert (job.name, job.namespace, job.metadata.uid) == (meta.name, meta.namespace, meta.uid)
    assert job.spec == wanted


def test_a_runtime_that_is_older_hears_nothing_of_fields_that_nobody_uses(meta, spec, order):
    def told(changes):
        data = config_map(meta, spec(changes), REVISION, order)["data"]
        return yaml.safe_load(data["job.yaml"])["spec"], json.loads(data["start.json"])

    job, orders = told({})
    assert "security" not in job
    assert "onMissingOffsets" not in job.get("restore", {})
    assert "adoptLineage" not in orders
    assert (orders["format"], orders["attempt"]) == (1, order.attempt)
    job, _ = told({"security.tls.secretName": "clicks-tls", "restore.onMissingOffsets": "Skip"})
    assert job["security"] == {"tls": {"secretName": "clicks-tls"}}
    assert job["restore"] == {"onMissingOffsets": "Skip"}


def test_a_driver_is_told_its_backend_also_where_that_is_the_built_in_one(meta, spec, order):
    """It looks into no environment for a default, and an older one has always known the name."""
    files = config_map(meta, spec({"state.backend": "rocksdb"}), REVISION, order)["data"]
    assert yaml.safe_load(files["job.yaml"])["spec"]["state"]["backend"] == "rocksdb"


def test_the_order_is_read_as_it_was_given(meta, spec, order):
    files = config_map(meta, spec(), REVISION, order)["data"]
    assert StartOrder.model_validate_json(files["start.json"]) == order
    assert order.restore == RestoreOrder(mode="Path", path="s3://saves/clicks/v1", order_id="4-2")


def test_the_executor_template_is_read_as_it_was_made(meta, spec, order):
    odd = {"metadata": {"annotations": {"a": "1e3", "b": "0x1f", "c": "yes", "d": "1_000"}}}
    wanted = spec({"executor.podTemplate": odd})
    text = config_map(meta, wanted, REVISION, order)["data"]["executor.yaml"]
    assert yaml.safe_load(text) == executor_template(meta, wanted, REVISION, order.attempt)
    for value in ("1e3", "0x1f", "1_000"):
        assert f'"{value}"' in text


def test_state_servers_of_a_backend_of_the_jobs_own_find_it_where_the_driver_does(
    meta, spec, order
):
    wanted = spec(
        {
            "state.backend": "own_backends:Mine",
            "application.mainFile": "local:///app/jobs/job.py",
            "application.pyFiles": ["local:///app/lib.zip"],
        }
    )
    (servers,) = executor_template(meta, wanted, REVISION, order.attempt)["spec"]["initContainers"]
    command = " ".join(servers["command"])
    assert "--backend own_backends:Mine" in command
    assert command.endswith("--code /app/jobs --code /app/lib.zip")
    usual = executor_template(meta, spec({}), REVISION, order.attempt)["spec"]["initContainers"]
    assert "--code" not in usual[0]["command"]


@pytest.fixture
def image(tmp_path, monkeypatch):
    """A folder that stands for the image: a job file, and an archive with a backend of its own."""
    (tmp_path / "job.py").touch()
    code = """if True:
        from dataclasses import dataclass
        from moorage_state.state_backends import HashMapStateBackend

        @dataclass(frozen=True)
        class Mine(HashMapStateBackend):
            identifier = "mine"
    """
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        archive.writestr("own_backends.py", code)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_backends", None)


@pytest.mark.parametrize("there", [True, False], ids=["there", "missing"])
def test_driver_and_sidecar_import_a_backend_of_the_jobs_own_or_name_what_is_missing(
    meta, spec, order, image, there
):
    """Both before anything starts: the driver before Spark, the sidecar before its servers."""
    wanted = {
        "state.backend": "own_backends:Mine",
        "application.mainFile": f"local://{image}/job.py",
        "application.pyFiles": [f"local://{image}/lib.zip"] if there else [],
    }
    files = config_map(meta, spec(wanted), REVISION, order)["data"]
    job = parse_manifest(files["job.yaml"].encode(), "job.yaml")
    (container,) = yaml.safe_load(files["executor.yaml"])["spec"]["initContainers"]
    words = container["command"][container["command"].index("--dir") :]
    orders = Orders(cluster="prod", uid=meta.uid, holder="clicks-7-driver")
    makers = [
        lambda: JobSettings.of(job, image, orders=orders).backend,
        lambda: sidecar.backend_for(sidecar._parser().parse_args(words)),
    ]
    for make in makers:
        if there:
            assert make().identifier == "mine"
        else:
            with pytest.raises(IllegalConfigurationError, match="there is no module own_backends"):
                make()


def test_the_secrets_of_an_attempt_are_told_apart_and_derived_one_way(meta):
    secret = token_secret(meta, 3, TOKEN, config_owner(meta, 3, "u"))["stringData"]
    assert secret["control"] == TOKEN
    assert len(set(secret.values())) == len(secret) == 4
    assert secret["spark"] == base64.b64encode(secret["spark-file"].encode()).decode()
    # Executors of an attempt outlive the operator's process: what is derived stays what it is.
    assert secret["token"] == derived(TOKEN, "moorage state servers 1")
    assert derived("key", "label") == (
        "7d622da3d739d87c40a249abe261d16fbf39bee0e73367f41924f896e0c917f3"
    )


def secret_keys(pod):
    """Which keys of which Secret the pod's volumes and variables hold."""
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    variables = [
        variable["valueFrom"]["secretKeyRef"]
        for container in containers
        for variable in container["env"]
        if "secretKeyRef" in variable.get("valueFrom", {})
    ]
    volumes = [volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume]
    mounted = {(v["secretName"], item["key"]) for v in volumes for item in v["items"]}
    return mounted | {(one["name"], one["key"]) for one in variables}


def test_a_pod_has_the_secrets_that_it_needs_and_no_others(meta, spec, order):
    driver = driver_pod(meta, spec(), REVISION, order)
    own, reads = f"clicks-{order.attempt}-tokens", ("clicks-scrape", "token")
    assert secret_keys(driver) == {
        (own, "control"),
        (own, "spark-file"),
        (own, "token"),
        reads,
    }
    executor = executor_template(meta, spec(), REVISION, order.attempt)
    assert secret_keys(executor) == {(own, "token"), (own, "spark")}


def test_every_container_that_speaks_to_other_pods_has_the_jobs_certificate(meta, spec, order):
    secured = spec({"security": {"tls": {"secretName": "clicks-tls"}}})
    driver = driver_pod(meta, secured, REVISION, order)
    executor = executor_template(meta, secured, REVISION, order.attempt)
    for pod in (driver, executor):
        assert {("clicks-tls", key) for key in ("ca.crt", "tls.crt", "tls.key")} < secret_keys(pod)
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
            assert mounts["moorage-tls"]["mountPath"] == "/etc/moorage/tls"
            # A part of the volume would not be renewed.
            assert "subPath" not in mounts["moorage-tls"]
    assert driver["spec"]["containers"][0]["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    [servers] = executor["spec"]["initContainers"]
    name = servers["command"][servers["command"].index("--tls-name") + 1]
    assert name == f"{meta.name}-driver.{meta.namespace}.svc"


def test_by_the_same_field_spark_encrypts_what_it_writes(meta, spec, order):
    plain = spark_settings(meta, spec(), order)
    secured = spark_settings(meta, spec({"security": {"tls": {"secretName": "t"}}}), order)
    assert "spark.io.encryption.enabled" not in plain
    assert secured["spark.io.encryption.enabled"] == "true"
    assert secured["spark.network.crypto.enabled"] == "true"


def test_an_attempt_has_secrets_of_its_own_which_go_with_its_config_map(meta):
    one, other = (
        token_secret(meta, attempt, TOKEN, config_owner(meta, attempt, f"uid-{attempt}"))
        for attempt in (1, 2)
    )
    assert one["metadata"]["name"] != other["metadata"]["name"]
    assert one["immutable"]
    [owner] = one["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ConfigMap", "uid-1")


def test_credentials_are_named_and_never_copied(meta, spec, order):
    made = bodies(meta, spec({"state.credentialsSecretRef": {"name": "s3"}}), REVISION, order)
    env = by(made[-1]["spec"]["containers"][0]["env"], "name")
    assert env["AWS_SECRET_ACCESS_KEY"]["valueFrom"] == {
        "secretKeyRef": {"name": "s3", "key": "AWS_SECRET_ACCESS_KEY"}
    }
    assert env["AWS_SESSION_TOKEN"]["valueFrom"]["secretKeyRef"]["optional"] is True


def test_the_same_job_gives_the_same_bytes(meta, spec, order):
    one, other = (bodies(meta, spec(), REVISION, order) for _ in range(2))
    assert json.dumps(one) == json.dumps(other)


def test_a_longer_last_checkpoint_has_a_longer_grace_period(meta, spec, order):
    patient = order.model_copy(update={"grace_seconds": 300.5})
    pod = driver_pod(meta, spec(), REVISION, patient)
    assert pod["spec"]["terminationGracePeriodSeconds"] > 300.5


def test_a_namespace_that_is_deleted_need_not_wait_a_minute_for_pods_that_take_long(
    meta, spec, order
):
    """By the times of the controller of namespaces, each of whose passes takes a second or two."""
    pods = (driver_pod(meta, spec(), REVISION, order), executor_template(meta, spec(), REVISION, 7))
    grace = max(pod["spec"]["terminationGracePeriodSeconds"] for pod in pods)
    begins = looks_again = looks_after_the_finalizers = 5
    assert begins + looks_again + (grace / 2 + 1) + looks_after_the_finalizers + 4 * 2 <= 60


def test_an_executors_stop_hook_leaves_the_sidecar_the_time_that_it_is_told_of(meta, spec):
    template = executor_template(meta, spec(), REVISION, 7)["spec"]
    hook = Path(__file__).parents[3] / "runtime" / "image" / "decom.sh"
    (asks,) = re.findall(r"ends=no left=(\d+)", hook.read_text())
    (wait,) = re.findall(r"timeout=(\d+)", hook.read_text())
    (seconds,) = re.findall(r'"\$seconds" -lt (\d+) ', hook.read_text())
    command = by(template["initContainers"], "name")["state-server"]["command"]
    uploads = int(command[command.index("--grace") + 1])
    hooked = int(asks) * (int(wait) + 1) + int(seconds)
    assert hooked + uploads < template["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(("asked", "seconds"), [(None, 70), (10, 70), (300, 300)])
def test_executors_have_the_time_to_end_that_their_template_says(meta, spec, order, asked, seconds):
    """Spark puts a setting of its own, 30 s by default, in the place of the template's."""
    changes = {} if asked is None else {"spec": {"terminationGracePeriodSeconds": asked}}
    job = spec({"executor.podTemplate": changes})
    conf = spark_settings(meta, job, order)
    assert conf["spark.kubernetes.executor.terminationGracePeriodSeconds"] == f"{seconds}s"
    template = executor_template(meta, job, REVISION, order.attempt)
    assert template["spec"]["terminationGracePeriodSeconds"] == seconds


def test_what_a_template_says_of_local_storage_is_all_that_is_said():
    """A limit below a request of ours is refused by the API server, for every executor."""
    servers = {"name": "state-server", "resources": {"limits": {"ephemeral-storage": "2Gi"}}}
    spec = spec_with("executor", {"spec": {"initContainers": [servers]}})
    made = executor_template(META, spec, REVISION, 1)["spec"]["initContainers"]
    asked = by(made, "name")["state-server"]["resources"]
    assert asked["limits"]["ephemeral-storage"] == "2Gi"
    assert "ephemeral-storage" not in asked["requests"]
    assert asked["requests"]["memory"] == asked["limits"]["memory"]
