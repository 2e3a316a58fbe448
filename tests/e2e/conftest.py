"""Tests on a real cluster: `make e2e`, or `make e2e ARGS='--kubeconfig FILE'`.

Without --kubeconfig a kind cluster is made where docker and kind are at hand. The file is never
taken from KUBECONFIG or ~/.kube, for CRDs and an operator are installed there. The operator is
installed by Helm, which `make e2e` gets.
"""

import base64
import json
import os
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from .e2e_cluster import Cluster, Namespace, restricted, wait_until
from .e2e_images import Images, builder_at_hand
from .e2e_install import install, make_job_account
from .ticker import Ticker

ROOT = Path(__file__).parents[2]
KIND_NAME = "moorage-e2e"
E2E_IMAGE = "moorage-e2e:e2e"
ACCESS_KEY = "moorage-e2e"
BUCKET = "moorage"


def pytest_addoption(parser):
    group = parser.getgroup("e2e")
    group.addoption("--image", metavar="IMAGE", help="the e2e image, built from tests/e2e")
    group.addoption("--next-image", metavar="IMAGE", help="another name of it, for upgrades")
    group.addoption("--operator-image", metavar="IMAGE", help="the operator's image")
    group.addoption("--previous-chart", metavar="DIR", help="the chart of the release before")
    group.addoption("--previous-operator-image", metavar="IMAGE", help="the operator's, of that")
    group.addoption("--previous-image", metavar="IMAGE", help="the e2e image of that release")
    group.addoption("--no-build", action="store_true", help="the images are there already")
    group.addoption("--build-options", default="", help="more options of docker build or its like")
    group.addoption("--load", metavar="COMMAND", help="loads an archive of images on the nodes")
    group.addoption("--page-images", action="store_true", help="the quickstart's are there already")
    group.addoption("--pull-policy", default="IfNotPresent", help="imagePullPolicy of all pods")
    group.addoption("--s3-endpoint", metavar="URL", help="an S3 server that pods can reach")
    group.addoption("--s3-bucket", default=BUCKET, help="an existing bucket, with --s3-endpoint")
    group.addoption("--artifacts", default="artifacts", help="where logs and objects are kept")
    group.addoption("--keep-cluster", action="store_true", help="leave the kind cluster running")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(1800))
            # The client of `exec` leaves its socket to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <ssl:ResourceWarning"))


@pytest.fixture(scope="session")
def artifacts(request):
    return Path(request.config.getoption("--artifacts")).absolute() / "e2e"


@pytest.fixture(scope="session")
def measured(artifacts):
    """Writes down how long something took, for people to read: no machine is held to it."""
    file = artifacts / "measured.jsonl"

    def write(what, seconds):
        artifacts.mkdir(parents=True, exist_ok=True)
        with file.open("a") as lines:
            lines.write(json.dumps({"what": what, "seconds": round(seconds, 1)}) + "\n")

    return write


@pytest.fixture(scope="session")
def cluster(request, tmp_path_factory) -> Iterator[Cluster]:
    option = request.config.getoption
    given = option("--kubeconfig") or os.environ.get("E2E_KUBECONFIG")
    if given:
        yield Cluster(Path(given), option("--kube-context"))
        return
    kind, docker = shutil.which("kind"), shutil.which("docker")
    if not (kind and docker and _succeeds("docker", "info")):
        pytest.skip("needs docker and kind, or --kubeconfig FILE")
    file = tmp_path_factory.mktemp("kind") / "kubeconfig"
    subprocess.run(
        [kind, "create", "cluster", "--name", KIND_NAME, "--kubeconfig", str(file), "--wait=180s"],
        check=True,
    )
    try:
        yield Cluster(file)
    finally:
        if not option("--keep-cluster"):
            subprocess.run([kind, "delete", "cluster", "--name", KIND_NAME], check=False)


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="session")
def images(request, builder) -> dict[str, str]:
    """The names of the e2e image and the operator's; built and loaded where that is ours to do.

    `next` is what jobs are upgraded to: `job` itself, where nobody gave it another name.
    """
    option = request.config.getoption
    job = option("--image") or E2E_IMAGE
    names = {
        "job": job,
        "next": option("--next-image") or job,
        "operator": option("--operator-image") or "moorage-operator:e2e",
    }
    if option("--no-build") or (option("--image") and option("--operator-image")):
        return names
    if builder is None:
        pytest.skip(
            "with --kubeconfig say how images get to its nodes: --load COMMAND, or name images "
            "that it can have: --image, --operator-image (see tests/e2e/README.md)"
        )
    builder.build_ours("e2e")
    builder.build(names["job"], "tests/e2e/Containerfile", ".", RUNTIME_IMAGE="moorage-runtime:e2e")
    names["next"] = option("--next-image") or f"{names['job']}-next"
    builder.tag(names["job"], names["next"])
    builder.load_on_nodes(names.values())
    return names


@pytest.fixture(scope="session")
def builder(request, cluster) -> Images | None:  # noqa: ARG001 - kind must be there to load into
    """What builds images and brings them to the nodes; None where nobody said how."""
    option = request.config.getoption
    given = option("--kubeconfig") or os.environ.get("E2E_KUBECONFIG")
    load = option("--load") or ("" if given else f"kind load image-archive --name {KIND_NAME}")
    tool = builder_at_hand()
    if not (load and tool):
        return None
    options = tuple(shlex.split(option("--build-options")))
    return Images(tool, options, tuple(shlex.split(load)))


@pytest.fixture(scope="session")
def pull_policy(request) -> str:
    return str(request.config.getoption("--pull-policy"))


