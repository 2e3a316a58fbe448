"""What a job asks its store: `python -m benchmarks.store_requests`.

A job of `moorage run` takes checkpoints into the S3 server of the tests, through a proxy that
counts. Counted is from the fourth checkpoint on, for so many seconds: nothing of a start. A line
says the requests of a checkpoint by kind, as stores bill them: writes, lists, reads, deletions.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import yaml
from moorage_testing.fault_proxy import FaultProxy
from moorage_testing.s3_server import S3Server, start_s3_server

_JOB = Path(__file__).parent / "jobs" / "padded_counts.py"
_KINDS = ("write", "list", "read", "head", "delete")
_PATIENCE_SECONDS = 240
CASES = {
    "small": {"keys": 100, "subtasks": 2},
    "18 MB": {"keys": 300_000, "subtasks": 4},
    "18 MB, changelog": {"keys": 300_000, "subtasks": 4, "changelog": True},
}


def kind(method: str, target: str) -> str:
    """As a store bills it; the job's lock, which is renewed by time, is apart."""
    if "lock.json" in target:
        return "lock"
    if method == "POST":
        return "delete" if "delete" in target else "write"
    if method == "GET":
        return "list" if "list-type" in target else "read"
    return {"PUT": "write", "HEAD": "head", "DELETE": "delete"}[method]


def manifest(server: S3Server, endpoint: str, case: dict[str, int]) -> str:
    """The job's."""
    spec = {
        "application": {"mainFile": _JOB.name, "args": [str(case["keys"]), "20000"]},
        "scaling": {"parallelism": case["subtasks"]},
        "epoch": {"interval": "1s"},
        "state": {
            "checkpointDir": f"s3://{server.bucket}/requests",
            "s3": {"endpoint": endpoint, "region": "us-east-1", "pathStyle": True},
            "changelog": bool(case.get("changelog")),
        },
        "checkpoint": {"interval": "5s", "minPause": "0s"},
    }
    head = {"apiVersion": "moorage.dev/v1alpha1", "kind": "StatefulSparkJob"}
    return yaml.safe_dump({**head, "metadata": {"name": "requests"}, "spec": spec})


def counted(home: Path, case: dict[str, int], seconds: float) -> tuple[int, Counter[str]]:
    """How many checkpoints were taken while it was counted, and the requests by kind."""
    with start_s3_server(home) as server, FaultProxy(server.endpoint) as proxy:
        (home / _JOB.name).write_text(_JOB.read_text())
        (home / "job.yaml").write_text(manifest(server, proxy.endpoint, case))
        command = [str(Path(sys.executable).parent / "moorage"), "run", "job.yaml", "--plain"]
        environment = {**os.environ, **server.environment()}
        with (home / "run.log").open("w") as log:
            job = subprocess.Popen(
                [*command, "--no-page"], cwd=home, env=environment, stdout=log, stderr=log
            )
            try:
                deadline = time.monotonic() + _PATIENCE_SECONDS
                while not proxy.count("PUT", "chk-4/MANIFEST"):
                    if job.poll() is not None or time.monotonic() > deadline:
                        sys.exit(f"the job took no checkpoints:\n{(home / 'run.log').read_text()}")
                    time.sleep(0.2)
                before = len(proxy.seen)
                time.sleep(seconds)
                requests = proxy.seen[before:]
            finally:
                job.terminate()
                job.wait(_PATIENCE_SECONDS)
    taken = sum(m == "PUT" and target.endswith("/MANIFEST") for m, target, _ in requests)
    return taken, Counter(kind(method, target) for method, target, _ in requests)


def main() -> int:
    """Measure, and print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for which it is counted")
    parser.add_argument("--only", choices=CASES, help="one case")
    given = parser.parse_args()
    print("requests of a checkpoint", *_KINDS, sep="\t")
    for name, case in CASES.items():
        if given.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="moorage-requests-") as home:
                taken, found = counted(Path(home), case, given.seconds)
            per = [f"{found[one] / max(taken, 1):.1f}" for one in _KINDS]
            print(f"{name} ({taken} checkpoints)", *per, sep="\t", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
