"""What goes wrong between the operator and the world: deaths, refusals, lost replies.

`CrashPoints` is one operator process as far as its death is concerned. Everything that leaves the
process (a write to the API server, a request to a driver, a task to the store) is announced to it,
so that a sweep over `crash_at` dies once before and once after each of them.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Call", "CrashPoints", "Fault", "OperatorKilled"]


class OperatorKilled(BaseException):
    """The operator's process ends here and now, as by SIGKILL: no `except Exception` sees it."""


@dataclass
class CrashPoints:
    """Counts what leaves the process, and kills it at the step that was asked for.

    A dead process does nothing any more: each further call ends as the fatal one did, until
    `revive`. The count goes on over lives, unless it is set back.

    Attributes:
        crash_at: the number of the fatal step, counted from 1; None for a long life.
        crash_when: before the step takes effect, or after (its answer is never seen).
    """

    crash_at: int | None = None
    crash_when: str = "after"
    count: int = 0
    dead: bool = False
    steps: list = field(default_factory=list)

    def check(self):
        """End a dead process once more."""
        if self.dead:
            raise OperatorKilled("dead already")

    @contextmanager
    def effect(self, what):
        """Around whatever changes the world outside; `what` names it for people."""
        self.check()
        self.count += 1
        self.steps.append(what)
        fatal = self.count == self.crash_at
        if fatal and self.crash_when == "before":
            self._die(what)
        try:
            yield
        finally:
            if fatal:
                self._die(what)

    def revive(self):
        """A new process takes over; it is not killed unless asked for again."""
        self.dead, self.crash_at = False, None

    def _die(self, what):
        self.dead = True
        raise OperatorKilled(f"killed {self.crash_when} step {self.count}: {what}")


@dataclass(frozen=True)
class Call:
    """One call of the port.

    Attributes:
        effect: it may change something.
    """

    number: int
    verb: str
    kind: str
    namespace: str
    name: str
    effect: bool
    body: dict | None = None

    def __str__(self):
        return f"{self.verb} {self.kind} {self.namespace}/{self.name}"


@dataclass
class Fault:
    """An error that a call meets.

    Attributes:
        when: before (nothing happened) or after (it happened, and the answer was lost).
        times: how often; -1 for ever.
        skip: so many calls that fit go well first.
    """

    error: Exception
    verb: str | None = None
    kind: str | None = None
    name: str | None = None
    when: str = "before"
    times: int = 1
    skip: int = 0

    def meets(self, call):
        """Whether it strikes this call; it is used up by that."""
        wanted = ((self.verb, call.verb), (self.kind, call.kind), (self.name, call.name))
        if self.times == 0 or any(mine not in {None, its} for mine, its in wanted):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True