@pytest.fixture(scope="session")
def system(cluster, artifacts) -> Iterator[Namespace]:
    """The namespace of the operator and the S3 server."""
    with cluster.namespace(f"moorage-e2e-{uuid.uuid4().hex[:6]}", artifacts) as namespace:
        yield namespace


@pytest.fixture(scope="session")
def operator(cluster, system, images, pull_policy) -> Iterator[str]:
    """The operator, installed; its Deployment's name."""
    with install(cluster, system, images["operator"], pull_policy) as deployment:
        yield deployment


@pytest.fixture(scope="session")
def job_account(operator):  # noqa: ARG001 - its CRDs and roles come first
    """Makes the drivers' service account in a namespace."""
    return make_job_account


@pytest.fixture(scope="session")
def s3(request, system, images, pull_policy) -> dict[str, str]:
    """Where pods find S3: endpoint, bucket, access key, secret key."""
    option = request.config.getoption
    if option("--s3-endpoint"):
        return {
            "endpoint": option("--s3-endpoint"),
            "bucket": option("--s3-bucket"),
            "access": os.environ["AWS_ACCESS_KEY_ID"],
            "secret": os.environ["AWS_SECRET_ACCESS_KEY"],
        }
    secret = uuid.uuid4().hex
    system.apply(_users(secret))
    system.apply(s3_pod(images["job"], pull_policy))
    system.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s3"},
            "spec": {"selector": {"app": "s3"}, "ports": [{"port": 8333}]},
        }
    )

    def ready() -> bool:
        pod = system.get("Pod", "s3", "v1") or {}
        conditions = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions", [])}
        return conditions.get("Ready") == "True"

    wait_until(ready, 300, "the S3 server is ready")
    address = (system.get("Service", "s3", "v1") or {})["spec"]["clusterIP"]
    found = {
        "endpoint": f"http://{address}:8333",
        "bucket": BUCKET,
        "access": ACCESS_KEY,
        "secret": secret,
    }
    phase, log = system.run_pod("make-bucket", _bucket_pod(images["job"], pull_policy, found))
    assert phase == "Succeeded", log
    return found


@pytest.fixture(scope="module")
def namespace(cluster, artifacts, operator, job_account) -> Iterator[Namespace]:  # noqa: ARG001
    """A module's own namespace, in which jobs may run."""
    with cluster.namespace(f"moorage-story-{uuid.uuid4().hex[:6]}", artifacts) as namespace:
        job_account(namespace)
        yield namespace


@pytest.fixture(scope="module")
def ticker(namespace, images, pull_policy, s3) -> Ticker:
    """A job that runs and has completed a checkpoint; the tests of a module take turns on it."""
    ticker = Ticker(namespace, images["job"], pull_policy, s3, "spark")
    ticker.start()
    ticker.wait_ready()
    ticker.wait_checkpoints()
    return ticker


def _users(secret: str) -> dict:
    users = {
        "identities": [
            {
                "name": "e2e",
                "credentials": [{"accessKey": ACCESS_KEY, "secretKey": secret}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            }
        ]
    }
    data = base64.b64encode(json.dumps(users).encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s3-users"},
        "data": {"users.json": data},
    }


def s3_pod(image: str, pull_policy: str) -> dict:
    """SeaweedFS in one process."""
    spec = {
        # Else the service's own variables (S3_PORT) are taken for the program's options.
        "enableServiceLinks": False,
        # What it holds goes with it: nothing needs the half minute in which it ends in order.
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "s3",
                "image": image,
                "imagePullPolicy": pull_policy,
                "command": ["tini", "--", "/opt/weed"],
                "args": [
                    "server",
                    "-dir=/data",
                    "-ip.bind=0.0.0.0",
                    "-s3",
                    "-s3.config=/etc/s3/users.json",
                    "-volume.max=20",
                    "-master.volumeSizeLimitMB=64",
                ],
                "resources": {"requests": {"cpu": "50m", "memory": "200Mi"}},
                "readinessProbe": {"tcpSocket": {"port": 8333}, "periodSeconds": 2},
                "volumeMounts": [
                    {"name": "users", "mountPath": "/etc/s3"},
                    {"name": "data", "mountPath": "/data"},
                ],
            }
        ],
        "volumes": [
            {"name": "users", "secret": {"secretName": "s3-users"}},
            {"name": "data", "emptyDir": {}},
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "s3", "labels": {"app": "s3"}},
        "spec": restricted(spec),
    }


def _bucket_pod(image: str, pull_policy: str, s3: dict[str, str]) -> dict:
    program = (
        "import boto3, sys, time\n"
        "s3 = boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1')\n"
        "for _ in range(60):\n"
        "    try:\n"
        "        s3.create_bucket(Bucket=sys.argv[2]); break\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__); time.sleep(1)\n"
        "s3.head_bucket(Bucket=sys.argv[2])\n"
    )
    return {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "make",
                "image": image,
                "imagePullPolicy": pull_policy,
                "command": ["python", "-c", program, s3["endpoint"], s3["bucket"]],
                "env": credentials(s3),
            }
        ],
    }


def credentials(s3: dict[str, str]) -> list[dict]:
    """As environment variables of a test's own pod."""
    return [
        {"name": "AWS_ACCESS_KEY_ID", "value": s3["access"]},
        {"name": "AWS_SECRET_ACCESS_KEY", "value": s3["secret"]},
        {"name": "AWS_EC2_METADATA_DISABLED", "value": "true"},
    ]
