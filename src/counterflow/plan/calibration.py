"""What one machine does: measured once by the laboratory, kept in the user's cache, interpolated here."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import log
from pathlib import Path

from counterflow.folders import cache_directory
from counterflow.plan.computer import Computer

VERSION = 3  # of the file, and of how it is measured


@dataclass(frozen=True)
class Point:
    """What one core and what all cores do in a second, with windows of `rows` rows."""

    rows: int
    one_core: float
    all_cores: float


@dataclass(frozen=True)
class Calibration:
    """What was measured of one machine, and the rates that follow from it."""

    machine: str
    cores: int
    scan: tuple[Point, ...]  # comparisons a second
    index: tuple[Point, ...]  # tuples a second of the benchmark join, looked up in an index
    tuple_s: float  # what a tuple takes beside its comparisons, with all cores
    date: str = ""

    def comparisons_per_s(self, rows: float, workers: int) -> float:
        """Return the comparisons of all workers. Cores beyond those that were measured add as much as one of them."""
        one, every = _between(self.scan, rows)
        return _with_workers(one, every, workers, self.cores) * max(workers / self.cores, 1.0)

    def lookups_per_s(self, rows: float, workers: int) -> float:
        """Return the tuples that all workers look up in an index.

        Workers beyond the cores that were measured add nothing: every one of them looks up every tuple.
        """
        one, every = _between(self.index, rows)
        return _with_workers(one, every, workers, self.cores)

    def scanned_per_s(self, rows: float, workers: int) -> float:
        """Return the highest rate of a nested loop: tuples of both streams, each compared with `rows` rows."""
        return 1 / (rows / self.comparisons_per_s(rows, workers) + self.tuple_s)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"version": VERSION, **asdict(self)}, indent=1))


# For a machine that was not measured: what `counterflow bench local` published for two cores of an AMD EPYC (README,
# "How fast"), one point each; a tuple's own cost is that of the equi-join with an index.
PUBLISHED = Calibration(
    machine="an AMD EPYC (published rates)",
    cores=2,
    scan=(Point(1_000_000, 10.0e9, 20.4e9),),
    index=(Point(1_000_000, 3.4e6, 4.3e6),),
    tuple_s=1e-7,  # an estimate from the rate of the equality with an index; it was not measured by itself
    date="2026-11",
)


def read_calibration(path: Path) -> Calibration | None:
    """Return the calibration in this file; None if there is none, or one of another version."""
    try:
        found = json.loads(path.read_text())
        if found.pop("version") != VERSION:
            return None
        scan, index = (tuple(Point(**point) for point in found.pop(name)) for name in ("scan", "index"))
        return Calibration(scan=scan, index=index, **found)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def kept_calibration(machine: Computer) -> Calibration | None:
    """Return the calibration that was kept for this machine, or None."""
    path = calibration_path(machine.cpu, machine.cores)
    return None if path is None else read_calibration(path)


def keep_calibration(calibration: Calibration) -> None:
    """Keep the calibration for the next plan, if it can be written."""
    path = calibration_path(calibration.machine, calibration.cores)
    if path is not None:
        with suppress(OSError):
            calibration.write(path)


def calibration_path(machine: str, cores: int) -> Path | None:
    """Return where a machine's calibration is kept; None if there is no folder for it."""
    folder = cache_directory()
    digest = hashlib.sha256(f"{machine}, {cores}".encode()).hexdigest()[:12]
    return None if folder is None else folder / f"calibration-{digest}.json"


def _between(points: tuple[Point, ...], rows: float) -> tuple[float, float]:
    """Return the rates at a window, interpolated over its logarithm; beyond what was measured they stay."""
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
