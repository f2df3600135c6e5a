"""How old results are: in quiet moments, in which a virtual machine's host has taken no core away, and in all."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np

from counterflow.bench.machine import stolen_s
from counterflow.bench.report import Row
from counterflow.kernels.vectors import Array
from counterflow.protocols.watching import BINS_PER_DOUBLING, SLICE_NS

SAMPLED_S = 0.02
SETTLED_NS = 100_000_000  # what has queued while a core was away is caught up with by then
COUNTED_NS = 20_000_000  # the system counts what was taken at its next tick
FIGURES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class StolenTime:
    """Looks, while a run lasts, how much time the host has taken from the cores."""

    def __enter__(self) -> StolenTime:
        self.samples: list[tuple[int, float]] = []
        self._look()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()
        self._look()

    def _watch(self) -> None:
        while not self.ended.wait(SAMPLED_S):
            self._look()

    def _look(self) -> None:
        self.samples.append((time.monotonic_ns(), stolen_s()))

    @property
    def seconds(self) -> float:
        """Of all cores, in all."""
        return self.samples[-1][1] - self.samples[0][1]

    def between(self, begin_ns: int, end_ns: int) -> float:
        """Seconds, of all cores; from the last look before it to the first one after it."""
        times = [at for at, _ in self.samples]
        first = max(bisect_right(times, begin_ns) - 1, 0)
        last = min(bisect_left(times, end_ns), len(times) - 1)
        return self.samples[last][1] - self.samples[first][1]


def ages(run: dict[str, Any], stolen: StolenTime) -> Row:
    """Of the results whose later tuples were due in a quiet moment, if there was one; p99 and maximum also of all."""
    begins = (run["began"] + SLICE_NS * k for k in range(len(run["histogram"])))
    quiet = [stolen.between(begin - SETTLED_NS, begin + SLICE_NS + COUNTED_NS) == 0 for begin in begins]
    whole, counted = run["histogram"].sum(0), run["histogram"][quiet].sum(0)
    counted = counted if counted.any() else whole
    row = {f"latency_us_{name}": quantile(counted, share) / 1000 for name, share in FIGURES.items()}
    row |= {f"latency_us_{name}_of_all": quantile(whole, FIGURES[name]) / 1000 for name in ("p99", "max")}
    return {**row, "quiet": sum(quiet) / len(quiet)}


def quantile(histogram: Array, share: float) -> float:
    """Nanoseconds; the upper end of the bin."""
    total = int(histogram.sum())
    if total == 0:
        return 0.0
    at = int(np.searchsorted(np.cumsum(histogram), max(share * total, 1)))
    bins = BINS_PER_DOUBLING
    return float(at if at < 2 * bins else (bins + at % bins + 1) << (at // bins - 1))
