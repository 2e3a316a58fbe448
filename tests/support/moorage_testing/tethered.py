"""Becomes another program that the kernel kills when the process which started it ends.

    python tethered.py <pid of the parent> <program> <argument>...

A script of its own: between fork and exec of a process with threads no Python may run, so the
signal is asked for in a fresh interpreter, and it stays asked for across exec. Standard library
only.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def become(parent: int, command: list[str]) -> None:
    """Replace this process by `command`, unless `parent` is gone already."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() == parent:
        os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
