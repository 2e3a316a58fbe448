"""`python -m benchmarks.autoscaler`: what the autoscaler makes of a day's traffic, by simulation.

The decision is the operator's own function, and the load that it sees the driver's own window; of
the job there is a model: a queue, epochs that cost something beside their rows, subtasks that share
key groups unevenly, and a pause for each change. Beside it the same job is driven by the rules of
Flink's autoscaler with its published defaults, written anew from what they are documented to be.
"""

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from matplotlib.figure import Figure

from moorage.cluster.load import LoadWindow
from moorage_api.driver import LoadReport
from moorage_operator.decide.capacity import Load, Memory, Rules, judge

__all__ = ["TRACES", "Day", "Flink", "Moorage", "Scaler", "main", "simulate"]

HOUR = 3600.0
_START = datetime(2026, 1, 1, tzinfo=UTC)
_LOOK = 30.0
_WINDOW = 900.0
_KEY_GROUPS = 128
_LEAST, _MOST = 2, 32
_EACH = 1000.0
_FIXED = 0.1
_EPOCH_ROWS = 200_000

Trace = Callable[[float, random.Random], float]
"""Rows per second at a time in seconds."""


def _sine(at: float) -> float:
    return 8000.0 + 6000.0 * math.sin(2 * math.pi * (at / HOUR - 6.0) / 24.0)


TRACES: Mapping[str, Trace] = {
    "constant": lambda _at, _chance: 6000.0,
    "ramp": lambda at, _chance: 1000.0 + 15_000.0 * min(at / (12 * HOUR), 1.0),
    "daily sine": lambda at, _chance: _sine(at),
    "spike": lambda at, _chance: 16_000.0 if 6 * HOUR < at < 6.5 * HOUR else 4000.0,
    "step down": lambda at, _chance: 14_000.0 if at < 8 * HOUR else 3000.0,
    "noisy": lambda _at, chance: max(chance.gauss(6000.0, 2000.0), 0.0),
    "noisy sine": lambda at, chance: max(_sine(at) * chance.gauss(1.0, 0.3), 0.0),
    "outage": lambda _at, _chance: 5000.0,
}
"""By name. In `outage` the job is down for an hour, and what came meanwhile waits."""
_OUTAGE = (6 * HOUR, 7 * HOUR)


class Scaler:
    """Who decides."""

    def look(self, now: float, width: int, report: LoadReport) -> int:
        """How many subtasks there are to be."""
        raise NotImplementedError


@dataclass
class Moorage(Scaler):
    """The operator's decision, with the defaults of `scaling.autoscaler`."""

    pause: float = 10.0
    memory: Memory = field(default_factory=Memory)

    def look(self, now: float, width: int, report: LoadReport) -> int:
        """See `Scaler`."""
        rules = Rules(
            least=_LEAST,
            most=_MOST,
            key_groups=_KEY_GROUPS,
            target=0.7,
            boundary=0.2,
            window=_WINDOW,
            cooldown=300.0,
            down_delay=HOUR,
            catch_up=1800.0,
            backlog=300.0,
            up_factor=4,
            down_factor=0.6,
            pause=self.pause,
            epoch_rows=_EPOCH_ROWS,
        )
        load = Load(
            width,
            report.seconds,
            report.rows,
            report.epochs,
            report.busy_seconds,
            report.fixed_seconds,
            report.lag_rows,
            _growth(report),
        )
        verdict = judge(rules, load, self.memory, _START + timedelta(seconds=now))
        self.memory = verdict.memory
        return verdict.width


