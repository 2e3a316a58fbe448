"""Jobs on executors that are processes of their own, each with its sidecar."""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.spark.conftest import in_a_fresh_process, spark_home

BOOTSTRAP = """
import sys
from tests.spark.executors.conftest import run_scenario
run_scenario(sys.argv[1])
"""


@pytest.fixture(scope="session")
def cluster_process(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run `scenario(folder)` in a fresh process, which may start a local cluster.

    Like `local_cluster`, without a session: the job under test makes its own.
    """

    def run(scenario: Callable[[Path], Any], *, timeout: float = 240) -> Any:
        base = tmp_path_factory.mktemp("executors")
        request = {
            "module": scenario.__module__,
            "function": scenario.__name__,
            "base": str(base),
        }
        # Volumes have sockets, whose paths must be short.
        with TemporaryDirectory(prefix="moorage-", dir="/tmp", ignore_cleanup_errors=True) as short:
            environment = {"SPARK_HOME": str(spark_home(base)), "MOORAGE_TEST_VOLUMES": short}
            return in_a_fresh_process(BOOTSTRAP, request, timeout, environment)

    return run


def run_scenario(request: str) -> None:
    """What the process of `cluster_process` runs."""
    task = json.loads(request)
    base = Path(task["base"])
    scenario = getattr(importlib.import_module(task["module"]), task["function"])
    try:
        answer = json.dumps(scenario(base))
    except BaseException:  # noqa: BLE001 - told, and the end
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a job that still runs is of no interest
    (base / "result.json").write_text(answer)
