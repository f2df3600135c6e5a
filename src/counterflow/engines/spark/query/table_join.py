"""A stream beside a static table without a time: a stateless join, where the stream's rows are.

    stream -> mapInArrow: rows in, results out    (no shuffle, no state)
                  └ every executor has the table, with an index (`cell/table_window.py`)

A row's results depend on the table alone. So nothing waits for the watermark, no row is late, and a restart has nothing
to restore but the table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from counterflow.engines.spark.cell.row_order import RESERVED
from counterflow.engines.spark.cell.table_window import table_window
from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.query.inputs import Frames
from counterflow.engines.spark.query.table_files import TableFiles, keep_fresh, spark_files
from counterflow.engines.spark.session.worker import readable, settle_worker
from counterflow.engines.spark.state.blobs import BLOB_ROWS_MAX, gathered
from counterflow.predicate.expression import opposite
from counterflow.spec.join_spec import JoinSpec

NOW = f"{RESERVED}now"
FOR_EVER = 2**63 - 1


def join_beside_table(spec: JoinSpec, inputs: Frames, output: StructType, engine: Spark, threads: int) -> DataFrame:
    """Read the table, and return the DataFrame of the stream's results with it."""
    assert spec.table_side is not None
    table, stream = (_union(inputs.frames(side)) for side in (spec.table_side, opposite(spec.table_side)))
    files = TableFiles(table, spec)
    if engine.refresh is not None:
        stream = stream.withColumn(NOW, F.current_timestamp())  # the micro-batch's own time, also if it runs again
    join = _join(spec, files.name, threads, engine.null_times == "drop", engine.refresh is not None)
    joined = stream.mapInArrow(join, output)
    if engine.refresh is not None:
        keep_fresh(files, engine.refresh_s)
    return joined


def _union(frames: list[Any]) -> Any:
    return functools.reduce(lambda a, b: a.union(b), frames)


def _join(
    spec: JoinSpec, name: str, threads: int, drop_null_times: bool, dated: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that joins a part of the stream's rows; if `dated`, these carry the batch's time."""
    assert spec.table_side is not None
    side = spec.side(opposite(spec.table_side))

    @readable
    def counterflow_join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        for rows in gathered(pa.Table.from_batches([batch]) for batch in batches):
            at_us = FOR_EVER
            if dated:
                at_us = rows.column(NOW)[0].cast(pa.timestamp("us", "UTC")).value
                rows = rows.drop_columns([NOW])
            rows = rows if rows.schema == side.schema else rows.cast(side.schema)
            if drop_null_times:
                rows = rows.filter(rows.column(side.time).is_valid())
            for results in table_window(spec, spark_files(), name, at_us, threads).join(rows):
                yield from results.to_batches(max_chunksize=BLOB_ROWS_MAX)

    counterflow_join.__name__ = counterflow_join.__qualname__ = f"counterflow join with a {spec.table_side} table"
    return counterflow_join
