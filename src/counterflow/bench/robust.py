"""What could make an index collapse: a hot key, a band that matches everything, tiny windows, long runs, size."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from counterflow.bench.indexes import TOTAL, CHECKSUM, StorePosition, StreamIndex, checksum
from counterflow.bench.inputs import DOMAIN, PROBING, STORED, Inputs, band_inputs, hash_inputs
from counterflow.bench.machine import resident_bytes
from counterflow.bench.report import Report, Row, timed
from counterflow.bench.scans import filled_store, pairs_of
from counterflow.kernels.compiled.window import STATUS

MANY_BATCH = 1024
COST_MATCHES_AREA = (2 * 10 + 1) * 2 * 10  # of a band's rectangle: rows in it / area = rows / area of the domain


def measure_robust(report: Report) -> None:
    sizes = report.sizes
    report.note("robust: hot key, all-matching band, one row, empty batches")
    _skewed(report, "hot_key", hot_inputs(sizes.hot_window + 20 * sizes.few_batch), sizes.hot_window)
    _skewed(report, "all_matching_band", all_matching(sizes.all_window + 20 * sizes.few_batch), sizes.all_window)
    _one_row(report)
    _empty_batches(report)
    report.note(f"robust: {sizes.many_probes:,} probes")
    _many_probes(report)
    for kind in ("hash", "band"):
        report.note(f"robust: cost of a probe by window, {kind}")
        _probe_cost(report, kind)


def hot_inputs(rows: int) -> Inputs:
    """Half of all rows have one key."""
    found = hash_inputs(rows, rows)
    rng = np.random.default_rng(5)
    hot = tuple((np.where(rng.random(rows) < 0.5, 7, side[0]),) for side in (found.left, found.right))
    return Inputs("hash", *hot)


def all_matching(rows: int) -> Inputs:
    """All values within a few units: every pair is in the band."""
    return band_inputs(rows, domain=9)


def _skewed(report: Report, case: str, inputs: Inputs, window: int) -> None:
    batch = report.sizes.few_batch
    position = StorePosition(filled_store(inputs, window), inputs, window)
    position.run(batch, batch)  # compiles
    rates = []
    for _ in range(report.sizes.repeats):
        before = position.found
        wall, _ = timed(lambda: position.run(2 * batch, batch))
        rates.append((2 * batch / wall, (position.found - before) / wall))
    report.add(
        {
            **_row(case, "store", window, batch),
            "tuples_per_s": statistics.median(r[0] for r in rates),
            "pairs_per_s": statistics.median(r[1] for r in rates),
            "matches_per_probe": position.found / position.probed,
            "bytes_per_row": position.store.nbytes / len(position.store),
            "verified": position.verify(batch),
        }
    )


def _one_row(report: Report) -> None:
    """Each probe sees the one row before it; half of the keys are equal."""
    rows = 4 * report.sizes.checked
    inputs = hash_inputs(rows, 2)
    position = StorePosition(filled_store(inputs, 1), inputs, 1)
    found = [position.step(i, i + 1) for i in range(1, rows)]
    wall, _ = timed(lambda: [position.step(i, i + 1) for i in range(1, 1)])
    expected = np.flatnonzero(inputs.right[0][1:] == inputs.left[0][:-1]) + 1
    pairs = np.concatenate([p for p, _ in found]), np.concatenate([r for _, r in found])
    right = np.array_equal(pairs[0], expected) and np.array_equal(pairs[1], expected - 1)
    report.add({**_row("one_row", "store", 1, 1), "matches_per_probe": len(expected) / (rows - 1), "verified": right})
