"""What people and the operator ask of a driver: savepoints, to stop, to rescale, and more.

A request is put in from any thread and taken up at the next epoch boundary; whoever asked waits
for its answer, or comes back for it under the request's id. The same id again is the same request.
Called by the control socket of `moorage run`, by the endpoint of a driver in a cluster, and by
tests; knows neither.
"""

import math
import re
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar
from uuid import uuid4

from moorage.driver.views import CheckpointView, SavepointView
from moorage_state.errors import MoorageError, Retryable, UserError

RequestKind = Literal["Checkpoint", "Savepoint", "Stop", "Rescale", "Promote"]
RequestState = Literal["Pending", "Running", "Completed", "Failed"]

KEPT = 100
"""How many requests are remembered."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class RequestConflict(UserError):
    """The id is that of another request."""

    code = "request_conflict"


class JobEnding(UserError):
    """The job is ending and takes no more requests."""

    code = "driver_ending"


class JobStopped(UserError):
    """The job ended before what was asked for was done."""

    code = "job_stopped"


class RestartNeeded(UserError):
    """The running job cannot change so; a new start can."""

    code = "restart_needed"


class RescaleRefused(UserError):
    """There cannot be so many subtasks."""

    code = "rescale_refused"


class TooManyRequests(Retryable):
    """No room for another request until one is answered."""

    code = "too_many_requests"


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a job was stopped.

    Attributes:
        checkpoint: the newest one of the lineage, if this driver knows any.
        savepoint: the one it was stopped with.
        released: the lineage's log says that its owner gave it up.
    """

    checkpoint: CheckpointView | None = None
    savepoint: SavepointView | None = None
    released: bool = False


_A = TypeVar("_A")


@dataclass(slots=True, eq=False)
class _Request(Generic[_A]):
    """Something that somebody waits for; may be looked at from any thread.

    Attributes:
        request_id: names it; two requests with one id are the same, or one of them is refused.
        result: what came of it, once it is Completed.
        error: why nothing did, once it is Failed.
    """

    kind: ClassVar[RequestKind]

    request_id: str = field(default_factory=lambda: uuid4().hex, kw_only=True)
    state: RequestState = field(default="Pending", init=False, kw_only=True)
    result: _A | None = field(default=None, init=False, kw_only=True)
    error: MoorageError | None = field(default=None, init=False, kw_only=True)
    _done: threading.Event = field(
        default_factory=threading.Event, init=False, repr=False, kw_only=True
    )

    def content(self) -> tuple[object, ...]:
        """What is asked for: equal for the same request, whatever its id."""
        asked = (getattr(self, field.name) for field in fields(self) if not field.kw_only)
        return (self.kind, *(a.content() if isinstance(a, _Request) else a for a in asked))

    @property
    def done(self) -> bool:
        """Whether there is an answer."""
        return self._done.is_set()

    def running(self, *, under_way: bool = True) -> None:
        """Say that it is being worked at, or that it waits again."""
        if not self.done:
            self.state = "Running" if under_way else "Pending"

    def answer(self, result: _A | MoorageError | None) -> None:
        """Say what came of it; the first answer counts."""
        if self._done.is_set():
            return
        if isinstance(result, MoorageError):
            self.error, self.state = result, "Failed"
        else:
            self.result, self.state = result, "Completed"
        self._done.set()

    def wait(self, timeout: float | None = None) -> _A | None:
        """The result; None when it is not there in `timeout` seconds.

        Raises MoorageError: why there is none.
        """
        if self._done.wait(timeout) and self.error is not None:
            raise self.error
        return self.result


JobRequest: TypeAlias = _Request[Any]
"""Any of those that follow."""

_R = TypeVar("_R", bound=JobRequest)


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A sample of what goes to sinks, to be told with the job's progress.

    Attributes:
        percent: of all different rows.
        except_columns: these do not count where rows are told apart.
        seconds: for so long, since whoever wants it may be gone before.
    """

    percent: int = 100
    except_columns: tuple[str, ...] = ()
    seconds: float = math.inf


@dataclass(slots=True, eq=False)
class CheckpointRequest(_Request[CheckpointView]):
    """A checkpoint now, beside the periodic ones.

    Attributes:
        sample: what to tell of the output from here on; None changes nothing.
    """

    kind = "Checkpoint"

    sample: SampleRequest | None = None


@dataclass(slots=True, eq=False)
class SavepointRequest(_Request[SavepointView]):
    """One savepoint that somebody waits for.

    Attributes:
        name: of its directory below the job's savepointDir.
        format: canonical is readable by anyone, native is the backend's own files.
        attempt: the attempt id in the directory; that of an earlier request which failed is carried
            on with. Empty for the request's own.
    """

    kind = "Savepoint"

    name: str
    format: Literal["canonical", "native"] = "canonical"
    stop: bool = False
    attempt: str = ""

    @property
    def attempt_id(self) -> str:
        """What names the writer in the savepoint's directory."""
        return self.attempt or self.request_id


@dataclass(slots=True, eq=False)
class StopRequest(_Request[Stopped]):
    """The end of the job.

    Attributes:
        mode: what is taken before; None ends at once, in the middle of an epoch if need be.
        release: give the lineage up in its log, as the last thing.
        granted: how the job stopped, once it did; also if the release then failed.
    """

    kind = "Stop"

    mode: Literal["Checkpoint", "Savepoint", "None"] = "Checkpoint"
    savepoint: SavepointRequest | None = None
    release: bool = False
    granted: Stopped | None = field(default=None, init=False, kw_only=True)


