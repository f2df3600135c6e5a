"""How old results are, from the collector's counts."""

from __future__ import annotations

import numpy as np

from counterflow.lab.bench.report import Row
from counterflow.lab.replay.watching import BINS_PER_DOUBLING
from counterflow.windows.vectors import Array

FIGURES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def ages(histogram: Array) -> Row:
    """Return the quantiles of results' ages; none where there was no result."""
    if not histogram.any():
        return {}
    return {f"latency_us_{name}": quantile(histogram, share) / 1000 for name, share in FIGURES.items()}


def quantile(histogram: Array, share: float) -> float:
    """Return the upper end of the quantile's bin, in nanoseconds."""
    total = int(histogram.sum())
    if total == 0:
        return 0.0
    at = int(np.searchsorted(np.cumsum(histogram), max(share * total, 1)))
    bins = BINS_PER_DOUBLING
    return float(at if at < 2 * bins else (bins + at % bins + 1) << (at // bins - 1))
