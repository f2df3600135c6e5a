"""`counterflow bench local`: the six algorithms on threads, by a compiled driver, each run with its pairs checked."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterflow.cores import usable_cores
from counterflow.errors import OptionError
from counterflow.lab.bench.benchmark_inputs import Inputs, Kind, make_inputs
from counterflow.lab.bench.host import heading
from counterflow.lab.bench.latency import ages
from counterflow.lab.bench.ordered_inputs import RATES, STREAMS
from counterflow.lab.bench.replay_runs import BareScan, MeasuredJoin
from counterflow.lab.bench.report import Note, Row, median_ages, middle
from counterflow.protocols.registry import NAMES, protocol
from counterflow.windows.vectors import Array

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
class AlgorithmSizes:
    window: int = 1_000_000
    scanned: int = 24_000  # tuples of both streams after the windows are full
    hashed: int = 4_000_000
    banded: int = 1_500_000
    latency_s: float = 0.25
    repeats: int = 5
    timed: int = 15  # runs at a rate
    scan_batch: int = 128
    batches: tuple[int, ...] = (64, 1024)
    skew_window: int = 99_991  # which no number of workers divides
    skewed: int = 100_000
    handshake_window: int = 100_000
    handshake_window_s: float = 1.0


SMOKE = AlgorithmSizes(2_000, 400, 4_000, 4_000, 0.05, 1, 1, 16, (16,), 1_000, 1_000, 1_000, 0.1)


def bench_local(smoke: bool, note: Note) -> dict[str, Any]:
    """Return the report of all measurements; with `smoke` as small as they can be, to see that they work."""
    require_compiler()
    bench = AlgorithmBench(SMOKE if smoke else AlgorithmSizes(), note)
    bench.measure_scans()
    bench.measure_skew()
    bench.measure_indexes()
    bench.measure_handshake_latency()
    ratios = {name: bench.found.get(name) for name in ASKED}
    return {**heading("local", smoke), "remarks": [], "results": bench.rows, "ratios": ratios}


class AlgorithmBench:
    def __init__(self, sizes: AlgorithmSizes, note: Note) -> None:
        self.sizes, self.note = sizes, note
        self.workers = len(usable_cores())
        self.rows: list[Row] = []
        self.found: dict[str, float] = {}

    # --- nested loops

    def measure_scans(self) -> None:
        """Measure each algorithm and the bare scan with as many threads, in turns."""
        sizes = self.sizes
        inputs = make_inputs("band", sizes.window + sizes.scanned, sizes.window)
        kernels = {threads: BareScan(inputs, sizes.window, threads) for threads in (1, self.workers)}
        runs: dict[str, list[Row]] = {name: [] for name in NAMES}
        for turn in range(sizes.repeats):
            for name in NAMES:
                self.note(f"scan, {name}, {turn + 1} of {sizes.repeats}")
                workers = 1 if protocol(name).sequential else self.workers
                rate = kernels[workers].measure()
                run = MeasuredJoin(
                    name, workers, inputs, sizes.window, sizes.scanned // 2, sizes.scan_batch, "scan"
                ).take()
                runs[name].append({**run, "kernel_comparisons_per_s": rate})
        for taken in runs.values():
            row = middle(taken, "comparisons_per_s")
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
        """Measure handshake join with sorted basic blocks (its first report's Figure 9) and the scan, in turns.

        The tuples of both sides that come at once are a basic block of each, as in the paper.
        """
        sizes, taken = self.sizes, []
        for turn in range(sizes.repeats):
            self.note(f"merge, handshake, {turn + 1} of {sizes.repeats}")
            scan, merge = (
                MeasuredJoin(
                    "handshake", self.workers, inputs, sizes.window, sizes.scanned // 2, 2 * sizes.scan_batch, access
                ).take()
                for access in ("scan", "merge")
            )
            merge["ratio_to_scan"] = merge["tuples_per_s"] / scan["tuples_per_s"]
            merge["verified"] &= scan["verified"]
            taken.append(merge)
        row = middle(taken, "ratio_to_scan")
        self.rows.append({"case": "merge", **row, "verified": all(r["verified"] for r in taken)})
        self.found["merge_to_scan_of_handshake"] = row["ratio_to_scan"]

    def measure_skew(self) -> None:
        """Measure how equally busy ScaleJoin's workers are with streams whose rates change (the paper's Figure 8)."""
        sizes, spreads = self.sizes, []
        inputs = make_inputs("band", sizes.skew_window + sizes.skewed, sizes.skew_window)
        for rates in RATES:
            self.note(f"scan, scalejoin, streams with {rates} rates")
            run = MeasuredJoin(
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
            for name in NAMES:
                if protocol(name).found_until_both_leave:
                    continue  # its results come a window later: it has no rate of its own with an index
                workers = 1 if protocol(name).sequential else self.workers
                for batch in self.sizes.batches:
                    self.note(f"{kind} index, {name}, batches of {batch}")
                    taken = []
                    for ordered in [True, False] * self.sizes.repeats:
                        run = MeasuredJoin(
                            name, workers, inputs, self.sizes.window, tuples // 2, batch, "auto", ordered
                        )
                        taken.append(run.take())
                    ordered_rows = [r for r in taken if r["ordered"]]
                    row = {"case": "index", **middle(ordered_rows, "tuples_per_s")}
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
        """Measure results in order at half the rate: medians of short runs, and all runs together."""
        self.note(f"latency, {kind} index, {name}, at {rate / 2 / 1e6:.2g} million tuples/s")
        sizes, taken = self.sizes, []
        tuples = min(int(rate / 2 * sizes.latency_s), 2 * (len(inputs.left[0]) - sizes.window))
        for _ in range(sizes.timed):
            run = MeasuredJoin(name, self.workers, inputs, sizes.window, tuples // 2, batch, "auto", rate=rate / 2)
            taken.append((run.take(), run.histogram))
        self.rows.append({"case": "latency", **latency_row(taken)})

    def measure_handshake_latency(self) -> None:
        """Measure when tuples meet: half a window later at the most, with equal windows and rates."""
        window = self.sizes.handshake_window
        rate = 2 * window / self.sizes.handshake_window_s
        inputs = make_inputs("band", 3 * window, window)
        self.note(f"latency, handshake, windows of {self.sizes.handshake_window_s:g} s")
        row = MeasuredJoin("handshake", self.workers, inputs, window, 2 * window, 64, "auto", False, rate).take()
        row["window_s"] = self.sizes.handshake_window_s
        self.rows.append({"case": "latency", **row})
        self.found["handshake_latency_p99_to_window"] = row["latency_us_p99"] / 1e6 / row["window_s"]


def latency_row(taken: list[tuple[Row, Array]]) -> Row:
    """Return, for runs at a rate, the medians of their figures, and the figures of all their results together."""
    of_all = ages(np.sum([histogram for _, histogram in taken], 0))
    return median_ages([row for row, _ in taken]) | {f"{name}_of_all": age for name, age in of_all.items()}


def require_compiler() -> None:
    if os.environ.get("COUNTERFLOW_COMPILE") == "never":
        raise OptionError("COUNTERFLOW_COMPILE=never: the algorithms run compiled only")
