"""The tuples of both streams in one order, with row windows: what each of them meets, and which pairs there are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from counterflow.lab.bench.benchmark_inputs import Inputs, checksum
from counterflow.predicate.expression import Side
from counterflow.windows.store import Batch, WindowStore
from counterflow.windows.vectors import Array

RATES = ("constant", "sinusoidal", "peaked")
STREAMS = (1.0, 0.6, 0.3)  # physical streams of a side, and their shares


def turns(tuples: int, rates: str) -> Array:
    """Return which tuples are left ones: every other one, or as the streams' rates have it."""
    if not rates:
        return np.arange(2 * tuples) % 2 == 0
    clock, times, sides = np.linspace(0, 1, 10_001), [], []
    shares = np.diff(np.round(np.cumsum([0.0, *STREAMS]) / sum(STREAMS) * tuples)).astype(int)
    for side in (0, 1):
        for k, count in enumerate(shares):
            phase = 0.37 * (2 * k + side)
            wave = 1 + 0.95 * np.sin(2 * np.pi * (5 * clock + phase))
            peaks = np.where((20 * clock + 10 * phase) % 5 < 0.5, 10.0, 0.2)
            rate = {"constant": np.ones_like(clock), "sinusoidal": wave, "peaked": peaks}[rates]
            arrived = np.cumsum(rate)
            times.append(np.interp(np.arange(count) + 0.5, arrived / arrived[-1] * count, clock))
            sides.append(np.full(count, side))
    order = np.argsort(np.concatenate(times), kind="stable")
    return np.concatenate(sides)[order] == 0


@dataclass(frozen=True)
class OrderedInputs:
    """Both streams in one order: the tuples that fill windows of `window` rows, then `pairs` of each stream."""

    inputs: Inputs
    window: int
    pairs: int
    rates: str = ""

    @cached_property
    def is_left(self) -> Array:
        return turns(self.window + self.pairs, self.rates)

    @cached_property
    def warm(self) -> int:
        """The rank from which on both windows are full."""
        return int(max(np.searchsorted(np.cumsum(side), self.window) + 1 for side in (self.is_left, ~self.is_left)))

    def stamped(self) -> tuple[Batch, Batch]:
        """Return both sides, each tuple with the range of opposite ones before it that are in the window."""
        lefts, n = np.cumsum(self.is_left), len(self.is_left) // 2
        high = np.where(self.is_left, np.arange(2 * n) - lefts, lefts - 1)
        return self._batch("left", high[self.is_left]), self._batch("right", high[~self.is_left])

    def _batch(self, side: Side, high: Array) -> Batch:
        return self.inputs.batch(side, 0, len(high), np.maximum(high + 1 - self.window, 0), high)

    def expected(self, first: int) -> tuple[int, int]:
        """Return number and checksum of the pairs whose later tuple has the rank `first` or a higher one."""
        known, key = self.inputs.known, (self.window, self.pairs, self.rates, first)
        if key not in known:
            count = total = 0
            spec, (left, right) = self.inputs.spec, self.stamped()
            lefts = int(self.is_left[:first].sum())
            for stored, probing, begin in ((right, left, lefts), (left, right, first - lefts)):
                store = WindowStore(stored.side, spec.predicate, spec.parts, compile_after=0, expected_rows=len(stored))
                store.append(stored)
                probes = probing.take(slice(begin, None))
                for p, rows in store.probe(probes):
                    count += len(p)
                    total += checksum(*((probes.rows[p], rows) if probing is left else (rows, probes.rows[p])))
            known[key] = count, total
        return known[key]
