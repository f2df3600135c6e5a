"""What a join costs, as formulas: DP-Join's Expressions 2 to 7 (Section IV), for unequal windows as well.

X of the paper is the left stream, whose window is dealt out to the m rows of a layout m x n; Y is the right one, dealt
out to its n columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf, isqrt

Layout = tuple[int, int]


@dataclass(frozen=True)
class Load:
    """Two streams: tuples a second, windows in seconds, and the share of compared pairs that are results."""

    left_rate: float
    right_rate: float
    left_window_s: float
    right_window_s: float
    hit_rate: float = 1 / 250_000  # of the benchmark join

    @property
    def left_rows(self) -> float:
        return self.left_rate * self.left_window_s

    @property
    def right_rows(self) -> float:
        return self.right_rate * self.right_window_s

    @property
    def tuples_per_s(self) -> float:
        return self.left_rate + self.right_rate

    @property
    def comparisons_per_s(self) -> float:
        """Expression 2 without p: each tuple is compared with the opposite window."""
        return self.left_rate * self.right_rows + self.right_rate * self.left_rows

    @property
    def results_per_s(self) -> float:
        """Expression 3: the most that any parallelisation puts out."""
        return self.comparisons_per_s * self.hit_rate

    @property
    def rows_searched(self) -> float:
        """The rows of the opposite window that a tuple meets on average."""
        return self.comparisons_per_s / self.tuples_per_s


def offered_results(workers: int, comparison_s: float, hit_rate: float) -> float:
    """Return the results a second of workers that are never idle, whatever their layout (Expression 4)."""
    return workers * hit_rate / comparison_s


def utilisation(load: Load, workers: int, comparison_s: float) -> float:
    """Return Expression 3 divided by Expression 4: from 1 on the rates are not sustained."""
    return load.comparisons_per_s * comparison_s / workers


def scan_latency_s(load: Load, layout: Layout, comparison_s: float) -> float:
    """Return half of an average scan (Expressions 5 and 6); each stream has results as it has comparisons.

    The paper's Expression 7 still has a factor p, by which Expression 5 has divided already; it is left out here.
    """
    by_left, by_right = load.left_rate * load.right_rows, load.right_rate * load.left_rows
    scanned = by_left * load.right_rows / layout[1] + by_right * load.left_rows / layout[0]
    return scanned * comparison_s / 2 / (by_left + by_right)


def queued_latency_s(load: Load, layout: Layout, comparison_s: float) -> float:
    """Return the wait and a whole scan, for tuples that come at random and results that leave at a scan's end.

    What Expressions 5 to 7 leave out: a worker is an M/G/1 queue that serves both streams. That tuples are handed on
    late by busy workers is left out here too, so long rows take longer than this.
    """
    rows, columns = layout
    busy = utilisation(load, rows * columns, comparison_s)
    if busy >= 1:
        return inf
    left_s, right_s = load.right_rows / columns * comparison_s, load.left_rows / rows * comparison_s
    squares = load.left_rate / rows * left_s**2 + load.right_rate / columns * right_s**2
    return squares / (2 * (1 - busy)) + 2 * scan_latency_s(load, layout, comparison_s)


# --- layouts


@cache
def layouts(cells: int) -> list[Layout]:
    flat = [(rows, cells // rows) for rows in range(1, isqrt(cells) + 1) if cells % rows == 0]
    return flat + [(rows, columns) for columns, rows in reversed(flat) if rows != columns]


def least_latency(cells: int, load: Load) -> Layout:
    """Return the best layout by Expression 6: square for equal streams; else the larger window is cut into more."""
    return min(layouts(cells), key=lambda layout: scan_latency_s(load, layout, 1.0))


def least_copies(cells: int, left_rows: float, right_rows: float) -> Layout:
    """Return the layout that stores least: left rows are held once for each column, right ones once for each row.

    With windows of equal length this is the layout of least latency too: n W_x + m W_y is mn times W_x/m + W_y/n.
    """
    return min(layouts(cells), key=lambda layout: layout[1] * left_rows + layout[0] * right_rows)
