"""`python -m benchmarks.autoscaler`: what the autoscaler makes of a day's traffic, by simulation.

The decision is the operator's own function, and the load that it sees the driver's own window; of
the job there is a model: a queue, epochs that cost something beside their rows, subtasks that share
key groups unevenly, and a pause for each change. Beside it the same job is driven by the rules of
Flink's autoscaler with its published defaults, written anew from what they are documented to be.
With `--trace` the traffic is that of a file, and each decision is printed.
"""

import argparse
import bisect
import csv
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
from moorage_state.errors import UserError

__all__ = [
    "TRACES",
    "Day",
    "Flink",
    "Model",
    "Moorage",
    "Recorded",
    "Scaler",
    "main",
    "read_trace",
    "simulate",
]

HOUR = 3600.0
_START = datetime(2026, 1, 1, tzinfo=UTC)
_LOOK = 30.0
_WINDOW = 900.0
_KEY_GROUPS = 128
_FIXED = 0.1

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


@dataclass(frozen=True, slots=True)
class Recorded:
    """Traffic that somebody recorded; a rate holds until the next one.

    Attributes:
        times: in seconds, from 0 on.
        rates: rows per second.
    """

    times: Sequence[float]
    rates: Sequence[float]

    def __call__(self, at: float, _chance: random.Random) -> float:
        """See `Trace`."""
        return self.rates[max(bisect.bisect_right(self.times, at) - 1, 0)]

    @property
    def hours(self) -> float:
        """To the last line, whose rate is that at the end."""
        return self.times[-1] / HOUR


def read_trace(path: Path) -> Recorded:
    """The traffic in a CSV file of times and rows per second, with a line of headings or without.

    Raises:
        UserError: naming the line that is wrong, and what is to stand there.
    """
    times: list[float] = []
    rates: list[float] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            for fields in lines:
                if not fields or (lines.line_num == 1 and _is_heading(fields)):
                    continue
                at, rate = _line(fields, f"{path}:{lines.line_num}")
                if times and at <= times[-1]:
                    raise UserError(
                        f"{path}:{lines.line_num}: the time is not after that of the line before: "
                        f"time={fields[0]}; sort the lines by time, and give each time once"
                    )
                times.append(at)
                rates.append(rate)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"the trace cannot be read: path={path}: {error}") from error
    if len(times) < 2:
        raise UserError(
            f"a trace has two lines or more: path={path} lines={len(times)}; write time,rate in "
            f"each, such as 60,1200"
        )
    return Recorded([at - times[0] for at in times], rates)


def _is_heading(fields: Sequence[str]) -> bool:
    return all(field.strip()[:1].isalpha() for field in fields)


def _line(fields: Sequence[str], where: str) -> tuple[float, float]:
    if len(fields) != 2:
        raise UserError(
            f"{where}: a line has a time and a rate: fields={len(fields)}; write them with one "
            f"comma between them, such as 60,1200"
        )
    return _time(fields[0].strip(), where), _rate(fields[1].strip(), where)


def _time(text: str, where: str) -> float:
    try:
        at = float(text)
    except ValueError:
        try:
            found = datetime.fromisoformat(text)
        except ValueError as error:
            raise UserError(
                f"{where}: no time: time={text!r}; write seconds, such as 60, or a date and time, "
                f"such as 2026-01-31T12:00:00Z"
            ) from error
        at = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(at):
        raise UserError(f"{where}: no time: time={text!r}; write seconds, such as 60")
    return at


def _rate(text: str, where: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate >= 0):
        raise UserError(
            f"{where}: no rate: rate={text!r}; write rows per second, 0 or more, such as 1200.5"
        )
    return rate


@dataclass(frozen=True, slots=True)
class Model:
    """The job.

    Attributes:
        each: rows per second that a subtask does.
        least: subtasks, of `scaling.autoscaler.min`.
        most: of `max`.
        begins: with so many.
    """

    each: float = 1000.0
    least: int = 2
    most: int = 32
    begins: int = 8

    @property
    def epoch_rows(self) -> int:
        """The most that an epoch takes."""
        return round(200 * self.each)


class Scaler:
    """Who decides."""

    def look(self, now: float, width: int, report: LoadReport) -> int:
        """How many subtasks there are to be."""
        raise NotImplementedError


