"""Sorted runs: rows that come out of order, taken out in order.

Each batch is a run, sorted by its key; neighbouring runs are merged such that each is at least twice as long as the
next. So there are few of them, each row is moved a logarithmic number of times, and what is due is a prefix of each
run. Merging is stable and joins only neighbours, so that rows with equal keys stay in the order of their arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from counterflow.windows.vectors import Array

Rows = TypeVar("Rows")
SPARSE = 4  # a run of whose rows only one in so many is left is copied, so that the others' memory is freed


@dataclass
class _Run(Generic[Rows]):
    keys: Array
    rows: Rows
    first: int = 0  # the ones before are taken

    def __len__(self) -> int:
        return len(self.keys) - self.first


class Runs(Generic[Rows]):
    """`concat`, `pick` and `cut` do with rows of this kind what their names say."""

    def __init__(
        self,
        concat: Callable[[list[Rows]], Rows],
        pick: Callable[[Rows, Array], Rows],
        cut: Callable[[Rows, int, int], Rows],
    ) -> None:
        self._concat, self._pick, self._cut = concat, pick, cut
        self._runs: list[_Run[Rows]] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def least(self) -> int | None:
        return min((int(run.keys[run.first]) for run in self._runs), default=None)

    def add(self, keys: Array, rows: Rows) -> None:
        """Rows in any order."""
        if not len(keys):
            return
        if (keys[1:] < keys[:-1]).any():
            order = np.argsort(keys, kind="stable")
            keys, rows = keys[order], self._pick(rows, order)
        self._runs.append(_Run(keys, rows))
        self._merge()

    def take(self, bound: int, inclusive: bool = False) -> list[tuple[Array, Rows]]:
        """What has a key below the bound (or equal to it): sorted pieces, at equal keys the earlier arrivals first."""
        pieces = []
        for run in self._runs:
            end = int(np.searchsorted(run.keys, bound, "right" if inclusive else "left"))
            if end > run.first:
                pieces.append((run.keys[run.first : end], self._cut(run.rows, run.first, end)))
                run.first = end
        if pieces:
            self._runs = [run for run in self._runs if len(run)]
            self._merge()
        return pieces

    def _merge(self) -> None:
        runs = self._runs
        i = len(runs) - 2
        while i >= 0:
            if len(runs[i]) < 2 * len(runs[i + 1]):
                runs[i : i + 2] = [self._merged(runs[i], runs[i + 1])]
                i = min(i, len(runs) - 2)
            else:
                i -= 1
        for i, run in enumerate(runs):
            if len(run) * SPARSE < len(run.keys):
                runs[i] = _Run(run.keys[run.first :].copy(), self._concat([self._live(run)]))

    def _merged(self, a: _Run[Rows], b: _Run[Rows]) -> _Run[Rows]:
        keys = np.concatenate([a.keys[a.first :], b.keys[b.first :]])
        rows = self._concat([self._live(a), self._live(b)])
        if a.keys[-1] <= b.keys[b.first]:
            return _Run(keys, rows)
        order = np.argsort(keys, kind="stable")
        return _Run(keys[order], self._pick(rows, order))

    def _live(self, run: _Run[Rows]) -> Rows:
        return self._cut(run.rows, run.first, len(run.keys))


def sorting(*keys: Array) -> Array | slice:
    """What sorts rows by the last key, then by the one before: `np.lexsort`, unless they are sorted already."""
    equal = np.ones(max(len(keys[0]) - 1, 0), bool)
    for key in reversed(keys):
        if (equal & (key[1:] < key[:-1])).any():
            return np.lexsort(keys)
        equal &= key[1:] == key[:-1]
    return slice(None)


def batch_runs() -> Runs[pa.RecordBatch]:
    return Runs(
        pa.concat_batches,
        lambda batch, order: batch.take(pa.array(order)),
        lambda batch, begin, end: batch.slice(begin, end - begin),
    )


def array_runs() -> Runs[Array]:
    """Of two-dimensional arrays, whose columns are the rows."""
    return Runs(
        lambda parts: np.concatenate(parts, axis=1),
        lambda rows, order: rows[:, order],
        lambda rows, begin, end: rows[:, begin:end],
    )
