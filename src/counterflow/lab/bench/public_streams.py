"""`counterflow bench streams`: streams through `cf.window_join`, as users have them, each run with its pairs checked.

Arrow batches in and out, results in order. What is measured besides the join: two threads that yield batches, the
driver's thread, the loop over the results, and what the GIL makes of them. Beside it, in the same run, bare nodes: the
best of the algorithms whose tuples lie ready, as `counterflow bench local` measures them. `share_of_bare` is what is
left of that.

ScaleJoin is measured with several physical sources a side, too, each with a thread that yields its batches: they have
the rows of one source, dealt out in turn. Both take turns, and `sources_8_to_1` is the ratio of their rates.

Rows that are pushed one by one have a latency: from the call of `push` to the batch with a pair of the row.

Of many millions of rows through small windows it says how the process's memory grew (`stream_memory`).
"""

from __future__ import annotations

import statistics
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
from counterflow.engines.local.output.joined import JoinedStream
from counterflow.lab.bench.benchmark_inputs import WHERE, Inputs, Kind, checksum, make_inputs
from counterflow.lab.bench.host import heading, stolen_s
from counterflow.lab.bench.latency import FIGURES
from counterflow.lab.bench.ordered_inputs import OrderedInputs
from counterflow.lab.bench.replay_runs import MeasuredJoin
from counterflow.lab.bench.report import Note, Row, median_ages, middle
from counterflow.lab.bench.stream_memory import LongRun
from counterflow.predicate.expression import Side
from counterflow.spec.window_sizes import rows
from counterflow.windows.vectors import Array

ALGORITHMS = ("auto", "llhj", "dpjoin", "scalejoin")
SAME = ("path", "window_rows", "batch_rows")  # of rows that are compared
SETTLED_S = 0.05  # between two looks whether the rows that fill the windows are joined


@dataclass(frozen=True)
class StreamSizes:
    window: int = 100_000
    large_window: int = 1_000_000
    rows: int = 400_000  # of a side, after the windows are full
    single_rows: int = 20_000  # the same, where they come in batches of one
    batches: tuple[int, ...] = (1024, 1, 64, 8192, 65536)  # rows of an Arrow batch; ages are those with the first
    bare_batch: int = 1024
    pushed_rates: tuple[int, ...] = (100, 1_000, 10_000)  # rows a second, of both sides
    pushed_seconds: float = 3.0
    sources: tuple[int, ...] = (1, 8)  # physical ones of a side
    long_rows: int = 25_000_000  # of a side, of a run whose memory is measured
    source_batch: int = 8192  # rows of their Arrow batches
    gentle_rate: float = 100_000  # tuples a second
    gentle_batch: int = 64
    seconds: float = 1.0  # at a rate
    repeats: int = 5


SMOKE = StreamSizes(
    window=1_000,
    large_window=2_000,
    rows=2_000,
    single_rows=100,
    batches=(64, 1),
    bare_batch=64,
    pushed_rates=(10_000,),
    pushed_seconds=0.2,
    source_batch=64,
    long_rows=20_000,
    gentle_rate=1e4,
    gentle_batch=16,
    seconds=0.05,
    repeats=1,
)
FILLING = 8192  # rows of a batch that fills windows, at least
BARE = ("kang", "celljoin", "llhj", "dpjoin", "scalejoin")


def bench_streams(smoke: bool, note: Note) -> dict[str, Any]:
    """Return each algorithm's sustained rates, the ages of results at some rates, and the latency of pushed rows."""
    sizes, rows = SMOKE if smoke else StreamSizes(), []
    kinds: tuple[Kind, ...] = ("hash", "band")
    for kind in kinds:
        for window in (sizes.window, sizes.large_window):
            inputs = make_inputs(kind, window + sizes.rows, window)
            note(f"bare nodes, {kind} index, windows of {window:,} rows")
            bare = _bare(inputs, window, sizes)
            for name in ALGORITHMS:
                note(f"streams of Arrow batches, {kind} index, windows of {window:,} rows, {name}")
                for batch in sizes.batches:
                    rows.append({"case": "rate", **_rate(name, inputs, window, batch, bare, sizes)})
                if window == sizes.window:
                    half = rows[-len(sizes.batches)]["tuples_per_s"] / 2  # with the first size of a batch
                    rows.append({"case": "half the rate", **_aged(half, name, inputs, sizes, sizes.batches[0])})
                    gentle = min(half, sizes.gentle_rate)
                    rows.append({"case": "gentle rate", **_aged(gentle, name, inputs, sizes, sizes.gentle_batch)})
        for rate in sizes.pushed_rates:
            note(f"rows pushed one by one, {kind} index, {rate:,} a second")
            rows.append({"case": "pushed", **_pushed(rate, kind, sizes)})
    note(f"ScaleJoin with {' and '.join(map(str, sizes.sources))} physical sources a side")
    by_sources = _by_sources(sizes)
    rows += by_sources
    for name in ALGORITHMS:
        note(f"{2 * sizes.long_rows:,} rows through windows of {sizes.window:,}, {name}")
        long = LongRun(name, sizes.window, sizes.long_rows, sizes.source_batch)
        rows.append({"case": "memory", **long.take()})
    ratios = {
        **_shares(rows, sizes),
        f"sources_{sizes.sources[-1]}_to_{sizes.sources[0]}": (
            by_sources[-1]["tuples_per_s"] / by_sources[0]["tuples_per_s"]
        ),
    }
    return {**heading("streams", smoke), "remarks": [], "results": rows, "ratios": ratios}


