"""What a person declares in `build(env)`: durations, columns, output rows, side outputs, functions.

Decides which declarations are legal, and says what to write instead; also whether a function or a
sink can go to the workers. Called by streams while the graph is being built; reads no data.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import FunctionType
from typing import Any

import pyarrow as pa
from pyspark import SparkContext, cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from moorage.api.functions import OutputTag, to_be_defined
from moorage.api.misplaced import did_you_mean
from moorage.api.vectorized import KeyedBatchFunction
from moorage_state.errors import UserError
from moorage_state.types import StateType, parse_type, quoted

_ARROW_ARGUMENTS = inspect.signature(to_arrow_schema).parameters
_RESERVED_PREFIX = "_m_"
_PACKAGE = __name__.partition(".")[0]
_PY4J = "An error occurred while calling "
_DURATION = re.compile(r"([0-9]+)(ms|s|m|h|d)\Z")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_STATEFUL = re.compile(
    r"Aggregate|Deduplicate|Distinct|Group|Limit|Offset|Tail|Window|Intersect|Except"
    r"|TransformWithState"
)


def parse_duration(text: str) -> int:
    """Milliseconds of "500ms", "10s", "5m", "2h" or "1d"; refuses anything else."""
    given: Any = text
    match = _DURATION.match(given) if isinstance(given, str) else None
    if match is None:
        raise UserError(f"not a duration; write 500ms, 10s, 5m, 2h or 1d: duration={text!r}")
    return int(match.group(1)) * _UNIT_MS[match.group(2)]


def parse_output(uid: str, ddl: str) -> StructType:
    """The columns of an operator's output; refuses what is not DDL of at least one column."""
    try:
        schema = columns_of(ddl)
    except Exception as exc:
        raise _unreadable(uid, ddl, f": {first_line(exc)}") from exc
    if not isinstance(schema, StructType) or not schema.fields:
        raise _unreadable(uid, ddl)
    check_columns(schema, f"output of {uid}")
    return schema


_SPARK_TYPES: dict[str, type[DataType]] = {
    "tinyint": ByteType,
    "smallint": ShortType,
    "int": IntegerType,
    "bigint": LongType,
    "float": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "boolean": BooleanType,
    "date": DateType,
    "timestamp": TimestampType,
}


def columns_of(ddl: str) -> DataType:
    """The columns of DDL; without a Spark session as the types of state are read.

    Raises:
        Exception: Spark's own, or ValueError.
    """
    # Functions are tested where there is no Java: the types are the same, test_ddl compares them.
    if SparkContext._active_spark_context is None:  # noqa: SLF001 - no other way to ask
        return _spark_type(parse_type(ddl))
    return StructType.fromDDL(ddl)


def _spark_type(parsed: StateType) -> DataType:
    inner = [_spark_type(child) for child in parsed.children]
    if parsed.name == "struct":
        fields = zip(parsed.fields, inner, strict=True)
        return StructType([StructField(name, kind, True) for name, kind in fields])
    if parsed.name == "decimal":
        return DecimalType(*parsed.params)
    if parsed.name == "array":
        return ArrayType(inner[0], True)
    if parsed.name == "map":
        return MapType(inner[0], inner[1], True)
    return _SPARK_TYPES[parsed.name]()


def type_ddl(kind: DataType) -> str:
    """Spark's type as DDL of state and output, whatever names its fields have."""
    if isinstance(kind, StructType):
        fields = (f"{quoted(f.name)}:{type_ddl(f.dataType)}" for f in kind.fields)
        return f"struct<{','.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{type_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{type_ddl(kind.keyType)},{type_ddl(kind.valueType)}>"
    return kind.simpleString()


