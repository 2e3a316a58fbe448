import pytest

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
