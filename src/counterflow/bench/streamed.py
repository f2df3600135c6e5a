"""Streams through `cf.window_join`, as users have them: Arrow batches in and out, Python around them, results in order.

What is measured besides the join: two source threads that yield batches, the driver's thread, the loop over the
results, and what the GIL makes of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from counterflow.api import window_join
from counterflow.bench.arrivals import Arrivals, checksum
from counterflow.bench.inputs import WHERE
from counterflow.bench.latency import FIGURES
from counterflow.bench.machine import stolen_s
from counterflow.bench.report import Row
from counterflow.cores import usable_cores
from counterflow.engines.local.options import Local
from counterflow.engines.local.streams import stream
from counterflow.kernels.vectors import Array
from counterflow.spec.expression import Side
from counterflow.spec.windows import rows

SETTLED_S = 0.05  # between two looks whether the rows that fill the windows are joined


class StreamedRun:
    """The windows are filled; then batches come as fast as they are taken, or at a rate, in tuples a second."""

    def __init__(self, engine: Local, arrivals: Arrivals, batch: int, rate: float = 0.0) -> None:
        self.engine, self.arrivals, self.batch, self.rate = engine, arrivals, batch, rate
        self.began = 0.0
        self.filled = threading.Barrier(2, self._begin)

    def _begin(self) -> None:
        queued = ("queued_rows_left", "queued_rows_right", "waiting_rows_left", "waiting_rows_right")
        while self.rate and sum(self.joined.metrics()[name] for name in queued) > self.batch:
            time.sleep(SETTLED_S)
        self.began, self.stolen_before = time.perf_counter(), stolen_s()

    def take(self) -> Row:
        arrivals, window = self.arrivals, self.arrivals.window
        self.joined = window_join(
            stream(self._batches("left")),
            stream(self._batches("right")),
            where=WHERE[arrivals.inputs.kind],
            time="ts",
            window=rows(window),
            ordered=True,
            engine=self.engine,
        )
        count = total = 0
        ages = [np.empty(0)]
        for found in self.joined:
            now = time.perf_counter()
            lefts, rights, times = (found[name].to_numpy() for name in ("i", "i_right", "pair_time"))
            count, total = count + len(lefts), total + checksum(lefts, rights)
            ages.append(now - self._due(times[times >= 2 * window]))
        seconds = time.perf_counter() - self.began
        row: Row = {
            "algorithm": self.engine.algorithm,
            "path": arrivals.inputs.kind,
            "workers": self.engine.nodes,
            "window_rows": window,
            "batch_rows": self.batch,
            "ordered": True,
            "seconds": seconds,
            "tuples_per_s": 2 * arrivals.pairs / seconds,
            "stolen": (stolen_s() - self.stolen_before) / seconds / len(usable_cores()),
            "pairs": count,
            "verified": (count, total) == arrivals.expected(0),
        }
        if self.rate:
            late_us = np.concatenate(ages) * 1e6
            row["rate_tuples_per_s"] = self.rate
            row |= {f"latency_us_{name}": float(np.quantile(late_us, share)) for name, share in FIGURES.items()}
        return row

    def _batches(self, side: Side) -> Iterator[pa.RecordBatch]:
        """Left and right rows in turn: row i of a side has the time 2 i, or one more."""
        window, end = self.arrivals.window, self.arrivals.window + self.arrivals.pairs
        number = np.arange(end)
        columns = {"ts": 2 * number + (side == "right"), "i": number, **self.arrivals.inputs.named(side)}
        table = pa.table({name: values[:end] for name, values in columns.items()})
        yield from table.slice(0, window).to_batches(self.batch)
        self.filled.wait()
        for k, batch in enumerate(table.slice(window).to_batches(self.batch)):
            if self.rate:
                wait_until(self.began + (k + 1) * 2 * self.batch / self.rate)
            yield batch

    def _due(self, times: Array) -> Array:
        """When the batch with a row of this time was due; a source hands it on when its last row has come."""
        if not self.rate:
            return times
        return self.began + ((times // 2 - self.arrivals.window) // self.batch + 1) * 2 * self.batch / self.rate


def wait_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)