def _bare(inputs: Inputs, window: int, sizes: StreamSizes) -> float:
    """Return the best rate of nodes whose tuples lie ready."""
    workers = len(usable_cores())
    rates = []
    for name in BARE:
        nodes = 1 if name == "kang" else workers
        taken = [
            MeasuredJoin(name, nodes, inputs, window, sizes.rows, sizes.bare_batch, "auto").take()["tuples_per_s"]
            for _ in range(sizes.repeats)
        ]
        rates.append(statistics.median(taken))
    return max(rates)


def _rate(name: str, inputs: Inputs, window: int, batch: int, bare: float, sizes: StreamSizes) -> Row:
    arrivals = OrderedInputs(inputs, window, sizes.single_rows if batch == 1 else sizes.rows)
    row = middle([StreamedRun(name, arrivals, batch).take() for _ in range(sizes.repeats)], "tuples_per_s")
    return {**row, "bare_tuples_per_s": bare, "share_of_bare": row["tuples_per_s"] / bare}


def _by_sources(sizes: StreamSizes) -> list[Row]:
    """Return ScaleJoin's rate of an equi-join by the physical sources that a side has; their runs take turns."""
    arrivals = OrderedInputs(make_inputs("hash", sizes.window + sizes.rows, sizes.window), sizes.window, sizes.rows)
    runs: dict[int, list[Row]] = {sources: [] for sources in sizes.sources}
    for _ in range(sizes.repeats):
        for sources, taken in runs.items():
            taken.append(StreamedRun("scalejoin", arrivals, sizes.source_batch, sources=sources).take())
    return [{"case": "sources", "sources": n, **middle(taken, "tuples_per_s")} for n, taken in runs.items()]


def _shares(rows: list[Row], sizes: StreamSizes) -> dict[str, float]:
    """Return what is left of bare nodes with large windows, and how `auto` compares with the best algorithm."""
    found, least = {}, 1.0
    for row in rows:
        if row["case"] == "rate" and row["algorithm"] == "auto":
            same = [r for r in rows if r["case"] == "rate" and all(r[k] == row[k] for k in SAME)]
            least = min(least, row["tuples_per_s"] / max(r["tuples_per_s"] for r in same))
            if row["window_rows"] == sizes.large_window:
                found[f"{row['path']}_batches_of_{row['batch_rows']}_share_of_bare"] = row["share_of_bare"]
    return {**found, "least_auto_to_best": least}


def _pushed(rate: int, kind: Kind, sizes: StreamSizes) -> Row:
    count = max(int(rate / 2 * sizes.pushed_seconds), 1)
    inputs = make_inputs(kind, sizes.window + count, sizes.window)
    arrivals = OrderedInputs(inputs, sizes.window, count)
    return median_ages([PushedRun(arrivals, rate).take() for _ in range(sizes.repeats)])


def _aged(rate: float, name: str, inputs: Inputs, sizes: StreamSizes, batch: int) -> Row:
    some = OrderedInputs(inputs, sizes.window, min(max(int(rate / 2 * sizes.seconds), 1), sizes.rows))
    return median_ages([StreamedRun(name, some, batch, rate).take() for _ in range(sizes.repeats)])


