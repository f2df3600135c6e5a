"""Results as rows again: blobs in, rows out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from counterflow.engines.spark.cell.result_order import merged_results
from counterflow.engines.spark.session.worker import readable
from counterflow.engines.spark.state.blobs import BLOB_ROWS_MAX, from_blob
from counterflow.spec.join_spec import JoinSpec


def unpacked(results: Any, spec: JoinSpec, output: StructType) -> Any:
    """Return a DataFrame of result rows, in order if the join is ordered."""
    if spec.ordered:
        return results.repartition(1).mapInArrow(counterflow_unpack_in_order, output)
    return results.mapInArrow(counterflow_unpack, output)


@readable
def counterflow_unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for payload in batch.column("payload"):
            yield from from_blob(payload.as_buffer()).to_batches(max_chunksize=BLOB_ROWS_MAX)


@readable
def counterflow_unpack_in_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge the cells' results, each of which is a sorted run."""
    runs = [from_blob(payload.as_buffer()) for batch in batches for payload in batch.column("payload")]
    if runs:
        yield from merged_results(runs).to_batches(max_chunksize=BLOB_ROWS_MAX)
