"""Hash and band indexes under a stream: every row is inserted, probes the window, and expires.

A tuple of a symmetric join is inserted on its own side and probes the other one: so a row that is inserted and a row
that probes are together one tuple's work. Each probe looks at exactly the last `window` rows before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from counterflow.lab.bench.benchmark_inputs import (
    PROBING,
    STORED,
    Inputs,
    Kind,
    checksum,
    hash_inputs,
    make_inputs,
    same_pairs,
)
from counterflow.lab.bench.report import Measurement, Report, Row, interleave, timed
from counterflow.lab.bench.scans import filled_store, pairs_of
from counterflow.predicate.expression import Side
from counterflow.windows.access import choose_path
from counterflow.windows.compiled.block import NUMBERS_WORDS, STATUS_WORDS, WORK_SHAPE
from counterflow.windows.compiled.compiled_predicate import Keyed, kernel_array
from counterflow.windows.compiled.compiled_window import BUCKETS_PER_ROW, EMPTY, CompiledWindow
from counterflow.windows.crew import Crew
from counterflow.windows.row_ring import Ring
from counterflow.windows.store import WindowStore
from counterflow.windows.vectors import Array

AT, FOUND, LEFT_OVER, WAITING, TOTAL, CHECKSUM = 0, 1, 2, 4, 6, 7  # as in the template `buckets`
UNIT = 4  # records in the smallest block, as in the template `grid_index`
OUTPUT = 1 << 16
SAMPLE = 1000  # rows that decide how large the grid's cells are
SPARE = 4  # records a row: a stream cannot stop to let its pool grow
FILL = 1 << 13


class StreamIndex:
    """The compiled index, driven without coming back to Python for each batch."""

    def __init__(self, inputs: Inputs, window: int, batch_max: int) -> None:
        self.inputs, self.window = inputs, window
        n = len(inputs.left[0])
        path = choose_path(inputs.spec.parts, STORED)
        self.compiled = CompiledWindow(Ring(), path, inputs.spec.predicate, "index", False, Crew())
        self.module: Any = self.compiled.kernels.stream
        self.compiled.append(self._keyed(STORED, min(n, SAMPLE)), 0)
        self.bands = self.compiled.bands
        self.rows, self.probes = self._keyed(STORED, n), self._keyed(PROBING, n)
        self.oldest, self.newest = np.maximum(np.arange(n) - window, 0), np.arange(n) - 1
        self.blocks = self.compiled.kernels.shape.index == "grid_index"
        capacity = 1 << (window + batch_max - 1).bit_length()
        self.heads = np.full(capacity + 1, 0) if self.blocks else np.full(BUCKETS_PER_ROW * capacity + 1, EMPTY)
        self.records = np.empty(capacity * (SPARE if self.blocks else 1), self.compiled.kernels.shape.record)
        self.pool = np.full(40, -1)
        self.pool[[0, 32]] = 0
        self.numbers, self.work = np.empty(NUMBERS_WORDS, np.int64), np.empty(WORK_SHAPE, np.int64)
        self.pairs = np.empty(OUTPUT, np.int64), np.empty(OUTPUT, np.int64)
        self.over, self.status = np.empty(batch_max, np.int64), np.zeros(STATUS_WORDS, np.int64)
        self.at = self.found = self.probed = 0

    def _keyed(self, side: Side, n: int) -> Keyed:
        columns = {name: vector.take(slice(0, n)) for name, vector in self.inputs.columns(side).items()}
        return self.compiled.keyed(side, columns, {name: kernel_array(v) for name, v in columns.items()}, n)

    @property
    def bytes_per_row(self) -> float:
        """The index's bytes; of the pool for blocks, those that were ever used."""
        records = int(self.pool[0]) * UNIT if self.blocks else len(self.records)
        return (self.heads.nbytes + records * self.records.itemsize) / self.window

    def fill(self) -> None:
        """Insert rows until the window is full."""
        rows = self.rows
        for begin in range(0, self.window, FILL):
            end = min(begin + FILL, self.window)
            done = self.module.append(
                begin, end, rows.hashes, rows.keys, rows.usable, self.bands, rows.columns,
                self.heads, self.records, self.pool, self.numbers, 0, 0,
            )  # fmt: skip
            assert done == end
        self.at = self.window

    def run(self, count: int, batch: int) -> None:
        """Insert and probe the next `count` rows."""
        rows, probes, begin, end = self.rows, self.probes, self.at, self.at + count
        assert end <= len(rows.usable) and batch <= len(self.over)
        self.status[:] = 0
        done = self.module.stream(
            begin, end, batch, self.window + batch, rows.hashes, rows.keys, rows.usable, rows.columns,
            probes.hashes, probes.keys, probes.usable, probes.columns, self.bands, self.oldest, self.newest,
            self.compiled.constants, self.heads, self.records, self.pool, self.numbers, self.work,
            *self.pairs, self.over, self.status,
        )  # fmt: skip
        assert done == end and self.status[LEFT_OVER] == 0
        self.at = end
        self.found += int(self.status[TOTAL])
        self.probed += count

    def verify(self, count: int, batch: int) -> bool:
        """Run the next rows, and compare the number and the sum of their pairs with those that numpy finds."""
        begin, end = self.at, self.at + count
        self.run(count, batch)
        probes, rows = self.inputs.expected(begin, end, self.oldest[begin:end], self.newest[begin:end])
        return tuple(self.status[[TOTAL, CHECKSUM]]) == (len(probes), checksum(probes, rows))

    def probe(self, begin: int, end: int) -> int:
        """Probe the window that `fill` left with some rows, and return the number of pairs."""
        return sum(len(part[0]) for part in self._probe(begin, end))

    def _probe(self, begin: int, end: int) -> Iterator[tuple[Array, Array]]:
        probes, status, total = self.probes, self.status, len(self.oldest)
        low, high = np.zeros(total, np.int64), np.full(total, self.window - 1)
        over, status[:] = np.empty(end - begin, np.int64), 0
        status[AT] = begin
        while status[AT] < end or status[WAITING] > 0:
            status[FOUND] = 0
            self.module.probe(
                end, probes.hashes, probes.keys, probes.usable, self.bands, low, high, probes.columns,
                self.compiled.constants, self.heads, self.records, 0, self.work, *self.pairs, over, status,
            )  # fmt: skip
            yield self.pairs[0][: status[FOUND]], self.pairs[1][: status[FOUND]]
        assert status[LEFT_OVER] == 0

    def verify_probes(self, count: int) -> bool:
        """Say whether the pairs of some probes, without inserting, are those that numpy finds."""
        parts = [(p.copy(), r.copy()) for p, r in self._probe(0, count)]
        found = np.concatenate([p for p, _ in parts]), np.concatenate([r for _, r in parts])
        low, high = np.zeros(count, np.int64), np.full(count, self.window - 1)
        return same_pairs(found, self.inputs.expected(0, count, low, high))


