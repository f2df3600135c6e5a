"""What `counterflow plan` has to know of a machine, measured in half a minute with the local engine's own join."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from counterflow.lab.bench.benchmark_inputs import Inputs, make_inputs
from counterflow.lab.bench.replay_runs import MeasuredJoin
from counterflow.lab.bench.report import Note
from counterflow.plan.calibration import Calibration, Point
from counterflow.plan.computer import Computer

ALGORITHM = "dpjoin"  # the model is DP-Join's


@dataclass(frozen=True)
class CalibrationSizes:
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


SMOKE = CalibrationSizes(
    (1 << 9, 1 << 11), (1 << 9, 1 << 11), 1 << 16, 500, 16, 500, 1, (600, 900, 1_500), 1 << 18, 16, 64
)


def calibrate(machine: Computer, sizes: CalibrationSizes, note: Note) -> Calibration:
    """Return the best of a few runs for each window: other work on the machine only takes away."""
    cores = machine.cores
    note("tuples with next to no window")
    inputs = make_inputs("band", sizes.tiny + sizes.handled, sizes.tiny)
    tuple_s = 1 / best_rate(inputs, cores, sizes.tiny, sizes.handled, sizes.scan_batch, "scan", sizes.repeats)
    scan, index = [], []
    for rows in sizes.scan:
        note(f"scan, window of {rows:,} rows")
        pairs = pairs_for(sizes.comparisons, rows, sizes)
        inputs = make_inputs("band", rows + pairs, rows)
        rates = [best_rate(inputs, workers, rows, pairs, sizes.scan_batch, "scan", sizes.repeats)
                 for workers in sorted({1, cores})]  # fmt: skip
        # Not the bare scan's rate: that is of thousands of probes at once, and a join's batch has a hundred.
        one, every = (rows / max(1 / rate - tuple_s, 0.1 / rate) for rate in (rates[0], rates[-1]))
        scan.append(Point(rows, one, every))
    for rows in sizes.index:
        note(f"index, window of {rows:,} rows")
        inputs = make_inputs("band", rows + sizes.looked_up, rows)
        rates = [best_rate(inputs, workers, rows, sizes.looked_up, sizes.index_batch, "auto", sizes.repeats)
                 for workers in sorted({1, cores})]  # fmt: skip
        index.append(Point(rows, rates[0], rates[-1]))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Calibration(machine.cpu, cores, tuple(scan), tuple(index), tuple_s, date)


def pairs_for(comparisons: int, rows: int, sizes: CalibrationSizes) -> int:
    """Return how many tuples of each side make this many comparisons, but at least a few batches."""
    return max(comparisons // rows // 2, 4 * sizes.scan_batch)


def best_rate(inputs: Inputs, workers: int, rows: int, pairs: int, batch: int, access: str, repeats: int) -> float:
    """Return the tuples a second of the local engine's join in its fastest run."""
    best = 0.0
    for _ in range(repeats):
        run = MeasuredJoin(ALGORITHM, workers, inputs, rows, pairs, batch, access).take()
        assert run["verified"], run
        best = max(best, run["tuples_per_s"])
    return best
