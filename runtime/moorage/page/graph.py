"""Where the nodes of a job's graph are drawn, and what stands in them. Pure.

Left to right: each node in the column after the last of those it reads from. Graphs of jobs have
few nodes, so that looks are all that counts.
"""

from collections.abc import Callable, Mapping, Sequence

from moorage.driver.views import GraphView, NodeView
from moorage.page.history import NodeFigures
from moorage.page.parts import Arrow, Box, Clean, Drawing, Rows

_WIDTH, _HEIGHT = 200.0, 116.0
_GAP_X, _GAP_Y = 46.0, 24.0
_LABELLED_GAP = 84.0
_MOST_ALONG = 12
_EDGE = 8.0
_MOST_LETTERS, _MOST_BOLD = 25, 22
_HOT = 0.8
_NODES = (
    (
        "Node",
        "Kind",
        "What",
        "Rows/s in",
        "Rows/s out",
        "Busy",
        "Skew",
        "Late",
        "Null key",
        "State",
    ),
    frozenset(range(3, 10)),
)


def columns_of(graph: GraphView) -> list[int]:
    """The column of each node."""
    columns = [0] * len(graph.nodes)
    # A job's graph has no cycles: as many rounds as it has nodes are enough.
    for _ in graph.nodes:
        for source, target, _label in graph.edges:
            columns[target] = max(columns[target], columns[source] + 1)
    return columns


def drawing_of(
    graph: GraphView, figures: Mapping[str, NodeFigures], clean: Clean, size: Callable[[float], str]
) -> Drawing:
    """The graph with its figures by uid of operators and of sinks without one."""
    columns, known = columns_of(graph), _with_ends(graph, figures)
    places = _places(graph, columns)
    gap = _LABELLED_GAP if any(label for *_, label in graph.edges) else _GAP_X
    rows = max((row for row in places), default=0.0) + 1
    boxes = []
    for node, column, row in zip(graph.nodes, columns, places, strict=True):
        x = _EDGE + column * (_WIDTH + gap)
        y = _EDGE + row * (_HEIGHT + _GAP_Y)
        boxes.append(_box(node, known.get((node.kind, node.uid)), x, y, clean, size))
    arrows = [_arrow(boxes[a], boxes[b], clean(label)) for a, b, label in graph.edges]
    width = 2 * _EDGE + (max(columns, default=0) + 1) * (_WIDTH + gap) - gap
    height = 2 * _EDGE + rows * (_HEIGHT + _GAP_Y) - _GAP_Y
    kinds = [node.kind for node in graph.nodes]
    told = ", ".join(
        f"{kinds.count(kind)} {kind}{'s' if kinds.count(kind) > 1 else ''}"
        for kind in dict.fromkeys(kinds)
    )
    return Drawing(width, height, boxes, arrows, f"The job's graph: {told}; the table has the same")


def table_of(
    graph: GraphView, figures: Mapping[str, NodeFigures], clean: Clean, size: Callable[[float], str]
) -> Rows:
    """What the drawing shows, and more, as a table."""
    header, numbers = _NODES
    rows, known = [], _with_ends(graph, figures)
    for node in graph.nodes:
        found = known.get((node.kind, node.uid))
        told = ("",) * 7 if found is None else _cells(found, size)
        rows.append((clean(node.uid), node.kind, clean(node.about), *told))
    return Rows("Nodes", header, numbers, rows)


def _with_ends(
    graph: GraphView, figures: Mapping[str, NodeFigures]
) -> dict[tuple[str, str], NodeFigures]:
    """Figures by kind and uid: also of sources and sinks, as far as their neighbours tell."""
    known: dict[tuple[str, str], NodeFigures] = {
        (node.kind, node.uid): figures[node.uid]
        for node in graph.nodes
        if node.kind in {"operator", "sink"} and node.uid in figures
    }
    for source, target, label in graph.edges:
        sink, before = graph.nodes[target], figures.get(graph.nodes[source].uid)
        if sink.kind == "sink" and not label and before is not None:
            known.setdefault(("sink", sink.uid), NodeFigures(rows_in=before.rows_out))
    for place, node in enumerate(graph.nodes):
        if node.kind == "source":
            rates = [known[key].rows_in for key in _alone(graph, place) if key in known]
            if rates:
                known["source", node.uid] = NodeFigures(rows_out=max(rates))
    return known


