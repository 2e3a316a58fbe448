import pytest
from moorage_testing.crd import Judge
from moorage_testing.manifests import changed

from moorage_api.crds import job_crd, snapshot_crd

JOB = {
    "apiVersion": "moorage.dev/v1alpha1",
    "kind": "StatefulSparkJob",
    "metadata": {"name": "clicks"},
    "spec": {
        "image": "registry.example/clicks:1.4.2",
        "application": {"mainFile": "local:///app/job.py"},
        "scaling": {"parallelism": 8},
        "state": {"checkpointDir": "s3://state/clicks", "savepointDir": "s3://saves/clicks"},
    },
}
SNAPSHOT = {
    "apiVersion": "moorage.dev/v1alpha1",
    "kind": "StatefulSparkSnapshot",
    "metadata": {"name": "clicks-before"},
    "spec": {"jobRef": {"name": "clicks"}, "name": "before"},
}


@pytest.fixture(scope="session")
def jobs():
    """The judge of StatefulSparkJob."""
    return Judge(job_crd())


@pytest.fixture(scope="session")
def snapshots():
    """The judge of StatefulSparkSnapshot."""
    return Judge(snapshot_crd())


@pytest.fixture
def job():
    """A small job for a cluster, with `spec.a.b=value` changes; None takes a field out."""
    return lambda changes=None: changed(JOB, changes)


@pytest.fixture
def snapshot():
    """A small snapshot, likewise."""
    return lambda changes=None: changed(SNAPSHOT, changes)
