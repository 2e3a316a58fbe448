"""Handles that stand before another one, the cell, which the store sees in their place."""

from typing import Any

__all__ = ["OverCell"]


class OverCell:
    """What is common to them: the cell forgets, clears and writes.

    Attributes:
        cell: the handle of what is stored.
    """

    __slots__ = ("cell",)

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def clear(self) -> None:
        """Remove what the current key has."""
        self.cell.clear()

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        self.cell.new_chunk()

    def flush(self) -> None:
        """Write what the current key changed."""
        self.cell.flush()
