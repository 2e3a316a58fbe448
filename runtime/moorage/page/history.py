"""What the page remembers of a run: epochs of late, rates of its nodes, problems. Bounded.

Called by the driver's threads with each `JobProgress`, and by the page's threads for all of it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from moorage.driver.types import JobProgress
from moorage.driver.views import EpochPhases, SubtaskView, WatermarkView, furthest_behind

EPOCHS = 240
"""How many are remembered."""
PROBLEMS = 10
_REWIND = "rewind"
_WINDOW_SECONDS = 30.0
"""Over which rates are."""


@dataclass(frozen=True, slots=True)
class EpochPoint:
    """One committed epoch.

    Attributes:
        lag_rows: rows that sources had and no epoch had taken; None where they do not say.
        behind_seconds: how far the event time of the operator that is furthest behind was behind
            the clock; None where that one has seen none yet, or no operator has event time.
    """

    epoch: int
    seconds: float
    rows: int
    phases: EpochPhases
    lag_rows: int | None = None
    behind_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ProblemPoint:
    """Checkpoints that failed for one reason, or rewinds; `code` is the failure's, or "rewind".

    Attributes:
        at, message: of the newest one.
        first: when the first one was.
        times: how many there were.
    """

    at: datetime
    code: str
    message: str
    first: datetime
    times: int = 1


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """What an operator, or a sink without one, does.

    Attributes:
        rows_in, rows_out: a second, in the last half minute.
        busy: the share of the time in which its slowest subtask was at work, 0 to 1.
        skew: the rows of the subtask with the most, against their mean; 0 where there were none.
        late, null_keys: rows since the run began.
    """

    rows_in: float = 0.0
    rows_out: float = 0.0
    busy: float = 0.0
    skew: float = 0.0
    late: int = 0
    null_keys: int = 0
    state_bytes: int = 0
    keeps_state: bool = False


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run at one moment; epochs oldest first, problems newest first.

    Attributes:
        figures: by uid of operators and of sinks without one.
        busy: by uid and subtask, as of nodes.
    """

    job: str
    progress: JobProgress
    epochs: Sequence[EpochPoint]
    problems: Sequence[ProblemPoint]
    figures: Mapping[str, NodeFigures] = field(default_factory=dict)
    busy: Mapping[tuple[str, int], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    subtasks: tuple[SubtaskView, ...]


class RunHistory:
    """A listener of a run."""

    def __init__(
        self,
        job: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._job = job
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._progress = JobProgress()
        self._epochs: deque[EpochPoint] = deque(maxlen=EPOCHS)
        self._problems: deque[ProblemPoint] = deque(maxlen=PROBLEMS)
        self._samples: deque[_Sample] = deque()

    def __call__(self, progress: JobProgress) -> None:
        """The driver's listener: nothing here waits."""
        with self._lock:
            before, self._progress = self._progress, progress
            if progress.epochs > before.epochs:
                self._epochs.append(
                    EpochPoint(
                        progress.epoch,
                        progress.epoch_seconds,
                        progress.epoch_rows,
                        progress.epoch_phases,
                        progress.lag_rows,
                        _behind(progress.watermarks, self._wall_clock()),
                    )
                )
            failure = progress.last_failure
            if failure is not before.last_failure and failure:
                self._note(failure.code, failure.message)
            if progress.rewinds != before.rewinds:
                self._note(_REWIND, progress.message)
            if progress.subtasks is not before.subtasks:
                self._sample(progress.subtasks)

    def _note(self, code: str, message: str) -> None:
        now = self._wall_clock()
        new = ProblemPoint(now, code, message, now)
        for before in self._problems:
            # A rewind has its cause in its words.
            if before.code == code and (code != _REWIND or before.message == message):
                self._problems.remove(before)
                new = replace(new, first=before.first, times=before.times + 1)
                break
        self._problems.appendleft(new)

    def _sample(self, subtasks: tuple[SubtaskView, ...]) -> None:
        # Another run counts from nothing.
        if self._samples and _rows(subtasks) < _rows(self._samples[-1].subtasks):
            self._samples.clear()
        self._samples.append(_Sample(self._clock(), subtasks))
        while len(self._samples) > 2 and self._clock() - self._samples[1].at > _WINDOW_SECONDS:
            self._samples.popleft()

    def facts(self) -> RunFacts:
        """All of it, as it is now."""
        with self._lock:
            samples = list(self._samples)
            facts = self._job, self._progress, tuple(self._epochs), tuple(self._problems)
            now = self._clock()
        if not samples:
            return RunFacts(*facts)
        base = _base(samples, now, in_epoch=facts[1].in_epoch)
        seconds = max(now - base.at, 1e-3)
        first = {(one.uid, one.subtask): one for one in base.subtasks}
        newest = samples[-1].subtasks
        busy = {
            (one.uid, one.subtask): min(_gain(one, first, "busy_seconds") / seconds, 1.0)
            for one in newest
        }
        by_uid: dict[str, list[SubtaskView]] = {}
        for one in newest:
            by_uid.setdefault(one.uid, []).append(one)
        figures = {
            uid: NodeFigures(
                rows_in=sum(_gain(one, first, "rows_in") for one in some) / seconds,
                rows_out=sum(_gain(one, first, "rows_out") for one in some) / seconds,
                busy=max(busy[one.uid, one.subtask] for one in some),
                skew=_skew([one.rows_in for one in some]),
                late=sum(one.late for one in some),
                null_keys=sum(one.null_keys for one in some),
                state_bytes=sum(one.state_bytes for one in some),
                keeps_state=any(one.key_groups is not None for one in some),
            )
            for uid, some in by_uid.items()
        }
        return RunFacts(*facts, figures, busy)


def _base(samples: Sequence[_Sample], now: float, *, in_epoch: bool) -> _Sample:
    """What rates count from: the newest sample that is half a minute old.

    Where that is the last one nothing has come since, and rates are nothing; unless an epoch is
    under way, of which nothing is known before it is committed.
    """
    old = [one for one in samples if now - one.at >= _WINDOW_SECONDS]
    if not old:
        return samples[0]
    if in_epoch and len(old) == len(samples):
        return samples[max(len(samples) - 2, 0)]
    return old[-1]


def _behind(watermarks: Sequence[WatermarkView], now: datetime) -> float | None:
    found = furthest_behind(watermarks)
    if found is None or found.time_ms is None:
        return None
    return max(now.timestamp() - found.time_ms / 1000, 0.0)


def _rows(subtasks: Iterable[SubtaskView]) -> int:
    return sum(one.rows_in for one in subtasks)


def _gain(one: SubtaskView, first: Mapping[tuple[str, int], SubtaskView], name: str) -> float:
    before = first.get((one.uid, one.subtask))
    return float(getattr(one, name) - (getattr(before, name) if before is not None else 0))


def _skew(rows: Sequence[int]) -> float:
    mean = sum(rows) / len(rows)
    return max(rows) / mean if mean else 0.0
