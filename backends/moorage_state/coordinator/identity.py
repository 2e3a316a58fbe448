"""The numbers of checkpoints."""

from typing import Protocol

__all__ = ["CheckpointIdCounter", "CountingIdCounter"]


class CheckpointIdCounter(Protocol):
    """Where ids come from. They only grow, also across the drivers of a lineage."""

    def get_and_increment(self) -> int:
        """Return the next id.

        Raises:
            MoorageError: it could not be claimed.
        """
        ...

    def set_count(self, value: int) -> None:
        """Have the next id be at least `value`."""
        ...


class CountingIdCounter:
    """Counts in memory, from an id that the store says is free."""

    def __init__(self, first: int = 1) -> None:
        self._next = first

    @property
    def next_id(self) -> int:
        """The id that the next checkpoint gets."""
        return self._next

    def get_and_increment(self) -> int:
        """Return the next id."""
        self._next += 1
        return self._next - 1

    def set_count(self, value: int) -> None:
        """Have the next id be at least `value`; it never goes back."""
        self._next = max(self._next, value)
