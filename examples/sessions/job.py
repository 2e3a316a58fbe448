"""Visits: clicks of a user with less than half an hour between them, as the path that was taken.

Arguments: the folder with clicks as JSON lines, and the folder for visits.
"""

from collections.abc import Iterator
from typing import Any

from moorage import FileSink, ProcessWindowFunction, Session, StreamEnvironment, WindowContext

CLICKS = "user string, page string, at timestamp"
VISIT = "user string, began long, pages array<string>"


class Visit(ProcessWindowFunction):
    """Where a visit began and led; all its rows are kept until it is over."""

    def process(self, key: Any, ctx: WindowContext, rows: list[Any]) -> Iterator[Any]:
        """The window is over: the last click is half an hour past."""
        path = sorted(rows, key=lambda row: row.at)
        yield key, ctx.window.start, [row.page for row in path]


def build(env: StreamEnvironment) -> None:
    """Describe the job."""
    source, target = env.args
    clicks = env.read_stream("clicks", "json", schema=CLICKS, path=source)
    visits = (
        clicks.with_event_time("at", max_delay="1m")
        .key_by("user")
        .window(Session("30m"))
        .process(Visit(), uid="visits", output=VISIT)
    )
    visits.sink_to(FileSink(target), uid="out")
