"""What `window_join` returns, as mypy sees it: `./dev lint` checks this file, and nothing runs it."""

from __future__ import annotations

from typing import Any, assert_type

import pyarrow as pa
from pyspark.sql import DataFrame

import counterflow as cf


def of_streams(schema: pa.Schema, table: Any) -> None:
    pushed, given = cf.stream(schema=schema), cf.stream([table])
    assert_type(pushed, cf.PushedStream)
    assert_type(given, cf.Stream)
    assert_type(cf.window_join(pushed, given, where="l.x = r.x", time="t", window=1), cf.JoinedStream)
    assert_type(cf.window_join([pushed, given], given, where="l.x = r.x"), cf.JoinedStream)
    joined = cf.window_join(given, given, where="l.x = r.x", ordered=True)
    assert_type(cf.window_join(joined, given, where="l.x = r.x"), cf.JoinedStream)


def of_dataframes(left: DataFrame, right: DataFrame) -> None:
    assert_type(cf.window_join(left, right, where="l.x = r.x", engine=cf.Spark()), DataFrame)