@dataclass(slots=True, eq=False)
class RescaleRequest(_Request[None]):
    """Another size.

    Attributes:
        declared: the number of subtasks that the job's manifest says by now; None where that is not
            known to have changed.
    """

    kind = "Rescale"

    parallelism: int | None = None
    executors: int | None = None
    declared: int | None = None


@dataclass(slots=True, eq=False)
class PromoteRequest(_Request[None]):
    """The end of standing by: claim the lineage and go on from its newest checkpoint.

    Answered once the fence is claimed; by a driver that does not stand by at once.
    """

    kind = "Promote"


class Requests:
    """Requests that wait for the next boundary, and the latest that were answered; for any thread.

    Closed when the job has ended.
    """

    def __init__(self) -> None:
        self._waiting: deque[JobRequest] = deque()
        self._known: dict[str, JobRequest] = {}
        self._lock = threading.Lock()
        self._ended = ""
        self._at_once: StopRequest | None = None

    def ask(self, request: JobRequest) -> JobRequest:
        """Put in a request, or find the one that was put in with its id before.

        Raises:
            RequestConflict: the id is that of another request.
            JobEnding: the job takes no more requests.
            TooManyRequests: none of those that are remembered has an answer yet.
            UserError: the name cannot be that of a savepoint's directory.
        """
        _check(request)
        with self._lock:
            known = self._known.get(request.request_id)
            if known is not None:
                return _same(known, request)
            if self._ended:
                raise JobEnding(self._ended)
            self._make_room()
            self._known[request.request_id] = request
            if isinstance(request, StopRequest) and request.mode == "None":
                # Not at a boundary: it must not be taken for one that a checkpoint comes before.
                self._at_once = self._at_once or request
            else:
                self._waiting.append(request)
        return request

    def put(self, request: _R) -> _R:
        """Like `ask`, with a refusal because the job has ended as the request's answer.

        Raises UserError: the name cannot be that of a directory.
        """
        try:
            self.ask(request)
        except (JobEnding, TooManyRequests) as error:
            request.answer(error)
        return request

    def put_back(self, taken: Sequence[JobRequest]) -> None:
        """They were taken and could not be carried out: they wait again, before what came since."""
        for request in taken:
            request.running(under_way=False)
        with self._lock:
            if not self._ended:
                # What was asked for last is done last: else it would be undone by these.
                self._waiting.extendleft(reversed(taken))
                return
        for request in taken:
            request.answer(JobEnding(self._ended))

    def take_one(self) -> JobRequest | None:
        """The one that waits longest, or None."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def take(self) -> list[JobRequest]:
        """All that wait, in their order."""
        return list(iter(self.take_one, None))

    def take_all(self, kind: type[_R]) -> list[_R]:
        """All of one kind that wait, in their order; others go on waiting."""
        with self._lock:
            found = [one for one in self._waiting if isinstance(one, kind)]
            for one in found:
                self._waiting.remove(one)
        return found

    def get(self, request_id: str) -> JobRequest | None:
        """The request with this id, if it is remembered."""
        with self._lock:
            return self._known.get(request_id)

    def latest(self) -> list[JobRequest]:
        """Those that are remembered, newest last."""
        with self._lock:
            return list(self._known.values())

    @property
    def stop_at_once(self) -> StopRequest | None:
        """The request to end without waiting for a boundary, if there is one."""
        return self._at_once

    @property
    def ending(self) -> bool:
        """Whether nothing new is taken any more, since the driver was told to end or has ended."""
        return bool(self._ended)

    def refuse(self, reason: str) -> None:
        """Take nothing new from now on; what was asked for goes on."""
        with self._lock:
            self._ended = self._ended or reason

    def close(self, reason: str) -> None:
        """The job has ended: what has no answer, and what still comes, is refused."""
        with self._lock:
            self._ended = self._ended or reason
            unanswered = list(self._known.values())
        for request in [*self.take(), *unanswered]:
            request.answer(JobEnding(reason))

    def _make_room(self) -> None:
        """Forget the oldest answered request when there are too many."""
        if len(self._known) < KEPT:
            return
        oldest = next((i for i, request in self._known.items() if request.done), None)
        if oldest is None:
            raise TooManyRequests(f"too many requests wait: waiting={KEPT}; ask again later")
        del self._known[oldest]


def check_name(name: str) -> None:
    """Refuse what is no name of a savepoint. Raises UserError: saying what a name is made of."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"not a name for a savepoint: name={name!r}; use letters, digits, dots, dashes and "
            f"underscores, 63 at most, and begin with a letter or digit"
        )


def _check(request: JobRequest) -> None:
    match request:
        case SavepointRequest(name=name) | StopRequest(savepoint=SavepointRequest(name=name)):
            check_name(name)
        case _:
            pass


def _same(known: JobRequest, asked: JobRequest) -> JobRequest:
    if known.content() != asked.content():
        raise RequestConflict(
            f"another request has this id: request={asked.request_id} kind={known.kind}; use a new "
            f"id for a new request"
        )
    return known
