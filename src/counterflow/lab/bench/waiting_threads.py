"""How old results are at a low rate, where every node has a thread of its own that waits between two tuples.

These are the product's threads (`engines.local.parallel`), and Python feeds them one tuple at a time. What is measured
is how soon all nodes are awake and have searched: a tuple's age counts from when the first nodes were told of it, as
Python's own part takes longer than many searches. The windows are filled first, without a search.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from counterflow.cores import usable_cores
from counterflow.engines.local.options import Local
from counterflow.engines.local.parallel import ParallelCore
from counterflow.lab.bench.benchmark_inputs import Inputs, checksum
from counterflow.lab.bench.host import stolen_s
from counterflow.lab.bench.latency import FIGURES
from counterflow.lab.bench.ordered_inputs import OrderedInputs
from counterflow.lab.bench.report import Row
from counterflow.lab.replay.quiet import end_quiet, quieten
from counterflow.protocols.design import Design
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array

FILL_ROWS = 1 << 15  # tuples of both streams that are fed at once while windows fill
COLLECT_S = 0.05


class WaitingJoin:
    """A join whose windows are full; then `pairs` tuples of each stream come, one at a time."""

    def __init__(
        self,
        algorithm: str,
        workers: int,
        inputs: Inputs,
        window: int,
        pairs: int,
        batch: int,
        access: str,
        waiting: str,
    ) -> None:
        self.arrivals = OrderedInputs(inputs, window, pairs)
        self.left, self.right = self.arrivals.stamped()
        self.lefts = np.concatenate([[0], np.cumsum(self.arrivals.is_left)])
        self.design = Design(
            algorithm,
            workers,
            batch_rows=batch,
            layout=Local(algorithm, workers=workers).matrix,
            access=access,  # type: ignore[arg-type]
            expected_rows=(window + 2 * batch, window + 2 * batch),
            strategy=waiting,
        )
        self.found: list[tuple[Array, Array]] = [(np.empty(0, np.int64),) * 2]
        self.complete: list[tuple[int, int]] = []  # a rank before which all pairs were out, and when

    def take(self, rate: float) -> Row:
        """Let the tuples come at this rate, in all; returns how old they were when all their pairs were out."""
        warm, total = self.arrivals.warm, len(self.arrivals.is_left)
        core = ParallelCore(self.arrivals.inputs.spec, self.design)
        collector = threading.Thread(target=self._collect, args=(core,), name="counterflow-bench-collector")
        collector.start()
        sent = np.zeros(total, np.int64)
        before, began = stolen_s(), time.perf_counter()
        try:
            quieten(core.machine, *self._numbers(warm))
            for begin in range(0, warm, FILL_ROWS):
                self._feed(core, begin, min(begin + FILL_ROWS, warm))
            while not core.feeder.done():
                time.sleep(COLLECT_S)
            end_quiet(core.machine)
            before, began = stolen_s(), time.perf_counter()
            for rank in range(warm, total):
                time.sleep(max(began + (rank - warm + 1) / rate - time.perf_counter(), 0))
                sent[rank] = self._feed(core, rank, rank + 1)
            core.finish()
            collector.join()
        finally:
            core.close()
            collector.join()
        seconds = time.perf_counter() - began
        return self._row(sent, rate, seconds) | {"stolen": (stolen_s() - before) / seconds / len(usable_cores())}

    def _numbers(self, rank: int) -> tuple[int, int]:
        """Return how many left and right tuples come before a rank."""
        return int(self.lefts[rank]), rank - int(self.lefts[rank])

    def _feed(self, core: ParallelCore, begin: int, end: int) -> int:
        """Feed the tuples of these ranks; returns when they were sent."""
        (left, right), (left_end, right_end) = self._numbers(begin), self._numbers(end)
        core.feed(self.left.take(slice(left, left_end)), self.right.take(slice(right, right_end)))
        sent = time.perf_counter_ns()
        core.expire(*(horizon(batch, at) for batch, at in ((self.right, right_end), (self.left, left_end))))
        return sent

    def _collect(self, core: ParallelCore) -> None:
        while not core.finished:
            new = core.collect(COLLECT_S)
            if new is not None:
                self.complete.append((sum(new.complete), time.perf_counter_ns()))
                self.found.append((new.left, new.right))

    def _row(self, sent: Array, rate: float, seconds: float) -> Row:
        lefts, rights = (np.concatenate(side) for side in zip(*self.found, strict=True))
        later = np.maximum(lefts + self.left.high[lefts], rights + self.right.high[rights]) + 1
        timed = later >= self.arrivals.warm
        found = int(timed.sum()), checksum(lefts[timed], rights[timed])
        complete, times = np.array(self.complete).T
        measured = np.arange(self.arrivals.warm, len(sent))
        ages = (times[np.searchsorted(complete, measured, "right")] - sent[measured]) / 1000
        design = self.design
        return {
            "algorithm": design.algorithm,
            "path": self.arrivals.inputs.kind if design.access == "auto" else design.access,
            "workers": design.nodes,
            **({"layout": "x".join(map(str, design.layout))} if design.protocol.matrix else {}),
            "window_rows": self.arrivals.window,
            "batch_rows": design.batch_rows,
            "waiting": design.strategy,
            "seconds": seconds,
            "pairs": found[0],
            "rate_tuples_per_s": rate,
            **{f"latency_us_{name}": float(np.quantile(ages, share)) for name, share in FIGURES.items()},
            "verified": found == self.arrivals.expected(self.arrivals.warm),
        }


def horizon(probing: Batch, at: int) -> int:
    """Return the oldest tuple that tuples of a side from this one on meet."""
    return int(probing.low[min(at, len(probing) - 1)])
