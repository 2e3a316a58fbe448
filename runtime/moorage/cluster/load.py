"""What load a stream bears, over a window of time: for whoever decides how many subtasks it needs.

The time of whole epochs is what counts, all operators of a chain together. It needs nothing of the
acknowledgements, which travel between operators and must be the same in every attempt. The window
begins anew with other subtasks and after a rewind: what was measured before says nothing any more.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low
from typing import NamedTuple

from moorage.driver.views import SubtaskView
from moorage_api.driver import LoadReport, OperatorLoad, SkewReport, SubtaskLoad

_MOST = 20_000
_FEWEST = 8
"""Epochs from which the cost of one is told apart from the cost of its rows."""
_SPREAD = 0.05
"""Of rows per epoch, standard deviation by mean: with less all epochs are alike."""

_LOOK_SECONDS = 30.0
"""From one look at the rows of subtasks that is kept to the next one."""

_MOST_OPERATORS = 32
"""That are told of one by one: a report is asked for every few seconds."""

_Epoch = tuple[float, float, int]
"""When it was committed, the seconds it took, its rows."""


class Done(NamedTuple):
    """What a subtask had done since the run began."""

    rows: int = 0
    busy: float = 0.0
    given: int = 0  # rows


_Known = Mapping[tuple[str, int], Done]
"""By operator and subtask."""


class LoadWindow:
    """Epochs and lags of so many seconds past. Not thread-safe; times are those of one clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._epochs: deque[_Epoch] = deque(maxlen=_MOST)
        self._lags: deque[tuple[float, int]] = deque(maxlen=_MOST)
        self._looks: deque[tuple[float, _Known]] = deque(maxlen=_MOST)
        self._subtasks: Sequence[SubtaskView] = ()
        self._seen_at = 0.0

    def begin(self, now: float) -> None:
        """From now on the stream runs in another way than before."""
        self._since = now
        self._epochs.clear()
        self._lags.clear()
        self._looks.clear()
        self._subtasks = ()

    def epoch(self, at: float, seconds: float, rows: int) -> None:
        """One was committed."""
        self._epochs.append((at, seconds, rows))

    def lag(self, at: float, rows: int) -> None:
        """So many rows wait in the sources."""
        self._lags.append((at, rows))

    def subtasks(self, at: float, seen: Sequence[SubtaskView]) -> None:
        """What the subtasks have done since the run began."""
        self._subtasks = [one for one in seen if one.key_groups is not None]
        self._seen_at = at
        if not self._looks or at - self._looks[-1][0] >= _LOOK_SECONDS:
            done = {
                (one.uid, one.subtask): Done(one.rows_in, one.busy_seconds, one.rows_out)
                for one in self._subtasks
            }
            self._looks.append((at, done))

    def report(self, now: float, under_way: float) -> LoadReport | None:
        """The load of the window; None before the stream runs.

        Args:
            under_way: seconds that the epoch under way has taken.
        """
        if self._since is None:
            return None
        earliest = now - self._seconds
        began = max(self._since, earliest)
        _drop(self._epochs, began)
        _drop(self._lags, began)
        seconds = max(now - began, 0.0)
        looked, before = self._base(began)
        # What was done before the window is none of its load; but of an epoch that takes longer
        # than a window nothing is known yet.
        idle = self._seen_at < began and not under_way
        looked, subtasks = (began, ()) if idle else (looked, self._subtasks)
        busy = sum(min(took, max(at - began, 0.0)) for at, took, _ in self._epochs)
        return LoadReport(
            seconds=seconds,
            epochs=len(self._epochs),
            rows=sum(rows for _, _, rows in self._epochs),
            busy_seconds=min(busy + min(under_way, seconds), seconds),
            fixed_seconds=fixed_seconds([(took, rows) for _, took, rows in self._epochs]),
            lag_rows=self._lags[-1][1] if self._lags else None,
            lag_rows_before=self._lags[0][1] if self._lags else None,
            lag_seconds=self._lags[-1][0] - self._lags[0][0] if self._lags else 0.0,
            skew=most_skewed(subtasks, before),
            operators=tuple(operator_loads(subtasks, before))[:_MOST_OPERATORS],
            operator_seconds=max(now - looked, 0.0),
            whole=self._since <= earliest and looked <= began,
        )

    def _base(self, began: float) -> tuple[float, _Known]:
        """The look from which on subtasks are counted: the newest one that is not in the window.

        Looks are seldom, and a window may have none: what is counted is then more than the window,
        and never the whole run.
        """
        looks = self._looks
        while len(looks) > 1 and looks[1][0] <= began and looks[1][0] < self._seen_at:
            looks.popleft()
        return looks[0] if looks else (began, {})


