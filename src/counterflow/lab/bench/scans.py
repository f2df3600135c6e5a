"""Scans of a full window, without and with the byte prefilter, and the hand-written limit between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil

import numpy as np

from counterflow.lab.bench.benchmark_inputs import PROBING, STORED, Inputs, band_inputs, same_pairs
from counterflow.lab.bench.report import Measurement, Report, Row, interleave, timed
from counterflow.lab.bench.scan_limit import Limit
from counterflow.windows.store import Batch, WindowStore
from counterflow.windows.vectors import Array

CALLS_MAX = 2000  # of one repeat
FILL = 1 << 16
Pairs = tuple[Array, Array]


def measure_scans(report: Report, limit: Limit | None) -> None:
    for window in report.sizes.windows:
        report.note(f"scan and prefilter, window of {window:,} rows")
        _Scans(report, limit, window).measure()


class _Scans:
    def __init__(self, report: Report, limit: Limit | None, window: int) -> None:
        self.report, self.sizes, self.limit, self.window = report, report.sizes, limit, window
        self.inputs = band_inputs(max(window, 4 * max(self.sizes.batches)))
        self.expected: dict[int, Pairs] = {}
        self.measurements: list[Measurement] = []

    def measure(self) -> None:
        for threads in self.sizes.threads:
            if self.limit is not None:
                self._add_limit(self.limit, threads)
            for path in ("scan", "prefilter"):
                self._add_path(path, threads)
        interleave(self.measurements)
        limits = {m.row["threads"]: m.row for m in self.measurements if m.row["path"] == "limit_avx2"}
        for measurement in self.measurements:
            row = self.report.add(measurement.row)
            if beside := limits.get(row["threads"]):
                row["ratio_to_limit"] = row["comparisons_per_s"] / beside["comparisons_per_s"]

    def _add_limit(self, limit: Limit, threads: int) -> None:
        x, y = (column[: self.window] for column in self.inputs.left)
        batch = self.sizes.limit_batch

        def probe(begin: int) -> Pairs:
            a, b = (column[begin : begin + batch] for column in self.inputs.right)
            return limit.scan(x, y, a, b, threads)

        verified = same_pairs(probe(0), self._expected(batch))
        row = self._row("limit_avx2", "c", batch, threads, bytes_per_row=x.itemsize + y.itemsize, verified=verified)
        self._add(row, lambda begins: [partial(probe, b) for b in begins])

    def _add_path(self, path: str, threads: int) -> None:
        with self.report.compiling(path):
            store = filled_store(self.inputs, self.window, access=path, threads=threads)
            pairs_of(store, self._probing(0, 1))
        assert store.is_compiled
        for batch in self.sizes.batches:
            verified = same_pairs(pairs_of(store, self._probing(0, batch)), self._expected(batch))
            row = self._row(
                path,
                "store",
                batch,
                threads,
                bytes_per_row=store.nbytes / len(store),
                compile_s=self.report.compile_s(path),
                verified=verified,
            )

            def calls(begins: list[int], batch: int = batch) -> list[Callable[[], object]]:
                return [partial(pairs_of, store, self._probing(b, b + batch)) for b in begins]

            self._add(row, calls)

    def _row(self, path: str, through: str, batch: int, threads: int, **more: object) -> Row:
        matches = len(self._expected(batch)[0]) / batch
        shape = dict(path=path, through=through, window_rows=self.window, batch_rows=batch, threads=threads)
        return {**shape, "matches_per_probe": matches, "compile_s": 0.0, **more}

    def _add(self, row: Row, calls: Callable[[list[int]], list[Callable[[], object]]]) -> None:
        """Add a measurement. `calls` returns what is timed, for the probes that begin at these rows."""
        batch, places = row["batch_rows"], len(self.inputs.right[0])
        once = min(timed(calls([0])[0])[0] for _ in range(2))
        count = min(max(ceil(self.sizes.seconds / once), 1), CALLS_MAX)

        def run() -> tuple[float, float, float]:
            work = calls([i * batch % (places - batch + 1) for i in range(count)])
            wall, cpu = timed(lambda: [call() for call in work])
            return count * batch * self.window, wall, cpu

        repeats = self.sizes.repeats if once < self.sizes.long else 3
        self.measurements.append(Measurement(row, "comparisons_per_s", run, repeats))

    def _probing(self, begin: int, end: int) -> Batch:
        return self.inputs.batch(PROBING, begin, end, 0, self.window - 1)

    def _expected(self, batch: int) -> Pairs:
        if batch not in self.expected:
            low, high = np.zeros(batch, np.int64), np.full(batch, self.window - 1)
            self.expected[batch] = self.inputs.expected(0, batch, low, high)
        return self.expected[batch]


def filled_store(inputs: Inputs, window: int, **options: object) -> WindowStore:
    """Return a store that holds the first `window` rows, and compiles when it is first probed."""
    store = WindowStore(STORED, inputs.spec.predicate, inputs.spec.parts, compile_after=0, **options)  # type: ignore[arg-type]
    for begin in range(0, window, FILL):
        store.append(inputs.batch(STORED, begin, min(begin + FILL, window)))
    return store


def pairs_of(store: WindowStore, probing: Batch) -> Pairs:
    """Return all pairs, as numbers of rows."""
    found = [(probing.rows[p], rows) for p, rows in store.probe(probing)]
    if len(found) == 1:
        return found[0]
    empty = np.empty(0, np.int64)
    return np.concatenate([empty, *(p for p, _ in found)]), np.concatenate([empty, *(r for _, r in found)])
