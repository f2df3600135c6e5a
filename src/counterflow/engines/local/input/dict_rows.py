"""Rows that come as dicts, one Arrow batch of them: every key is a column, and every value is kept as it is.

Arrow itself takes the keys of the first row, fills in what others lack, and cuts what does not fit (1.9 becomes the
integer 1, a datetime a date). Here each of these is an error that names the row: an explicit None is NULL, an absent
key is a mistake.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from math import isinf
from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.errors import ColumnError, InputError
from counterflow.suggest import did_you_mean

REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError)  # what Arrow says of a value that it cannot take
_NARROW_FLOATS = (np.float32, np.float16)


class DictRows:
    """The dicts of one item of a stream.

    `item` names it in errors, `first_row` is the number of its first row in the stream. `schema` is None until the
    first rows have told it; `given` says that the user has.
    """

    def __init__(self, item: str, first_row: int, schema: pa.Schema | None, given: bool) -> None:
        self.item, self.first_row, self.schema, self.given = item, first_row, schema, given

    def batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Return the rows as one batch, of the schema if there is one."""
        for i, row in enumerate(rows):
            if not isinstance(row, Mapping) or not row:
                kind = "an empty dict" if isinstance(row, Mapping) else f"a {type(row).__name__}"
                raise InputError(f"{self.item}: row {self.first_row + i} is {kind}: expected a dict of its columns")
        names = list(rows[0]) if self.schema is None else self.schema.names
        self._check_keys(rows, names)
        columns = []
        for name in names:
            values = [row[name] for row in rows]
            columns.append(self._column(name, values, None if self.schema is None else self.schema.field(name).type))
        if self.schema is not None:
            return pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _check_keys(self, rows: Sequence[Mapping[str, Any]], names: list[str]) -> None:
        wanted = dict.fromkeys(names).keys()
        for i, row in enumerate(rows):
            if row.keys() == wanted:
                continue
            where = f"{self.item}: row {self.first_row + i}"
            missing = [name for name in names if name not in row]
            for extra in (key for key in row if key not in wanted):
                lacks = f"no key '{missing[0]}', and " if missing else ""
                raise ColumnError(
                    f"{where} has {lacks}a key {extra!r} that the stream does not have"
                    f"{did_you_mean(str(extra), missing or names)}: every row has the same keys; name all columns "
                    "with schema= of cf.stream()"
                )
            raise ColumnError(
                f"{where} has no key '{missing[0]}' (it has {', '.join(map(str, row))}): "
                "give None where there is no value"
            )

    def _column(self, name: str, values: list[Any], type_: pa.DataType | None) -> pa.Array:
        try:
            column = pa.array(values, type_)
        except REFUSALS:
            first = next(value for value in values if value is not None)
            type_ = self._natural_type(name, values.index(first), first) if type_ is None else type_
            column = None
        if column is not None and _are_exact(values, column.type):
            return column
        for i, value in enumerate(values):
            try:
                kept = pa.array([value], type_)[0] if column is None else column[i]
                fits = self._fits(value, kept)
            except REFUSALS:
                fits = False
            if not fits:
                raise self._misfit(name, i, value, type_ or column.type)
        # Arrow found no type for all of them, but each fits that of the first.
        return pa.array(values, type_) if column is None else column

    def _natural_type(self, name: str, i: int, value: Any) -> pa.DataType:
        try:
            return pa.array([value]).type
        except REFUSALS as error:
            raise InputError(
                f"{self.item} cannot be converted to Arrow: row {self.first_row + i}, column '{name}': "
                f"{reprlib.repr(value)} ({type(value).__name__}) has no Arrow type: {error}; convert it, or say what "
                "the column shall be with schema= of cf.stream()"
            ) from error

    def _fits(self, value: Any, kept: pa.Scalar) -> bool:
        if self.given and isinstance(value, int) and not isinstance(value, bool) and pa.types.is_temporal(kept.type):
            return bool(kept.value == value)  # in the column's own unit
        return _same(value, kept.as_py())

    def _misfit(self, name: str, i: int, value: Any, type_: pa.DataType) -> InputError:
        source = "schema= of cf.stream() says" if self.given else "the rows before it have"
        way_out = "" if self.given else ", or say what the column shall be with schema= of cf.stream()"
        return InputError(
            f"{self.item} cannot be converted to Arrow: row {self.first_row + i}, column '{name}': "
            f"{reprlib.repr(value)} ({type(value).__name__}) does not fit {type_}, which {source}: convert it{way_out}"
        )


def _are_exact(values: list[Any], type_: pa.DataType) -> bool:
    """Return whether Arrow keeps such values as they are, or refuses them, without being watched."""
    kinds = set(map(type, values)) - {type(None)}
    if pa.types.is_integer(type_):
        return kinds <= {int}
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return kinds <= {str}
    return kinds <= {float} and pa.types.is_float64(type_)


def _same(value: Any, kept: Any) -> bool:
    """Return whether a column that holds `kept` holds `value`; a float may be rounded to a narrower column's width."""
    if kept is None:
        return value is None or bool(value != value)  # numpy's NaT
    if isinstance(value, Mapping):
        if isinstance(kept, list):  # a map
            return _same(list(value.items()), kept)
        return isinstance(kept, dict) and value.keys() == kept.keys() and all(_same(value[k], kept[k]) for k in kept)
    if isinstance(kept, list | tuple):
        items = list(value)
        is_list = not isinstance(value, str | bytes | bytearray)
        return is_list and len(items) == len(kept) and all(map(_same, items, kept))
    if isinstance(value, float) and isinstance(kept, float):
        if value != value or value == kept:
            return value == kept or kept != kept
        with np.errstate(over="ignore"):
            return not isinf(kept) and any(float(narrow(value)) == kept for narrow in _NARROW_FLOATS)
    return isinstance(value, bool | np.bool_) == isinstance(kept, bool) and bool(value == kept)
