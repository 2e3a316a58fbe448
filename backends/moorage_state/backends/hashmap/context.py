"""Which key is current, as the handles of one backend see it."""

from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["Context"]


class _NoGroup:
    """Stands for the key group where there is no current key."""

    def __index__(self) -> NoReturn:
        raise RuntimeError(
            "state belongs to a key and there is none at this point: set the current key first"
        )


class Context:
    """What all handles of a backend look at.

    Attributes:
        group: the key group of the current key, counted from the first of the range.
        entry: the bytes of the current key.
        clock_ms: processing time.
    """

    __slots__ = ("clock_ms", "entry", "group")

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.clock_ms = clock_ms
        self.group: Any = _NoGroup()
        self.entry: bytes = b""
