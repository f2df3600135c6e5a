"""The stateful operator: a thin shell that feeds a cell's messages and state to its windows.

Late rows follow Spark's own rule: a row is late if its time is at or before the watermark that the *previous*
batch ran with. A cell is told only the current one, so it keeps the previous one in its directory, and an
event-time timer calls it in every batch that moves the watermark, also when there are no rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from counterflow.engines.spark import state
from counterflow.engines.spark.blobs import from_blob, gathered, to_blob
from counterflow.engines.spark.cell import CellWindows, Rows, rows_of, split_rows
from counterflow.engines.spark.routing import HEARTBEAT, Layout
from counterflow.engines.spark.state import HOT, ChunkEntry, Directory, HotCell, Totals
from counterflow.kernels.times import INT64, time_values
from counterflow.spec.expression import Side
from counterflow.spec.join_spec import JoinSpec

# Per batch and cell: one row of counters, then the results as blobs.
COUNTERS = (
    *Totals.__dataclass_fields__,  # in this batch
    *(f"total_{name}" for name in Totals.__dataclass_fields__),
    "state_rows_left",
    "state_rows_right",
    "state_bytes",
    "chunks_hot",
    "chunks_read",
)
OUTPUT = ", ".join(f"{name} BIGINT" for name in COUNTERS) + ", event_time_max BIGINT, payload BINARY"


class CellOperator(StatefulProcessor):
    def __init__(self, spec: JoinSpec, layout: Layout) -> None:
        self.spec = spec
        self.layout = layout
        self.fingerprint = state.fingerprint_of(spec, layout)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.reported: set[int] = set()  # the cells of this task that have said in this batch what they hold
        self.directory_state = handle.getValueState("directory", state.DIRECTORY_SCHEMA)
        self.chunk_state = handle.getMapState("chunks", state.CHUNK_KEY_SCHEMA, state.CHUNK_SCHEMA)

    def close(self) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        cell, watermark_us = self.layout.cell(int(key[0])), _watermark_us(timerValues)
        directory = self._read_directory()
        if directory is None:
            directory = Directory(self.fingerprint)
            self.handle.registerTimer((watermark_us or 0) // 1000 + 1)
        batch = Totals()
        tables, event_time_max = self._receive(cell, rows, directory.watermark_us, batch)
        new = [piece for side, parts in tables.items() for piece in split_rows(self.spec, side, parts)]
        live, hot, read = HOT.get(directory), 0, 0
        if new:
            live, hot, read = self._windows(directory)
            live.version = None  # until all is done: what a failed task leaves behind must not be believed
            yield from _result_frames(live.windows.join(new), batch)
        for piece in new:
            self._store(directory, piece)
        self._expire(directory, watermark_us)
        self._merge_small(directory)
        self._commit(directory, watermark_us, batch)
        self._keep_hot(live, directory, watermark_us)
        self.reported.add(cell)
        yield _counters(batch, directory, hot, read, event_time_max)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """The watermark has moved: forget what can match no more, and remember it for the next batch's late rows."""
        watermark_us = _watermark_us(timerValues)
        directory = self._read_directory()
        assert directory is not None, "a timer is registered only after the directory"
        self.handle.registerTimer((watermark_us or 0) // 1000 + 1)
        live = HOT.get(directory)
        self._expire(directory, watermark_us)
        self._commit(directory, watermark_us, Totals())
        self._keep_hot(live, directory, watermark_us)
        if self.layout.cell(int(key[0])) not in self.reported:
            yield _counters(Totals(), directory, 0, 0, None)

    def _read_directory(self) -> Directory | None:
        value = self.directory_state.get()
        return state.read_directory(None if value is None else value[0], self.fingerprint)

    def _receive(
        self, cell: int, frames: Iterator[pd.DataFrame], late_us: int | None, batch: Totals
    ) -> tuple[dict[Side, list[pa.Table]], int | None]:
        """Unpack the messages, without late rows; count rows and late rows in one of the cells that see them."""
        tables: dict[Side, list[pa.Table]] = {"left": [], "right": []}
        event_time_max: int | None = None
        for frame in frames:
            for side, payload in zip(frame["side"], frame["payload"], strict=True):
                if side == HEARTBEAT:
                    continue
                table = from_blob(bytes(payload))
                assert len(table), "a message holds rows"
                times = time_values(self.spec.left if side == "left" else self.spec.right, table)
                event_time_max = max(int(times.max()), INT64.min if event_time_max is None else event_time_max)
                on_time = np.ones(len(times), bool) if late_us is None else times > late_us
                if self.layout.counts(cell, side):
                    batch.count(side, len(times), late=int((~on_time).sum()))
                if on_time.any():
                    tables[side].append(table if on_time.all() else table.filter(pa.array(on_time)))
        return tables, event_time_max

    def _windows(self, directory: Directory) -> tuple[HotCell, int, int]:
        """The live windows, from this process's memory or else from the state store; how many chunks are which."""
        chunks = len(directory.chunks)
        live = HOT.get(directory)
        if live is not None:
            return live, chunks, 0
        live = HotCell(CellWindows(self.spec))
        for entry in directory.chunks:
            live.windows.side(entry.side).append(self._read(entry))
        return live, 0, chunks

    def _read(self, entry: ChunkEntry) -> Rows:
        value = self.chunk_state.getValue((entry.id,))
        return state.decode_chunk(self.spec, entry, None if value is None else value[0])

    def _store(self, directory: Directory, rows: Rows) -> None:
        entry, blob = state.new_chunk(rows)
        self.chunk_state.updateValue((entry.id,), (blob,))
        directory.chunks.append(entry)

    def _forget(self, directory: Directory, entries: list[ChunkEntry]) -> None:
        for entry in entries:
            directory.chunks.remove(entry)
            self.chunk_state.removeKey((entry.id,))

    def _expire(self, directory: Directory, watermark_us: int | None) -> None:
        """Forget the chunks that no row after this watermark can meet."""
        if watermark_us is None:
            return
        reach = {side.side: side.window.reach or 0 for side in (self.spec.left, self.spec.right)}
        self._forget(directory, [e for e in directory.chunks if e.time_max + reach[e.side] <= watermark_us])

    def _keep_hot(self, live: HotCell | None, directory: Directory, watermark_us: int | None) -> None:
        """The windows hold what the directory, as it is committed, lists."""
        if live is None:
            return
        live.version = None
        if watermark_us is not None:
            for side in (self.spec.left, self.spec.right):
                live.windows.side(side.side).expire(watermark_us - (side.window.reach or 0) + 1)
        live.version = directory.version
        HOT.put(directory, live)

    def _merge_small(self, directory: Directory) -> None:
        for group in list(state.mergeable(directory.chunks, self.spec)):
            tables = [self._read(entry).table for entry in group]
            self._store(directory, rows_of(self.spec, group[0].side, pa.concat_tables(tables)))
            self._forget(directory, group)

    def _commit(self, directory: Directory, watermark_us: int | None, batch: Totals) -> None:
        """Add up, remember the watermark for the next batch's late rows, and write the directory."""
        directory.watermark_us, directory.version = watermark_us, uuid.uuid4().hex
        totals, added = asdict(directory.totals), asdict(batch)
        directory.totals = Totals(**{name: totals[name] + added[name] for name in totals})
        self.directory_state.update((directory.to_json(),))


def _watermark_us(timer_values: Any) -> int | None:
    """None before there is one: Spark says 0 then, which would make rows of 1970 and before late."""
    return timer_values.getCurrentWatermarkInMs() * 1000 or None


def _result_frames(tables: Iterator[pa.Table], batch: Totals) -> Iterator[pd.DataFrame]:
    for table in gathered(tables):
        batch.pairs += len(table)
        yield _frame(payload=to_blob(table))


def _counters(batch: Totals, directory: Directory, hot: int, read: int, event_time_max: int | None) -> pd.DataFrame:
    totals = {f"total_{name}": value for name, value in asdict(directory.totals).items()}
    held = {f"state_rows_{s}": sum(e.rows for e in directory.chunks if e.side == s) for s in ("left", "right")}
    size = sum(entry.bytes for entry in directory.chunks)
    values: dict[str, Any] = {
        **asdict(batch),
        **totals,
        **held,
        "state_bytes": size,
        "chunks_hot": hot,
        "chunks_read": read,
    }
    return _frame(event_time_max=event_time_max, **values)


def _frame(payload: bytes | None = None, event_time_max: int | None = None, **counters: int) -> pd.DataFrame:
    columns: dict[str, Any] = {name: [counters.get(name, 0)] for name in COUNTERS}
    columns["event_time_max"] = pd.array([event_time_max], dtype="Int64")
    return pd.DataFrame({**columns, "payload": [payload]})