def measure_indexes(report: Report) -> None:
    kinds: tuple[Kind, ...] = ("hash", "band")
    for kind in kinds:
        for window in report.sizes.windows:
            report.note(f"{kind}, window of {window:,} rows")
            _Indexes(report, kind, window).measure()


class _Indexes:
    def __init__(self, report: Report, kind: Kind, window: int) -> None:
        self.report, self.sizes, self.kind, self.window = report, report.sizes, kind, window
        self.rows = self.sizes.hash_rows if kind == "hash" else self.sizes.band_rows
        self.batch_max = max(self.sizes.batches)
        self.inputs = make_inputs(kind, window + self._more(1), window)

    def _more(self, threads: int) -> int:
        """Return the number of rows that come after the first window."""
        checked = sum(max(self.sizes.checked, batch) for batch in self.sizes.batches)
        return len(self.sizes.batches) * self.sizes.repeats * self.rows // threads + checked

    def measure(self) -> None:
        measurements = self._streamed(1, [self.inputs], self.window)
        if self.kind == "hash" and 2 in self.sizes.threads:
            rows = self.window // 2 + self._more(2)
            halves = [hash_inputs(rows, self.window, part=part, parts=2) for part in (0, 1)]
            measurements += self._streamed(2, halves, self.window // 2)
        for measurement in measurements:
            self.report.add(measurement.row)
        for threads in self.sizes.threads:
            self._through_store(threads)

    def _streamed(self, threads: int, inputs: list[Inputs], window: int) -> list[Measurement]:
        """Measure one index, or one for each thread with its own keys (how rows get there is not measured)."""
        with self.report.compiling(f"{self.kind} stream"):
            indexes = [StreamIndex(part, window, self.batch_max) for part in inputs]
        measurements = []
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(StreamIndex.fill, indexes))
            for batch in self.sizes.batches:

                def work(batch: int = batch) -> None:
                    list(pool.map(lambda index: index.run(self.rows // threads, batch), indexes))

                def run(work: Any = work) -> tuple[float, float, float]:
                    return (self.rows // threads * threads, *timed(work))

                row = self._row("stream", batch, threads)
                measurements.append(Measurement(row, "tuples_per_s", run, self.sizes.repeats))
            interleave(measurements)
        for measurement in measurements:
            batch = measurement.row["batch_rows"]
            measurement.row |= {
                "matches_per_probe": sum(i.found for i in indexes) / sum(i.probed for i in indexes),
                "bytes_per_row": sum(i.bytes_per_row for i in indexes) / len(indexes),
                "verified": all(index.verify(max(self.sizes.checked, batch), batch) for index in indexes),
            }
        return measurements

    def _through_store(self, threads: int) -> None:
        """Measure the same from Python, one call for each batch; the threads share the probes."""
        with self.report.compiling(f"{self.kind} store"):
            store = filled_store(self.inputs, self.window, threads=threads)
            at = StorePosition(store, self.inputs, self.window)
            at.run(1, 1)
        measurements = []
        for batch in self.sizes.store_batches:
            rows = max(self.rows // batch, 1) * batch

            def run(batch: int = batch, rows: int = rows) -> tuple[float, float, float]:
                return (rows, *timed(lambda: at.run(rows, batch)))

            measurements.append(Measurement(self._row("store", batch, threads), "tuples_per_s", run, 3))
        interleave(measurements)
        for measurement in measurements:
            batch = measurement.row["batch_rows"]
            measurement.row |= {
                "matches_per_probe": at.found / at.probed,
                "bytes_per_row": store.nbytes / len(store),
                "verified": at.verify(batch),
            }
            self.report.add(measurement.row)

    def _row(self, through: str, batch: int, threads: int) -> Row:
        shape = dict(path=self.kind, through=through, window_rows=self.window, batch_rows=batch, threads=threads)
        return {**shape, "compile_s": self.report.compile_s(f"{self.kind} {through}")}


class StorePosition:
    """How far a stream has come through a store."""

    def __init__(self, store: WindowStore, inputs: Inputs, window: int) -> None:
        self.store, self.inputs, self.window = store, inputs, window
        self.at = window
        self.found = self.probed = 0

    def run(self, count: int, batch: int) -> None:
        for begin in range(self.at, self.at + count, batch):
            self.found += len(self.step(begin, min(begin + batch, self.at + count))[0])
        self.at += count
        self.probed += count

    def step(self, begin: int, end: int) -> tuple[Array, Array]:
        self.store.append(self.inputs.batch(STORED, begin, end))
        self.store.expire(begin - self.window)
        return pairs_of(self.store, self.inputs.sliding(begin, end, self.window))

    def verify(self, batch: int) -> bool:
        """Say whether the pairs of the next batch are all those that numpy finds."""
        begin, end = self.at, self.at + batch
        found = self.step(begin, end)
        self.at = end
        probing = self.inputs.sliding(begin, end, self.window)
        return same_pairs(found, self.inputs.expected(begin, end, probing.low, probing.high))
