"""Tables of a person as rows of a state: columns found, cast, and checked before they count.

Called by the writer for every batch. Knows no files.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from moorage_state.canonical import (
    EVENT_TIME,
    LAST_ACCESS,
    FileMeta,
    key_columns,
    key_groups,
    schema_of,
)
from moorage_state.errors import UserError
from moorage_state.types import parse_type

_BATCH_ROWS = 20_000

# What a column may be made of without a guess about what its values mean.
_WIDENING = {("integer", "floating"), ("integer", "decimal")}


def batches_of(rows: Any, where: str) -> Iterator[pa.RecordBatch]:
    """The rows of an Arrow table or reader, a Spark DataFrame (collected here), or batches."""
    if hasattr(rows, "toArrow"):
        rows = rows.toArrow()
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        rows = rows.to_batches()
    if isinstance(rows, (str, bytes, dict)) or not hasattr(rows, "__iter__"):
        raise _not_a_table(rows, where)
    for batch in rows:
        if not isinstance(batch, pa.RecordBatch):
            raise _not_a_table(batch, where)
        for at in range(0, batch.num_rows, _BATCH_ROWS):
            yield batch.slice(at, _BATCH_ROWS)


class Shaper:
    """Makes batches with the columns of a state's canonical file.

    Args:
        meta: the state.
        keys: the names that the key columns have in the tables.
    """

    def __init__(self, meta: FileMeta, keys: Sequence[str]) -> None:
        self._meta = meta
        self._schema: pa.Schema = schema_of(meta)
        own = key_columns(len(meta.key_types))
        self._sources = dict(zip(own, keys, strict=True))
        self._key_names = own
        self._groups = key_groups(meta.key_types, meta.max_parallelism, meta.key_hash)
        self._rows = 0

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One batch, with the key groups of its keys.

        Raises:
            UserError: a column is missing, unknown, of another type, or has nulls; or a list's
                places are none that come before what a job appends.
        """
        self._check_columns(batch.schema.names)
        found: dict[str, pa.Array] = {}
        for field in self._schema:
            if field.name != "key_group":
                found[field.name] = self._column(batch, field)
        if "list_epoch" in found:
            self._check_epochs(found["list_epoch"])
        keys = zip(*(found[name].to_pylist() for name in self._key_names), strict=True)
        found["key_group"] = pa.array(self._groups(keys), pa.int32())
        self._rows += batch.num_rows
        return pa.RecordBatch.from_arrays(
            [found[n] for n in self._schema.names], self._schema.names
        )

    def _check_columns(self, names: Sequence[str]) -> None:
        known = {self._sources.get(name, name) for name in self._schema.names}
        optional = {"key_group", "kind", "list_epoch", "list_ordinal", LAST_ACCESS}
        missing, stray = known - optional - set(names), set(names) - known
        doubled = {name for name in names if names.count(name) > 1}
        if missing or stray or doubled:
            raise UserError(
                f"a table does not have the columns of its state: {self._where()} "
                f"missing={sorted(missing)} unknown={sorted(stray)} doubled={sorted(doubled)}; "
                f"wanted are {sorted(known - optional)}"
            )

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        name = self._sources.get(field.name, field.name)
        if name not in batch.schema.names:
            return self._default(batch, field)
        column = batch.column(name)
        if column.null_count:
            raise UserError(
                f"a column of state has nulls: {self._where()} column={name} "
                f"nulls={column.null_count}; leave these rows out"
            )
        if column.type == field.type:
            return column
        if not _castable(column.type, field.type):
            raise self._misfit(name, column.type, field.type, "")
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            raise self._misfit(name, column.type, field.type, str(error)) from error

    def _default(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        """A column that a table may leave out."""
        count = batch.num_rows
        if field.name == "kind":
            return pa.array([EVENT_TIME] * count, field.type)
        if field.name == LAST_ACCESS:
            return pa.array([self._meta.now_ms] * count, field.type)
        # Without positions, a list has its elements in the order of the table's rows.
        if field.name == "list_epoch":
            return pa.array([self._meta.epoch] * count, field.type)
        return pa.array(range(self._rows, self._rows + count), field.type)

    def _check_epochs(self, epochs: pa.Array) -> None:
        """Refuse places in the epochs that come: a job would append before them, and take them."""
        last = pc.max(epochs).as_py()
        if last is not None and last > self._meta.epoch:
            raise UserError(
                f"list elements are of epochs after that of the savepoint: {self._where()} "
                f"list_epoch={last} epoch={self._meta.epoch}; sort the rows by list_epoch and "
                f"list_ordinal (those of read are), and leave both columns out, or give the "
                f"snapshot that they were read from as base"
            )

    def _misfit(self, name: str, found: Any, wanted: Any, problem: str) -> UserError:
        why = f" problem={problem!r}" if problem else ""
        return UserError(
            f"a column is not of its state's type: {self._where()} column={name} found={found} "
            f"wanted={wanted}{why}; cast it first"
        )

    def _where(self) -> str:
        return f"uid={self._meta.uid} state={self._meta.state}"


def checked_types(uid: str, key_types: Sequence[str]) -> tuple[str, ...]:
    """The key types in canonical spelling; refuses none, and what a key cannot have."""
    try:
        parsed = [parse_type(ddl) for ddl in key_types]
    except ValueError as error:
        raise UserError(f"a key type cannot be read: uid={uid} problem={error}") from error
    bad = [one.ddl for one in parsed if not one.is_key]
    if bad or not parsed:
        raise UserError(
            f"an operator needs the types of its key columns, each a type that keys may have: "
            f"uid={uid} key_types={list(key_types)} refused={bad}"
        )
    return tuple(one.ddl for one in parsed)


def _castable(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast cannot change what a value means; Arrow checks that none is lost."""
    one, other = _family(found), _family(wanted)
    if one != other:
        return (one, other) in _WIDENING
    if one == "timestamp":
        return (found.tz is None) == (wanted.tz is None)
    if one == "list":
        return _castable(found.value_type, wanted.value_type)
    if one == "map":
        return _castable(found.key_type, wanted.key_type) and _castable(
            found.item_type, wanted.item_type
        )
    if one == "struct":
        names = [field.name for field in found]
        return names == [field.name for field in wanted] and all(
            _castable(found.field(i).type, wanted.field(i).type) for i in range(len(names))
        )
    return True


def _family(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    tests = {
        "integer": pa.types.is_integer,
        "floating": pa.types.is_floating,
        "decimal": pa.types.is_decimal,
        "boolean": pa.types.is_boolean,
        "date": pa.types.is_date,
        "timestamp": pa.types.is_timestamp,
        "map": pa.types.is_map,
        "struct": pa.types.is_struct,
        "list": lambda t: (
            pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t)
        ),
        "string": lambda t: (
            pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t)
        ),
        "binary": lambda t: (
            pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t)
        ),
    }
    return next((name for name, test in tests.items() if test(kind)), str(kind))


def _not_a_table(rows: Any, where: str) -> UserError:
    return UserError(
        f"rows of state are an arrow table, a spark dataframe or record batches: {where} "
        f"found={type(rows).__name__}"
    )
