"""Columns of a join's result: which of either side's they are, and under which names.

Decides what `select` of a join may name, and makes the rows. Called by the joins.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moorage_state.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from moorage.api.graph import KeyedInput

SIDES = ("left", "right")


class SelectedColumns:
    """Makes a row of a pair of rows, of which one may be None."""

    def __init__(self, places: Sequence[tuple[int, int]]) -> None:
        self._places = tuple(places)

    def __call__(self, left: Any, right: Any) -> tuple[Any, ...]:
        """The row: of a side that is None all columns are null."""
        pair = left, right
        return tuple(
            None if pair[side] is None else pair[side][index] for side, index in self._places
        )


def select_columns(
    uid: str, named: Mapping[str, str], inputs: Sequence["KeyedInput"]
) -> tuple[str, SelectedColumns]:
    """The DDL of a join's result, and what makes its rows.

    Args:
        named: for each column of the result one of a side, such as ``user="left.id"``.
        inputs: the two sides.

    Raises:
        UserError: there is none, or one is not there.
    """
    if not named:
        raise UserError(
            f"select names the columns of the result: uid={uid}; write select(uid=..., "
            f'user="left.id", price="right.amount")'
        )
    schemas = [keyed.stream.schema for keyed in inputs]
    columns, places = [], []
    for name, given in named.items():
        side, index = _place(uid, name, given, schemas)
        columns.append(f"`{name}` {schemas[side].fields[index].dataType.simpleString()}")
        places.append((side, index))
    return ", ".join(columns), SelectedColumns(places)


def _place(uid: str, name: str, given: Any, schemas: "Sequence[StructType]") -> tuple[int, int]:
    side, _, column = given.partition(".") if isinstance(given, str) else ("", "", "")
    if side not in SIDES:
        raise UserError(
            f"select takes columns as 'left.name' or 'right.name': uid={uid} {name}={given!r}"
        )
    names = schemas[SIDES.index(side)].names
    if column not in names:
        raise UserError(f"no such column: uid={uid} {name}={given!r} columns of {side}={names}")
    return SIDES.index(side), names.index(column)


def ddl_of(schema: "StructType") -> str:
    """The columns of a stream as DDL."""
    return ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in schema.fields)