def ddl_of(schema: StructType, names: Iterable[str] | None = None) -> str:
    """The columns of a stream as DDL: all, or those of these names."""
    fields = schema.fields if names is None else [schema[name] for name in names]
    return ", ".join(f"`{f.name}` {type_ddl(f.dataType)}" for f in fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of Spark's columns, with timestamps in UTC."""
    # Spark 4.3 asks for the zone; in 4.1 it is UTC if nothing is said, and the argument is unknown.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in _ARROW_ARGUMENTS else {}
    made: pa.Schema = to_arrow_schema(schema, **zone)
    return made


def require_instance(takes: str, wanted: type, uid: str, given: Any) -> None:
    """Refuse what is no instance of the class that a call takes, or has methods of another form.

    Args:
        takes: who takes it, with the verb.
    """
    if isinstance(given, type) and issubclass(given, wanted):
        raise UserError(
            f"{takes} an instance of a {wanted.__name__}: uid={uid} got=the class "
            f"{given.__name__}; write {given.__name__}()"
        )
    if not isinstance(given, wanted):
        raise UserError(
            f"{takes} an instance of a {wanted.__name__}: uid={uid} got={type(given).__name__}"
        )
    require_forms(f"uid={uid} ", given)


def require_forms(where: str, given: Any) -> None:
    """Refuse an object without a method that it has to have, or with one of another form.

    Args:
        where: what the message has before the method.
    """
    for name, form in _forms_of(given).items():
        method, arguments = getattr(given, name), list(form.parameters)[1:]
        if why := misfit_of(method, arguments):
            raise UserError(
                f"a method cannot be called with ({', '.join(arguments)}): {where}"
                f"method={type(given).__name__}.{name}: {why}; write "
                f"def {name}({', '.join(form.parameters)})"
            )
    if undefined := _undefined(given):
        raise UserError(f"a method is not defined: {where}method={undefined}")


def _undefined(given: Any) -> str:
    """A method that is left to the author of the class, and what to write; "" where none is."""
    ours, theirs = _methods_of(given)
    for name, method in sorted(ours.items()):
        if getattr(getattr(given, name), to_be_defined.__name__, False):
            form = ", ".join(inspect.signature(method).parameters)
            near = get_close_matches(name, sorted(theirs - ours.keys()), 1)
            instead = f" in place of {near[0]}" if near else ""
            return f"{type(given).__name__}.{name}; write def {name}({form}){instead}"
    return ""


def misfit_of(function: Any, arguments: Sequence[Any]) -> str:
    """Why nothing can be had from a call with these arguments; "" if something can."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "it is async"
    try:
        # Of a decorator it is the wrapper that is called, which may have arguments of its own.
        inspect.signature(function, follow_wrapped=False).bind(*arguments)
    except TypeError as error:
        return str(error)
    except ValueError:
        pass  # of some that are written in C nobody knows
    return ""


def _forms_of(function: Any) -> dict[str, inspect.Signature]:
    """By name, the methods that a function has in place of ours, and how each of them is called."""
    ours, theirs = _methods_of(function)
    return {n: inspect.signature(ours[n]) for n in sorted(theirs & ours.keys()) if n[0] != "_"}


def _methods_of(function: Any) -> tuple[dict[str, FunctionType], set[str]]:
    """By name, the methods that are ours, and the names that its author's classes have."""
    ours: dict[str, FunctionType] = {}
    theirs: set[str] = set()
    for kind in reversed(type(function).__mro__):
        if kind.__module__.partition(".")[0] == _PACKAGE:
            ours |= {n: made for n, made in vars(kind).items() if isinstance(made, FunctionType)}
        else:
            theirs |= vars(kind).keys()
    if isinstance(function, KeyedBatchFunction):
        for uncalled in ("process", "on_timer"):
            del ours[uncalled]
    return ours, theirs


def _unreadable(uid: str, ddl: str, why: str = "") -> UserError:
    return UserError(
        f"cannot read the operator's output columns; write DDL such as 'user string, n long': "
        f"uid={uid} output={ddl!r}{why}"
    )


def check_named(call: str, uid: str, columns: Sequence[Any], schema: StructType) -> None:
    """Raise `UserError` where a call names what is no column of the stream."""
    for column in columns:
        if not isinstance(column, str) or column not in schema.names:
            raise UserError(
                f"{call} takes names of columns: uid={uid} column={column!r:.100} "
                f"columns={schema.names}{did_you_mean(column, schema.names)}"
            )


def check_flag(call: str, name: str, given: Any) -> None:
    """Raise `UserError` for what is neither True nor False; a text such as "no" counts as true."""
    if not isinstance(given, bool):
        raise UserError(f"{call} takes True or False for {name}: {name}={given!r:.100}")


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


def check_readable(schema: StructType, before: str) -> None:
    """Raise `UserError` for names that PySpark cannot hand to a function."""
    if unreadable := [n for n in schema.names if "." in n or "`" in n]:
        raise UserError(
            f"pyspark hands no column with a dot or a backtick in its name to a function; rename "
            f"it before {before}: columns={unreadable}"
        )


def check_event_time(schema: StructType, column: str) -> None:
    """Raise `UserError` when `column` cannot be the event time: it is not there or not a time."""
    if column not in schema.names:
        raise UserError(
            f"no such column for event time: column={column} columns={schema.names}"
            f"{did_you_mean(column, schema.names)}"
        )
    kind = schema[column].dataType
    if not isinstance(kind, TimestampType | LongType):
        raise UserError(
            f"event time must be a timestamp or a long of milliseconds: column={column} "
            f"type={kind.simpleString()}; declare it so where the columns are named, or cast it "
            f"before that: transform(lambda frame: frame.withColumn({column!r}, "
            f"frame[{column!r}].cast('timestamp')))"
        )


def check_per(schema: StructType, column: str) -> None:
    """Raise `UserError` when event time cannot count by `column`: it is not there, or no name."""
    if column not in schema.names:
        raise UserError(
            f"event time counts by a column that the stream must keep: per={column!r} "
            f"columns={schema.names}{did_you_mean(column, schema.names)}"
        )
    kind = schema[column].dataType
    # Spark takes texts of a collation for one that differ in its letters.
    text = isinstance(kind, StringType) and kind.isUTF8BinaryCollation()
    if not text and not isinstance(kind, IntegralType):
        raise UserError(
            f"event time counts by a column of text or integers, such as Kafka's partition: "
            f"per={column} type={kind.simpleString()}; cast it to a string in transform"
        )


def refuse_stateful(frame: DataFrame, what: str) -> None:
    """Raise `UserError` where Spark's own stateful operations are applied to a stream."""
    jdf = getattr(frame, "_jdf", None)
    if jdf is None:
        return
    # Inside an epoch they would see one micro-batch only, and say nothing of it.
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


@dataclass(frozen=True, slots=True)
class SideOutput:
    """A side output that an operator declares: its tag's name, and its columns."""

    name: str
    schema: StructType


def side_outputs_of(
    uid: str,
    tags: Sequence[OutputTag],
    odd: Mapping[str, str | OutputTag],
    stream: StructType,
) -> tuple[SideOutput, ...]:
    """What an operator declares, in the order of its tags; those for odd rows last, if new.

    Args:
        odd: by the name of the argument, what happens to rows that are not processed.
        stream: the columns that it processes.

    Raises:
        UserError: something is no tag, two tags have one name, DDL cannot be read, or odd rows do
            not have the columns of their side output.
    """
    given = tags_of(uid, tags)
    for argument, choice in odd.items():
        if isinstance(choice, OutputTag):
            known = next((tag for tag in given if tag.name == choice.name), None)
            if known is None:
                given.append(choice)
            elif known != choice:
                raise _twice(uid, choice.name)
        elif choice not in ("fail", "drop"):  # what is given may have no hash
            raise UserError(
                f"{argument} is 'fail', 'drop' or the OutputTag of a side output: uid={uid} "
                f"{argument}={choice!r}"
            )
    declared = tuple(SideOutput(tag.name, _columns(uid, tag, stream)) for tag in given)
    for argument, choice in odd.items():
        for side in declared:
            if isinstance(choice, OutputTag) and side.name == choice.name:
                _require_rows_of(uid, argument, side, stream)
    return declared


def tags_of(uid: str, tags: Sequence[OutputTag]) -> list[OutputTag]:
    """What a call was given as `side_outputs`, checked.

    Raises:
        UserError: it is no list of tags, or two of them have one name.
    """
    given: Any = tags
    if not isinstance(given, (list, tuple)) or not all(isinstance(t, OutputTag) for t in given):
        raise UserError(
            f"side_outputs is a list of OutputTag(name, ddl): uid={uid} side_outputs={given!r:.200}"
        )
    names = [tag.name for tag in given]
    for name in names:
        if names.count(name) > 1:
            raise _twice(uid, name)
    return list(given)


def _twice(uid: str, name: str) -> UserError:
    return UserError(
        f"two side outputs of an operator have one name; rename one, or use one tag for both: "
        f"uid={uid} side_output={name}"
    )


def _columns(uid: str, tag: OutputTag, stream: StructType) -> StructType:
    if tag.ddl is None:
        return StructType([StructField(f.name, f.dataType, True) for f in stream.fields])
    return parse_output(f"{uid} side_output={tag.name}", tag.ddl)


def _require_rows_of(uid: str, argument: str, side: SideOutput, stream: StructType) -> None:
    """Rows that are not processed go to a side output as they came."""
    wanted = {f.name: f.dataType.simpleString() for f in stream.fields}
    declared = {f.name: f.dataType.simpleString() for f in side.schema.fields}
    if declared != wanted or not all(field.nullable for field in side.schema.fields):
        raise UserError(
            f"rows that are not processed go to a side output as they came, so it has the columns "
            f"of the stream, none of them not null; leave out its DDL: uid={uid} "
            f"{argument}={side.name} declared={side.schema.simpleString()} "
            f"stream={stream.simpleString()}"
        )


def check_sendable(what: str, uid: str, thing: Any) -> None:
    """Refuse what cannot be pickled, naming the attribute, or the name that a method uses."""
    error = _refusal(thing)
    # Found while the job is described, and not in its first epoch.
    if error is None:
        return
    for name, part in _parts(thing):
        if (inner := _refusal(part)) is not None:
            raise UserError(
                f"it cannot be sent to the workers: {what}={uid} {name} cannot be pickled: "
                f"{inner}; make it where it is used, in open(ctx) say"
            ) from error
    raise UserError(
        f"it cannot be sent to the workers: {what}={uid} type={type(thing).__name__}: {error}; "
        f"have it hold configuration, and make everything else in open(ctx)"
    ) from error


def _refusal(thing: Any) -> Exception | None:
    try:
        cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]  # pyspark's copy has no types
    except Exception as error:  # noqa: BLE001 - whatever __reduce__ and __getstate__ raise
        return error
    return None


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Its attributes, and what its methods use of their module, with what to call each."""
    kind = type(thing)
    for name, value in getattr(thing, "__dict__", {}).items():
        yield f"attribute={kind.__name__}.{name} type={type(value).__name__}", value
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            for name in method.__code__.co_names:
                if name in method.__globals__:
                    value = method.__globals__[name]
                    yield f"name={name} type={type(value).__name__}", value
