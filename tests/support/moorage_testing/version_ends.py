"""What became of the versions that a job was given: said by its events, which do not stay long."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

__all__ = ["VersionEnds"]

_ENDS = {
    "promotion": ("StandbyPromoted",),
    "rollback": ("RolledBack", "RollbackBlocked"),
    "refusal": ("PreflightFailed",),
}
"""By what it shows, the events that tell of it; of a rollback, or that it is held for a person."""


class VersionEnds:
    """Counts how versions ended, and how often one was given that was to end so, and had time."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}
        self._tried: Counter[str] = Counter()
        self._came: Counter[str] = Counter()

    def note(self, events: Iterable[dict[str, Any]]) -> None:
        """What the API server shows now: events as they are, each as often as one likes."""
        known = {reason: end for end, reasons in _ENDS.items() for reason in reasons}
        for event in events:
            if (end := known.get(event.get("reason") or "")) is not None:
                self._told[event["metadata"]["uid"]] = end

    def tried(self, end: str, *, came: bool) -> None:
        """A version was given that is to end so, had the time for it, and did or did not."""
        assert end in _ENDS
        self._tried[end] += 1
        self._came[end] += came

    def seen(self) -> dict[str, int]:
        """How often each was seen, whoever gave the version."""
        counts = Counter(self._told.values())
        return {end: counts[end] for end in _ENDS}

    def missed(self, *, all_of_them: bool) -> list[str]:
        """What never came of the versions that were to end so.

        Args:
            all_of_them: there was time for each; else what was not tried is no fault.
        """
        wanted = [end for end in _ENDS if all_of_them or self._tried[end]]
        return [f"{end}: {self._tried[end]} tried" for end in wanted if not self._came[end]]
