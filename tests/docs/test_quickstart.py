"""docs/quickstart.md is typed in as it stands: a job that is killed, and equal counts.

Its join in windows is typed in by test_laptop.py.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from moorage_testing.pages import ROOT, blocks

# Each starts Spark several times: minutes on a busy machine.
pytestmark = [pytest.mark.docs, pytest.mark.timeout(1000)]

PAGE = "docs/quickstart.md"
HERE = "tests/docs/test_quickstart.py"
SECONDS = 900


def typed(block):
    return block.options.get("run-by") == HERE


def test_the_counts_are_equal_after_the_kill(tmp_path):
    send, compare = (block.code for block in blocks(PAGE, "python") if typed(block))
    first, *others = (block.code for block in blocks(PAGE, "sh") if typed(block))
    script = "\n".join(["set -e", first, "mv ../send.py ../compare.py .", *others])
    (tmp_path / "send.py").write_text(send)
    (tmp_path / "compare.py").write_text(compare)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = shell.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        raise
    assert shell.returncode == 0, said
    assert "sent=30003 published=30003 users=52" in said
    assert "chk-" in said
    (value,) = re.findall(r"The second prints `(\d+)`", (ROOT / PAGE).read_text())
    assert said.endswith(f"\n{value}\n")
