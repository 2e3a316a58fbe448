"""What a process remembers of an object between passes: only conveniences, never truth."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from moorage_operator.plan import Event

__all__ = ["Memory", "Setback"]

_MOST = 64
_FIRST_WAIT = 2.0
_LONGEST_WAIT = 60.0


@dataclass(slots=True)
class Setback:
    """What nothing else waits for, and what does not go through; times on the loop's clock.

    Attributes:
        failures: in a row.
        until: when it is tried again.
    """

    failures: int = 0
    until: float = 0.0
    _why: str = ""

    @property
    def message(self) -> str:
        """What a person should hear of: from its second time on."""
        return self._why if self.failures > 1 else ""

    def left(self, now: float) -> float:
        """Seconds until it is to be tried again; 0 if that is now, or nothing has failed."""
        return max(self.until - now, 0.0) if self.failures else 0.0

    def failed(self, why: str, now: float, chance: float = 1.0) -> None:
        """Try it again later and later."""
        self.failures, self._why = self.failures + 1, why
        self.until = now + chance * min(_FIRST_WAIT * 2.0 ** (self.failures - 1), _LONGEST_WAIT)

    def over(self) -> None:
        """It went through, or is not wanted any more."""
        self.failures, self._why = 0, ""


@dataclass(slots=True)
class Memory:
    """Of one object.

    Attributes:
        uid: of the object that the rest is about.
        failures: passes in a row that ended early.
        trouble: what effects fail with, for the status to show; empty when they go through.
        aside: of effects whose failure does not end a pass.
        rival: the job that was told of a directory that both have; empty if none.
        seen: the object's resourceVersion at the last pass that had nothing to do; empty if none.
        looked_after: when it was last seen to that its belongings are there; None before.
    """

    uid: str = ""
    failures: int = 0
    trouble: str = ""
    rival: str = ""
    seen: str = ""
    aside: Setback = field(default_factory=Setback)
    looked_after: datetime | None = None
    _told: dict[tuple[str, str], None] = field(default_factory=dict)
    _waiting: list[Event] = field(default_factory=list)

    def begin(self, uid: str) -> None:
        """A pass is about this object; of another one nothing is remembered."""
        if uid != self.uid:
            self.uid, self.failures, self.trouble, self.rival = uid, 0, "", ""
            self._told, self._waiting, self.aside = {}, [], Setback()
            self.looked_after, self.seen = None, ""

    def untold(self, events: Iterable[Event]) -> list[Event]:
        """What is still to be told, the oldest first; kept until it is `told`."""
        known = {(event.reason, event.key) for event in self._waiting} | self._told.keys()
        self._waiting += [event for event in events if (event.reason, event.key) not in known]
        self._waiting = self._waiting[-_MOST:]
        return list(self._waiting)

    def told(self, event: Event) -> None:
        """It has been told, or never will be."""
        self._waiting = [one for one in self._waiting if one is not event]
        self._told[event.reason, event.key] = None
        while len(self._told) > _MOST:
            del self._told[next(iter(self._told))]
