import shutil
import socket
import sys

import pytest
from moorage_testing.lineages import build

from moorage.cli import app as cli
from moorage.cli import cluster_jobs
from moorage.cli.kubectl import Cluster

GOOD = """\
apiVersion: moorage.dev/v1alpha1
kind: StatefulSparkJob
metadata: {name: clicks}
spec:
  application: {mainFile: job.py}
  scaling: {parallelism: 2}
  state: {checkpointDir: "file://./state"}
"""


@pytest.fixture
def job_file(tmp_path):
    """A directory with a valid manifest and its job file; returns the manifest's path."""
    (tmp_path / "job.py").write_text("def build(env): ...\n")
    path = tmp_path / "job.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def moorage(monkeypatch, capsys):
    """Call the command line in this process; returns status, output and errors."""

    def call(*arguments, runner=None):
        if arguments[0] in {"run", "restore"} and "--page" not in arguments:
            arguments += ("--no-page",)  # there is one port, and many tests
        monkeypatch.setattr(sys, "argv", ["moorage", *map(str, arguments)])
        if runner is not None:
            monkeypatch.setattr(cli, "_driver", lambda: runner)
        status = cli.run_app()
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("lineage")
    build(root / "dir", root / "scratch")
    return root / "dir"


@pytest.fixture
def directory(original, tmp_path):
    """A checkpoint directory: chk-1 is retired, chk-2 and chk-3 are there."""
    return shutil.copytree(original, tmp_path / "dir")


@pytest.fixture
def free_port():
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class Plugin:
    """Calls `kubectl moorage` with a cluster; returns status, output and errors."""

    forward = None
    """How its driver's port is reached."""

    def __init__(self, monkeypatch, capsys):
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, kubectl, *arguments):
        cluster = Cluster(kubectl, lambda _seconds: None, forward=self.forward)
        self._monkeypatch.setattr(cluster_jobs, "_cluster", lambda *_place: cluster)
        status = cluster_jobs.run_plugin(list(map(str, arguments)))
        return status, *self._capsys.readouterr()


@pytest.fixture
def plugin(monkeypatch, capsys):
    """Call the plugin with a cluster."""
    return Plugin(monkeypatch, capsys)