def _alone(graph: GraphView, source: int) -> list[tuple[str, str]]:
    """Those that read this source, or its transforms, and nothing else."""
    mine = {source}
    mine |= {b for a, b, _ in graph.edges if a == source and graph.nodes[b].kind == "transform"}
    readers = {b for a, b, _ in graph.edges if a in mine and b not in mine}
    only = [b for b in readers if all(a in mine for a, target, _ in graph.edges if target == b)]
    return [(graph.nodes[b].kind, graph.nodes[b].uid) for b in only]


def _cells(figures: NodeFigures, size: Callable[[float], str]) -> Sequence[str]:
    return (
        f"{figures.rows_in:,.0f}" if figures.rows_in else "",
        f"{figures.rows_out:,.0f}" if figures.rows_out else "",
        f"{figures.busy:.0%}" if figures.busy else "",
        f"{figures.skew:.1f}" if figures.skew else "",
        f"{figures.late:,}",
        f"{figures.null_keys:,}",
        size(figures.state_bytes) if figures.keeps_state else "",
    )


def _places(graph: GraphView, columns: Sequence[int]) -> list[float]:
    """The row of each node: near those that it reads from, and none on another."""
    places = [0.0] * len(columns)
    for column in range(max(columns, default=-1) + 1):
        mine = [i for i, at in enumerate(columns) if at == column]
        wanted = {i: _mean([places[a] for a, b, _ in graph.edges if b == i]) for i in mine}
        row = 0.0
        for i in sorted(mine, key=lambda i: (wanted[i], i)):
            places[i] = row = max(row, wanted[i])
            row += 1
    return places


def _mean(rows: Sequence[float]) -> float:
    return sum(rows) / len(rows) if rows else 0.0


def _box(
    node: NodeView,
    figures: NodeFigures | None,
    x: float,
    y: float,
    clean: Clean,
    size: Callable[[float], str],
) -> Box:
    name, about = clean(node.uid), clean(node.about)
    # An operator is known by its frame: its class and its keys need the room.
    kind = about if node.kind == "operator" else f"{node.kind}: {about}"
    lines = [_short(name, _MOST_BOLD), _short(kind if about else node.kind)]
    busy = 0.0
    if figures is not None:
        busy = figures.busy
        rows = f"{figures.rows_in or figures.rows_out:,.0f} rows/s"
        lines.append(f"{rows}, busy {busy:.0%}" if busy else rows)
        kept = [size(figures.state_bytes)] if figures.keeps_state else []
        kept += [f"skew {figures.skew:.1f}"] if figures.skew > 1.05 else []
        odd = [f"{figures.late:,} late"] if figures.late else []
        odd += [f"{figures.null_keys:,} null"] if figures.null_keys else []
        lines += [_short(", ".join(some)) for some in (kept, odd) if some]
    kind = f"{node.kind} hot" if busy >= _HOT else node.kind
    return Box(x, y, _WIDTH, _HEIGHT, kind, lines, f"{name}\n{about}", min(busy, 1.0))


def _arrow(source: Box, target: Box, label: str) -> Arrow:
    x1, y1 = source.x + source.width, source.y + source.height / 2
    x2, y2 = target.x, target.y + target.height / 2
    middle = (x1 + x2) / 2
    path = f"M{x1:g} {y1:g} C{middle:g} {y1:g} {middle:g} {y2:g} {x2 - 7:g} {y2:g}"
    return Arrow(path, _short(label, _MOST_ALONG), middle, (y1 + y2) / 2 - 6)


def _short(text: str, most: int = _MOST_LETTERS) -> str:
    """Its begin and its end, which is what tells one path, and one uid, from another."""
    if len(text) <= most:
        return text
    begin = (most - 1) // 3
    return f"{text[:begin]}…{text[begin + 1 - most :]}"
