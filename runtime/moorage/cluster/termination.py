"""The last words of a driver: one line of JSON that Kubernetes keeps with the pod.

Decides that there is exactly one, that it fits, and that no secret is in it.
"""

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from moorage_api.driver import DriverEnd

MAX_BYTES = 4095
"""Kubernetes keeps 4,096."""

_CUT = "..."
_OPTIONAL = ("restored_from", "savepoint", "last_checkpoint")
"""What goes first when even an empty message does not make it fit."""


class Termination:
    """Writes the end of this process; the first one counts.

    Args:
        path: a file that is there or can be made. In a pod it is a mount of its own, so that it
            cannot be replaced by another file: it is written in one piece instead.
        redact: takes secrets out of a text.
    """

    def __init__(self, path: Path, redact: Callable[[str], str]) -> None:
        self._path = path
        self._redact = redact
        self._lock = threading.Lock()
        self._written: DriverEnd | None = None

    def write(self, end: DriverEnd) -> bool:
        """Leave `end`, unless there was one before; returns whether it is the one.

        Raises OSError: it cannot be written.
        """
        with self._lock:
            if self._written is not None:
                return False
            self._written = end
            data = encoded(end.model_copy(update={"message": self._redact(end.message)}))
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(descriptor, data, 0)
                with suppress(OSError):  # a device cannot be cut, and need not be
                    os.ftruncate(descriptor, len(data))
            finally:
                os.close(descriptor)
        return True


def encoded(end: DriverEnd) -> bytes:
    """One line of at most `MAX_BYTES`; the message is cut where it is too long."""
    for dropped in range(len(_OPTIONAL) + 1):
        shorter = end.model_copy(update=dict.fromkeys(_OPTIONAL[:dropped]))
        if len(_line(shorter.model_copy(update={"message": ""}))) <= MAX_BYTES:
            return _cut(shorter)
    return _cut(DriverEnd(attempt=end.attempt, outcome=end.outcome, code=end.code[:100]))


def _cut(end: DriverEnd) -> bytes:
    """With as much of the message as fits."""
    data = _line(end)
    if len(data) <= MAX_BYTES:
        return data
    low, high = 0, len(end.message)
    while low < high:
        middle = (low + high + 1) // 2
        if len(_line(_with(end, middle))) <= MAX_BYTES:
            low = middle
        else:
            high = middle - 1
    return _line(_with(end, low)) if low else _line(end.model_copy(update={"message": ""}))


def _with(end: DriverEnd, characters: int) -> DriverEnd:
    return end.model_copy(update={"message": end.message[:characters] + _CUT})


def _line(end: DriverEnd) -> bytes:
    text = json.dumps(end.to_json(), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", errors="replace")
