"""`counterflow bench streams`: streams through `cf.window_join`, as users have them, each run with its pairs checked.

Arrow batches in and out, results in order. What is measured besides the join: two threads that yield batches, the
driver's thread, the loop over the results, and what the GIL makes of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.api import window_join
from counterflow.cores import usable_cores
from counterflow.engines.local.input.streams import stream
from counterflow.engines.local.options import Local
from counterflow.lab.bench.benchmark_inputs import WHERE, Inputs, Kind, checksum, make_inputs
from counterflow.lab.bench.host import heading, stolen_s
from counterflow.lab.bench.latency import FIGURES
from counterflow.lab.bench.ordered_inputs import OrderedInputs
from counterflow.lab.bench.report import Note, Row, median_ages, middle
from counterflow.predicate.expression import Side
from counterflow.spec.window_sizes import rows
from counterflow.windows.vectors import Array

ALGORITHMS = ("auto", "llhj", "dpjoin", "scalejoin")
SETTLED_S = 0.05  # between two looks whether the rows that fill the windows are joined


@dataclass(frozen=True)
class StreamSizes:
    window: int = 100_000
    rows: int = 400_000  # of a side, after the windows are full
    batch: int = 1024  # rows of an Arrow batch
    gentle_rate: float = 100_000  # tuples a second
    gentle_batch: int = 64
    seconds: float = 1.0  # at a rate
    repeats: int = 5


SMOKE = StreamSizes(1_000, 2_000, 64, 1e4, 16, 0.05, 1)


def bench_streams(smoke: bool, note: Note) -> dict[str, Any]:
    """Return each algorithm's sustained rate, and the ages of results at half of it and at a gentle rate."""
    sizes, rows = SMOKE if smoke else StreamSizes(), []
    kinds: tuple[Kind, ...] = ("hash", "band")
    for kind in kinds:
        inputs = make_inputs(kind, sizes.window + sizes.rows, sizes.window)
        for name in ALGORITHMS:
            note(f"streams of Arrow batches, {kind} index, {name}")
            everything = OrderedInputs(inputs, sizes.window, sizes.rows)
            taken = [StreamedRun(name, everything, sizes.batch).take() for _ in range(sizes.repeats)]
            row = middle(taken, "tuples_per_s")
            rows.append({"case": "rate", **row})
            half = row["tuples_per_s"] / 2
            rows.append({"case": "half the rate", **_aged(half, name, inputs, sizes, sizes.batch)})
            gentle = min(half, sizes.gentle_rate)
            rows.append({"case": "gentle rate", **_aged(gentle, name, inputs, sizes, sizes.gentle_batch)})
    return {**heading("streams", smoke), "remarks": [], "results": rows, "ratios": {}}


def _aged(rate: float, name: str, inputs: Inputs, sizes: StreamSizes, batch: int) -> Row:
    some = OrderedInputs(inputs, sizes.window, min(max(int(rate / 2 * sizes.seconds), 1), sizes.rows))
    return median_ages([StreamedRun(name, some, batch, rate).take() for _ in range(sizes.repeats)])


class StreamedRun:
    """A join of public streams: it fills the windows; then batches come as fast as they are taken, or at a rate."""

    def __init__(self, algorithm: str, arrivals: OrderedInputs, batch: int, rate: float = 0.0) -> None:
        self.engine, self.arrivals, self.batch, self.rate = Local(algorithm), arrivals, batch, rate
        self.began = 0.0
        self.filled = threading.Barrier(2, self._begin)

    def _begin(self) -> None:
        queued = ("queued_rows_left", "queued_rows_right", "waiting_rows_left", "waiting_rows_right")
        while sum((now := self.joined.metrics())[name] for name in queued) > self.batch or now["compiling"]:
            time.sleep(SETTLED_S)
        time.sleep(SETTLED_S)  # for what the nodes have not done yet
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
            if self.rate:
                ages.append(now - self._due(times[times >= 2 * window]))
        seconds = time.perf_counter() - self.began
        del self.joined, self.filled  # they refer to this run, whose memory is free for the next one only without them
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
            row["rate_tuples_per_s"] = self.rate
        late_us = np.concatenate(ages) * 1e6
        if len(late_us):
            row |= {f"latency_us_{name}": float(np.quantile(late_us, share)) for name, share in FIGURES.items()}
        return row

    def _batches(self, side: Side) -> Iterator[pa.RecordBatch]:
        """Yield a side's batches: its row i has the time 2 i, on the right one more, so that sides take turns."""
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
        """Return when the batches with these times were due: a source hands one on when its last row has come."""
        return self.began + ((times // 2 - self.arrivals.window) // self.batch + 1) * 2 * self.batch / self.rate


def wait_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)
