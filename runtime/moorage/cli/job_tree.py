"""The tree that `status` shows of a job: the driver, who works for it, and their subtasks.

Decides how it looks, for a job on this machine and for one on a cluster; `status` and
`cluster_status` say what is in it. The least busy subtasks are left out where there is no room.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from moorage.cli.output import one_line
from moorage.driver.run_status import RunStatus
from moorage.driver.views import SubtaskView
from moorage.texts import duration_text, since_text, size_text, watermark_text

_WRONG = "red"
_ASIDE = "dim"


@dataclass(frozen=True, slots=True)
class Worker:
    """Who does a driver's work, an executor or a state server, with its subtasks."""

    about: str
    subtasks: Sequence[SubtaskView] = ()


@dataclass(frozen=True, slots=True)
class DriverBranch:
    """A driver, and below it who works for it."""

    about: str
    workers: Sequence[Worker] = ()


@dataclass(frozen=True, slots=True)
class JobTree:
    """All that is shown of a job.

    Attributes:
        title: its name and its phase.
        wrong: what is not as it should be.
        facts: what it does, before its driver.
        others: who is neither a driver nor works for one that is there.
        missing: why nothing is told of subtasks; empty where it is.
        ends: what it could go back to, after its driver.
    """

    title: str
    wrong: Sequence[str] = ()
    facts: Sequence[str] = ()
    drivers: Sequence[DriverBranch] = ()
    others: Sequence[Worker] = ()
    missing: str = ""
    ends: Sequence[str] = ()


def drawn(tree: JobTree, room: int | None = None) -> RenderableType:
    """The tree for a terminal or a pipe.

    Args:
        room: how many lines there are for it; None: as many as it needs.
    """
    head = [Text(one_line(tree.title), style="bold")]
    head += [Text(one_line(f"! {text}"), style=_WRONG) for text in tree.wrong]
    root = Tree(Group(*head), highlight=False)
    most = None if room is None else _most_subtasks(tree, room)
    for text in tree.facts:
        root.add(Text(one_line(text)))
    for driver in tree.drivers:
        branch = root.add(Text(one_line(driver.about)))
        for worker in driver.workers:
            _add(branch, worker, most)
    for worker in tree.others:
        _add(root, worker, most)
    if tree.missing:
        root.add(Text(one_line(f"subtasks are not shown: {tree.missing}"), style=_ASIDE))
    for text in tree.ends:
        root.add(Text(one_line(text)))
    return root


def _workers(tree: JobTree) -> Iterator[Worker]:
    for driver in tree.drivers:
        yield from driver.workers
    yield from tree.others


def _most_subtasks(tree: JobTree, room: int) -> int | None:
    """Of each worker, so that all of it has room; None where that is all of them."""
    has = [len(one.subtasks) for one in _workers(tree)]
    lines = 1 + len(tree.wrong) + len(tree.facts) + len(tree.drivers) + len(tree.ends)
    left = room - lines - len(has) - bool(tree.missing)
    if sum(has) <= left:
        return None
    # One line of each says how many are left out.
    return max(left // max(sum(map(bool, has)), 1) - 1, 1)


def _add(branch: Tree, worker: Worker, most: int | None) -> None:
    mine = branch.add(Text(one_line(worker.about)))
    shown = list(worker.subtasks)
    if most is not None and len(shown) > most + 1:
        busiest = sorted(shown, key=lambda one: -one.last_seconds)[:most]
        shown = [one for one in shown if one in busiest]
    for one in shown:
        mine.add(Text(one_line(_subtask(one))))
    if left := len(worker.subtasks) - len(shown):
        mine.add(Text(f"and {left:,} more, less busy in the last epoch", style=_ASIDE))


def _subtask(one: SubtaskView) -> str:
    parts = ["key groups {} to {}".format(*one.key_groups)] if one.key_groups else []
    parts.append(f"{one.rows_in:,} rows in, {one.rows_out:,} out")
    if one.last_seconds:
        parts.append(f"last epoch {duration_text(one.last_seconds)}")
    if one.key_groups:
        parts.append(f"state {size_text(one.state_bytes)}")
    return f"{one.uid} {one.subtask}: {', '.join(parts)}"


def run_troubles(found: RunStatus) -> Iterator[str]:
    """What a run says is wrong with it."""
    for text in (found.storage_error, found.message):
        if text:
            yield text
    if found.last_failure is not None:
        failure = found.last_failure
        yield f"last failure of a checkpoint: {failure.code}: {failure.message}"


def run_facts(found: RunStatus, now: datetime) -> Iterator[str]:
    """What a run does, and how far event time has come."""
    rows = f"{found.rows:,} rows, {found.rows_per_second:,.0f} rows/s"
    odd = f", {found.late_rows:,} late" if found.late_rows else ""
    odd += f", {found.null_keys:,} with a null key" if found.null_keys else ""
    yield f"stream: epoch {found.epoch}, {rows}{odd}, state {size_text(found.state_bytes)}"
    if found.epoch_began is not None:
        yield f"epoch {found.epoch + 1} under way for {since_text(found.epoch_began, now)}"
    for one in found.watermarks:
        yield f"watermark of {one.uid}: {watermark_text(one.time_ms, one.held_by, now)}"
    groups = f"{found.parallelism} subtasks of {found.max_parallelism} key groups"
    yield groups + ("" if found.subtasks else "; none has done anything yet")


def by_place(subtasks: Iterable[SubtaskView]) -> dict[str, list[SubtaskView]]:
    """Subtasks by the address of the server that has their state; "" of those without any."""
    places: dict[str, list[SubtaskView]] = {}
    for one in subtasks:
        places.setdefault(one.place, []).append(one)
    return places


def workers_at(places: dict[str, list[SubtaskView]]) -> list[Worker]:
    """State servers by their addresses, and those who need none."""
    found = [
        Worker(f"state server {number}: {place}", places[place])
        for number, place in enumerate(filter(None, places), 1)
    ]
    if "" in places:
        found.append(Worker("without state, on any executor", places[""]))
    return found
