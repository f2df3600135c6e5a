"""What could make an index collapse: a hot key, a band that matches everything, tiny windows, long runs, size."""

from __future__ import annotations

import statistics

import numpy as np

from counterflow.lab.bench.benchmark_inputs import (
    DOMAIN,
    PROBING,
    STORED,
    Inputs,
    Kind,
    band_inputs,
    checksum,
    hash_inputs,
    same_pairs,
)
from counterflow.lab.bench.host import resident_bytes
from counterflow.lab.bench.indexes import CHECKSUM, TOTAL, StorePosition, StreamIndex
from counterflow.lab.bench.report import Report, Row, timed
from counterflow.lab.bench.scans import filled_store, pairs_of
from counterflow.windows.store import WindowStore
from counterflow.windows.vectors import Array

MANY_BATCH = 1024
STRETCH_MAX = 1 << 22


def measure_robust(report: Report) -> None:
    sizes = report.sizes
    report.note("robust: hot key, all-matching band, one row, empty batches")
    _skewed(report, "hot_key", hot_inputs(sizes.hot_window + 20 * sizes.few_batch), sizes.hot_window)
    _skewed(report, "all_matching_band", all_matching(sizes.all_window + 20 * sizes.few_batch), sizes.all_window)
    _one_row(report)
    _empty_batches(report)
    report.note(f"robust: {sizes.many_probes:,} probes")
    _many_probes(report)
    kinds: tuple[Kind, ...] = ("hash", "band")
    for kind in kinds:
        report.note(f"robust: cost of a probe by window, {kind}")
        _probe_cost(report, kind)


def hot_inputs(rows: int) -> Inputs:
    """Return inputs in which half of all rows have one key."""
    found = hash_inputs(rows, rows)
    rng = np.random.default_rng(5)
    left, right = (np.where(rng.random(rows) < 0.5, 7, side[0]) for side in (found.left, found.right))
    return Inputs("hash", (left,), (right,))


def all_matching(rows: int) -> Inputs:
    """Return values within a few units of each other, so that every pair is in the band."""
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
    """Measure probes that each see the one row before them; half of the keys are equal."""
    rows = 4 * report.sizes.checked
    inputs = hash_inputs(rows, 2)
    position = StorePosition(filled_store(inputs, 1), inputs, 1)
    position.step(1, 2)  # compiles
    found: list[tuple[Array, Array]] = []
    wall, _ = timed(lambda: found.extend(position.step(i, i + 1) for i in range(2, rows)))
    pairs = np.concatenate([p for p, _ in found]), np.concatenate([r for _, r in found])
    expected = np.flatnonzero(inputs.right[0][2:] == inputs.left[0][1:-1]) + 2
    report.add(
        {
            **_row("one_row", "store", 1, 1),
            "tuples_per_s": (rows - 2) / wall,
            "matches_per_probe": len(expected) / (rows - 2),
            "bytes_per_row": position.store.nbytes / len(position.store),
            "verified": same_pairs(pairs, (expected, expected - 1)),
        }
    )


def _empty_batches(report: Report) -> None:
    """Check that batches without rows, before, between and after others, change nothing and find nothing."""
    batch, window = report.sizes.few_batch, report.sizes.all_window
    inputs = band_inputs(window + 10 * batch, domain=1000)
    store = filled_store(inputs, 0)
    quiet = _nothing(store, inputs, 0)
    for begin in range(0, window, batch):
        store.append(inputs.batch(STORED, begin, min(begin + batch, window)))
        quiet &= _nothing(store, inputs, 0)
    position, rates = StorePosition(store, inputs, window), []
    for _ in range(8):
        wall, _ = timed(lambda: position.run(batch, batch))
        rates.append(batch / wall)
        quiet &= _nothing(store, inputs, position.at - window)
    report.add(
        {
            **_row("empty_batches", "store", window, batch),
            "tuples_per_s": statistics.median(rates),
            "matches_per_probe": position.found / position.probed,
            "bytes_per_row": store.nbytes / len(store),
            "verified": quiet and position.verify(batch),
        }
    )


def _nothing(store: WindowStore, inputs: Inputs, horizon: int) -> bool:
    store.expire(horizon)
    before = len(store)
    store.append(inputs.batch(STORED, 0, 0))
    store.expire(horizon)
    return len(pairs_of(store, inputs.batch(PROBING, 0, 0))[0]) == 0 and len(store) == before


