import textwrap
from pathlib import Path

import pytest
from moorage_testing.manifests import changed

from moorage_api import ManifestError, load_manifest
from moorage_api.manifest import parse_manifest

SMALL = {
    "apiVersion": "moorage.dev/v1alpha1",
    "kind": "StatefulSparkJob",
    "metadata": {"name": "clicks"},
    "spec": {
        "application": {"mainFile": "job.py"},
        "scaling": {"parallelism": 2},
        "state": {"checkpointDir": "file:///var/lib/clicks"},
    },
}


@pytest.fixture
def manifest():
    """A small valid manifest as data, with `spec.a.b=value` changes."""

    return lambda changes=None: changed(SMALL, changes, nulls=True)


@pytest.fixture
def problems_of():
    """The problems of a YAML text, as `field: reason; fix` lines with their line numbers."""

    def judge(text):
        with pytest.raises(ManifestError) as caught:
            parse_manifest(textwrap.dedent(text).encode(), "job.yaml")
        return list(caught.value.problems)

    return judge


@pytest.fixture
def write(tmp_path: Path):
    """Write a manifest's text to a file and load it."""

    def load(text):
        path = tmp_path / "job.yaml"
        path.write_text(textwrap.dedent(text))
        return load_manifest(path)

    return load
