"""Calls on streams that are not there yet, or not here, or not like this: what to call instead.

Decides what a job file's author is told for `stream.join(...)` before `key_by`, for names of Flink
and of Spark's DataFrames, and for arguments that a call does not have. Used by the streams and by
what runs `build(env)`; knows no stream.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

from moorage_state.errors import UserError

__all__ = [
    "OF_JOINS",
    "OF_WINDOWS",
    "Misplaced",
    "Unfinished",
    "absent",
    "absent_of_env",
    "absent_of_keyed",
    "calls_explained",
    "did_you_mean",
    "miscalled",
]

_FRAME = "transform(lambda frame: frame...), with what a DataFrame has: filter, select, withColumn"
_EVENT_TIME = 'with_event_time("column", max_delay="10s")'
_KEY_BY = 'key_by("column")'
_ONE_KEY = (
    'key_by("all").window(Tumbling("1h")), of a column "all" that transform gives to all rows alike'
)
_OF_KEYED = {
    "apply": 'process(function, uid="...", output="...")',
    "between": 'interval_join(other).between("-5m", "1h")',
    "reduce": 'window(Tumbling("1h")).reduce(function, uid="..."), or aggregate(...)',
}
"""Names that people bring along to a stream with a key."""
_OTHERWISE = {
    **dict.fromkeys(
        ("filter", "flatMap", "flat_map", "map", "select", "selectExpr", "where", "withColumn"),
        _FRAME,
    ),
    **dict.fromkeys(("assign_timestamps_and_watermarks", "withWatermark"), _EVENT_TIME),
    **dict.fromkeys(("groupBy", "groupby", "keyBy", "group_by"), _KEY_BY),
    **dict.fromkeys(("add_sink", "writeStream", "write"), 'sink_to(sink, uid="...")'),
    **dict.fromkeys(("coGroup", "cogroup"), "co_group(other)"),
    **dict.fromkeys(("intervalJoin", "join_interval"), "interval_join(other)"),
    "side_output": "get_side_output(tag)",
    "sideOutput": "get_side_output(tag)",
    "to": 'sink_to(sink, uid="...")',
    **dict.fromkeys(("windowAll", "window_all"), _ONE_KEY),
}
"""Names that people bring along, and what stands for them here."""

_BEFORE_KEY = 'call it before key_by, as in stream.{}.key_by("column")'
_TOO_LATE = {
    "broadcast": "rows that go to everybody have no key: leave key_by out",
    "transform": _BEFORE_KEY.format("transform(lambda frame: frame...)"),
    "union": _BEFORE_KEY.format("union(other)"),
    "with_event_time": _BEFORE_KEY.format(_EVENT_TIME),
}
"""Calls of a stream without a key, for who makes them when it has one."""

_MANIFEST = "that is for the manifest to say: "
_OF_ENV = {
    **dict.fromkeys(
        ("addSource", "add_source", "fromSource", "from_source", "load", "read", "readStream"),
        'call read_stream("uid", "json", schema="user string, n long", path="in")',
    ),
    **dict.fromkeys(
        ("awaitTermination", "execute", "executeAsync", "execute_async", "run", "start"),
        "leave it out: the job runs when build has returned",
    ),
    **dict.fromkeys(
        ("fromCollection", "fromElements", "from_collection", "from_elements"),
        'a test gives rows to read_stream("in", ...): moorage.testing.run_job(build, {"in": []})',
    ),
    **dict.fromkeys(("setParallelism", "set_parallelism"), f"{_MANIFEST}spec.scaling.parallelism"),
    **dict.fromkeys(
        ("enableCheckpointing", "enable_checkpointing", "get_checkpoint_config"),
        f"{_MANIFEST}spec.checkpoint",
    ),
    **dict.fromkeys(("setStateBackend", "set_state_backend"), f"{_MANIFEST}spec.state.backend"),
    **dict.fromkeys(("conf", "createDataFrame", "sql", "table"), "Spark's session is env.spark"),
}
"""The same of names that people look for on `env`."""

_BY_KEY = 'rows are joined by the key that key_by("column") names of each stream'
_LATE_ROWS = (
    "a join in windows drops rows whose window is gone, and counts them; for fewer of them take a "
    'larger max_delay in with_event_time, or allowed_lateness="5m", with which a window that has '
    "ended gives its pairs again"
)
_OF_CALLS = {
    # Of a stream's own windows it is an argument.
    ("window", "late"): _LATE_ROWS,
    ("between", "late"): "each side has its own, late_left=tag and late_right=tag",
    **{
        ("deduplicate", name): 'columns beside the key are by="id", or by=["id", "page"]'
        for name in ("condition", "key", "keys", "on", "subset")
    },
    **{
        ("reduce", name): "its rows have the columns of the stream"
        for name in ("output", "output_schema", "output_type", "result_type", "schema")
    },
}
"""Arguments of one call, where one that is spelt nearly so is another thing."""
_ARGUMENT = 'it is an argument, as in window(Tumbling("1h"), {})'
_JOIN_FIRST = 'join first, as in one.key_by("id").{}(other.key_by("id")).window(Tumbling("1h"))'
_SETTINGS = {
    **dict.fromkeys(
        ("allowedLateness", "allowed_lateness"), _ARGUMENT.format('allowed_lateness="5m"')
    ),
    "trigger": _ARGUMENT.format("trigger=EachCount(10)"),
}
OF_WINDOWS = {
    **_SETTINGS,
    **dict.fromkeys(
        ("sideOutputLateData", "side_output_late_data"),
        _ARGUMENT.format('late=OutputTag("late")'),
    ),
    **dict.fromkeys(("coGroup", "co_group"), _JOIN_FIRST.format("co_group")),
    "join": _JOIN_FIRST.format("join"),
    "count": 'name the result, as in aggregate(uid="...", n=count())',
    **{
        name: f'name the result, as in aggregate(uid="...", x={name}_("column"))'
        for name in ("max", "min", "sum")
    },
}
"""What stands for calls on the windows of one stream."""
OF_JOINS = {
    **_SETTINGS,
    **dict.fromkeys(("equalTo", "equal_to", "where"), _BY_KEY),
    **dict.fromkeys(("sideOutputLateData", "side_output_late_data"), _LATE_ROWS),
}
"""The same on two streams whose rows are joined in windows."""
_ARGUMENTS = {
    **dict.fromkeys(("by", "condition", "key", "keys", "on"), _BY_KEY),
    "how": "co_group(other) gives keys that one side alone has, and temporal_join has outer=True",
    **dict.fromkeys(("id", "name", "operator_id"), 'its name is uid="..."'),
    **dict.fromkeys(
        ("output_schema", "output_type", "result_type", "schema"), 'its rows are output="..."'
    ),
}
"""Arguments that people bring along, where no argument of the call is spelt nearly so."""

_REFUSED = re.compile(r"([A-Za-z_][\w.]*)\(\) (?:got|missing|takes) ")
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
_API = "moorage.api"


class Misplaced(UserError, AttributeError):
    """A call at the wrong place. `hasattr` goes on saying that it is not there."""


def absent(
    stream: object, name: str, elsewhere: type, first: str, changed_in: str = ""
) -> Exception:
    """What to raise for a name that a stream does not have.

    Args:
        elsewhere: the kind of stream that may have it.
        first: what makes that kind of stream out of this one.
        changed_in: of an operator's output, where its rows are filtered and changed.
    """
    kind = type(stream).__name__
    if not name.startswith("_") and hasattr(elsewhere, name):
        return Misplaced(
            f"{name} is a call of a {elsewhere.__name__}, and this is a {kind}: call {first} first"
        )
    if name in _OF_KEYED:
        return Misplaced(f"a {kind} has no {name}: call {first}, then {_OF_KEYED[name]}")
    if changed_in and _OTHERWISE.get(name) == _FRAME:
        return Misplaced(f"a {kind} has no {name}: {changed_in}")
    if name in _OTHERWISE:
        return Misplaced(f"a {kind} has no {name}: call {_OTHERWISE[name]}")
    return _misspelt(f"a {kind}", name, dir(type(stream))) or _unknown(stream, name)


def absent_of_keyed(stream: object, name: str, elsewhere: type, changed_in: str = "") -> Exception:
    """The same where the stream has a key: what comes before that is told as such."""
    kind, instead = type(stream).__name__, _OTHERWISE.get(name)
    if name == "key_by" or instead == _KEY_BY:
        return Misplaced(
            f"a {kind} has a key: name all its columns in one call, as in key_by('user', 'page'), "
            f"or call process or another operator before {name}"
        )
    if name in _OF_KEYED:
        return Misplaced(f"a {kind} has no {name}: call {_OF_KEYED[name]}")
    if changed_in and instead == _FRAME:
        return Misplaced(f"a {kind} has no {name}: {changed_in}")
    if instead in {_FRAME, _EVENT_TIME}:
        return Misplaced(f"a {kind} has no {name}: before key_by, call {instead}")
    first = "process, window or another operator"
    return _too_late(kind, name) or absent(stream, name, elsewhere, first)


def absent_of_env(env: object, name: str) -> Exception:
    """The same for a name that `env` does not have."""
    if name in _OF_ENV:
        return Misplaced(f"env has no {name}: {_OF_ENV[name]}")
    return _misspelt("env", name, [*vars(env), *dir(type(env))]) or _unknown(env, name)


def miscalled(error: Exception) -> str | None:
    """What to tell for a call of the API with arguments that it does not take.

    None where it is another error, also one from within the call: that may be ours.
    """
    refused = _REFUSED.match(str(error))
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if not isinstance(error, TypeError) or refused is None or last is None:
        return None
    names = last.tb_frame.f_globals
    if str(names.get("__name__", "")).partition(".")[0] in {"moorage", "moorage_state"}:
        return None
    call = refused[1].removesuffix(".__init__")
    function = _in_api(call, names)
    if function is None:
        return None
    signature = inspect.signature(function)
    taken = [p for p in signature.parameters.values() if p.name != "self"]
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in taken]
    call = call.rpartition(".")[2]
    form = f"write {call}{inspect.Signature(plain)}"
    unexpected = _UNEXPECTED.search(str(error))
    if unexpected is None:
        return f"{call} {str(error)[refused.end(1) + 3 :]}; {form}"
    mine = [p.name for p in plain]
    longer = [name for name in mine if len(unexpected[1]) > 3 and unexpected[1] in name]
    near = f"did you mean {longer[0]}?" if longer else did_you_mean(unexpected[1], mine, "")
    hint = _OF_CALLS.get((call, unexpected[1])) or near or _ARGUMENTS.get(unexpected[1], "")
    return f"{call} has no argument {unexpected[1]!r}{f': {hint}' if hint else ''}; {form}"


@contextmanager
def calls_explained() -> Iterator[None]:
    """Raise `UserError` for what `miscalled` has words for."""
    try:
        yield
    except TypeError as error:
        if (told := miscalled(error)) is None:
            raise
        raise UserError(told) from error


def _in_api(call: str, names: dict[str, Any]) -> Any:
    """The function or class of the API that is called so; None if the job has its own of the name.

    Args:
        call: as Python's error names it.
        names: what the caller's names stand for.
    """
    first, *rest = call.split(".")
    for module in [m for n, m in sys.modules.items() if n.startswith(f"{_API}.")]:
        found = vars(module).get(first)
        if not str(getattr(found, "__module__", "")).startswith(_API):
            continue
        if first in names and names[first] is not found:
            return None
        for name in rest:
            found = getattr(found, name, None)
        return found
    return None


class Unfinished:
    """What is no stream yet: one more call says what is made of it.

    Attributes:
        call_first: that call.
        instead: by name, what to do in place of calls that people try.
    """

    call_first: ClassVar[str]
    instead: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # type checkers go on refusing what is not there

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise _unknown(self, name)
            kind = type(self).__name__
            if name in self.instead:
                raise Misplaced(f"a {kind} has no {name}: {self.instead[name]}")
            known = _too_late(kind, name) or _misspelt(f"a {kind}", name, dir(type(self)))
            raise known or Misplaced(
                f"{name} comes too early on a {kind}: call {self.call_first} first"
            )


def _too_late(kind: str, name: str) -> Exception | None:
    if name not in _TOO_LATE:
        return None
    return Misplaced(f"{name} comes too late on a {kind}: {_TOO_LATE[name]}")


def _misspelt(what: str, name: str, names: Iterable[str]) -> Exception | None:
    if name.startswith("_"):
        return None
    meant = did_you_mean(name, [one for one in names if not one.startswith("_")], "")
    return Misplaced(f"{what} has no {name}: {meant}") if meant else None


def did_you_mean(name: object, names: Iterable[str], before: str = "; ") -> str:
    """The question whether the nearest of `names` was meant; empty where none is near."""
    near = get_close_matches(str(name), list(names), 1)
    return f"{before}did you mean {near[0]}?" if near else ""


def _unknown(stream: object, name: str) -> AttributeError:
    kind = type(stream).__name__
    return AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=stream)
