"""What one process remembers of an object between its passes: conveniences, never truth.

Losing it costs a request, a doubled event or a look; the status alone says what is under way.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from moorage_operator.decide.rest import Rest
from moorage_operator.plan import Event
from moorage_operator.ports import Object
from moorage_operator.watch_cache import is_older
from moorage_operator.world import CLOCKS_APART

__all__ = ["Memory", "Setback"]

_MOST_EVENTS = 64
_GAP = 60.0
"""Seconds without a pass that sees to an object, after which it is as if none had before."""
_FIRST_SETBACK = 2.0
_LONGEST_SETBACK = 60.0


@dataclass(slots=True)
class Setback:
    """What nothing else waits for, and what does not go through; times on the loop's clock."""

    failures: int = 0  # in a row
    until: float = 0.0  # when it is tried again
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
        self.until = now + chance * min(
            _FIRST_SETBACK * 2.0 ** (self.failures - 1), _LONGEST_SETBACK
        )

    def over(self) -> None:
        """It went through, or is not wanted any more."""
        self.failures, self._why = 0, ""


@dataclass(frozen=True, slots=True)
class _Attended:
    """A pass that saw to the object, and since when others did without a gap."""

    since: datetime
    now: datetime
    tick: float


@dataclass(slots=True)
class Memory:
    """Of one object."""

    uid: str = ""  # of the object that the rest is about
    failures: int = 0  # passes in a row that ended early
    trouble: str = ""  # what effects fail with, for the status to show; empty when they go through
    rival: str = ""  # the job that was told of a directory that both have; empty if none
    # The object's resourceVersion at the last pass that had nothing to do; empty if none
    seen: str = ""
    rest: Rest | None = None  # what the last look decided, if that was nothing
    mark: int = 0  # of the watch cache, before that look
    fleet: str = ""  # the hash of the fleet file, before that look
    live: float = float("-inf")  # when everything was last read live, on the loop's clock
    aside: Setback = field(default_factory=Setback)  # of effects whose failure does not end a pass
    _attended: _Attended | None = None  # the last pass that saw to it
    _neglected: bool = False  # by passes since
    _told: dict[tuple[str, str], None] = field(default_factory=dict)
    _waiting: list[Event] = field(default_factory=list)

    def begin(self, uid: str) -> None:
        """A pass is about this object; of another one nothing is remembered."""
        if uid != self.uid:
            self.uid, self.failures, self.trouble, self.rival = uid, 0, "", ""
            self._told, self._waiting, self.aside = {}, [], Setback()
            self.seen, self.rest, self._attended = "", None, None

    def attend(self, now: datetime, tick: float, *, sees_to_it: bool) -> datetime:
        """A pass; say since when passes have seen to the object, by the clock as it is.

        Anew after a gap, and after a clock was put forward: what it says to be long ago is not. Nor
        is it still to come, after one was put back.
        """
        known = self._attended
        if known is not None:
            passed = tick - known.tick
            was_put = now - known.now - timedelta(seconds=passed) > CLOCKS_APART
            if was_put or (self._neglected and passed > _GAP):
                known = None
        since = min(known.since, now) if known is not None else now
        if sees_to_it:
            self._attended, self._neglected = _Attended(since, now, tick), False
        else:
            self.neglect()
        return since

    def neglect(self) -> None:
        """A pass has not seen to it, for whatever reason."""
        self._neglected = True

    def may_look(self, body: Object) -> bool:
        """Whether a version that watches have shown may be all there is to know of the object.

        Not while something is being done about it; and not before the watch has shown what the
        last pass saw or wrote itself.
        """
        meta = body["metadata"]
        if meta.get("deletionTimestamp"):
            return False
        if self.uid == "":
            return True
        return self.uid == meta["uid"] and self.seen != "" and not is_older(meta, self.seen)

    def has_told(self, events: Iterable[Event]) -> bool:
        """Whether these were told, and nothing else waits for it."""
        return not self._waiting and all((one.reason, one.key) in self._told for one in events)

    def untold(self, events: Iterable[Event]) -> list[Event]:
        """What is still to be told, the oldest first; kept until it is `told`."""
        known = {(event.reason, event.key) for event in self._waiting} | self._told.keys()
        self._waiting += [event for event in events if (event.reason, event.key) not in known]
        self._waiting = self._waiting[-_MOST_EVENTS:]
        return list(self._waiting)

    def told(self, event: Event) -> None:
        """It has been told, or never will be."""
        self._waiting = [one for one in self._waiting if one is not event]
        self._told[event.reason, event.key] = None
        while len(self._told) > _MOST_EVENTS:
            del self._told[next(iter(self._told))]
