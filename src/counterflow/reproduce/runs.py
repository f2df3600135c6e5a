"""Joins under the virtual clock as the papers ran them: the benchmark join, windows of so many tuples or seconds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import isqrt

import numpy as np

from counterflow.bench.inputs import Inputs, make_inputs
from counterflow.engines.simulated.timed import Costs, Timed, TimedJoin
from counterflow.kernels.store import Batch
from counterflow.protocols.machine import Design

SIMULATED_ROWS = 20_000  # of a window


@cache
def inputs_of(rows: int, window: int) -> Inputs:
    return make_inputs("band", rows, window)


def stamped(inputs: Inputs, tuples: int, left_window: int, right_window: int) -> tuple[Batch, Batch]:
    """Tuples of both streams in turn, with row windows: what each may meet."""
    numbers = np.arange(tuples)
    left = inputs.batch("left", 0, tuples, np.maximum(numbers - right_window, 0), numbers - 1)
    right = inputs.batch("right", 0, tuples, np.maximum(numbers + 1 - left_window, 0), numbers)
    return left, right


def square(nodes: int) -> tuple[int, int]:
    """DP-Join's layout, as square as the nodes allow."""
    rows = next(m for m in range(isqrt(nodes), 0, -1) if nodes % m == 0)
    return rows, nodes // rows


def simulate(
    algorithm: str,
    nodes: int,
    window: int,
    tuples: int,
    costs: Costs,
    *,
    batch: int = 64,
    layout: tuple[int, int] | None = None,
    rate: float = 0.0,
    whole_batches: bool = False,
    warm: bool = True,
    right_window: int | None = None,
) -> Timed:
    """`window` tuples a side, full when it begins unless not `warm`; then `tuples` a side: at a rate, or at once.

    `rate`: tuples a second of both streams together. What is looked up in an index here is charged as a nested loop.
    Of large windows a stored tuple stands for several, and is charged as such.
    """
    right_window = window if right_window is None else right_window
    stands_for = max(1, round(max(window, right_window) / SIMULATED_ROWS))
    window, right_window = max(window // stands_for, 1), max(right_window // stands_for, 1)
    costs = replace(costs, comparison=costs.comparison * stands_for)
    before = max(window, right_window) if warm else 0
    inputs = inputs_of(before + tuples, max(window, right_window))
    left, right = stamped(inputs, before + tuples, window, right_window)
    design = Design(
        algorithm,
        nodes,
        batch_rows=batch,
        layout=(layout or square(nodes)) if algorithm == "dpjoin" else (1, 1),
        in_flight=min(1024, max(256, 8 * batch)),
        outbox_rows=1 << 15,
        expected_rows=(window + 4 * batch, right_window + 4 * batch),
    )
    join = TimedJoin(inputs.spec, design, left, right, costs, warm=2 * before, results=1 << 21)
    due = (np.arange(2 * tuples) + 1) / rate if rate else None
    run = join.run(due, whole_batches=whole_batches)
    return replace(run, comparisons=run.comparisons * stands_for)


def sustained_rate(
    algorithm: str, nodes: int, window_s: float, costs: Costs, *, tuples: int = 2000, **options: object
) -> tuple[float, Timed]:
    """Tuples a second of both streams together that n nodes sustain with windows of so many seconds.

    The window's tuples depend on the rate, and the rate on them: a few rounds from a first guess bring them together.
    """
    rate = (2 * nodes * 1e9 / (costs.comparison * window_s)) ** 0.5
    for _ in range(3):
        run = simulate(algorithm, nodes, max(int(rate / 2 * window_s), 1), tuples, costs, **options)  # type: ignore[arg-type]
        rate = (rate * run.tuples_per_s) ** 0.5
    return run.tuples_per_s, run
