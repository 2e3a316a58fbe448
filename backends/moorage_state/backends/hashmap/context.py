"""Which key is current, as the handles of one backend see it."""

from collections.abc import Callable
from operator import index
from typing import Any, NoReturn

__all__ = ["Context"]


class _NoGroup:
    """Stands for the key group where there is no current key."""

    def __index__(self) -> NoReturn:
        raise RuntimeError(
            "state belongs to a key and there is none at this point: set the current key first"
        )


class _Closed:
    """Stands for the key group where there never will be one again."""

    def __init__(self, gone: Callable[[], Exception]) -> None:
        self._gone = gone

    def __index__(self) -> int:
        raise self._gone()


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

    def leave(self) -> None:
        """Have no current key."""
        self.group, self.entry = _NoGroup(), b""

    def close(self, gone: Callable[[], Exception]) -> None:
        """Have every use of a state or timer raise what `gone` gives."""
        self.group = _Closed(gone)

    def check_open(self) -> None:
        """Raise, if it was closed; for what needs no key."""
        if isinstance(self.group, _Closed):
            index(self.group)
