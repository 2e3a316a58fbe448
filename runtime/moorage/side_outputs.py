"""What an operator declares of side outputs: rows that leave it beside its main output.

Decides which tags an operator may declare and what columns they have. Called by streams while a
job is described. Knows nothing of how rows travel.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructField, StructType

from moorage.declared import parse_output
from moorage.tags import OutputTag
from moorage_state.errors import UserError

__all__ = ["SideOutput", "side_outputs_of"]


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
        uid: the operator's.
        tags: its `side_outputs`.
        odd: by the name of the argument, what happens to rows that are not processed.
        stream: the columns that it processes.

    Raises:
        UserError: something is no tag, two tags have one name, DDL cannot be read, or odd rows do
            not have the columns of their side output.
    """
    given = _tags(uid, tags)
    for argument, choice in odd.items():
        if isinstance(choice, OutputTag):
            known = next((tag for tag in given if tag.name == choice.name), None)
            if known is None:
                given.append(choice)
            elif known != choice:
                raise _twice(uid, choice.name)
        elif choice not in {"fail", "drop"}:
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


def _tags(uid: str, tags: Sequence[OutputTag]) -> list[OutputTag]:
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
