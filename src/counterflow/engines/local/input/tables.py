"""Anything tabular as Arrow data."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from counterflow.errors import InputError

_PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def side_table(data: Any, side: str) -> pa.Table:
    """Return a side's table; a list of tables is one side, one after the other."""
    if not isinstance(data, list | tuple) or not data:
        return as_table(data, side)
    try:
        return pa.concat_tables([side_table(part, side) for part in data])
    except pa.ArrowInvalid as error:
        raise InputError(f"the {side} inputs differ, but are to be one side: {error}") from error


def as_table(data: Any, side: str) -> pa.Table:
    """Return anything tabular as an Arrow table."""
    try:
        table = to_arrow(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"the {side} input ({type(data).__name__}) cannot be converted to Arrow: {error}") from error
    if table is None:
        raise InputError(
            f"the {side} input is a {type(data).__name__}: expected a Spark DataFrame, an Arrow, pandas or polars "
            "table, an object that exports Arrow data, or a stream: cf.stream(...)"
        )
    return table


def to_arrow(data: Any) -> pa.Table | None:
    """Return a table of plain types; None if the data is nothing tabular."""
    table = _to_arrow(data)
    if table is None:
        return None
    plain = plain_schema(table.schema)
    return table if plain is table.schema else table.cast(plain)


def _to_arrow(data: Any) -> pa.Table | None:
    kind = f"{type(data).__module__.split('.')[0]}.{type(data).__name__}"
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if kind == "pandas.DataFrame":
        return pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None)
    if kind == "polars.LazyFrame":
        data, kind = data.collect(), "polars.DataFrame"
    if kind == "polars.DataFrame":
        import polars

        return data.to_arrow(compat_level=polars.CompatLevel.oldest())
    if hasattr(data, "__arrow_c_stream__") and not kind.endswith(".Series"):
        return pa.table(data)
    return None


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without Arrow's view types, whose rows it cannot yet gather; the same object if it has none."""
    if not any(field.type in _PLAIN for field in schema):
        return schema
    return pa.schema([field.with_type(_PLAIN.get(field.type, field.type)) for field in schema])