def fixed_seconds(epochs: list[tuple[float, int]]) -> float:
    """What an epoch takes however few its rows are, by least squares over (seconds, rows).

    Never more than the shortest epoch took. 0 where too few are known, or all have as many rows:
    the cost then counts as that of the rows.
    """
    count = len(epochs)
    if count < _FEWEST:
        return 0.0
    mean_took = sum(took for took, _ in epochs) / count
    mean_rows = sum(rows for _, rows in epochs) / count
    spread = sum((rows - mean_rows) ** 2 for _, rows in epochs)
    if spread <= count * (_SPREAD * mean_rows) ** 2:
        return 0.0
    shared = sum((took - mean_took) * (rows - mean_rows) for took, rows in epochs)
    at_none = mean_took - shared / spread * mean_rows
    shortest = min(took for took, _ in epochs)
    return min(max(at_none, 0.0), shortest)


def most_skewed(subtasks: Sequence[SubtaskView], before: _Known) -> SkewReport | None:
    """The subtask that has most rows by the mean of its operator; None if none has any.

    Args:
        before: rows that are not counted, as they came before the window.
    """
    worst: SkewReport | None = None
    for uid, group in _by_operator(subtasks, before).items():
        mean = sum(done.rows for done, _ in group) / len(group)
        done, one = max(group, key=lambda pair: pair[0].rows)
        if len(group) < 2 or not done.rows:
            continue
        if worst is None or done.rows / mean > worst.rows / worst.mean_rows:
            worst = SkewReport(
                uid=uid,
                subtask=one.subtask,
                key_groups=_groups_of(one),
                rows=done.rows,
                mean_rows=mean,
            )
    return worst


def operator_loads(subtasks: Sequence[SubtaskView], before: _Known) -> Iterator[OperatorLoad]:
    """The subtask of each operator that bears most, beside the median; of those with rows.

    Args:
        before: what is not counted, as it was done before the window.
    """
    for uid, group in sorted(_by_operator(subtasks, before).items()):
        done, one = max(group, key=lambda pair: (pair[0].busy, pair[0].rows))
        if not done.rows and not done.busy:
            continue
        # Of an even number the lower one: of two the other, which a hot one stands out from.
        middle = SubtaskLoad(
            rows=median_low(each.rows for each, _ in group),
            busy_seconds=median_low(each.busy for each, _ in group),
            state_bytes=median_low(view.state_bytes for _, view in group),
        )
        most = SubtaskLoad(rows=done.rows, busy_seconds=done.busy, state_bytes=one.state_bytes)
        yield OperatorLoad(
            uid=uid,
            subtasks=len(group),
            rows_in=sum(each.rows for each, _ in group),
            rows_out=sum(each.given for each, _ in group),
            busiest=one.subtask,
            key_groups=_groups_of(one),
            most=most,
            median=middle,
        )


def _by_operator(
    subtasks: Sequence[SubtaskView], before: _Known
) -> dict[str, list[tuple[Done, SubtaskView]]]:
    """What each did in the window."""
    groups: dict[str, list[tuple[Done, SubtaskView]]] = {}
    for one in subtasks:
        old = before.get((one.uid, one.subtask), Done())
        done = Done(
            max(one.rows_in - old.rows, 0),
            max(one.busy_seconds - old.busy, 0.0),
            max(one.rows_out - old.given, 0),
        )
        groups.setdefault(one.uid, []).append((done, one))
    return groups


def _groups_of(one: SubtaskView) -> str:
    first, last = one.key_groups or (0, 0)
    return f"{first}-{last}"


def _drop(entries: deque, before: float) -> None:  # type: ignore[type-arg]  # of either kind
    while entries and entries[0][0] < before:
        entries.popleft()
