"""Signs of life of a process that does not answer: it reads, writes, computes, waits for a disk.

Decides when a server counts as hung: without an answer, and without such a sign, for a while. A
slow disk makes a server slow and not dead: killed, it would have the same work again. Called by the
sidecar. Knows nothing of what the process does.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_COUNTED = ("rchar:", "wchar:", "read_bytes:", "write_bytes:")
_LEAST_CPU = 0.2
"""Share of a processor; threads that wait for Python's lock in vain take some, too."""
_CPU_FACTOR = 10
"""Times the patience, for what computes and neither answers nor reads nor writes."""
_STATE, _USER, _SYSTEM = 0, 11, 12
"""Fields of /proc/<pid>/stat behind the name of the program."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What the kernel knows of a process: bytes read and written, processor time of its threads.

    `waits_for_disk`: a thread is in uninterruptible sleep; it could not be killed either.
    """

    moved: int
    cpu_seconds: float
    waits_for_disk: bool


def signs_of(pid: int) -> Signs:
    """A look at a process; one that is gone gives no signs."""
    process = Path(f"/proc/{pid}")
    moved, cpu, waits = 0, 0.0, False
    with suppress(OSError):
        lines = (line.split() for line in (process / "io").read_text().splitlines())
        moved = sum(int(count) for name, count in lines if name in _COUNTED)
    with suppress(OSError):
        fields = _fields(process / "stat")
        cpu = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS
    with suppress(OSError):
        for thread in (process / "task").iterdir():
            with suppress(OSError):
                waits = waits or _fields(thread / "stat")[_STATE] == "D"
    return Signs(moved, cpu, waits)


class HangJudge:
    """Whether one process hangs, asked again and again while it does not answer.

    `patience` is in seconds without an answer and without a sign, by the monotonic `clock`.
    """

    def __init__(
        self,
        patience: float,
        clock: Callable[[], float],
        look: Callable[[int], Signs] = signs_of,
    ) -> None:
        self._patience = patience
        self._clock = clock
        self._look = look
        self.answered(0)

    def answered(self, pid: int) -> None:
        """This process answers, or is another one than before."""
        self._pid = pid
        self._answered = self._alive = self._computed = self._looked = self._clock()
        self._signs: Signs | None = None

    @property
    def silent_seconds(self) -> float:
        """How long it has not answered."""
        return self._clock() - self._answered

    def hangs(self) -> bool:
        """Whether it may be killed: it did not answer just now."""
        now, signs, before = self._clock(), self._look(self._pid), self._signs
        if signs.waits_for_disk or (before and signs.moved != before.moved):
            self._alive = now
        if before and signs.cpu_seconds - before.cpu_seconds >= _LEAST_CPU * (now - self._looked):
            self._computed = now
        self._signs, self._looked = signs, now
        # One look alone does not tell what moves.
        if before is None or now - self._alive < self._patience:
            return False
        computes = now - self._computed < self._patience
        return not computes or now - self._answered >= _CPU_FACTOR * self._patience


def _fields(path: Path) -> list[str]:
    # The name of the program may hold blanks and brackets.
    return path.read_text().rpartition(")")[2].split()
