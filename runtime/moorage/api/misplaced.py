"""Calls on streams that are not there yet, or not here: what to call instead.

Decides what a job file's author is told for `stream.join(...)` before `key_by`, and for names of
Flink and of Spark's DataFrames. Used by the streams; knows no stream.
"""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

from moorage_state.errors import UserError

__all__ = ["Misplaced", "Unfinished", "absent"]

_FRAME = "transform(lambda frame: frame...), with what a DataFrame has: filter, select, withColumn"
_OTHERWISE = {
    **dict.fromkeys(
        ("filter", "flat_map", "map", "select", "selectExpr", "where", "withColumn"), _FRAME
    ),
    **dict.fromkeys(
        ("assign_timestamps_and_watermarks", "withWatermark"),
        'with_event_time("column", max_delay="10s")',
    ),
    **dict.fromkeys(("groupBy", "groupby", "keyBy", "group_by"), 'key_by("column")'),
    **dict.fromkeys(("add_sink", "writeStream", "write"), 'sink_to(sink, uid="...")'),
    **dict.fromkeys(("coGroup", "cogroup"), "co_group(other)"),
    **dict.fromkeys(("intervalJoin", "join_interval"), "interval_join(other)"),
    "flatMap": _FRAME,
    "side_output": "get_side_output(tag)",
    "sideOutput": "get_side_output(tag)",
    "to": 'sink_to(sink, uid="...")',
}
"""Names that people bring along, and what stands for them here."""


class Misplaced(UserError, AttributeError):
    """A call at the wrong place. `hasattr` goes on saying that it is not there."""


def absent(stream: object, name: str, elsewhere: type, first: str) -> Exception:
    """What to raise for a name that a stream does not have.

    Args:
        elsewhere: the kind of stream that may have it.
        first: what makes that kind of stream out of this one.
    """
    kind = type(stream).__name__
    if not name.startswith("_") and hasattr(elsewhere, name):
        return Misplaced(
            f"{name} is a call of a {elsewhere.__name__}, and this is a {kind}: call {first} first"
        )
    if name in _OTHERWISE:
        return Misplaced(f"a {kind} has no {name}: call {_OTHERWISE[name]}")
    return _misspelt(stream, name) or _unknown(stream, name)


class Unfinished:
    """What is no stream yet: one more call says what is made of it.

    Attributes:
        call_first: that call.
    """

    call_first: ClassVar[str]

    if not TYPE_CHECKING:  # type checkers go on refusing what is not there

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise _unknown(self, name)
            raise _misspelt(self, name) or Misplaced(
                f"{name} comes too early on a {type(self).__name__}: call {self.call_first} first"
            )


def _misspelt(stream: object, name: str) -> Exception | None:
    if name.startswith("_"):
        return None
    names = [one for one in dir(type(stream)) if not one.startswith("_")]
    near = get_close_matches(name, names, 1)
    if not near:
        return None
    return Misplaced(f"a {type(stream).__name__} has no {name}: did you mean {near[0]}?")


def _unknown(stream: object, name: str) -> AttributeError:
    kind = type(stream).__name__
    return AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=stream)
