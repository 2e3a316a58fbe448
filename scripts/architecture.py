"""Draws `docs/architecture.svg` from the text beside it: `docs/architecture.txt`.

With `--check` it writes nothing, and fails where the drawing is not that of the text, or where a
folder that the drawing shows is not there. The standard library is enough.
"""

import argparse
import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "docs" / "architecture.txt"
DRAWING = ROOT / "docs" / "architecture.svg"

WIDTH, MARGIN, GAP = 920, 90, 14
BOX_HEIGHT, ROW_GAP = 66, 30
COLOURS = {
    "control": "#e8eefc",
    "job": "#e9f6ec",
    "state": "#fdf3df",
    "store": "#efefef",
}
FOLDERS = (
    ROOT,
    ROOT / "operator",
    ROOT / "backends",
    ROOT / "runtime" / "moorage",
    ROOT / "backends" / "moorage_state",
)


@dataclass(frozen=True, slots=True)
class Box:
    """One part of the house; `x` and `y` of its upper left corner."""

    title: str
    lines: tuple[str, ...]
    colour: str
    x: float
    y: float
    width: float


@dataclass(slots=True)
class Drawing:
    """What the text says, laid out."""

    boxes: dict[str, Box] = field(default_factory=dict)
    bands: list[tuple[str, float]] = field(default_factory=list)
    arrows: list[tuple[str, str, str]] = field(default_factory=list)
    height: float = 0.0


def read(text: str) -> Drawing:
    """The drawing of this text.

    Raises:
        ValueError: a line is none of the forms that the text's head names.
    """
    drawing = Drawing()
    row: list[list[str]] = []
    rows: list[tuple[str, str, list[list[str]]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = [part.strip() for part in line.split("|")]
        if not line.strip() or line.startswith("#"):
            continue
        if "->" in parts[0]:
            start, _, end = parts[0].partition("->")
            drawing.arrows.append((start.strip(), end.strip(), parts[1]))
        elif parts[0] == "row":
            row = []
            rows.append((parts[1], parts[2], row))
        elif len(parts) == 4:
            row.append(parts)
        else:
            raise ValueError(f"cannot read the text of the drawing: line={number} text={line!r}")
    y = 10.0
    for name, colour, given in rows:
        if name:
            drawing.bands.append((name, y))
        share = (WIDTH - MARGIN - GAP * len(given)) / sum(int(parts[1]) for parts in given)
        x = float(MARGIN)
        for box, width, title, lines in given:
            size = share * int(width)
            said = tuple(part.strip() for part in lines.split(";"))
            drawing.boxes[box] = Box(title, said, COLOURS[colour], x, y, size)
            x += size + GAP
        y += BOX_HEIGHT + ROW_GAP
    drawing.height = y - ROW_GAP + 10
    return drawing


def svg(drawing: Drawing) -> str:
    """The drawing as SVG, the same bytes for the same text."""
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {drawing.height:.0f}" '
            f'font-family="sans-serif" font-size="12">'
        ),
        (
            '<defs><marker id="tip" markerWidth="8" markerHeight="8" '
            'refX="7" refY="4" orient="auto"><path d="M0 0L8 4L0 8z" fill="#444"/></marker></defs>'
        ),
        f'<rect width="{WIDTH}" height="{drawing.height:.0f}" fill="#fff"/>',
    ]
    for start, end, label in drawing.arrows:
        out += _arrow(drawing.boxes[start], drawing.boxes[end], label)
    for name, y in drawing.bands:
        at = f"{y + BOX_HEIGHT / 2 + 4:.0f}"
        out.append(f'<text x="10" y="{at}" font-weight="bold">{escape(name)}</text>')
    for box in drawing.boxes.values():
        out.append(
            f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
            f'height="{BOX_HEIGHT}" rx="6" fill="{box.colour}" stroke="#444"/>'
        )
        middle = box.x + box.width / 2
        out.append(_text(middle, box.y + 20, box.title, ' font-weight="bold"'))
        out += [_text(middle, box.y + 38 + 16 * i, line) for i, line in enumerate(box.lines)]
    return "\n".join([*out, "</svg>", ""])


def _arrow(start: Box, end: Box, label: str) -> list[str]:
    """From the lower edge of one to the upper edge of the other, as straight as they lie."""
    left, right = max(start.x, end.x), min(start.x + start.width, end.x + end.width)
    middle = (left + right) / 2
    above = middle if left < right else start.x + start.width / 2
    below = middle if left < right else end.x + end.width / 2
    top, bottom = start.y + BOX_HEIGHT, end.y
    out = [
        (
            f'<line x1="{above:.1f}" y1="{top:.1f}" x2="{below:.1f}" y2="{bottom:.1f}" '
            f'stroke="#444" marker-end="url(#tip)"/>'
        )
    ]
    if label:
        at = (above + below) / 2 + 6
        out.append(
            f'<text x="{at:.1f}" y="{(top + bottom) / 2 + 4:.1f}" fill="#444" '
            f'font-style="italic">{escape(label)}</text>'
        )
    return out


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle"{more}>{escape(text)}</text>'


def missing(drawing: Drawing) -> list[str]:
    """Titles that name a folder which is not there."""
    named = [box.title for box in drawing.boxes.values() if "/" in box.title]
    return [title for title in named if not any((folder / title).is_dir() for folder in FOLDERS)]


def main() -> None:
    """Write the drawing, or say what is wrong with the one that is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is stale")
    check = parser.parse_args().check
    drawing = read(SOURCE.read_text())
    if gone := missing(drawing):
        sys.exit(f"the drawing shows folders that are not there: {gone}; edit {SOURCE.name}")
    made = svg(drawing)
    if not check:
        DRAWING.write_text(made)
    elif not DRAWING.exists() or DRAWING.read_text() != made:
        sys.exit(f"{DRAWING.name} is not what {SOURCE.name} says; run make format")


if __name__ == "__main__":
    main()
