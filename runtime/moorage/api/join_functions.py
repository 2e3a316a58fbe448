"""What is made of rows that a join brings together: a function of one's own, or some columns.

Decides what `select` of a join may name. Called by job files and by the joins.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from moorage.api.declarations import type_ddl
from moorage.api.functions import RichFunction, to_be_defined
from moorage.api.misplaced import did_you_mean
from moorage_state.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SIDES = ("left", "right")
SELECT_OR_APPLY = (
    'select(uid="...", name="left.column") or apply(function, uid="...", output="...")'
)
"""What is called on streams that are joined."""
BY_FUNCTION = (
    'apply(function, uid="...", output="...") with a JoinFunction, or of an interval join '
    'process(function, uid="...", output="...") with a ProcessJoinFunction'
)
"""What makes rows that `select` cannot make."""
_EXPRESSION = re.compile(r"[^\w.]")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class JoinFunction(RichFunction):
    """What is made of a pair of rows, by a join in windows or a temporal join.

    In windows `join` is given a `WindowContext`: `ctx.key`, `ctx.output`, and `ctx.window`, whose
    `start` and `end` are milliseconds. A temporal join gives it a `ProcessContext`.
    """

    @to_be_defined
    def join(self, left: Any, right: Any, ctx: Any) -> Iterable[Any] | None:  # noqa: ARG002
        """Handle a pair, named tuples of their streams' columns; returns or yields output rows.

        Args:
            right: None for a row without a version in an outer temporal join.
            ctx: see above.
        """
        raise TypeError(f"{type(self).__name__} does not define join(left, right, ctx)")


class CoGroupFunction(RichFunction):
    """What is made of all rows that a key has in a window, of both sides.

    `co_group` is given a `WindowContext`, as `join` of a `JoinFunction` is.
    """

    @to_be_defined
    def co_group(self, lefts: list[Any], rights: list[Any], ctx: Any) -> Iterable[Any] | None:  # noqa: ARG002
        """Handle a window that fires; one side may have no rows. Returns or yields output rows.

        Args:
            lefts, rights: named tuples in the order in which they came.
            ctx: see above.
        """
        raise TypeError(f"{type(self).__name__} does not define co_group(lefts, rights, ctx)")


WINDOW_TIMES = ("window.start", "window.end")
PAIR_TIMES = ("pair.time",)
"""Columns that a join's result may have beside those of both sides."""


class SelectedColumns(JoinFunction):
    """Makes a row of columns of both sides, and of times of the window.

    Args:
        named, schemas: see `select_columns`.
    """

    def __init__(self, named: Mapping[str, str], schemas: "Sequence[StructType]") -> None:
        known = list(_known(schemas, WINDOW_TIMES))
        self._pick = itemgetter(*map(known.index, named.values()))
        self._single = len(named) == 1
        self._timed = any(given in WINDOW_TIMES for given in named.values())

    def join(self, left: Any, right: Any, ctx: Any) -> Iterable[Any]:
        """See `JoinFunction`."""
        whole = left + right
        if self._timed:
            whole += tuple(_EPOCH + timedelta(milliseconds=t) for t in ctx.window)
        row = self._pick(whole)
        return ((row,) if self._single else row,)


def _known(schemas: "Sequence[StructType]", times: Sequence[str]) -> dict[str, str]:
    """What may be named, with its DDL type."""
    known = {
        f"{side}.{field.name}": type_ddl(field.dataType)
        for side, schema in zip(SIDES, schemas, strict=True)
        for field in schema.fields
    }
    return known | dict.fromkeys(times, "timestamp")


def select_columns(
    uid: str,
    named: Mapping[str, str],
    schemas: "Sequence[StructType]",
    times: Sequence[str] = (),
) -> str:
    """The DDL of a join's result.

    Args:
        named: for each column of the result one of a side, such as ``user="left.id"``.
        schemas: of both sides.
        times: there are also these columns.

    Raises:
        UserError: there is none, or one is not there.
    """
    known = _known(schemas, times)
    if not named:
        raise UserError(
            f"select names the columns of the result: uid={uid}; write "
            f'select(uid=..., user="left.id", price="right.amount") of {list(known)}'
        )
    columns = []
    for name, given in named.items():
        if isinstance(given, str) and given in known:
            columns.append(f"`{name}` {known[given]}")
            continue
        # A name may have a dash or a space: they make an expression where the nearest has none.
        odd = set(_EXPRESSION.findall(str(given)))
        alike = [one for one in known if odd <= set(one)]
        same = [one for one in alike if one.endswith(f".{str(given).rpartition('.')[2]}")]
        near = did_you_mean(given, known)
        meant = f"; did you mean {' or '.join(same)}?" if same else near
        if odd and not same and (not near or near != did_you_mean(given, alike)):
            raise UserError(
                f"select takes columns of the sides as they are: uid={uid} {name}={given!r}; for "
                f"what is computed call in its place {BY_FUNCTION}; these are there: {list(known)}"
            )
        raise UserError(
            f"select takes columns of the sides: uid={uid} {name}={given!r}{meant}; these are "
            f"there: {list(known)}"
        )
    return ", ".join(columns)
