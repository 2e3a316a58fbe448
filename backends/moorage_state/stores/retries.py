"""Trying again: the one place that decides how often, how long, and how far apart.

Pauses are drawn anew from the whole range up to a growing bound ("full jitter"), so that many
clients which failed together do not come back together.
"""

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from moorage_state.errors import MoorageError
from moorage_state.progress import retried

T = TypeVar("T")


def _uniform() -> float:
    """A number in [0, 1); unlike `random.random` it pickles without the generator's state."""
    return random.random()  # noqa: S311 - spreads load, guards nothing


@dataclass(frozen=True, slots=True)
class Failure:
    """What an error of one attempt means: what the caller is told, whether to try again."""

    error: MoorageError
    again: bool


@dataclass(frozen=True, slots=True)
class Retries:
    """How one request is tried again.

    Attributes:
        attempts: how often at most.
        first_pause: the bound of the first pause, in seconds; it doubles each time.
        longest_pause: the highest bound of a pause, in seconds.
        deadline: no attempt starts later than this many seconds after the first one.
    """

    attempts: int = 10
    first_pause: float = 0.1
    longest_pause: float = 10.0
    deadline: float = 90.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[], float] = _uniform

    @property
    def few(self) -> "Retries":
        """The same with few attempts: for what nothing depends on, or is done again later."""
        return replace(self, attempts=3, deadline=10.0)

    def run(self, work: Callable[[int], T], judge: Callable[[Exception], Failure]) -> T:
        """Return what `work(attempt)` returns, attempts counted from 1.

        Raises the error that `judge` makes of the last exception.
        """
        start = self.clock()
        for attempt in itertools.count(1):
            try:
                return work(attempt)
            except Exception as error:
                failure = judge(error)
                pause = self.pause(attempt)
                late = self.clock() + pause - start > self.deadline
                if not failure.again or attempt >= self.attempts or late:
                    if failure.error is error:
                        raise
                    raise failure.error from error
            retried()
            self.sleep(pause)
        raise AssertionError

    def pause(self, attempt: int) -> float:
        """Return how many seconds to wait after the attempt of this number (from 1)."""
        bound = min(self.longest_pause, self.first_pause * 2.0 ** min(attempt - 1, 60))
        return bound * self.uniform()
