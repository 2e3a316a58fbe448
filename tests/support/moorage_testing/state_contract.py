"""What the contract suite of keyed state asks of a backend under test.

The bodies in `tests/unit/state/contract_*.py` know nothing but this: a place where states are
opened for the current key, epochs end, snapshots are taken and restored. Every backend has one
harness and runs the same bodies (see `tests/unit/state/test_contracts.py` for how).
"""

from typing import Any, Protocol

__all__ = ["StateHarness"]


class StateHarness(Protocol):
    """A backend over all key groups, in one or several subtasks.

    Attributes:
        now_ms: the processing time that states with a time to live see; set it, never back.
            A backend whose time is fixed for an epoch takes it over at the next `new_epoch`.
    """

    now_ms: int

    def open(self) -> None:
        """Begin with no state at all; called once, before everything else."""
        ...

    def with_key(self, key: str) -> None:
        """Make `key` the current key."""
        ...

    def state(self, descriptor: Any) -> Any:
        """The handle of a state for the current key; ask again after a new epoch or a restore."""
        ...

    def new_epoch(self) -> None:
        """Everything that was written lasts from here on; handles from before are not used again.

        A backend that has no epochs does nothing, or drops its caches.
        """
        ...

    def snapshot(self) -> Any:
        """What the state is now, in a form that later writes cannot change."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Put back what `snapshot` holds, into as many subtasks as there are; drop all else."""
        ...

    def rescale(self, parallelism: int) -> None:
        """Go on with the same state in `parallelism` subtasks, between 1 and 8."""
        ...

    def stored_entries(self) -> int | None:
        """How many things are physically stored; None where the backend cannot tell.

        Whatever is visible counts at least one; nothing at all is 0.
        """
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...
