"""Packing rows for the way to their cells: a function for `mapInArrow`, with rows in and (cell, side, blob) out.

A row's lane is a hash of its time and of what the predicate sees of it (or of its key): about as even as dealing rows
out in turn, but a task that Spark runs again, perhaps on rows in another order, sends each row where the first attempt
sent it. With layout `band` a row's cells follow from the values of its keys in the same way (`value_grid.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from counterflow.engines.spark.cell.row_order import HOME, SOURCE, TIE, is_order_sensitive
from counterflow.engines.spark.query.layout import Layout, Route, ValueRoute, hashable
from counterflow.engines.spark.session.worker import readable, settle_worker
from counterflow.engines.spark.state.blobs import BLOB_BYTES_MAX, gathered, to_blob
from counterflow.errors import EvaluationError
from counterflow.predicate.expression import Side
from counterflow.spec.join_spec import JoinSpec, SideSpec
from counterflow.windows.keys import equality_hashes, lasting_text_code, mixed, row_hashes
from counterflow.windows.store import predicate_columns
from counterflow.windows.times import time_values
from counterflow.windows.vectors import Array

PACKED = "cell INT NOT NULL, side STRING NOT NULL, stored BOOLEAN, counted BOOLEAN, payload BINARY"
PACKED_ARROW = pa.schema(
    {"cell": pa.int32(), "side": pa.string(), "stored": pa.bool_(), "counted": pa.bool_(), "payload": pa.binary()}
)
HEARTBEAT = "none"  # the side of a message that carries no rows: it only lets every cell see every batch
DROPPED: dict[str, Side] = {"left without time": "left", "right without time": "right"}  # carries a number of rows


@dataclass(frozen=True)
class Message:
    """Rows for a cell, or something else that it is told: see HEARTBEAT and DROPPED."""

    cell: int
    side: str
    stored: bool = True
    counted: bool = True
    payload: bytes | None = None


def pack(
    spec: JoinSpec, layout: Layout, side: Side, source: int = 0, tied: bool = False, drop_null_times: bool = False
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that packs a physical stream. If it is `tied`, its rows carry their TIE as the last column.

    A row with a null time is an error; or it is dropped, and one message tells the first cell how many were.
    """
    side_spec = spec.side(side)
    schema = side_spec.schema
    if tied:
        schema = schema.append(pa.field(TIE, pa.int64()))

    @readable
    def counterflow_pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        yield _packed(layout, [Message(cell, HEARTBEAT) for cell in range(layout.cells)])
        dropped = 0
        for table in gathered(pa.Table.from_batches([batch]) for batch in batches):
            table = table if table.schema == schema else table.cast(schema)
            if drop_null_times and side_spec.time is not None:
                received, table = len(table), table.filter(table.column(side_spec.time).is_valid())
                dropped += received - len(table)
            if is_order_sensitive(spec):
                table = table.append_column(SOURCE, pa.array(np.full(len(table), source)))
            for messages in _sendable(messages_of(spec, layout, side_spec, table)):
                yield _packed(layout, messages)
        if dropped:
            told = next(name for name, dropping in DROPPED.items() if dropping == side)
            yield _packed(layout, [Message(0, told, payload=dropped.to_bytes(8, "little"))])

    name = f"counterflow pack {side}{f' {source}' if source else ''} into {layout}"
    counterflow_pack.__name__ = counterflow_pack.__qualname__ = name  # what Spark's plans and UI show
    return counterflow_pack


def messages_of(spec: JoinSpec, layout: Layout, side: SideSpec, table: pa.Table) -> Iterator[Message]:
    """Yield a table's rows as blobs for their cells."""
    times = time_values(side, table)  # a null time ends the query here, before anything is stored
    for route in layout.routes(side.side):
        if isinstance(route, ValueRoute):
            yield from _by_value(spec, route, side.side, table, times)
            continue
        lanes = len(route.lanes)
        lane_of_row = None if lanes == 1 else _codes(spec, route, side.side, table, times) % np.uint64(lanes)
        for lane, targets in enumerate(route.lanes):
            part = table if lane_of_row is None else table.filter(pa.array(lane_of_row == lane))
            if len(part):
                blob = to_blob(part)
                for target in targets:
                    yield Message(target.cell, side.side, target.stored, target.counted, blob)


def _by_value(spec: JoinSpec, route: ValueRoute, side: Side, table: pa.Table, times: Array) -> Iterator[Message]:
    values = route.values
    sent = values.sent(side, times, predicate_columns(spec.predicate, side, table))
    if not route.counts:
        sent = replace(sent, home=np.zeros(len(sent.rows), bool))
    for cell, counted, index in sent.by_cell(values.cells):
        part = table.take(pa.array(sent.rows[index]))
        if values.marks_home:
            part = part.append_column(HOME, pa.array(sent.at_home[index]))
        yield Message(route.first_cell + cell, side, counted=counted, payload=to_blob(part))


def _sendable(messages: Iterator[Message]) -> Iterator[list[Message]]:
    """Yield messages in lists that are sent together, with at most BLOB_BYTES_MAX bytes and one blob more."""
    waiting: list[Message] = []
    size = 0
    for message in messages:
        waiting.append(message)
        size += len(message.payload or b"")
        if size >= BLOB_BYTES_MAX:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _codes(spec: JoinSpec, route: Route, side: Side, table: pa.Table, times: Array) -> Array:
    """Return the hashes that divide rows into lanes."""
    columns = predicate_columns(spec.predicate, side, table)
    of_rows = row_hashes(times, columns)
    if route.by == "row":
        return of_rows
    hashes = equality_hashes(hashable(spec), side, columns, len(table), lasting_text_code)
    if hashes is None:
        raise EvaluationError(
            f"a key of {spec.where!r} has no value in the {side} stream, so its cell cannot be told: use "
            "engine=cf.Spark(layout='1x2') or another matrix"
        )
    codes, usable = hashes
    return np.where(usable, mixed(codes), of_rows)  # a NULL key meets nobody: such rows need not crowd one cell


def _packed(layout: Layout, messages: list[Message]) -> pa.RecordBatch:
    columns = [
        [layout.keys[m.cell] for m in messages],
        [m.side for m in messages],
        [m.stored for m in messages],
        [m.counted for m in messages],
        [m.payload for m in messages],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, PACKED_ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PACKED_ARROW)
