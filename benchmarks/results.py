"""From runs to figures: rates, and ratios between engines of the same round. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.params import BASE, COSTS, ENGINES, GOALS, SHAPES, EngineName, ShapeName
from benchmarks.request import EngineRun
from benchmarks.window import rate

__all__ = ["Cost", "Figure", "Goal", "Spread", "costs", "failures", "figures", "goals"]

_PER_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some numbers, the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Spread | None":
        """None for no numbers."""
        return cls(median(numbers), min(numbers), max(numbers)) if numbers else None


@dataclass(frozen=True, slots=True)
class Figure:
    """One engine on one shape.

    Attributes:
        rate: rows per second; a run's number is that of all its steady batches together.
        ratio: the base engine's rate divided by this one's, round by round; None for the base
            engine itself, or where no round has both.
        cpu_ratio: the same of rows per second of processor time.
        cpu_per_million: processor seconds for a million rows; None where they are not known.
        batch: rows per second of single batches, of all runs.
        batches: how many of those.
        runs: how many.
        checked_rows: input rows whose answer was found right, the least of any run.
        checkpoints: completed while measuring, in all runs; None where there are none to take.
    """

    engine: EngineName
    shape: ShapeName
    rate: Spread
    ratio: Spread | None
    cpu_ratio: Spread | None
    cpu_per_million: Spread | None
    batch: Spread
    batches: int
    runs: int
    checked_rows: int
    checkpoints: int | None

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio that the project has set itself, and whether this run has it."""

    engine: EngineName
    shape: ShapeName
    at_least: float
    ratio: float

    @property
    def reached(self) -> bool:
        """Whether the median ratio is that high."""
        return self.ratio >= self.at_least


@dataclass(frozen=True, slots=True)
class Cost:
    """A limit of processor time for a row, by the base engine's, and whether this run keeps it."""

    engine: EngineName
    shape: ShapeName
    at_most: float
    ratio: float

    @property
    def kept(self) -> bool:
        """Whether the median ratio is that low."""
        return self.ratio <= self.at_most


def figures(runs: Iterable[EngineRun]) -> list[Figure]:
    """Figures shape by shape, in the engines' order; failed runs have none."""
    good = [run for run in runs if not run.error]
    return [
        _figure(engine, shape, good)
        for shape in SHAPES
        for engine in ENGINES
        if any(run.engine == engine and run.shape == shape for run in good)
    ]


def failures(runs: Iterable[EngineRun]) -> list[EngineRun]:
    """Runs without a figure."""
    return [run for run in runs if run.error]


def goals(measured: Iterable[Figure]) -> list[Goal]:
    """The goals that something was measured for."""
    return [
        Goal(f.engine, f.shape, GOALS[f.shape, f.engine], f.ratio.median)
        for f in measured
        if f.ratio is not None and (f.shape, f.engine) in GOALS
    ]


def costs(measured: Iterable[Figure]) -> list[Cost]:
    """The limits that something was measured for."""
    return [
        Cost(f.engine, f.shape, COSTS[f.shape, f.engine], f.cpu_ratio.median)
        for f in measured
        if f.cpu_ratio is not None and (f.shape, f.engine) in COSTS
    ]


def _figure(engine: EngineName, shape: ShapeName, good: Sequence[EngineRun]) -> Figure:
    mine = [run for run in good if run.engine == engine and run.shape == shape]
    batches = [rate([batch]) for run in mine for batch in run.steady]
    spread, batch = Spread.of([rate(run.steady) for run in mine]), Spread.of(batches)
    if spread is None or batch is None:
        raise ValueError(f"no run to make a figure of: engine={engine} shape={shape}")
    base = {run.repeat: run for run in good if run.engine == BASE and run.shape == shape}
    pairs = [(base[run.repeat], run) for run in mine if engine != BASE and run.repeat in base]
    cpu = [_cpu_per_million(run) for run in mine]
    cpu_pairs = [(_cpu_per_million(theirs), _cpu_per_million(ours)) for ours, theirs in pairs]
    checkpoints = [run.checkpoints for run in mine if run.checkpoints is not None]
    return Figure(
        engine=engine,
        shape=shape,
        rate=spread,
        ratio=Spread.of([rate(ours.steady) / rate(theirs.steady) for ours, theirs in pairs]),
        cpu_ratio=Spread.of([a / b for a, b in cpu_pairs if a is not None and b]),
        cpu_per_million=Spread.of([c for c in cpu if c is not None]),
        batch=batch,
        batches=len(batches),
        runs=len(mine),
        checked_rows=min(run.checked_rows for run in mine),
        checkpoints=sum(checkpoints) if checkpoints else None,
    )


def _cpu_per_million(run: EngineRun) -> float | None:
    rows = sum(batch.rows for batch in run.steady)
    if run.cpu_seconds is None:
        return None
    return run.cpu_seconds / rows * _PER_MILLION
