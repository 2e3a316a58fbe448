"""What a process that does not answer is taken for: slow, or hung."""

import os
import signal
import subprocess
import sys
import time

import pytest
from moorage_testing.jobs import wait_until

from moorage_state.server.sidecar import HangJudge, Signs, signs_of

WORK = """
import sys, time
sys.stdin.readline()
open(sys.argv[1], "wb").write(bytes(1 << 20))
end = time.process_time() + 0.2
while time.process_time() < end:
    pass
time.sleep(60)
"""


class Patient:
    """A process that answers no more, looked at every second."""

    def __init__(self, *signs):
        self.now, self.signs = 0.0, list(signs)

    def look(self, pid):
        assert pid == 7
        return self.signs.pop(0) if len(self.signs) > 1 else self.signs[0]

    def killed_after(self, most):
        judge = HangJudge(30.0, lambda: self.now, self.look)
        judge.answered(7)
        while self.now < most:
            self.now += 1.0
            if judge.hangs():
                return self.now
        return None


def signs(count, moved=0.0, cpu=0.0, *, disk=False):
    """So many looks, with what has come to each since the one before."""
    return [Signs(int(n * moved), n * cpu, disk) for n in range(count)]


def test_one_that_gives_no_sign_may_be_killed_after_its_patience():
    assert Patient(*signs(1)).killed_after(100) == 30.0


def test_one_that_reads_or_writes_is_never_killed():
    assert Patient(*signs(3000, moved=1)).killed_after(2000) is None


def test_one_that_waits_for_its_disk_is_not_killed():
    assert Patient(Signs(0, 0.0, waits_for_disk=True)).killed_after(500) is None


def test_one_that_stops_reading_and_writing_has_its_patience_from_then_on():
    assert Patient(*signs(50, moved=1)).killed_after(500) == pytest.approx(80, abs=2)


def test_one_that_only_computes_is_given_more_time_but_not_for_ever():
    assert Patient(*signs(1000, cpu=0.9)).killed_after(900) == 300.0


def test_threads_that_wait_for_pythons_lock_in_vain_are_no_sign():
    assert Patient(*signs(1000, cpu=0.05)).killed_after(900) == 30.0


def test_the_signs_of_real_processes(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", WORK, str(tmp_path / "file")], stdin=subprocess.PIPE
    ) as process:
        try:
            before = signs_of(process.pid)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            wait_until(lambda: signs_of(process.pid).cpu_seconds >= before.cpu_seconds + 0.2)
            assert signs_of(process.pid).moved >= before.moved + (1 << 20)
            process.send_signal(signal.SIGSTOP)
            still = signs_of(process.pid)
            time.sleep(0.1)
            assert signs_of(process.pid) == still
        finally:
            process.kill()
    assert signs_of(process.pid) == Signs(0, 0.0, waits_for_disk=False)
    assert signs_of(os.getpid()).cpu_seconds > 0
