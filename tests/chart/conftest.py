"""The chart's files, and what Helm makes of them."""

import json
import os
import subprocess

import pytest
import yaml
from moorage_testing.chart import CASES, CHART, NAMESPACE, RELEASE, find_helm


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    """Run helm with these words; gives the process."""
    program = find_helm()
    if not program:
        pytest.skip("helm is needed: run `make helm`, or set HELM to the program")
    home = tmp_path_factory.mktemp("helm")
    places = {f"HELM_{kind}_HOME": str(home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    # No cluster that happens to be configured is ever asked.
    places["KUBECONFIG"] = str(home / "none")

    def run(*words, check=True):
        done = subprocess.run(
            [program, *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **places},
            timeout=60,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def template(helm):
    """The objects that the chart gives with these options of helm."""

    def objects(*options):
        words = ("template", RELEASE, CHART, "--namespace", NAMESPACE, "--kube-version", "1.35.0")
        return [one for one in yaml.safe_load_all(helm(*words, *options).stdout) if one]

    return objects


@pytest.fixture(scope="session")
def rendered(template):
    """The objects of each of the chart's own cases, by the case's name."""
    return {case: template("--values", CHART / "ci" / f"{case}-values.yaml") for case in CASES}


@pytest.fixture(scope="session")
def values():
    """The chart's own values."""
    return yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.fixture(scope="session")
def schema():
    """What the chart says of its values."""
    return json.loads((CHART / "values.schema.json").read_text())
