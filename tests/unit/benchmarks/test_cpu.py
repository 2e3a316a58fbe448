import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.cpu import tree_seconds

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"

pytestmark = pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")


def seconds():
    spent = tree_seconds(os.getpid())
    assert spent is not None
    return spent


def test_the_time_of_living_and_of_ended_children_counts():
    before = seconds()
    command = [sys.executable, "-c", BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        while_alive = seconds()
        child.communicate(b"\n")
    assert while_alive - before >= 0.25
    assert seconds() >= while_alive


def test_a_process_that_is_not_there_took_no_time():
    assert tree_seconds(2**22 + 1) == 0
