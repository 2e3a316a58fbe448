"""Shows how a run goes: a live view on a terminal, otherwise at most one line per second.

The driver's threads call a display; it never raises because a terminal went away.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from moorage.driver.types import JobProgress
from moorage.driver.views import CheckpointView, GraphView
from moorage.redaction import Redactor
from moorage.texts import size_text, snapshot_size_text

_BAR_WIDTH = 40
_LONG_SECONDS = 5.0
"""Of an epoch: one that takes longer is told of before it ends."""
_SILENT_EPOCHS = 3
"""After so many one wonders where the output is."""


def has_begun(progress: JobProgress) -> bool:
    """Whether there is a run to show; until then messages say what goes on, and zeros nothing."""
    return progress.phase not in {"starting", "finished"} or progress.epochs > 0


def plain_line(progress: JobProgress, now: datetime) -> str:
    """Return one line without control characters."""
    if progress.restoring_from is not None:
        return f"{progress.phase}: from {progress.restoring_from}"
    if progress.phase == "running" and not progress.epochs:
        return f"running: {_first_epoch(progress, now)}"
    parts = [f"{progress.phase}: epoch {progress.epoch}", _rows(progress)]
    if progress.bound is not None:
        parts.append(_percent(progress.bound))
    parts.append(f"{_count(progress.rows_per_second)} rows/s")
    if progress.state_bytes:
        parts.append(f"state {size_text(progress.state_bytes)}")
    if (long := _long_epoch(progress, now)) is not None:
        parts.append(long)
    parts += [
        f"checkpoint {_checkpoint(progress.last_checkpoint, now)}",
    ]
    if progress.restored_from is not None:
        parts.append(f"restored from {progress.restored_from}")
    if (waits := _waits(progress)) is not None:
        parts.append(waits)
    if progress.clock_behind_seconds:
        parts.append(_behind(progress))
    return ", ".join(parts)


def live_view(progress: JobProgress, now: datetime) -> RenderableType:
    """Return the view for a terminal: a bar where the input is bounded, and a table."""
    if not has_begun(progress):
        return Group()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("phase", Text(progress.phase, style="bold"))
    if progress.bound is not None:
        done, total = progress.bound
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=max(total, 1), completed=min(done, total), width=_BAR_WIDTH),
            _percent(progress.bound),
        )
        table.add_row("input", bar)
    if not progress.epochs and progress.phase == "running":
        table.add_row("epoch", _first_epoch(progress, now))
    else:
        long = _long_epoch(progress, now)
        table.add_row("epoch", f"{progress.epoch}, {long}" if long else str(progress.epoch))
    table.add_row("rows", f"{_rows(progress)}, {_count(progress.rows_per_second)} per second")
    if progress.state_bytes:
        table.add_row("state", size_text(progress.state_bytes))
    table.add_row("checkpoint", _checkpoint(progress.last_checkpoint, now))
    if progress.restoring_from is not None:
        table.add_row("restoring", progress.restoring_from)
    if progress.restored_from is not None:
        table.add_row("restored from", progress.restored_from)
    if (waits := _waits(progress)) is not None:
        table.add_row("output", waits)
    if progress.clock_behind_seconds:
        table.add_row("time", _behind(progress))
    return table


def _rows(progress: JobProgress) -> str:
    return progress.odd.beside(progress.rows_total)


def _waits(progress: JobProgress) -> str | None:
    """What has given nothing, some epochs after its first rows, and which input it waits for."""
    if progress.phase != "running" or progress.epochs < _SILENT_EPOCHS:
        return None
    graph = progress.graph or GraphView()
    # An operator that is there for its state alone gives nothing, ever.
    read = {source for source, _, _ in graph.edges}
    unread = {node.uid for place, node in enumerate(graph.nodes) if place not in read}
    for one in progress.watermarks:
        if one.uid in unread:
            continue
        mine = [each for each in progress.subtasks if each.uid == one.uid]
        silent = not any(each.rows_out for each in mine) and any(each.rows_in for each in mine)
        # One that has come somewhere tells nothing: a filter may have found nothing yet.
        if one.time_ms is None and one.held_by and silent:
            return f"no output of {one.uid} yet, and no watermark: it waits for {one.held_by}"
    return None


def _behind(progress: JobProgress) -> str:
    return f"processing time stands still: clock {_age(progress.clock_behind_seconds)} behind"


def _count(number: float) -> str:
    return f"{number:,.0f}" if math.isfinite(number) else "-"


def _percent(bound: tuple[int, int]) -> str:
    """Rounds down: 100 % is only said when all is done."""
    done, total = bound
    return f"{min(100 * done // total, 100) if total > 0 else 100} %"


def _checkpoint(view: CheckpointView | None, now: datetime) -> str:
    if view is None:
        return "none yet"
    # A clock that was set back must not show a checkpoint from the future.
    age = max((now - view.completed_at).total_seconds(), 0.0)
    size = snapshot_size_text(view.bytes_total, view.bytes_uploaded)
    return f"{view.checkpoint_id} ({_age(age)} ago, {size})"


def _first_epoch(progress: JobProgress, now: datetime) -> str:
    """What goes on before a run has committed anything: nothing can be counted yet."""
    begun = progress.epoch_began
    if begun is None:
        return "waiting for the first rows"
    seconds = max((now - begun).total_seconds(), 0.0)
    return (
        f"epoch {progress.epoch + 1} under way for {_age(seconds)} (the first one takes longest: "
        f"Spark compiles what it runs)"
    )


def _long_epoch(progress: JobProgress, now: datetime) -> str | None:
    """The epoch that is under way, once it takes so long that one wonders."""
    begun = progress.epoch_began
    if begun is None or (now - begun).total_seconds() < _LONG_SECONDS:
        return None
    age = _age((now - begun).total_seconds())
    return f"epoch {progress.epoch + 1} under way for {age}"


def _age(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


class Display:
    """Takes reports while it is open, and keeps the latest; call it from any thread."""

    progress = JobProgress()
    clean = Redactor({})
    """Takes secrets out of what is said."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Show what is left to show."""

    def __call__(self, progress: JobProgress) -> None:
        """Show `progress`, now or at the next occasion; a message of it at once."""
        before, self.progress = self.progress, progress
        if progress.message and progress.message != before.message:
            self.say(progress.message)

    def say(self, text: str) -> None:
        """Show a line of text that stays; a reader that went away is no reason to stop the job."""
        with suppress(OSError, ValueError):
            self._write(self.clean(text))

    def _write(self, text: str) -> None:
        raise NotImplementedError


