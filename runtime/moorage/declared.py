"""What a person declares in `build(env)`: durations, columns, output rows, transformations.

Decides which of them are legal and says what to write instead. Called by the graph while it is
being built; reads no data.
"""

import inspect
import re
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegralType, LongType, StringType, StructType, TimestampType

from moorage_state.errors import UserError

__all__ = [
    "arrow_schema",
    "check_columns",
    "check_event_time",
    "check_per",
    "first_line",
    "parse_duration",
    "parse_output",
    "refuse_stateful",
]

_ARROW_ARGUMENTS = inspect.signature(to_arrow_schema).parameters
_RESERVED_PREFIX = "_m_"
_PY4J = "An error occurred while calling "
_DURATION = re.compile(r"([0-9]+)(ms|s|m|h|d)\Z")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_STATEFUL = re.compile(
    r"Aggregate|Deduplicate|Distinct|Group|Limit|Offset|Tail|Window|Intersect|Except"
    r"|TransformWithState"
)


def parse_duration(text: str) -> int:
    """Milliseconds of "500ms", "10s", "5m", "2h" or "1d".

    Raises:
        UserError: for anything else.
    """
    given: Any = text
    match = _DURATION.match(given) if isinstance(given, str) else None
    if match is None:
        raise UserError(f"not a duration; write 500ms, 10s, 5m, 2h or 1d: duration={text!r}")
    return int(match.group(1)) * _UNIT_MS[match.group(2)]


def parse_output(uid: str, ddl: str) -> StructType:
    """The columns of an operator's output.

    Raises:
        UserError: for what is not DDL of at least one column.
    """
    try:
        schema = StructType.fromDDL(ddl)
    except Exception as exc:
        raise _unreadable(uid, ddl, f": {first_line(exc)}") from exc
    if not isinstance(schema, StructType) or not schema.fields:
        raise _unreadable(uid, ddl)
    check_columns(schema, f"output of {uid}")
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of Spark's columns, with timestamps in UTC."""
    # Spark 4.3 asks for the zone; in 4.1 it is UTC if nothing is said, and the argument is unknown.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in _ARROW_ARGUMENTS else {}
    made: pa.Schema = to_arrow_schema(schema, **zone)
    return made


def _unreadable(uid: str, ddl: str, why: str = "") -> UserError:
    return UserError(
        f"cannot read the operator's output columns; write DDL such as 'user string, n long': "
        f"uid={uid} output={ddl!r}{why}"
    )


def check_columns(schema: StructType, what: str) -> None:
    """Raise `UserError` for names that the engine needs, and for two columns of one name."""
    reserved = [n for n in schema.names if n.lower().startswith(_RESERVED_PREFIX)]
    if reserved:
        raise UserError(
            f"column names starting with {_RESERVED_PREFIX!r} are reserved; rename them: "
            f"in={what} columns={reserved}"
        )
    if len({n.lower() for n in schema.names}) != len(schema.names):
        raise UserError(f"two columns have the same name: in={what} columns={schema.names}")


def check_event_time(schema: StructType, column: str) -> None:
    """Raise `UserError` when `column` cannot be the event time: it is not there or not a time."""
    if column not in schema.names:
        raise UserError(f"no such column for event time: column={column} columns={schema.names}")
    kind = schema[column].dataType
    if not isinstance(kind, TimestampType | LongType):
        raise UserError(
            f"event time must be a timestamp or a long of milliseconds: column={column} "
            f"type={kind.simpleString()}"
        )


def check_per(schema: StructType, column: str) -> None:
    """Raise `UserError` when event time cannot count by `column`: it is not there, or no name."""
    if column not in schema.names:
        raise UserError(
            f"event time counts by a column that the stream must keep: per={column!r} "
            f"columns={schema.names}"
        )
    kind = schema[column].dataType
    if not isinstance(kind, StringType | IntegralType):
        raise UserError(
            f"event time counts by a column of text or integers, such as Kafka's partition: "
            f"per={column} type={kind.simpleString()}; cast it to a string in transform"
        )


def refuse_stateful(frame: DataFrame, what: str) -> None:
    """Raise `UserError` where Spark's own stateful operations are applied to a stream.

    Inside an epoch they would see one micro-batch only, and say nothing of it.
    """
    jdf = getattr(frame, "_jdf", None)
    if jdf is None:
        return
    found = sorted(set(_stateful(jdf.queryExecution().analyzed())))
    if found:
        raise UserError(
            f"spark's own stateful operations have no checkpoint here and would see one epoch at "
            f"a time: in={what} found={found}; use key_by(...).process(...)"
        )


def _stateful(plan: Any) -> list[str]:
    """Names of the operations on streaming rows that need more than one row at a time."""
    if not plan.isStreaming():
        return []
    name = str(plan.getClass().getSimpleName())
    children = [plan.children().apply(i) for i in range(plan.children().size())]
    found = [inner for child in children for inner in _stateful(child)]
    streams = sum(bool(child.isStreaming()) for child in children)
    if _STATEFUL.search(name) or (name == "Join" and streams > 1):
        found.append(name)
    return found


def first_line(error: BaseException) -> str:
    """The first line of an error's text that says something, or its class where there is none."""
    lines = (line.strip().removeprefix(": ") for line in str(error).splitlines())
    said = (line for line in lines if line and not line.startswith(_PY4J))
    return next(said, type(error).__name__)
