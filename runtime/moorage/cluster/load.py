"""What load a stream bears, over a window of time: for whoever decides how many subtasks it needs.

The time of whole epochs is what counts, all operators of a chain together. It needs nothing of the
acknowledgements, which travel between operators and must be the same in every attempt. The window
begins anew with other subtasks and after a rewind: what was measured before says nothing any more.
"""

from collections import deque
from collections.abc import Sequence

from moorage.driver.views import SubtaskView
from moorage_api.driver import LoadReport, SkewReport

_MOST = 20_000
_FEWEST = 8
"""Epochs from which the cost of one is told apart from the cost of its rows."""
_SPREAD = 0.05
"""Of rows per epoch, standard deviation by mean: with less all epochs are alike."""

_LOOK_SECONDS = 30.0
"""From one look at the rows of subtasks that is kept to the next one."""

_Epoch = tuple[float, float, int]
"""When it was committed, the seconds it took, its rows."""


class LoadWindow:
    """Epochs and lags of so many seconds past. Not thread-safe; times are those of one clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._epochs: deque[_Epoch] = deque(maxlen=_MOST)
        self._lags: deque[tuple[float, int]] = deque(maxlen=_MOST)
        self._looks: deque[tuple[float, dict[tuple[str, int], int]]] = deque(maxlen=_MOST)
        self._subtasks: Sequence[SubtaskView] = ()

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
        if not self._looks or at - self._looks[-1][0] >= _LOOK_SECONDS:
            rows = {(one.uid, one.subtask): one.rows_in for one in self._subtasks}
            self._looks.append((at, rows))

    def report(self, now: float, under_way: float) -> LoadReport | None:
        """The load of the window; None before the stream runs.

        Args:
            under_way: seconds that the epoch under way has taken.
        """
        if self._since is None:
            return None
        began = max(self._since, now - self._seconds)
        _drop(self._epochs, began)
        _drop(self._lags, began)
        _drop(self._looks, began)
        seconds = max(now - began, 0.0)
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
            skew=most_skewed(self._subtasks, self._looks[0][1] if self._looks else {}),
        )


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


def most_skewed(
    subtasks: Sequence[SubtaskView], before: dict[tuple[str, int], int]
) -> SkewReport | None:
    """The subtask that has most rows by the mean of its operator; None if none has any.

    Args:
        before: rows that are not counted, as they came before the window.
    """
    groups: dict[str, list[tuple[int, SubtaskView]]] = {}
    for one in subtasks:
        rows = max(one.rows_in - before.get((one.uid, one.subtask), 0), 0)
        groups.setdefault(one.uid, []).append((rows, one))
    worst: SkewReport | None = None
    for uid, group in groups.items():
        mean = sum(rows for rows, _ in group) / len(group)
        rows, one = max(group, key=lambda pair: pair[0])
        if len(group) < 2 or not rows:
            continue
        if worst is None or rows / mean > worst.rows / worst.mean_rows:
            first, last = one.key_groups or (0, 0)
            groups_of = f"{first}-{last}"
            worst = SkewReport(
                uid=uid, subtask=one.subtask, key_groups=groups_of, rows=rows, mean_rows=mean
            )
    return worst


def _drop(entries: deque, before: float) -> None:  # type: ignore[type-arg]  # of either kind
    while entries and entries[0][0] < before:
        entries.popleft()
