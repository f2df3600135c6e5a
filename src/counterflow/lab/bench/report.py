"""How benchmarks measure and what they hand back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from counterflow.windows.compiled import build

Row = dict[str, Any]
Note = Callable[[str], None]


@dataclass(frozen=True)
class KernelSizes:
    windows: tuple[int, ...] = (10_000, 100_000, 1_000_000, 5_000_000)
    batches: tuple[int, ...] = (1, 64, 1024, 8192)
    store_batches: tuple[int, ...] = (1024, 8192)
    threads: tuple[int, ...] = (1, 2)
    limit_batch: int = 1024
    repeats: int = 5
    seconds: float = 0.1  # of one repeat, at least
    long: float = 1.0  # a repeat that takes longer is made 3 times
    hash_rows: int = 1_000_000  # of one repeat
    band_rows: int = 300_000
    checked: int = 1024  # rows whose pairs are all checked, at least
    finite_rows: int = 500_000
    finite_window: int = 100_000
    many_probes: int = 100_000_000
    many_window: int = 100_000
    hot_window: int = 20_000
    all_window: int = 5_000
    few_batch: int = 256  # where a probe matches thousands of rows
    cost_windows: tuple[int, int] = (100_000, 5_000_000)


SMOKE = KernelSizes(
    windows=(1_000, 4_096),
    batches=(1, 64, 256),
    store_batches=(64, 256),
    limit_batch=256,
    repeats=3,
    seconds=0.002,
    hash_rows=2_000,
    band_rows=2_000,
    checked=256,
    finite_rows=2_000,
    finite_window=500,
    many_probes=40_000,
    many_window=1_000,
    hot_window=600,
    all_window=300,
    few_batch=32,
    cost_windows=(1_000, 4_096),
)


@dataclass
class Report:
    """Rows as they are found; `note` tells a person what is going on."""

    sizes: KernelSizes
    note: Note
    rows: list[Row] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    compile_seconds: dict[str, float] = field(default_factory=dict)

    def add(self, row: Row) -> Row:
        self.rows.append(row)
        return row

    @contextmanager
    def compiling(self, name: str) -> Iterator[None]:
        """Count what is compiled meanwhile, or loaded, as `name`'s; a process does it once."""
        before = build.TIMES.seconds
        yield
        spent = build.TIMES.seconds - before
        self.compile_seconds[name] = self.compile_seconds.get(name, 0.0) + spent

    def compile_s(self, name: str) -> float:
        return round(self.compile_seconds.get(name, 0.0), 3)


@dataclass
class Measurement:
    """Something that is repeated. `run` does it once and returns (amount done, wall-clock s, CPU s)."""

    row: Row
    rate: str
    run: Callable[[], tuple[float, float, float]]
    repeats: int
    rates: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)

    def take(self) -> None:
        done, wall, cpu = self.run()
        self.rates.append(done / wall)
        self.cores.append(cpu / wall)

    def finish(self) -> Row:
        self.row[self.rate] = statistics.median(self.rates)
        self.row["repeats"] = len(self.rates)
        self.row["cores_used"] = round(statistics.median(self.cores), 2)  # less than `threads`: other work disturbed
        return self.row


def interleave(measurements: list[Measurement]) -> None:
    """Take turns, so that what disturbs one of them for a while does not disturb all its repeats."""
    for turn in range(max(m.repeats for m in measurements)):
        for measurement in measurements:
            if turn < measurement.repeats:
                measurement.take()
    for measurement in measurements:
        measurement.finish()


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Do the work, and return its wall-clock seconds and the CPU seconds of all threads."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def middle(rows: list[Row], figure: str) -> Row:
    """Return the row with the median figure; verified if all are."""
    row = sorted(rows, key=lambda row: row[figure])[len(rows) // 2]
    return {**row, "repeats": len(rows), "verified": all(row["verified"] for row in rows)}


def median_ages(rows: list[Row]) -> Row:
    """Return the medians of results' ages over runs at a rate; a run may have no results."""
    aged = [row for row in rows if "latency_us_p99" in row]
    row = middle(rows, "seconds")
    row |= {f: statistics.median(r[f] for r in aged) for f in aged[0] if f.startswith("latency_us")} if aged else {}
    return {**row, "stolen": statistics.fmean(row["stolen"] for row in rows)}
