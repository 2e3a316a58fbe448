"""Who gets what when operator state is restored: the rules, on counts alone.

Decides, for each way in which operator state is distributed, which elements of the subtasks before
make up the state of each subtask after. Called by the driver before the first epoch, by the
in-process backend, and by whoever checks either. Pure; knows no values and no storage. The rules
are Flink's ``RoundRobinOperatorStateRepartitioner``.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Stretch(NamedTuple):
    """The elements `first` to `last` (excluded) of what the old subtask `source` had."""

    source: int
    first: int
    last: int


def even_split(counts: Sequence[int], parallelism: int) -> list[list[Stretch]]:
    """Contiguous shares of the concatenation of all lists, sizes differing by one at most.

    The first subtasks get one more where it does not divide. With as many subtasks as before each
    keeps its own list untouched. `counts` are the elements of each old subtask, in order.

    Returns:
        By new subtask, its runs in order; empty ones are left out.

    Raises:
        ValueError: for a parallelism below one.
    """
    _check(parallelism)
    if len(counts) == parallelism:
        return _own(counts)
    size, longer = divmod(sum(counts), parallelism)
    shares: list[list[Stretch]] = []
    source = taken = 0
    for subtask in range(parallelism):
        wanted = size + (subtask < longer)
        share: list[Stretch] = []
        while wanted:
            step = min(wanted, counts[source] - taken)
            if step:
                share.append(Stretch(source, taken, taken + step))
            wanted, taken = wanted - step, taken + step
            if wanted:
                source, taken = source + 1, 0
        shares.append(share)
    return shares


def union(counts: Sequence[int], parallelism: int) -> list[list[Stretch]]:
    """Every element for every subtask, also with as many subtasks as before.

    Users must not rely on the order; it is that of the old subtasks.

    Raises:
        ValueError: for a parallelism below one.
    """
    _check(parallelism)
    return [[Stretch(i, 0, n) for i, n in enumerate(counts) if n] for _ in range(parallelism)]


def broadcast(before: int, parallelism: int) -> list[int | None]:
    """The old subtask whose copy each new subtask takes; None where there was no subtask.

    Raises:
        ValueError: for a parallelism below one.
    """
    _check(parallelism)
    return [subtask % before if before else None for subtask in range(parallelism)]


def _own(counts: Sequence[int]) -> list[list[Stretch]]:
    return [[Stretch(i, 0, n)] if n else [] for i, n in enumerate(counts)]


def _check(parallelism: int) -> None:
    if parallelism < 1:
        raise ValueError(f"parallelism must be at least 1: parallelism={parallelism}")
