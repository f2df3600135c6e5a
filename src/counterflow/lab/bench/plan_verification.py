"""What `counterflow plan` predicts, beside what the local engine does.

Predictions come from joins with other windows than those that they are compared on.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from counterflow.lab.bench.benchmark_inputs import make_inputs
from counterflow.lab.bench.plan_calibration import CalibrationSizes, best_rate, calibrate, pairs_for
from counterflow.lab.bench.report import Note, Row
from counterflow.plan.computer import Computer


def verify(machine: Computer, sizes: CalibrationSizes, note: Note) -> list[Row]:
    """Return predicted and measured tuples a second, medians, for three windows, as a nested loop and with an index.

    Each turn calibrates with the windows below and above, then joins. A shared machine may be half as fast a minute
    later, which no plan foresees; so a turn's prediction is compared with the same turn's join.
    """
    cores = machine.cores
    rows: list[Row] = []
    for window in sizes.verified:
        pairs = pairs_for(sizes.compared, window, sizes)
        inputs = make_inputs("band", window + max(pairs, sizes.looked_up), window)
        once = replace(sizes, scan=_around(sizes.scan, window), index=_around(sizes.index, window), repeats=1)
        taken: dict[str, list[tuple[float, float]]] = {"scan": [], "index": []}
        for turn in range(sizes.repeats):
            note(f"window of {window:,} rows, {turn + 1} of {sizes.repeats}")
            found = calibrate(machine, once, lambda _: None)
            measured = best_rate(inputs, cores, window, pairs, sizes.scan_batch, "scan", 1)
            taken["scan"].append((found.scanned_per_s(window, cores), measured))
            measured = best_rate(inputs, cores, window, sizes.looked_up, sizes.index_batch, "auto", 1)
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
