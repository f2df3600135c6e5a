"""What one machine does: measured once (`bench.planned`), kept in the user's cache, interpolated here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import log
from pathlib import Path

from counterflow.folders import cache_directory

VERSION = 3  # of the file, and of how it is measured


@dataclass(frozen=True)
class Point:
    """With windows of so many rows: what one core does a second, and what all cores do."""

    rows: int
    one_core: float
    all_cores: float


@dataclass(frozen=True)
class Calibration:
    machine: str
    cores: int
    scan: tuple[Point, ...]  # comparisons a second
    index: tuple[Point, ...]  # tuples a second of the benchmark join, looked up in an index
    tuple_s: float  # what a tuple takes beside its comparisons, with all cores
    date: str = ""

    def comparisons_per_s(self, rows: float, workers: int) -> float:
        """More cores than were measured are taken to scale as nested loops do: evenly."""
        one, every = _between(self.scan, rows)
        return _with_workers(one, every, workers, self.cores) * max(workers / self.cores, 1.0)

    def lookups_per_s(self, rows: float, workers: int) -> float:
        """More workers than were measured are not taken to help: with an index every one of them looks tuples up."""
        one, every = _between(self.index, rows)
        return _with_workers(one, every, workers, self.cores)

    def scanned_per_s(self, rows: float, workers: int) -> float:
        """Tuples of both streams, each compared with so many rows: the highest rate of a nested loop."""
        return 1 / (rows / self.comparisons_per_s(rows, workers) + self.tuple_s)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"version": VERSION, **asdict(self)}, indent=1))


def read_calibration(path: Path) -> Calibration | None:
    """None if there is none, or one of another version."""
    try:
        found = json.loads(path.read_text())
        if found.pop("version") != VERSION:
            return None
        scan, index = (tuple(Point(**point) for point in found.pop(name)) for name in ("scan", "index"))
        return Calibration(scan=scan, index=index, **found)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def calibration_path(machine: str, cores: int) -> Path | None:
    """Return where a machine's calibration is kept; None if there is no folder for it."""
    folder = cache_directory()
    digest = hashlib.sha256(f"{machine}, {cores}".encode()).hexdigest()[:12]
    return None if folder is None else folder / f"calibration-{digest}.json"


def _between(points: tuple[Point, ...], rows: float) -> tuple[float, float]:
    """Rates are interpolated over the logarithm of the window; beyond what was measured they stay."""
    rows = min(max(rows, points[0].rows), points[-1].rows)
    for low, high in pairwise(points):
        if rows <= high.rows:
            share = log(rows / low.rows) / log(high.rows / low.rows)
            one = low.one_core ** (1 - share) * high.one_core**share
            return one, low.all_cores ** (1 - share) * high.all_cores**share
    return points[0].one_core, points[0].all_cores


def _with_workers(one: float, every: float, workers: int, cores: int) -> float:
    if cores == 1 or workers >= cores:
        return every
    return one + (every - one) * (workers - 1) / (cores - 1)