@dataclass
class Moorage(Scaler):
    """The operator's decision, with the defaults of `scaling.autoscaler`."""

    pause: float = 10.0
    model: Model = Model()
    memory: Memory = field(default_factory=Memory)

    def look(self, now: float, width: int, report: LoadReport) -> int:
        """See `Scaler`."""
        rules = Rules(
            least=self.model.least,
            most=self.model.most,
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
            epoch_rows=self.model.epoch_rows,
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

    model: Model = Model()
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
        least, most = self.model.least, self.model.most
        advised = self._aligned(min(max(math.ceil(width * factor - 1e-9), least), most))
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
        near = range(width, min(_KEY_GROUPS // 2, self.model.most) + 1)
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

    model: Model
    width: int
    chance: random.Random
    waiting: float = 0.0
    free: float = 0.0  # when the next epoch may begin
    window: LoadWindow = field(default_factory=lambda: LoadWindow(_WINDOW))

    def epochs(self, now: float) -> None:
        """All that begin before `now`."""
        share = math.ceil(_KEY_GROUPS / self.width) / _KEY_GROUPS
        while self.free < now:
            rows = int(min(self.waiting, self.model.epoch_rows))
            work = rows * share / self.model.each * self.chance.uniform(0.9, 1.1)
            took = _FIXED * self.chance.uniform(0.8, 1.2) + work
            self.waiting -= rows
            self.window.epoch(self.free + took, took, rows)
            self.free = max(self.free + took, math.floor(self.free) + 1.0)


def simulate(
    trace: str | Recorded,
    scaler: Scaler,
    *,
    pause: float,
    hours: float = 24.0,
    seed: int = 1,
    model: Model = Model(),
) -> Day:
    """Let a day pass over a job."""
    chance = random.Random(seed)  # noqa: S311  a simulation
    job = _Job(model, model.begins, random.Random(seed + 1))  # noqa: S311  as above
    day, rate = Day(), TRACES[trace] if isinstance(trace, str) else trace
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


def _draw(trace: str, days: Mapping[str, Day], path: Path, each: float) -> None:
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    first = next(iter(days.values()))
    above.plot(
        first.hours,
        [arrival / each for arrival in first.arrivals],
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


def _print_changes(pause: float, day: Day, begins: int) -> None:
    """Each decision of the operator's."""
    for at, width in day.changes:
        hours, minutes = divmod(round(at) // 60, 60)
        print(f"| {pause:.0f} s | {hours}:{minutes:02d} | {begins} to {width} |")
        begins = width


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.autoscaler")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", choices=TRACES, action="append")
    what.add_argument(
        "--trace", type=Path, metavar="FILE", help="traffic of your own: CSV of time and rows/s"
    )
    plain = Model()
    parser.add_argument("--hours", type=float, help="24; or to the end of the file")
    parser.add_argument("--each", type=float, default=plain.each, help="rows/s of a subtask")
    parser.add_argument("--min", type=int, default=plain.least, help="subtasks")
    parser.add_argument("--max", type=int, default=plain.most, help="subtasks")
    parser.add_argument("--begin", type=int, default=plain.begins, help="with so many subtasks")
    parser.add_argument("--draw", type=Path, help="a directory for pictures")
    asked = parser.parse_args(arguments)
    if not 1 <= asked.min <= asked.begin <= asked.max <= _KEY_GROUPS:
        parser.error(
            f"--min, --begin and --max do not fit: min={asked.min} begin={asked.begin} "
            f"max={asked.max}; each is no more than the next, from 1 to {_KEY_GROUPS}"
        )
    if not (math.isfinite(asked.each) and asked.each >= 1):
        parser.error(f"a subtask does no such number of rows: each={asked.each}; name 1 or more")
    try:
        asked.recorded = read_trace(asked.trace) if asked.trace is not None else None
    except UserError as error:
        parser.error(str(error))
    asked.hours = asked.hours or (asked.recorded.hours if asked.recorded else 24.0)
    if asked.hours * HOUR < _LOOK:
        parser.error(f"too short: hours={asked.hours:.4f}; a decision is made every {_LOOK:.0f} s")
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and draw a picture for each trace."""
    asked = _asked(arguments)
    model = Model(asked.each, asked.min, asked.max, asked.begin)
    traces: dict[str, str | Recorded] = {name: name for name in asked.only or TRACES}
    if asked.recorded is not None:
        traces = {asked.trace.stem: asked.recorded}
    print(
        "| trace | who | pause | changes | turned round | lag, median | lag, most "
        "| lag above 60 s | core hours |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    decided: list[tuple[float, Day]] = []
    for name, trace in traces.items():
        for pause in (10.0, 120.0):
            scalers = {"Moorage": Moorage(pause, model), "Flink's defaults": Flink(model)}
            days = {
                who: simulate(trace, scaler, pause=pause, hours=asked.hours, model=model)
                for who, scaler in scalers.items()
            }
            for who, day in days.items():
                print(_row(name, who, pause, day), flush=True)
            decided.append((pause, days["Moorage"]))
            if asked.draw is not None and pause == 10.0:
                path = asked.draw / f"autoscaling-{name.replace(' ', '-')}.svg"
                _draw(name, days, path, model.each)
    if asked.recorded is not None:
        print("\n| pause | hours:minutes | subtasks |\n|---|---|---|")
        for pause, day in decided:
            _print_changes(pause, day, model.begins)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
