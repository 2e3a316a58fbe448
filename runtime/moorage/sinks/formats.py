"""The formats of output files: Parquet, and JSON with one row a line."""

import base64
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

__all__ = ["FileFormat", "RowFile", "open_file"]

FileFormat = Literal["parquet", "json"]

_Convert = Callable[[Any], Any]
_encode = msgspec.json.Encoder(decimal_format="number").encode


class RowFile(Protocol):
    """An output file that is being written."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        ...

    def close(self) -> None:
        """Write what is left; the file is whole afterwards, and not yet synced."""
        ...


def open_file(file_format: FileFormat, path: Path, schema: pa.Schema) -> RowFile:
    """A new file at `path`."""
    if file_format == "json":
        return _JsonFile(path, schema)
    writer: RowFile = pq.ParquetWriter(path, schema, compression="zstd")
    return writer


class _JsonFile:
    """JSON lines that Spark reads back as the same rows, given the schema."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._converters = [(field.name, _converter(field.type)) for field in schema]
        self._file = path.open("wb")

    def write_batch(self, batch: pa.RecordBatch) -> None:
        columns = [
            values if convert is None else [None if v is None else convert(v) for v in values]
            for (_, convert), values in zip(
                self._converters, (column.to_pylist() for column in batch.columns), strict=True
            )
        ]
        names = [name for name, _ in self._converters]
        for row in zip(*columns, strict=True):
            self._file.write(_encode(dict(zip(names, row, strict=True))) + b"\n")

    def close(self) -> None:
        self._file.close()


def _converter(kind: pa.DataType) -> _Convert | None:
    """What turns a value into what JSON says for it; None where it does by itself."""
    if pt.is_floating(kind):
        return _number
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _each(_converter(kind.value_type))
    if pt.is_map(kind):
        item = _or_same(_converter(kind.item_type))
        return lambda pairs: {str(key): item(value) for key, value in pairs}
    if pt.is_struct(kind):
        fields = {field.name: _or_same(_converter(field.type)) for field in kind}
        return lambda row: {name: convert(row[name]) for name, convert in fields.items()}
    return None


def _number(value: float) -> float | str:
    """JSON has no words for these; Spark reads and writes them as strings."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"


def _each(convert: _Convert | None) -> _Convert | None:
    if convert is None:
        return None
    item = _or_same(convert)
    return lambda values: [item(value) for value in values]


def _or_same(convert: _Convert | None) -> _Convert:
    return lambda value: value if value is None or convert is None else convert(value)
