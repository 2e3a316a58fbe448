"""Calls on streams that are not there yet, or not here, or not like this: what to call instead.

Decides what a job file's author is told for `stream.join(...)` before `key_by`, for names of Flink
and of Spark's DataFrames, and for arguments that a call does not have. Used by the streams and by
what runs `build(env)`; knows no stream.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

from moorage_state.errors import UserError

__all__ = [
    "Misplaced",
    "Unfinished",
    "absent",
    "absent_of_env",
    "calls_explained",
    "miscalled",
]

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
    return _misspelt(f"a {kind}", name, dir(type(stream))) or _unknown(stream, name)


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
    near = longer or get_close_matches(unexpected[1], mine, 1)
    hint = f"did you mean {near[0]}?" if near else _ARGUMENTS.get(unexpected[1])
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
    """

    call_first: ClassVar[str]

    if not TYPE_CHECKING:  # type checkers go on refusing what is not there

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise _unknown(self, name)
            kind = f"a {type(self).__name__}"
            raise _misspelt(kind, name, dir(type(self))) or Misplaced(
                f"{name} comes too early on {kind}: call {self.call_first} first"
            )


def _misspelt(what: str, name: str, names: Iterable[str]) -> Exception | None:
    if name.startswith("_"):
        return None
    near = get_close_matches(name, [one for one in names if not one.startswith("_")], 1)
    return Misplaced(f"{what} has no {name}: did you mean {near[0]}?") if near else None


def _unknown(stream: object, name: str) -> AttributeError:
    kind = type(stream).__name__
    return AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=stream)