@dataclass
class Flink(Scaler):
    """Flink's rules for one vertex, with the defaults of flink-kubernetes-operator's main branch.

    Its metrics begin after the stabilization interval, and it decides when their window is full.
    """

    width: int = 0
    changed: float = 0.0
    low_since: float | None = None
    low_most: int = 0

    def look(self, now: float, width: int, report: LoadReport) -> int:
        """See `Scaler`."""
        if width != self.width:
            self.width, self.changed = width, now
        if now - self.changed < 300.0 + _WINDOW or not report.rows:
            return width
        lag, rate = report.lag_rows or 0, report.rows / report.seconds
        arrival = max(rate + _growth(report), 0.0)
        true_rate = rate / max(report.busy_seconds / report.seconds, 1e-9)
        backlog = lag / rate > 300.0
        upper, lower = (1.0, 0.0) if backlog else (1.0, 0.4)
        wanted = self._capacity(arrival, lag, 0.7, restart=True)
        factor = min(max(wanted / true_rate, 0.4), 100_001.0)
        advised = self._aligned(min(max(math.ceil(width * factor - 1e-9), _LEAST), _MOST))
        if advised == width:
            self.low_since = None
            return width
        if advised > width:
            self.low_since = None
            needed = self._capacity(arrival, lag, upper, restart=False)
            return advised if true_rate < needed else width
        if self.low_since is None:
            self.low_since, self.low_most = now, advised
        self.low_most = max(self.low_most, advised)
        enough = lower > 0 and true_rate > self._capacity(arrival, lag, lower, restart=True)
        if now - self.low_since < HOUR or not enough:
            return width
        self.low_since = None
        return self.low_most

    def _capacity(self, arrival: float, lag: int, used: float, *, restart: bool) -> float:
        more = arrival * 300.0 / 1800.0 if restart else 0.0
        return lag / 1800.0 + more + arrival / used

    def _aligned(self, width: int) -> int:
        near = range(width, min(_KEY_GROUPS // 2, _MOST) + 1)
        return next((one for one in near if _KEY_GROUPS % one == 0), width)


@dataclass
class Day:
    """What came of a day: once a look, and in sums."""

    hours: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    changes: list[tuple[float, int]] = field(default_factory=list)

    @property
    def core_hours(self) -> float:
        """A core for each subtask."""
        return sum(self.widths) * _LOOK / HOUR

    @property
    def turns(self) -> int:
        """Changes in one direction within two hours of one in the other."""
        found, before = 0, self.widths[0]
        last: tuple[float, bool] | None = None
        for at, width in self.changes:
            if last is not None and last[1] != (width > before) and at - last[0] < 2 * HOUR:
                found += 1
            last, before = (at, width > before), width
        return found

    def late(self, seconds: float) -> float:
        """The share of the day with a lag of more than so many seconds."""
        return sum(lag > seconds for lag in self.lags) / len(self.lags)


@dataclass
class _Job:
    """A stream: what waits, and the epoch under way."""

    width: int
    chance: random.Random
    waiting: float = 0.0
    free: float = 0.0  # when the next epoch may begin
    window: LoadWindow = field(default_factory=lambda: LoadWindow(_WINDOW))

    def epochs(self, now: float) -> None:
        """All that begin before `now`."""
        share = math.ceil(_KEY_GROUPS / self.width) / _KEY_GROUPS
        while self.free < now:
            rows = int(min(self.waiting, _EPOCH_ROWS))
            work = rows * share / _EACH * self.chance.uniform(0.9, 1.1)
            took = _FIXED * self.chance.uniform(0.8, 1.2) + work
            self.waiting -= rows
            self.window.epoch(self.free + took, took, rows)
            self.free = max(self.free + took, math.floor(self.free) + 1.0)


def simulate(
    trace: str, scaler: Scaler, *, pause: float, hours: float = 24.0, seed: int = 1
) -> Day:
    """Let a day pass over a job of 8 subtasks."""
    chance = random.Random(seed)  # noqa: S311  a simulation
    job = _Job(8, random.Random(seed + 1))  # noqa: S311  as above
    day, rate = Day(), TRACES[trace]
    job.window.begin(0.0)
    second = 0
    while second < hours * HOUR:
        now, arrival = float(second), rate(float(second), chance)
        job.waiting += arrival
        second += 1
        down = trace == "outage" and _OUTAGE[0] <= now < _OUTAGE[1]
        if down:
            job.free = _OUTAGE[1]
            if now + 1 == _OUTAGE[1]:
                job.window.begin(now + 1)
            continue
        job.epochs(now + 1)
        if second % 5 == 0:
            job.window.lag(now + 1, int(job.waiting))
        if second % _LOOK:
            continue
        width = _looked_at(job, scaler, now + 1)
        if width != job.width:
            job.width = width
            job.free = max(job.free, now + 1) + pause
            job.window.begin(job.free)
            day.changes.append((now, width))
        day.hours.append(now / HOUR)
        day.arrivals.append(arrival)
        day.widths.append(job.width)
        day.lags.append(job.waiting / max(arrival, 1.0))
    return day


def _looked_at(job: _Job, scaler: Scaler, now: float) -> int:
    report = job.window.report(now, 0.0)
    if report is None or report.seconds <= 0:
        return job.width
    return scaler.look(now, job.width, report)


def _growth(report: LoadReport) -> float:
    if report.lag_rows is None or report.lag_rows_before is None or report.lag_seconds <= 0:
        return 0.0
    return (report.lag_rows - report.lag_rows_before) / report.lag_seconds


def _row(trace: str, name: str, pause: float, day: Day) -> str:
    lags = sorted(day.lags)
    return (
        f"| {trace} | {name} | {pause:.0f} s | {len(day.changes)} | {day.turns} | "
        f"{lags[len(lags) // 2]:.0f} s | {lags[-1]:,.0f} s | {day.late(60.0):.1%} | "
        f"{day.core_hours:.0f} |"
    )


def _draw(trace: str, days: Mapping[str, Day], path: Path) -> None:
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    first = next(iter(days.values()))
    above.plot(
        first.hours,
        [arrival / _EACH for arrival in first.arrivals],
        color="0.7",
        linewidth=0.8,
        label="arrives, in subtasks' worth",
    )
    for name, colour in zip(days, ("#0b6e4f", "#c8553d"), strict=False):
        above.step(
            days[name].hours,
            days[name].widths,
            where="post",
            color=colour,
            label=f"{name}: subtasks",
        )
        below.plot(days[name].hours, [max(lag, 1.0) for lag in days[name].lags], color=colour)
    above.set_title(trace, loc="left")
    above.set_ylim(bottom=0)
    above.legend(fontsize=8, loc="upper left")
    below.set_yscale("log")
    below.set_ylabel("lag, s")
    below.set_xlabel("hours")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and draw a picture for each trace."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.autoscaler")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--only", choices=TRACES, action="append")
    parser.add_argument("--draw", type=Path, help="a directory for pictures")
    asked = parser.parse_args(arguments)
    print(
        "| trace | who | pause | changes | turned round | lag, median | lag, most "
        "| lag above 60 s | core hours |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for trace in asked.only or TRACES:
        for pause in (10.0, 120.0):
            days = {
                "Moorage": simulate(trace, Moorage(pause), pause=pause, hours=asked.hours),
                "Flink's defaults": simulate(trace, Flink(), pause=pause, hours=asked.hours),
            }
            for name, day in days.items():
                print(_row(trace, name, pause, day), flush=True)
            if asked.draw is not None and pause == 10.0:
                _draw(trace, days, asked.draw / f"autoscaling-{trace.replace(' ', '-')}.svg")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
