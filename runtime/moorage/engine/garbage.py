"""How often Python looks for cyclic garbage while a subtask runs.

A subtask makes some tuples for every row and few cycles. At Python's own threshold of 700 new
objects the collector walks over the rows of the batch again and again: it took half of a subtask's
time. Called by the subtask; must not know what runs in it.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["seldom_collecting"]

_NEW_OBJECTS = 200_000


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Within, young objects are looked over each 200,000, some megabytes; afterwards as before.

    A collector that was switched off, or set to even fewer looks, stays as it was.
    """
    before = gc.get_threshold()
    if 0 < before[0] < _NEW_OBJECTS:
        gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
