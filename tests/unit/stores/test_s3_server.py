"""The S3 server of the tests leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from moorage_testing.s3_server import sweep_sockets

HOLD = """
import sys
from pathlib import Path
from moorage_testing.s3_server import start_s3_server
with start_s3_server(Path(sys.argv[1])) as server:
    print(server.endpoint, flush=True)
    sys.stdin.readline()
"""


def answers(endpoint: str) -> bool:
    place = urlsplit(endpoint)
    try:
        socket.create_connection((place.hostname or "", place.port or 0), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_the_server_dies_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HOLD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    endpoint = run.stdout.readline().strip()
    assert answers(endpoint)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    never = threading.Event()
    for _ in range(1_000):
        if not answers(endpoint):
            sweep_sockets()
            return
        never.wait(0.01)
    pytest.fail("the server lives on")
