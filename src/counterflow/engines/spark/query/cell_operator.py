"""The stateful operator: a thin shell between Spark's state and a cell's windows.

Late rows follow Spark's own rule: a row is late if its time is at or before the watermark that the *previous*
batch ran with. A cell is told only the current one, so it keeps the previous one in its directory, and an
event-time timer calls it in every batch that moves the watermark, also when there are no rows.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from counterflow.engines.spark.cell.cell import BEGIN, Cell
from counterflow.engines.spark.cell.row_order import TIE, is_order_sensitive
from counterflow.engines.spark.cell.row_window_cell import new_cell
from counterflow.engines.spark.query.late_rows import write_late_rows
from counterflow.engines.spark.query.layout import Layout
from counterflow.engines.spark.query.routing import DROPPED, HEARTBEAT
from counterflow.engines.spark.session.worker import readable, settle_worker
from counterflow.engines.spark.state.blobs import NewBlob, from_blob, pieces
from counterflow.engines.spark.state.chunk_store import ChunkStore
from counterflow.engines.spark.state.chunks import ChunkEntry, in_one_order
from counterflow.engines.spark.state.counters import CELL_COUNTERS, COUNTERS, Totals
from counterflow.engines.spark.state.directory import (
    CHUNK_KEY_SCHEMA,
    CHUNK_SCHEMA,
    DIRECTORY_SCHEMA,
    Directory,
    next_version,
    read_directory,
)
from counterflow.engines.spark.state.hosts import HOST_FILE, Job, run_job
from counterflow.engines.spark.state.hot_files import HotFiles
from counterflow.engines.spark.state.identity import identity_of, origin_of
from counterflow.predicate.expression import SIDES, Side
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.crew import Crew
from counterflow.windows.times import time_values

SWEEP_BATCHES = 64  # after this many batches, copies that no directory names are looked for
QUERY_ID = "sql.streaming.queryId"  # Spark's own local property: the checkpoint's id, the same after a restart


@dataclass
class MicroBatch:
    """What one cell receives and does in one micro-batch."""

    totals: Totals = field(default_factory=Totals)
    tables: dict[tuple[Side, bool], list[pa.Table]] = field(default_factory=dict)  # by side, stored or not
    late: dict[Side, list[pa.Table]] = field(default_factory=dict)
    event_time_max: int | None = None
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CELL_COUNTERS, 0))

    def took(self, what: str, began_ns: int) -> None:
        """Add the time since `began_ns` to a counter."""
        self.counts[what] += (time.perf_counter_ns() - began_ns) // 1000


# For each batch and cell: one row of counters, then the results as blobs.
OUTPUT = "cell INT, " + ", ".join(f"{name} BIGINT" for name in COUNTERS) + ", event_time_max BIGINT, payload BINARY"


class CounterflowCell(StatefulProcessor):
    """What Spark calls for each cell, with the cell's state, in every micro-batch."""

    def __init__(self, spec: JoinSpec, layout: Layout, late_rows: str | None = None, threads: int = 1) -> None:
        self.spec, self.layout, self.late_rows, self.threads = spec, layout, late_rows, threads
        self.identity = identity_of(spec, layout)
        self.join = uuid.uuid4().hex  # tells this join from others in the same query, in memory only

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.directory_state = handle.getValueState("directory", DIRECTORY_SCHEMA)
        self.chunk_state = handle.getMapState("chunks", CHUNK_KEY_SCHEMA, CHUNK_SCHEMA)

    def close(self) -> None:
        settle_worker()

    @readable
    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        watermark = _watermark(timerValues)
        directory = self._read_directory()
        if directory is None:
            directory = Directory(self.identity, origin_of(self.identity))
            self.handle.registerTimer(max(watermark, 0) // 1000 + 1)
        began = time.perf_counter_ns()
        batch = self._receive(rows, directory.watermark_us)
        batch.took("unpack_us", began)
        yield from self._advance(self.layout.cell(int(key[0])), directory, batch, watermark)

    @readable
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Yield what the moved watermark makes due, and forget what can match no more."""
        watermark = _watermark(timerValues)
        directory = self._read_directory()
        assert directory is not None, "a timer is registered only after the directory"
        self.handle.registerTimer(max(watermark, 0) // 1000 + 1)
        if _since(directory) != watermark:  # rows of this batch have not told the cell already
            yield from self._advance(self.layout.cell(int(key[0])), directory, MicroBatch(), watermark)

    def _read_directory(self) -> Directory | None:
        value = self.directory_state.get()
        return read_directory(None if value is None else value[0], self.identity)

    # --- a micro-batch

    def _receive(self, frames: Iterator[pd.DataFrame], late_us: int | None) -> MicroBatch:
        """Unpack the messages and set late rows apart. Of the cells that see a row, one counts it."""
        batch = MicroBatch()
        for frame in frames:
            for side, stored, counted, payload in zip(
                frame["side"], frame["stored"], frame["counted"], frame["payload"], strict=True
            ):
                if side == HEARTBEAT:
                    continue
                if side in DROPPED:
                    batch.totals.count_null_times(DROPPED[side], int.from_bytes(payload, "little"))
                    continue
                table = from_blob(bytes(payload))
                times = time_values(self.spec.side(side), table)
                newest = int(times.max())
                batch.event_time_max = max(newest, newest if batch.event_time_max is None else batch.event_time_max)
                late = np.zeros(len(times), bool) if late_us is None else times <= late_us
                if counted:
                    batch.totals.count(side, len(times), late=int(late.sum()))
                if late.any():
                    if counted:
                        batch.late.setdefault(side, []).append(table.filter(pa.array(late)))
                    table = table.filter(pa.array(~late))
                if len(table):
                    batch.tables.setdefault((side, bool(stored)), []).append(table)
        return batch

    def _advance(self, cell: int, directory: Directory, batch: MicroBatch, watermark: int) -> Iterator[pd.DataFrame]:
        files = HotFiles(self._name(cell))
        store = ChunkStore(self.spec, directory, self.chunk_state, files, batch.counts)
        new, chunks = self._new_chunks(store, batch, Crew(self.threads))
        empty = new_cell(self.spec, self.layout.grid(cell), self.threads)
        if new or empty.waits:
            before = _since(directory)
            version = next_version(directory.version, new, before, watermark)
            job = Job(files.folder.name, directory.version, version, new, before, watermark)
            began = time.perf_counter_ns()
            needless = yield from self._run(job, empty, store, batch)
            batch.took("host_us", began)
            directory.version = job.new_version
        else:
            needless = empty.forget(watermark)  # says how far; the hot windows forget with the next rows
        began = time.perf_counter_ns()
        for entry, blob in chunks:
            store.add(entry, blob)
        store.expire(needless)
        store.merge_small(needless)
        if self.late_rows is not None:
            for side, tables in batch.late.items():
                name = f"{_lasting_name(directory, cell)}-{directory.batches:08d}"  # again, if the batch runs again
                rows = in_one_order(self.spec.side(side), pa.concat_tables(tables))
                write_late_rows(self.late_rows, side, name, rows)
        self._commit(directory, watermark, batch)
        batch.took("state_us", began)
        if directory.batches % SWEEP_BATCHES == 0:
            files.sweep({HOST_FILE, *(entry.id for entry in directory.chunks)})
        yield _counters(cell, batch, directory)

    def _name(self, cell: int) -> str:
        """Return a name that no other cell on this machine has, for as long as the driver lives."""
        return _hashed(_query_id(), self.join, cell)

    def _new_chunks(
        self, store: ChunkStore, batch: MicroBatch, crew: Crew
    ) -> tuple[list[NewBlob], list[tuple[ChunkEntry, bytes]]]:
        """Return the new rows as blobs for a job, and those that are stored as chunks, too."""
        new: list[NewBlob] = []
        chunks: list[tuple[ChunkEntry, bytes]] = []
        received = [(side, stored) for side in SIDES for stored in (True, False) if (side, stored) in batch.tables]
        rows = crew.in_turn(partial(self._in_one_order, side, batch.tables[side, stored]) for side, stored in received)
        parts = [(*kind, part) for kind, table in zip(received, rows, strict=True) for part in pieces(table)]
        made = crew.in_turn(store.making(self.spec.side(side), part) for side, _, part in parts)
        for (side, stored, _), (entry, blob) in zip(parts, made, strict=True):
            new.append(NewBlob(side, blob, stored))
            if stored:
                chunks.append((entry, blob))
        return new, chunks

    def _in_one_order(self, side: Side, tables: list[pa.Table]) -> pa.Table:
        rows = in_one_order(self.spec.side(side), pa.concat_tables(tables))
        is_needless = TIE in rows.column_names and not is_order_sensitive(self.spec)
        return rows.drop_columns([TIE]) if is_needless else rows

    def _run(
        self, job: Job, empty: Cell, store: ChunkStore, batch: MicroBatch
    ) -> Generator[pd.DataFrame, None, dict[Side, int]]:
        """Yield the results; return for each side the time up to which no row is needed any more."""

        def build() -> Cell:
            empty.load(store.tables(), job.before)
            return empty

        answer, hot = run_job(job, store.files.folder, build)
        outcome = answer.outcome
        assert outcome is not None, "a job that is answered is done"
        batch.counts["hot_hits" if hot else "rebuilds"] += 1 if hot or store.directory.chunks else 0
        batch.counts["hosted_bytes"], batch.counts["join_us"] = outcome.hosted_bytes, outcome.join_us
        batch.totals.pairs += outcome.rows
        for blob in answer:
            yield _frame(payload=blob)
        return outcome.needless

    def _commit(self, directory: Directory, watermark: int, batch: MicroBatch) -> None:
        """Add up, remember the watermark for the next batch's late rows, and write the directory."""
        directory.watermark_us = None if watermark == BEGIN else watermark
        directory.batches += 1
        totals, added = asdict(directory.totals), asdict(batch.totals)
        directory.totals = Totals(**{name: totals[name] + added[name] for name in totals})
        self.directory_state.update((directory.to_json(),))


def _hashed(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _lasting_name(directory: Directory, cell: int) -> str:
    """Return a name that is the same after a restart, and another one in another join or query."""
    return _hashed(_query_id(), directory.origin, cell)


def _query_id() -> str:
    """Return the query's id, which its checkpoint keeps; an empty text outside of a Spark task."""
    context = TaskContext.get()
    return (context.getLocalProperty(QUERY_ID) if context else None) or ""


def _watermark(timer_values: Any) -> int:
    """Return the watermark, or BEGIN before there is one: Spark says 0 then, by which rows up to 1970 would be late."""
    return timer_values.getCurrentWatermarkInMs() * 1000 or BEGIN


def _since(directory: Directory) -> int:
    """Return the watermark of the cell's last batch, or BEGIN."""
    return BEGIN if directory.watermark_us is None else directory.watermark_us


def _counters(cell: int, batch: MicroBatch, directory: Directory) -> pd.DataFrame:
    values: dict[str, Any] = {
        **asdict(batch.totals),
        **{f"total_{name}": value for name, value in asdict(directory.totals).items()},
        **{f"state_rows_{s}": sum(e.rows for e in directory.chunks if e.side == s) for s in ("left", "right")},
        "state_bytes": sum(entry.bytes for entry in directory.chunks),
        **batch.counts,
    }
    return _frame(cell=cell, event_time_max=batch.event_time_max, **values)


def _frame(
    payload: bytes | None = None, cell: int | None = None, event_time_max: int | None = None, **counters: int
) -> pd.DataFrame:
    columns: dict[str, Any] = {"cell": pd.array([cell], dtype="Int32")}
    columns |= {name: [counters.get(name, 0)] for name in COUNTERS}
    columns["event_time_max"] = pd.array([event_time_max], dtype="Int64")
    return pd.DataFrame({**columns, "payload": [payload]})
