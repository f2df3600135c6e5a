"""Columns of lists of numbers, which only Python functions take, as numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

Array = np.ndarray[Any, Any]


def arrays_of(column: pa.Array) -> Array:
    """Return a column of lists as numpy arrays, empty at NULL; a NULL among an array's elements is NaN."""
    lists = column.to_numpy(zero_copy_only=False)
    element = np.dtype(column.type.value_type.to_pandas_dtype())
    found = np.empty(len(lists), object)
    for i, values in enumerate(lists):
        found[i] = np.empty(0, element) if values is None else np.asarray(values)
    return found


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the 64-bit dtype of the same kind: narrow numbers wrap around, or round, where Python's do not."""
    wider: Any = {"i": np.int64, "f": np.float64}.get(dtype.kind)
    if dtype.kind == "u":
        wider = np.int64 if dtype.itemsize < 8 else np.uint64
    return dtype if wider is None else np.dtype(wider)


def as_argument(array: Array) -> Array:
    """Return an array as functions see it: of 64-bit numbers, and read-only, as other pairs see it, too."""
    found = array.astype(wide(array.dtype), copy=False).view()
    found.flags.writeable = False
    return found
