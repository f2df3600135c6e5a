"""Joins that a compiled driver replays on real cores, each with its pairs checked; and the bare scan beside them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from counterflow.bench.inputs import Inputs
from counterflow.bench.latency import ages
from counterflow.bench.machine import stolen_s
from counterflow.bench.report import Row
from counterflow.cores import usable_cores
from counterflow.kernels.store import Batch, WindowStore
from counterflow.kernels.vectors import Array
from counterflow.spec.expression import Side


class Kernel:
    """The bare scan of a full window."""

    def __init__(self, inputs: Inputs, window: int, threads: int) -> None:
        spec = inputs.spec
        self.store = WindowStore("left", spec.predicate, spec.parts, access="scan", threads=threads, compile_after=0)
        self.store.append(inputs.batch("left", 0, window))
        self.probes = inputs.batch("right", window, window + 256, 0, window - 1)
        self.comparisons = 256 * window
        self.measure()

    def measure(self) -> float:
        started = time.perf_counter()
        for _ in self.store.probe(self.probes):
            pass
        return self.comparisons / (time.perf_counter() - started)


class Run:
    """One join: the windows are filled, then `pairs` tuples of each stream come, as fast as possible or at a rate."""

    def __init__(
        self,
        algorithm: str,
        workers: int,
        inputs: Inputs,
        window: int,
        pairs: int,
        batch: int,
        access: str,
        ordered: bool = True,
        rate: float = 0.0,
        rates: str = "",
    ) -> None:
        from counterflow.protocols.machine import Design, Machine
        from counterflow.protocols.replay import Replay

        self.inputs, self.window, self.pairs, self.rate, self.ordered = inputs, window, pairs, rate, ordered
        layout = (1, workers) if algorithm == "dpjoin" else (1, 1)
        self.design = Design(
            algorithm,
            workers,
            batch_rows=batch,
            layout=layout,
            access=access,  # type: ignore[arg-type]
            in_flight=max(4096, 4 * batch),
            outbox_rows=1 << 12,
            expected_rows=(window + 2 * batch, window + 2 * batch),
        )
        machine = Machine(inputs.spec.predicate, inputs.spec.parts, self.design)
        self.is_left = turns(window + pairs, rates)
        self.warm = int(max(np.searchsorted(np.cumsum(side), window) + 1 for side in (self.is_left, ~self.is_left)))
        self.replay = Replay(machine, *self.stamped(), self.warm, rate, ordered)

    def stamped(self) -> tuple[Batch, Batch]:
        """All tuples, each with the opposite ones that came before it, as far as they are in the window."""
        lefts, n = np.cumsum(self.is_left), len(self.is_left) // 2
        high = np.where(self.is_left, np.arange(2 * n) - lefts, lefts - 1)
        return self._batch("left", high[self.is_left]), self._batch("right", high[~self.is_left])

    def _batch(self, side: Side, high: Array) -> Batch:
        return self.inputs.batch(side, 0, len(high), np.maximum(high + 1 - self.window, 0), high)

    def take(self) -> Row:
        self.replay.fill()
        before = stolen_s()
        measured = self.replay.run()
        stolen = stolen_s() - before
        seconds, nodes, self.histogram = measured["seconds"], measured["comparisons"], measured["histogram"]
        row: Row = {
            "algorithm": self.design.algorithm,
            "path": self.inputs.kind if self.design.access == "auto" else self.design.access,
            "workers": self.design.nodes,
            "window_rows": self.window,
            "batch_rows": self.design.batch_rows,
            "ordered": self.ordered,
            "seconds": seconds,
            "tuples_per_s": (len(self.is_left) - self.warm) / seconds,
            "stolen": stolen / seconds / len(usable_cores()),
            "pairs": measured["pairs"],
            "buffer_rows_max": measured["buffer"],
        }
        if measured["punctuated"] < measured["pairs"]:
            row["punctuation_rows_min"] = measured["punctuated"]
        if self.design.access == "scan":
            row["comparisons_per_s"] = sum(nodes) / seconds
            row["comparisons_per_s_of_workers"] = [n / seconds for n in nodes]
            row["spread"] = (max(nodes) - min(nodes)) / max(max(nodes), 1)
        if self.rate:
            row |= {"rate_tuples_per_s": self.rate, **ages(self.histogram)}
        expected = expected_pairs(self)
        right = (measured["pairs"], measured["checksum"]) == expected and measured["too_late"] == 0
        return {**row, "verified": right}


# --- in which order tuples come

RATES = ("constant", "sinusoidal", "peaked")
STREAMS = (1.0, 0.6, 0.3)  # physical streams of a side, and their shares


def turns(tuples: int, rates: str) -> Array:
    """Which of the tuples of both sides are left ones: in turn, or as the streams' rates have it."""
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


_EXPECTED: dict[tuple[Any, ...], tuple[int, int]] = {}


def expected_pairs(run: Run) -> tuple[int, int]:
    """How many pairs there are whose later tuple comes after the windows are full, and the sum over them."""
    inputs = run.inputs
    key = (id(inputs), run.window, run.pairs, run.is_left.tobytes())
    if key not in _EXPECTED:
        count = checksum = 0
        spec = inputs.spec
        left, right = run.stamped()
        warm = int(run.is_left[: run.warm].sum())
        for stored, probing, first in ((right, left, warm), (left, right, run.warm - warm)):
            store = WindowStore(stored.side, spec.predicate, spec.parts, compile_after=0, expected_rows=len(stored))
            store.append(stored)
            probes = probing.take(slice(first, None))
            for p, rows in store.probe(probes):
                lefts, rights = (probes.rows[p], rows) if probing is left else (rows, probes.rows[p])
                count += len(p)
                checksum += int(((lefts * 31 + rights * 17) & 0xFFFFFF).sum())
        _EXPECTED[key] = count, checksum
    return _EXPECTED[key]
