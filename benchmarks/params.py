"""What is measured: engines, shapes of the input, sizes and times. Values only."""

from dataclasses import dataclass, fields
from typing import Any, NewType

__all__ = [
    "BASE",
    "BY_COLUMN",
    "COSTS",
    "ENGINES",
    "GOALS",
    "QUICK",
    "SHAPES",
    "WITH_CHANGELOG",
    "Engine",
    "EngineName",
    "Parameters",
    "Shape",
    "ShapeName",
]

EngineName = NewType("EngineName", str)
ShapeName = NewType("ShapeName", str)


@dataclass(frozen=True, slots=True)
class Engine:
    """One way to run the job.

    Attributes:
        title: how tables call it.
        repeats: in how many rounds it takes part; None in all.
        steady_batches: the least number of measured batches; None as the parameters say.
    """

    name: EngineName
    title: str
    repeats: int | None = None
    steady_batches: int | None = None


BASE = EngineName("moorage")
"""The engine that the ratios are about."""

BY_COLUMN = EngineName("moorage-batch")
"""The same engine with a vectorized function."""

WITH_CHANGELOG = EngineName("moorage-changelog")
"""The same engine, whose checkpoints are references to a changelog."""

ENGINES = {
    engine.name: engine
    for engine in (
        Engine(BASE, "Moorage, per record"),
        Engine(BY_COLUMN, "Moorage, by column", repeats=1),
        Engine(WITH_CHANGELOG, "Moorage, with a changelog", repeats=1),
        Engine(EngineName("tws-rows"), "transformWithState, rows"),
        Engine(EngineName("tws-rows-lean"), "transformWithState, rows, emits per key", repeats=1),
        Engine(EngineName("jvm-agg"), "groupBy.agg, JVM"),
        # A batch takes it minutes where the others take seconds: one round, one batch is enough.
        Engine(EngineName("tws-pandas"), "transformWithStateInPandas", repeats=1, steady_batches=1),
    )
}


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows spread over keys.

    Attributes:
        keys_per_row: size of the key space, as a multiple of the rows in a batch.
    """

    name: ShapeName
    title: str
    keys_per_row: float

    def keys(self, rows: int) -> int:
        """Size of the key space for batches of `rows` rows."""
        return max(1, round(rows * self.keys_per_row))


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(ShapeName("one"), "about one row per key and batch", 10.0),
        Shape(ShapeName("eight"), "about eight rows per key and batch", 1 / 8),
    )
}

GOALS = {
    (ShapeName("one"), EngineName("tws-rows")): 20.0,
    (ShapeName("eight"), EngineName("tws-rows")): 5.0,
}
"""The ratios that the project has set itself."""

COSTS = {(ShapeName("one"), WITH_CHANGELOG): 1.15}
"""The most processor time of a row, by that of the base engine, that it has set itself."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Sizes and times; the same for every engine.

    Attributes:
        rows: rows in a batch, which is one file. The default is Moorage's own limit for an epoch.
        files: batches there are, beside the warm-up's.
        warmup_rows: rows in each of the first, small batches.
        warmup_files: how many of those there are.
        warmup_seconds: batches that begin earlier, from the start of the first, do not count.
        steady_seconds: how long is measured; the batch that is under way then is finished.
        steady_batches: the least number of batches that are measured.
        checkpoint_seconds: Moorage's checkpoint interval.
        repeats: rounds of all engines.
        parallelism: subtasks, shuffle partitions, task slots and processors.
        seed: of the input.
        budget_seconds: for everything. A run begins only if it would, judged by the one before
            it, end within that; the first ones have to be done a minute after.
    """

    rows: int = 200_000
    files: int = 60
    warmup_rows: int = 60_000
    warmup_files: int = 1
    warmup_seconds: float = 10.0
    steady_seconds: float = 20.0
    steady_batches: int = 2
    checkpoint_seconds: int = 10
    repeats: int = 3
    parallelism: int = 2
    seed: int = 2013
    budget_seconds: float = 840.0

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Parameters":
        """The inverse of `dataclasses.asdict`; unknown names are refused."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(data) - known):
            raise ValueError(f"unknown parameters: names={unknown}")
        return cls(**data)


QUICK = Parameters(
    rows=30_000,
    warmup_rows=6_000,
    warmup_seconds=3.0,
    steady_seconds=5.0,
    steady_batches=1,
    checkpoint_seconds=2,
    repeats=1,
    budget_seconds=240.0,
)
"""Enough to see that everything works; too short for figures to quote."""
