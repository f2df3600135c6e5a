"""The comparison of a join's output with what it must be: every row as often as it must be, unmatched ones too."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import counterflow as cf
from chaos import options_of
from streams import cut, results, results_in_order

FAR = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def rows_of(table: pa.Table) -> Counter[str]:
    return Counter(map(str, table.select(sorted(table.column_names)).to_pylist()))


def check_same_rows(found: pa.Table, want: pa.Table) -> None:
    """Both are multisets of rows: pairs, and rows without a partner, whose other side is NULL or missing."""
    found_rows, want_rows = rows_of(found), rows_of(want)
    assert found_rows - want_rows == Counter(), "doubled or invented"
    assert want_rows - found_rows == Counter(), "lost"


def unmatched(table: pa.Table, how: str, column: str = "a") -> list[int]:
    """Return the places of rows without a partner; `column` is one of the right side that is never NULL by itself."""
    if how == "anti":
        return list(range(len(table)))
    return [place for place, value in enumerate(table[column].to_pylist()) if value is None]


def batches_of(table: pa.Table, batches: int) -> list[pa.Table]:
    """The table in files, and one with a row of the far future, which lets the watermark pass all others."""
    last = table.slice(0, 1)
    far = last.set_column(0, "ts", pa.array([FAR], last.schema.field("ts").type))
    return [*cut(table, batches - 1), far]


def compare(spark: Any, folder: Path, inputs: Any, layout: str, how: str) -> None:
    """Every result as often as it must be there, unmatched rows included; an ordered join's in order."""
    want = cf.window_join(*inputs, **options_of(layout, how))
    found = results(spark, spark.createDataFrame(want), folder)
    found = found.filter(pc.less(found["pair_time"], pa.scalar(FAR, found["pair_time"].type)))
    assert len(want) > 100
    check_same_rows(found, want)
    if how == "ordered":
        rows = results_in_order(folder, want.schema).to_pylist()
        assert [row for row in rows if row["pair_time"] < FAR] == want.to_pylist()
