"""Named places where a test may stop or kill a real process.

Nothing happens unless the environment of the process names a place before it starts:

    MOORAGE_FAILPOINT=log.before_put:stop:3

stops the process (SIGSTOP, so that SIGCONT goes on from exactly there) the third time it passes
`log.before_put`; `kill` in place of `stop` is SIGKILL. The places are the calls of `hit`.
"""

import itertools
import os
import signal

__all__ = ["hit"]

_SIGNALS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}
_VARIABLE = "MOORAGE_FAILPOINT"


def _armed(setting: str) -> tuple[str, signal.Signals, int] | None:
    if not setting:
        return None
    name, action, nth = setting.split(":")
    return name, _SIGNALS[action], int(nth)


_ARMED = _armed(os.environ.get(_VARIABLE, ""))
_PASSES = itertools.count(1)


def hit(name: str) -> None:
    """Pass the place `name`; the process stops or dies here if its environment says so."""
    if _ARMED is not None and _ARMED[0] == name and next(_PASSES) == _ARMED[2]:
        os.kill(os.getpid(), _ARMED[1])