def _many_probes(report: Report) -> None:
    """Measure one stretch of a stream over and over, as one long stream: after its end comes its beginning.

    Before each round the row numbers in the index are set back by the stretch, a multiple of the ring's size.
    """
    sizes = report.sizes
    window = sizes.many_window
    ring = 1 << (window + MANY_BATCH - 1).bit_length()
    stretch = ring * max(min(STRETCH_MAX, sizes.many_probes // 4) // ring, 1)
    period = hash_inputs(stretch, window)
    left, right = (np.concatenate([keys[-window:], keys]) for (keys,) in (period.left, period.right))
    inputs = Inputs("hash", (left,), (right,))
    with report.compiling("hash stream"):
        index = StreamIndex(inputs, window, MANY_BATCH)
    assert index.records.size == ring
    index.fill()
    expected = _all_pairs(inputs, window)
    correct, rates, resident = True, [], [0]
    while index.probed < sizes.many_probes:
        wall, _ = timed(lambda: index.run(stretch, MANY_BATCH))
        rates.append(stretch / wall)
        correct &= (int(index.status[TOTAL]), int(index.status[CHECKSUM])) == expected
        index.heads -= stretch
        index.at -= stretch
        resident.append(resident_bytes())
    report.add(
        {
            **_row("many_probes", "stream", window, MANY_BATCH),
            "tuples_per_s": statistics.median(rates),
            "probes": index.probed,
            "matches_per_probe": index.found / index.probed,
            "bytes_per_row": index.bytes_per_row,
            "resident_before_bytes": resident[1],  # after the first stretch
            "resident_after_bytes": resident[-1],
            "resident_growth_bytes": resident[-1] - resident[1],
            "verified": correct,
        }
    )


def _all_pairs(inputs: Inputs, window: int) -> tuple[int, int]:
    """Return number and checksum of all probes' pairs, each with the last `window` rows before it, once it is full."""
    keys, n = inputs.left[0], len(inputs.left[0])
    ordered = np.sort(keys * n + np.arange(n))
    at = np.arange(window, n)
    first = inputs.right[0][window:] * n + at
    begin, end = np.searchsorted(ordered, first - window), np.searchsorted(ordered, first)
    counts = end - begin
    places = np.arange(counts.sum()) + np.repeat(begin - (np.cumsum(counts) - counts), counts)
    return len(places), checksum(np.repeat(at, counts), ordered[places] % n)


def _probe_cost(report: Report, kind: Kind) -> None:
    """Measure probes of a small and of a large window, both full and with as many matches."""
    sizes, indexes = report.sizes, []
    probes = sizes.hash_rows if kind == "hash" else sizes.band_rows
    for window in sizes.cost_windows:
        rows = max(window, probes)
        domain = DOMAIN * (window / sizes.cost_windows[0]) ** 0.5
        inputs = hash_inputs(rows, window) if kind == "hash" else band_inputs(rows, domain=domain)
        with report.compiling(f"{kind} stream"):
            indexes.append(StreamIndex(inputs, window, MANY_BATCH))
        indexes[-1].fill()
    taken: list[list[float]] = [[], []]
    found = [0, 0]
    for _ in range(sizes.repeats):
        for i, index in enumerate(indexes):
            wall, _ = timed(lambda index=index, i=i: found.__setitem__(i, index.probe(0, probes)))  # type: ignore[misc]
            taken[i].append(wall / probes * 1e9)
    small, large = (statistics.median(t) for t in taken)
    report.add(
        {
            **_row(f"probe_cost_{kind}", "index", sizes.cost_windows[1], probes),
            "small_window_rows": sizes.cost_windows[0],
            "probe_ns": large,
            "small_window_probe_ns": small,
            "probe_cost_ratio": large / small,
            "matches_per_probe": found[1] / probes,
            "small_window_matches_per_probe": found[0] / probes,
            "bytes_per_row": indexes[1].bytes_per_row,
            "verified": all(index.verify_probes(sizes.checked) for index in indexes),
        }
    )


def _row(case: str, through: str, window: int, batch: int) -> Row:
    return dict(path="robust", case=case, through=through, window_rows=window, batch_rows=batch, threads=1)
