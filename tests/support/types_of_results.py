"""What `window_join` returns, as mypy sees it: `./dev lint` checks this file, and nothing runs it.

Arrow and pandas come without types here, so that a table is Any to mypy, and so is the join of two of them;
tests/test_types.py checks this file again with stubs of both.
"""

from __future__ import annotations

from typing import Any, assert_type

import pandas as pd
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

import counterflow as cf
from counterflow.explanation import Explanation


def of_streams(schema: pa.Schema, table: Any) -> None:
    pushed, given = cf.stream(schema=schema), cf.stream([table])
    assert_type(pushed, cf.PushedStream)
    assert_type(given, cf.Stream)
    assert_type(cf.window_join(pushed, pushed, where="l.x = r.x"), cf.JoinedStream)
    assert_type(cf.window_join(pushed, given, where="l.x = r.x", time="t", window=1), cf.JoinedStream)
    assert_type(cf.window_join([pushed, given], given, where="l.x = r.x"), cf.JoinedStream)
    joined = cf.window_join(given, given, where="l.x = r.x", ordered=True)
    assert_type(cf.window_join(joined, given, where="l.x = r.x"), cf.JoinedStream)
    assert_type(joined.poll(timeout=1), pa.RecordBatch | None)
    assert_type(next(joined), pa.RecordBatch)
    assert_type(next(joined.rows()), dict[str, Any])


def of_streams_and_tables(stream: cf.PushedStream, arrow: pa.Table, pandas: pd.DataFrame, polars: pl.DataFrame) -> None:
    assert_type(cf.window_join(stream, arrow, where="l.x = r.x"), cf.JoinedStream)
    assert_type(cf.window_join(stream, pandas, where="l.x = r.x"), cf.JoinedStream)
    assert_type(cf.window_join(polars, stream, where="l.x = r.x"), cf.JoinedStream)
    assert_type(cf.window_join(polars, [stream, stream], where="l.x = r.x"), cf.JoinedStream)


def of_tables(arrow: pa.Table, batch: pa.RecordBatch, pandas: pd.DataFrame, polars: pl.DataFrame) -> None:
    assert_type(cf.window_join(arrow, arrow, where="l.x = r.x"), pa.Table)
    assert_type(cf.window_join(arrow, batch, where="l.x = r.x", engine=cf.Local()), pa.Table)
    assert_type(cf.window_join(pandas, pandas, where="l.x = r.x"), pa.Table)
    assert_type(cf.window_join(polars, polars.lazy(), where=cf.left.x == cf.right.x), pa.Table)
    assert_type(cf.window_join(polars, pandas, where="l.x = r.x"), pa.Table)
    assert_type(cf.window_join([polars, polars], arrow, where="l.x = r.x"), pa.Table)


def of_dataframes(left: DataFrame, right: DataFrame) -> None:
    assert_type(cf.window_join(left, right, where="l.x = r.x", engine=cf.Spark()), DataFrame)
    assert_type(cf.window_join([left, left], right, where="l.x = r.x"), DataFrame)


def of_others(left: Any, right: DataFrame) -> None:
    assert_type(cf.explain(left, right, where="l.x = r.x"), Explanation)
    assert_type(cf.query_metrics(left), dict[str, Any])
