"""`counterflow plan`: what this machine does, measured in seconds; and predictions beside what the local engine does.

Predictions come from joins with other windows than those that they are compared on.
"""

from __future__ import annotations

import statistics
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from counterflow.cores import usable_cores
from counterflow.lab.bench.benchmark_inputs import Inputs, make_inputs
from counterflow.lab.bench.host import machine
from counterflow.lab.bench.replay_runs import Run
from counterflow.lab.bench.report import Note, Row
from counterflow.plan.calibration import Calibration, Point, calibration_path, read_calibration

ALGORITHM = "dpjoin"  # the model is DP-Join's


@dataclass(frozen=True)
class Sizes:
    scan: tuple[int, ...] = (1 << 15, 1 << 18, 1 << 21)  # windows, in rows
    index: tuple[int, ...] = (1 << 15, 1 << 18, 1 << 20)
    comparisons: int = 1 << 30  # of one run
    looked_up: int = 100_000  # tuples of a side
    tiny: int = 64  # a window that costs nothing
    handled: int = 100_000
    repeats: int = 5
    verified: tuple[int, ...] = (50_000, 200_000, 1_000_000)
    compared: int = 1 << 31
    scan_batch: int = 128
    index_batch: int = 1024


SMOKE = Sizes((1 << 9, 1 << 11), (1 << 9, 1 << 11), 1 << 16, 500, 16, 500, 1, (600, 900, 1_500), 1 << 18, 16, 64)


def calibrated(afresh: bool, note: Note, sizes: Sizes | None = None) -> Calibration:
    """This machine's, from the cache unless `afresh`."""
    cpu, cores = str(machine()["cpu"]), len(usable_cores())
    path = calibration_path(cpu, cores)
    found = None if afresh or path is None else read_calibration(path)
    if found is None:
        found = measure(cpu, cores, sizes or Sizes(), note)
        if sizes is None and path is not None:
            with suppress(OSError):  # it is measured again
                found.write(path)
    return found


def measure(cpu: str, cores: int, sizes: Sizes, note: Note) -> Calibration:
    """The best of a few of each: other work on the machine only takes away."""
    note("tuples with next to no window")
    inputs = make_inputs("band", sizes.tiny + sizes.handled, sizes.tiny)
    tuple_s = 1 / _best(inputs, cores, sizes.tiny, sizes.handled, sizes.scan_batch, "scan", sizes.repeats)
    scan, index = [], []
    for rows in sizes.scan:
        note(f"scan, window of {rows:,} rows")
        pairs = _pairs(sizes.comparisons, rows, sizes)
        inputs = make_inputs("band", rows + pairs, rows)
        rates = [_best(inputs, workers, rows, pairs, sizes.scan_batch, "scan", sizes.repeats)
                 for workers in sorted({1, cores})]  # fmt: skip
        # Not the bare scan's rate: that is of thousands of probes at once, and a join's batch has a hundred.
        one, every = (rows / max(1 / rate - tuple_s, 0.1 / rate) for rate in (rates[0], rates[-1]))
        scan.append(Point(rows, one, every))
    for rows in sizes.index:
        note(f"index, window of {rows:,} rows")
        inputs = make_inputs("band", rows + sizes.looked_up, rows)
        rates = [_best(inputs, workers, rows, sizes.looked_up, sizes.index_batch, "auto", sizes.repeats)
                 for workers in sorted({1, cores})]  # fmt: skip
        index.append(Point(rows, rates[0], rates[-1]))
    return Calibration(cpu, cores, tuple(scan), tuple(index), tuple_s, datetime.now(UTC).isoformat(timespec="seconds"))


def _pairs(comparisons: int, rows: int, sizes: Sizes) -> int:
    """Tuples of a side that make so many comparisons, and a few batches at least."""
    return max(comparisons // rows // 2, 4 * sizes.scan_batch)


def _best(
    inputs: Inputs, workers: int, rows: int, pairs: int, batch: int, access: str, repeats: int
) -> float:  # fmt: skip
    """Tuples a second of the local engine's join."""
    best = 0.0
    for _ in range(repeats):
        run = Run(ALGORITHM, workers, inputs, rows, pairs, batch, access).take()
        assert run["verified"], run
        best = max(best, run["tuples_per_s"])
    return best


def verify(note: Note, sizes: Sizes | None = None) -> list[Row]:
    """For three windows, with a nested loop and with an index: predicted and measured tuples a second, medians.

    In turns: a calibration from the windows below and above, then the join. A shared machine may be half as fast a
    minute later, which no plan foresees; so each turn's prediction is compared with that turn's join.
    """
    sizes, cores, cpu = sizes or Sizes(), len(usable_cores()), str(machine()["cpu"])
    rows: list[Row] = []
    for window in sizes.verified:
        pairs = _pairs(sizes.compared, window, sizes)
        inputs = make_inputs("band", window + max(pairs, sizes.looked_up), window)
        once = replace(sizes, scan=_around(sizes.scan, window), index=_around(sizes.index, window), repeats=1)
        taken: dict[str, list[tuple[float, float]]] = {"scan": [], "index": []}
        for turn in range(sizes.repeats):
            note(f"window of {window:,} rows, {turn + 1} of {sizes.repeats}")
            found = measure(cpu, cores, once, lambda _: None)
            measured = _best(inputs, cores, window, pairs, sizes.scan_batch, "scan", 1)
            taken["scan"].append((found.scanned_per_s(window, cores), measured))
            measured = _best(inputs, cores, window, sizes.looked_up, sizes.index_batch, "auto", 1)
            taken["index"].append((found.lookups_per_s(window, cores), measured))
        rows += [{"access": name, "window_rows": window, "workers": cores, **_summary(t)} for name, t in taken.items()]
    return sorted(rows, key=lambda row: str(row["access"]), reverse=True)


def _around(windows: tuple[int, ...], window: int) -> tuple[int, int]:
    return max(w for w in windows if w <= window), min(w for w in windows if w > window)


def _summary(turns: list[tuple[float, float]]) -> Row:
    ratios = [predicted / measured for predicted, measured in turns]
    return {
        "predicted_tuples_per_s": statistics.median(p for p, _ in turns),
        "measured_tuples_per_s": statistics.median(m for _, m in turns),
        "ratio": statistics.median(ratios),
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
    }
