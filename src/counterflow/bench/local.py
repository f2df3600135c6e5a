"""`counterflow bench local`: the six algorithms on threads, by a compiled driver, each run with its pairs checked."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterflow.bench.inputs import Inputs, Kind, make_inputs
from counterflow.bench.latency import ages
from counterflow.bench.machine import heading, stolen_s
from counterflow.bench.report import Note, Row
from counterflow.cores import usable_cores
from counterflow.errors import OptionError
from counterflow.kernels.store import Batch, WindowStore
from counterflow.kernels.vectors import Array
from counterflow.spec.expression import Side

ALGORITHMS = ("kang", "celljoin", "handshake", "llhj", "dpjoin", "scalejoin")
LOW_LATENCY = ("llhj", "dpjoin", "scalejoin")

ASKED = {
    "least_scan_to_kernel": "at least 0.7",
    "merge_to_scan_of_handshake": "",
    "least_comparisons_per_s_of_llhj_dpjoin_scalejoin": "above 1e10",
    "best_equi_tuples_per_s": "above 5e6",
    "best_band_tuples_per_s": "above 1.5e6",
    "worst_latency_us_p50": "below 200",
    "worst_latency_us_p99": "below 5000",
    "worst_latency_us_p99_of_all": "",
    "handshake_latency_p99_to_window": "about 0.5",
    "ordering_costs": "below 0.1",
    "buffer_to_rows_between_punctuations": "below 1",
    "worst_spread_of_scalejoin": "below 0.01",
}


@dataclass(frozen=True)
class Sizes:
    window: int = 1_000_000
    scanned: int = 24_000  # tuples of both streams after the windows are full
    hashed: int = 4_000_000
    banded: int = 1_500_000
    latency_s: float = 0.25  # short, so that a virtual machine's host leaves some runs alone
    repeats: int = 3
    timed: int = 9  # runs at a rate
    scan_batch: int = 128
    batches: tuple[int, ...] = (64, 1024)
    skew_window: int = 99_991  # which no number of workers divides
    skewed: int = 100_000
    handshake_window: int = 100_000
    handshake_window_s: float = 1.0


SMOKE = Sizes(2_000, 400, 4_000, 4_000, 0.05, 1, 1, 16, (16,), 1_000, 1_000, 1_000, 0.1)


def bench_local(smoke: bool, note: Note) -> dict[str, Any]:
    """All measurements; with `smoke` as small as they can be, to see that they work."""
    if os.environ.get("COUNTERFLOW_COMPILE") == "never":
        raise OptionError("COUNTERFLOW_COMPILE=never: the algorithms run compiled only")
    bench = Bench(SMOKE if smoke else Sizes(), note)
    bench.measure_scans()
    bench.measure_skew()
    bench.measure_indexes()
    bench.measure_handshake_latency()
    ratios = {name: bench.found.get(name) for name in ASKED}
    return {**heading("local", smoke), "remarks": bench.remarks, "results": bench.rows, "ratios": ratios}


class Bench:
    def __init__(self, sizes: Sizes, note: Note) -> None:
        self.sizes, self.note = sizes, note
        self.workers = len(usable_cores())
        self.rows: list[Row] = []
        self.remarks: list[str] = []
        self.found: dict[str, float] = {}

    # --- nested loops

    def measure_scans(self) -> None:
        """Each algorithm beside the bare kernel with as many threads, in turns."""
        sizes = self.sizes
        inputs = make_inputs("band", sizes.window + sizes.scanned, sizes.window)
        kernels = {threads: Kernel(inputs, sizes.window, threads) for threads in (1, self.workers)}
        runs: dict[str, list[Row]] = {name: [] for name in ALGORITHMS}
        for turn in range(sizes.repeats):
            for name in ALGORITHMS:
                self.note(f"scan, {name}, {turn + 1} of {sizes.repeats}")
                workers = 1 if name == "kang" else self.workers
                rate = kernels[workers].measure()
                run = Run(name, workers, inputs, sizes.window, sizes.scanned // 2, sizes.scan_batch, "scan").take()
                runs[name].append({**run, "kernel_comparisons_per_s": rate})
        for taken in runs.values():
            row = _middle(taken, "comparisons_per_s")
            row["ratio_to_kernel"] = statistics.median(
                r["comparisons_per_s"] / r["kernel_comparisons_per_s"] for r in taken
            )
            self.rows.append({"case": "scan", **row, "verified": all(r["verified"] for r in taken)})
        scans = {row["algorithm"]: row for row in self.rows}
        self.found["least_scan_to_kernel"] = min(row["ratio_to_kernel"] for row in scans.values())
        self.found["least_comparisons_per_s_of_llhj_dpjoin_scalejoin"] = min(
            scans[name]["comparisons_per_s"] for name in LOW_LATENCY
        )
        self._measure_merge(inputs)

    def _measure_merge(self, inputs: Inputs) -> None:
        """Handshake join with sorted basic blocks (its first report's Figure 9), in turns with the scan.

        The tuples of both sides that come at once are a basic block of each, as in the paper.
        """
        sizes, taken = self.sizes, []
        for turn in range(sizes.repeats):
            self.note(f"merge, handshake, {turn + 1} of {sizes.repeats}")
            scan, merge = (
                Run(
                    "handshake", self.workers, inputs, sizes.window, sizes.scanned // 2, 2 * sizes.scan_batch, access
                ).take()
                for access in ("scan", "merge")
            )
            merge["ratio_to_scan"] = merge["tuples_per_s"] / scan["tuples_per_s"]
            merge["verified"] &= scan["verified"]
            taken.append(merge)
        row = _middle(taken, "ratio_to_scan")
        self.rows.append({"case": "merge", **row, "verified": all(r["verified"] for r in taken)})
        self.found["merge_to_scan_of_handshake"] = row["ratio_to_scan"]

    def measure_skew(self) -> None:
        """ScaleJoin with several streams a side whose rates change (the paper's Figure 8): are workers equally busy?"""
        sizes, spreads = self.sizes, []
        inputs = make_inputs("band", sizes.skew_window + sizes.skewed, sizes.skew_window)
        for rates in RATES:
            self.note(f"scan, scalejoin, streams with {rates} rates")
            run = Run(
                "scalejoin", self.workers, inputs, sizes.skew_window, sizes.skewed // 2, sizes.scan_batch, "scan",
                rates=rates,
            )  # fmt: skip
            row = run.take()
            spreads.append(row["spread"])
            self.rows.append({"case": "skew", "rates": rates, "streams": 2 * len(STREAMS), **row})
        self.found["worst_spread_of_scalejoin"] = max(spreads)

    # --- indexes

    def measure_indexes(self) -> None:
        kinds: tuple[Kind, ...] = ("hash", "band")
        best: dict[str, float] = {}
        costs = []
        for kind in kinds:
            tuples = self.sizes.hashed if kind == "hash" else self.sizes.banded
            inputs = make_inputs(kind, self.sizes.window + tuples, self.sizes.window)
            for name in ALGORITHMS:
                if name == "handshake":
                    continue  # its results come a window later: it has no rate of its own with an index
                workers = 1 if name == "kang" else self.workers
                for batch in self.sizes.batches:
                    self.note(f"{kind} index, {name}, batches of {batch}")
                    taken = []
                    for ordered in [True, False] * self.sizes.repeats:
                        run = Run(name, workers, inputs, self.sizes.window, tuples // 2, batch, "auto", ordered)
                        taken.append(run.take())
                    ordered_rows = [r for r in taken if r["ordered"]]
                    row = {"case": "index", **_middle(ordered_rows, "tuples_per_s")}
                    row["verified"] = all(r["verified"] for r in taken)
                    plain_rows = [r for r in taken if not r["ordered"]]  # each ran right after an ordered one
                    row["ordering_costs"] = 1 - statistics.median(
                        a["tuples_per_s"] / b["tuples_per_s"] for a, b in zip(ordered_rows, plain_rows, strict=True)
                    )
                    if batch == max(self.sizes.batches) and name in LOW_LATENCY:
                        costs.append(row["ordering_costs"])
                    self.rows.append(row)
                    best[kind] = max(best.get(kind, 0.0), row["tuples_per_s"])
                if name in LOW_LATENCY:
                    self._measure_latency(kind, name, inputs, row["tuples_per_s"], max(self.sizes.batches))
        self.found["best_equi_tuples_per_s"], self.found["best_band_tuples_per_s"] = best["hash"], best["band"]
        self.found["ordering_costs"] = statistics.median(costs)
        buffers = [
            row["buffer_rows_max"] / max(row["punctuation_rows_min"], 1)
            for row in self.rows
            if row["algorithm"] in LOW_LATENCY and "punctuation_rows_min" in row
        ]
        if buffers:  # the shortest runs have no two punctuations
            self.found["buffer_to_rows_between_punctuations"] = max(buffers)
        latencies = [row for row in self.rows if row["case"] == "latency" and row["algorithm"] in LOW_LATENCY]
        for name in ("latency_us_p50", "latency_us_p99", "latency_us_p99_of_all"):
            self.found[f"worst_{name}"] = max(row[name] for row in latencies)

    def _measure_latency(self, kind: Kind, name: str, inputs: Inputs, rate: float, batch: int) -> None:
        """At half the rate, results in order. A run in which the host took time is repeated, but not without end.

        What counts are the runs in which it took least, each with all its results; and, beside them, all runs.
        """
        self.note(f"latency, {kind} index, {name}, at {rate / 2 / 1e6:.2g} million tuples/s")
        sizes, taken, histograms = self.sizes, list[Row](), []
        tuples = min(int(rate / 2 * sizes.latency_s), 2 * (len(inputs.left[0]) - sizes.window))
        while len(taken) < 3 * sizes.timed and sum(row["stolen"] == 0 for row in taken) < sizes.timed:
            run = Run(name, self.workers, inputs, sizes.window, tuples // 2, batch, "auto", rate=rate / 2)
            taken.append(run.take())
            histograms.append(run.histogram)
        counted = sorted(taken, key=lambda row: row["stolen"])[: sizes.timed]
        row = {"case": "latency", **_middle(counted, "latency_us_p99"), "disturbed": len(taken) - len(counted)}
        row |= {f: statistics.median(r[f] for r in counted) for f in row if f.startswith("latency_us")}
        row |= {f"{figure}_of_all": age for figure, age in ages(np.sum(histograms, 0)).items()}
        self.rows.append({**row, "verified": all(r["verified"] for r in taken)})

    def measure_handshake_latency(self) -> None:
        """Tuples meet where they pass each other: half a window later at the most, with equal windows and rates."""
        window = self.sizes.handshake_window
        rate = 2 * window / self.sizes.handshake_window_s
        inputs = make_inputs("band", 3 * window, window)
        self.note(f"latency, handshake, windows of {self.sizes.handshake_window_s:g} s")
        row = Run("handshake", self.workers, inputs, window, 2 * window, 64, "auto", False, rate).take()
        row["window_s"] = self.sizes.handshake_window_s
        self.rows.append({"case": "latency", **row})
        self.found["handshake_latency_p99_to_window"] = row["latency_us_p99"] / 1e6 / row["window_s"]


def _middle(rows: list[Row], figure: str) -> Row:
    """The row with the median figure."""
    return dict(sorted(rows, key=lambda row: row[figure])[len(rows) // 2], repeats=len(rows))


class Kernel:
    """The bare scan of a full window."""

    def __init__(self, inputs: Inputs, window: int, threads: int) -> None:
        spec = inputs.spec
        self.store = WindowStore("left", spec.predicate, spec.parts, access="scan", threads=threads, compile_after=0)
        self.store.append(inputs.batch("left", 0, window))
        self.probes = inputs.batch("right", window, window + 256, 0, window - 1)
        self.comparisons = 256 * window
        self.measure()

    def measure(self) -> float:
        started = time.perf_counter()
        for _ in self.store.probe(self.probes):
            pass
        return self.comparisons / (time.perf_counter() - started)


class Run:
    """One join: the windows are filled, then `pairs` tuples of each stream come, as fast as possible or at a rate."""

    def __init__(
        self,
        algorithm: str,
        workers: int,
        inputs: Inputs,
        window: int,
        pairs: int,
        batch: int,
        access: str,
        ordered: bool = True,
        rate: float = 0.0,
        rates: str = "",
    ) -> None:
        from counterflow.protocols.machine import Design, Machine
        from counterflow.protocols.replay import Replay

        self.inputs, self.window, self.pairs, self.rate, self.ordered = inputs, window, pairs, rate, ordered
        layout = (1, workers) if algorithm == "dpjoin" else (1, 1)
        self.design = Design(
            algorithm,
            workers,
            batch_rows=batch,
            layout=layout,
            access=access,  # type: ignore[arg-type]
            in_flight=max(4096, 4 * batch),
            outbox_rows=1 << 12,
            expected_rows=(window + 2 * batch, window + 2 * batch),
            # At a rate there is time to sleep, but on a virtual machine that is slow: see docs/local.md.
            strategy="yield" if rate else "park",
        )
        machine = Machine(inputs.spec.predicate, inputs.spec.parts, self.design)
        self.is_left = turns(window + pairs, rates)
        self.warm = int(max(np.searchsorted(np.cumsum(side), window) + 1 for side in (self.is_left, ~self.is_left)))
        self.replay = Replay(machine, *self.stamped(), warm=self.warm)

    def stamped(self) -> tuple[Batch, Batch]:
        """All tuples, each with the opposite ones that came before it, as far as they are in the window."""
        lefts, n = np.cumsum(self.is_left), len(self.is_left) // 2
        high = np.where(self.is_left, np.arange(2 * n) - lefts, lefts - 1)
        return self._batch("left", high[self.is_left]), self._batch("right", high[~self.is_left])

    def _batch(self, side: Side, high: Array) -> Batch:
        return self.inputs.batch(side, 0, len(high), np.maximum(high + 1 - self.window, 0), high)

    def take(self) -> Row:
        self.replay.fill()
        before = stolen_s()
        measured = self.replay.run(self.rate, self.ordered)
        stolen = stolen_s() - before
        seconds, nodes, self.histogram = measured["seconds"], measured["comparisons"], measured["histogram"]
        row: Row = {
            "algorithm": self.design.algorithm,
            "path": self.inputs.kind if self.design.access == "auto" else self.design.access,
            "workers": self.design.nodes,
            "window_rows": self.window,
            "batch_rows": self.design.batch_rows,
            "ordered": self.ordered,
            "seconds": seconds,
            "tuples_per_s": (len(self.is_left) - self.warm) / seconds,
            "stolen": stolen / seconds / len(usable_cores()),
            "pairs": measured["pairs"],
            "buffer_rows_max": measured["buffer"],
        }
        if measured["punctuated"] < measured["pairs"]:
            row["punctuation_rows_min"] = measured["punctuated"]
        if self.design.access == "scan":
            row["comparisons_per_s"] = sum(nodes) / seconds
            row["comparisons_per_s_of_workers"] = [n / seconds for n in nodes]
            row["spread"] = (max(nodes) - min(nodes)) / max(max(nodes), 1)
        if self.rate:
            row |= {"rate_tuples_per_s": self.rate, **ages(self.histogram)}
        expected = expected_pairs(self)
        right = (measured["pairs"], measured["checksum"]) == expected and measured["too_late"] == 0
        return {**row, "verified": right}


# --- in which order tuples come

RATES = ("constant", "sinusoidal", "peaked")
STREAMS = (1.0, 0.6, 0.3)  # physical streams of a side, and their shares


def turns(tuples: int, rates: str) -> Array:
    """Which of the tuples of both sides are left ones: in turn, or as the streams' rates have it."""
    if not rates:
        return np.arange(2 * tuples) % 2 == 0
    clock, times, sides = np.linspace(0, 1, 10_001), [], []
    shares = np.diff(np.round(np.cumsum([0.0, *STREAMS]) / sum(STREAMS) * tuples)).astype(int)
    for side in (0, 1):
        for k, count in enumerate(shares):
            phase = 0.37 * (2 * k + side)
            wave = 1 + 0.95 * np.sin(2 * np.pi * (5 * clock + phase))
            peaks = np.where((20 * clock + 10 * phase) % 5 < 0.5, 10.0, 0.2)
            rate = {"constant": np.ones_like(clock), "sinusoidal": wave, "peaked": peaks}[rates]
            arrived = np.cumsum(rate)
            times.append(np.interp(np.arange(count) + 0.5, arrived / arrived[-1] * count, clock))
            sides.append(np.full(count, side))
    order = np.argsort(np.concatenate(times), kind="stable")
    return np.concatenate(sides)[order] == 0


_EXPECTED: dict[tuple[Any, ...], tuple[int, int]] = {}


def expected_pairs(run: Run) -> tuple[int, int]:
    """How many pairs there are whose later tuple comes after the windows are full, and the sum over them."""
    inputs = run.inputs
    key = (id(inputs), run.window, run.pairs, run.is_left.tobytes())
    if key not in _EXPECTED:
        count = checksum = 0
        spec = inputs.spec
        left, right = run.stamped()
        warm = int(run.is_left[: run.warm].sum())
        for stored, probing, first in ((right, left, warm), (left, right, run.warm - warm)):
            store = WindowStore(stored.side, spec.predicate, spec.parts, compile_after=0, expected_rows=len(stored))
            store.append(stored)
            probes = probing.take(slice(first, None))
            for p, rows in store.probe(probes):
                lefts, rights = (probes.rows[p], rows) if probing is left else (rows, probes.rows[p])
                count += len(p)
                checksum += int(((lefts * 31 + rights * 17) & 0xFFFFFF).sum())
        _EXPECTED[key] = count, checksum
    return _EXPECTED[key]