class StreamedRun:
    """A join of public streams: it fills the windows; then batches come as fast as they are taken, or at a rate.

    The rows of a side are dealt out to its physical `sources` in turn; one alone has them all.
    """

    def __init__(
        self, algorithm: str, arrivals: OrderedInputs, batch: int, rate: float = 0.0, sources: int = 1
    ) -> None:
        self.engine, self.arrivals, self.batch, self.rate = Local(algorithm), arrivals, batch, rate
        self.sources, self.began = sources, 0.0
        self.filled = threading.Barrier(2 * sources, self._begin)

    def _begin(self) -> None:
        queued = ("queued_rows_left", "queued_rows_right", "waiting_rows_left", "waiting_rows_right")
        while sum((now := self.joined.metrics())[name] for name in queued) > self.batch or now["compiling"]:
            time.sleep(SETTLED_S)
        time.sleep(SETTLED_S)  # for what the nodes have not done yet
        self.began, self.stolen_before = time.perf_counter(), stolen_s()

    def take(self) -> Row:
        arrivals, window = self.arrivals, self.arrivals.window
        sides: tuple[Side, Side] = ("left", "right")
        left, right = ([stream(self._batches(side, k)) for k in range(self.sources)] for side in sides)
        self.joined = window_join(
            left,
            right,
            where=WHERE[arrivals.inputs.kind],
            time="ts",
            window=rows(window),
            ordered=True,
            engine=self.engine,
        )
        count = total = last = 0
        in_order = True
        ages = [np.empty(0)]
        for found in self.joined:
            now = time.perf_counter()
            lefts, rights, times = (found[name].to_numpy() for name in ("i", "i_right", "pair_time"))
            in_order &= bool(last <= times[0] and (times[1:] >= times[:-1]).all())
            last = times[-1]
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
            "verified": in_order and (count, total) == arrivals.expected(0),
        }
        if self.rate:
            row["rate_tuples_per_s"] = self.rate
        late_us = np.concatenate(ages) * 1e6
        if len(late_us):
            row |= {f"latency_us_{name}": float(np.quantile(late_us, share)) for name, share in FIGURES.items()}
        return row

    def _batches(self, side: Side, source: int) -> Iterator[pa.RecordBatch]:
        """Yield a source's batches: row i of a side has the time 2 i, on the right one more: sides take turns."""
        table, filling = rows_of(self.arrivals, side), self.arrivals.window
        if self.sources > 1:
            filling = len(range(source, filling, self.sources))
            table = table.take(pa.array(np.arange(source, len(table), self.sources))).combine_chunks()
        batches = table.slice(filling).to_batches(self.batch)  # before the clock runs: they lie ready for their source
        yield from table.slice(0, filling).to_batches(max(self.batch, FILLING))
        self.filled.wait()
        for k, batch in enumerate(batches):
            if self.rate:
                wait_until(self.began + (k + 1) * 2 * self.batch / self.rate)
            yield batch

    def _due(self, times: Array) -> Array:
        """Return when the batches with these times were due: a source hands one on when its last row has come."""
        return self.began + ((times // 2 - self.arrivals.window) // self.batch + 1) * 2 * self.batch / self.rate


def rows_of(arrivals: OrderedInputs, side: Side) -> pa.Table:
    """Return all rows of a side: row i has the time 2 i, on the right one more, so that sides take turns."""
    end = arrivals.window + arrivals.pairs
    number = np.arange(end)
    columns = {"ts": 2 * number + (side == "right"), "i": number, **arrivals.inputs.named(side)}
    return pa.table({name: values[:end] for name, values in columns.items()})


class PushedRun:
    """A join of pushed rows with `auto`: batches fill the windows; then rows come one by one, left and right in turn.

    Windows are durations that hold as many rows as the windows of `arrivals` do; results come in any order.
    """

    def __init__(self, arrivals: OrderedInputs, rate: float) -> None:
        self.arrivals, self.rate = arrivals, rate
        self.count = self.total = 0
        self.ages = [np.empty(0)]
        self.pushed = np.zeros(2 * (arrivals.window + arrivals.pairs))  # when each row was, by its time

    def take(self) -> Row:
        arrivals, window = self.arrivals, self.arrivals.window
        tables = [rows_of(arrivals, "left"), rows_of(arrivals, "right")]
        streams = [stream(schema=table.schema) for table in tables]
        joined = window_join(*streams, where=WHERE[arrivals.inputs.kind], time="ts", window=2 * window - 1)
        taker = threading.Thread(target=self._take_results, args=(joined,))
        taker.start()
        for table, pushed in zip(tables, streams, strict=True):
            for batch in table.slice(0, window).to_batches(FILLING):
                pushed.push(batch)
        while (now := joined.metrics())["compiling"] or now["queued_rows_left"] + now["queued_rows_right"] > 0:
            time.sleep(SETTLED_S)
        time.sleep(SETTLED_S)
        rows = [table.slice(window).to_batches(1) for table in tables]
        began, before = time.perf_counter(), stolen_s()
        for k in range(2 * arrivals.pairs):
            wait_until(began + k / self.rate)
            self.pushed[2 * window + k] = time.perf_counter()
            streams[k % 2].push(rows[k % 2][k // 2])
        seconds = time.perf_counter() - began
        stolen = (stolen_s() - before) / seconds / len(usable_cores())
        for pushed in streams:
            pushed.close()
        taker.join()
        late_us = np.concatenate(self.ages) * 1e6
        found = {f"latency_us_{name}": float(np.quantile(late_us, q)) for name, q in FIGURES.items() if len(late_us)}
        return {
            "algorithm": "auto",
            "path": arrivals.inputs.kind,
            "workers": 1,
            "window_rows": window,
            "batch_rows": 1,
            "ordered": False,
            "seconds": seconds,
            "tuples_per_s": 2 * arrivals.pairs / seconds,
            "rate_tuples_per_s": self.rate,
            "stolen": stolen,
            "pairs": self.count,
            "verified": (self.count, self.total) == arrivals.expected(0),
            **found,
        }

    def _take_results(self, joined: JoinedStream) -> None:
        for found in joined:
            now = time.perf_counter()
            lefts, rights, times = (found[name].to_numpy() for name in ("i", "i_right", "pair_time"))
            self.count, self.total = self.count + len(lefts), self.total + checksum(lefts, rights)
            self.ages.append(now - self.pushed[times[times >= 2 * self.arrivals.window]])


def wait_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)