def open_display(stream: TextIO, clean: Redactor, *, plain: bool) -> Display:
    """Return the display that suits `stream`; `plain` asks for lines even on a terminal."""
    console = Console(file=stream, highlight=False)
    lines = plain or not console.is_terminal
    display: Display = PlainDisplay(stream) if lines else LiveDisplay(console)
    display.clean = clean
    return display


class PlainDisplay(Display):
    """Lines: at most one per `interval` seconds, and messages as they come."""

    def __init__(
        self,
        stream: TextIO,
        *,
        interval: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._stream = stream
        self._interval = interval
        self._monotonic = monotonic
        self._now = now
        self._last_line = -math.inf
        self._waiting: JobProgress | None = None

    def __exit__(self, *_error: object) -> None:
        """Show the last report if the interval held it back."""
        if self._waiting is not None:
            self.say(plain_line(self._waiting, self._now()))
            self._waiting = None

    def __call__(self, progress: JobProgress) -> None:
        """Show `progress`."""
        super().__call__(progress)
        if not has_begun(progress):
            return
        self._waiting = progress
        moment = self._monotonic()
        if moment - self._last_line >= self._interval:
            self._last_line, self._waiting = moment, None
            self.say(plain_line(progress, self._now()))

    def _write(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class LiveDisplay(Display):
    """A view that is redrawn in place, with messages above it."""

    def __init__(
        self, console: Console, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._console = console
        self._now = now
        # The age of a checkpoint grows between reports: the view is made anew at each refresh.
        self._live = Live(
            console=console,
            get_renderable=lambda: live_view(self.progress, self._now()),
            refresh_per_second=4,
            redirect_stdout=True,
            redirect_stderr=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(OSError, ValueError):
            self._live.stop()

    def _write(self, text: str) -> None:
        self._console.print(Text(text))
