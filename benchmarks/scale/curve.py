"""One cost against one size: its points, the exponent they follow, as a table and as a picture."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

__all__ = ["Curve", "table", "write"]


@dataclass(frozen=True, slots=True)
class Curve:
    """What one thing costs at several sizes.

    Attributes:
        topic: what it belongs to; curves of one topic share a picture.
        name: what is counted, with what tells it from others of the topic.
        unit: of the cost.
        size: what grows, in the plural.
        points: pairs of size and cost, sizes ascending.
        most: the exponent that is asked for at most; None where nothing is asked.
    """

    topic: str
    name: str
    unit: str
    size: str
    points: tuple[tuple[float, float], ...]
    most: float | None = None

    @property
    def exponent(self) -> float:
        """The slope of a straight line through the logarithms of sizes and costs, by least squares.

        0 where the cost is the same at every size. Raises ValueError where that cannot be said: a
        cost of nothing beside costs of something, or fewer than two sizes.
        """
        sizes, costs = zip(*self.points, strict=True)
        if len(set(sizes)) < 2 or (min(costs) <= 0 < max(costs)):
            raise ValueError(f"no exponent: curve={self.name!r} points={self.points}")
        if len(set(costs)) == 1:
            return 0.0
        slope, _ = np.polyfit(np.log(sizes), np.log(costs), 1)
        return float(slope)

    @property
    def kept(self) -> bool:
        """Whether the exponent is at most what is asked for."""
        return self.most is None or self.exponent <= self.most


def table(curves: Sequence[Curve]) -> str:
    """Return all points and exponents as a Markdown table, a row for each curve."""
    lines = []
    for size, group in groupby(curves, lambda curve: (curve.topic, curve.size)):
        some = list(group)
        sizes = sorted({x for curve in some for x, _ in curve.points})
        heads = " | ".join(f"{x:,.0f}" for x in sizes)
        lines += [
            f"| {size[0]} at {size[1]}: | {heads} | exponent | asked |",
            "| --- |" + " ---: |" * (len(sizes) + 2),
        ]
        for curve in some:
            costs = dict(curve.points)
            cells = [f"{costs[x]:,.4g}" if x in costs else "" for x in sizes]
            asked = "" if curve.most is None else f"<= {curve.most:g}"
            missed = "" if curve.kept else " (missed)"
            lines.append(
                f"| {curve.name}, {curve.unit} | {' | '.join(cells)} "
                f"| {curve.exponent:.2f}{missed} | {asked} |"
            )
        lines.append("")
    return "\n".join(lines)


def write(curves: Sequence[Curve], folder: Path) -> None:
    """Write `TOPIC.svg`, `TOPIC.json` and `TOPIC.md` of these curves, which share a topic."""
    (topic,) = {curve.topic for curve in curves}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{topic}.md").write_text(table(curves))
    rows = [
        {"name": c.name, "unit": c.unit, "size": c.size, "points": c.points, "exponent": c.exponent}
        for c in curves
    ]
    (folder / f"{topic}.json").write_text(json.dumps(rows, indent=2) + "\n")
    # The same figures make the same file: no random ids, no date.
    with mpl.rc_context({"svg.hashsalt": "moorage", "svg.fonttype": "none"}):
        _picture(curves).savefig(folder / f"{topic}.svg", metadata={"Date": None})


def _picture(curves: Sequence[Curve]) -> Figure:
    """A pane for each unit: costs of one kind can be compared, others not."""
    units = list(dict.fromkeys((curve.unit, curve.size) for curve in curves))
    figure = Figure(figsize=(5.5 * len(units), 4), layout="constrained")
    panes = figure.subplots(1, len(units), squeeze=False)[0]
    for (unit, size), pane in zip(units, panes, strict=True):
        for curve in curves:
            if (curve.unit, curve.size) == (unit, size):
                label = f"{curve.name} (exponent {curve.exponent:.2f})"
                pane.plot(*zip(*curve.points, strict=True), marker="o", label=label)
        pane.set(xscale="log", yscale="symlog", xlabel=size, ylabel=unit)
        pane.grid(visible=True, alpha=0.3)
        pane.legend(fontsize="small")
    return figure
