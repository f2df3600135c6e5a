"""The join of static DataFrames: every cell is told all its rows at once, and nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from counterflow.engines.spark.cell.cell import BEGIN, END, NewRows
from counterflow.engines.spark.cell.row_window_cell import new_cell
from counterflow.engines.spark.query.layout import Layout
from counterflow.engines.spark.session.worker import readable
from counterflow.engines.spark.state.blobs import from_blob, gathered, to_blob
from counterflow.predicate.expression import SIDES
from counterflow.spec.join_spec import JoinSpec


def join_static(
    spec: JoinSpec, layout: Layout, threads: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that joins the cells of one partition: packed rows in, results as blobs out."""

    @readable
    def counterflow_join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cells: dict[int, list[NewRows]] = {}
        for message in (row for batch in batches for row in batch.to_pylist() if row["side"] in SIDES):
            new = NewRows(message["side"], from_blob(message["payload"]), message["stored"])
            cells.setdefault(layout.cell(message["cell"]), []).append(new)
        for cell, rows in cells.items():
            joining = new_cell(spec, layout.grid(cell), threads)
            parts = gathered(joining.step(rows, BEGIN, END))
            for blob in joining.crew.in_turn(partial(to_blob, part) for part in parts):
                yield pa.RecordBatch.from_arrays([pa.array([blob], pa.binary())], ["payload"])

    counterflow_join.__name__ = counterflow_join.__qualname__ = f"counterflow join in {layout}"
    return counterflow_join
