"""Joins under the virtual clock as the papers ran them: the benchmark join, with windows of tuples or seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import isqrt

import numpy as np

from counterflow.lab.bench.benchmark_inputs import DOMAIN, Inputs, band_inputs
from counterflow.lab.simulator.timed_join import Costs, Timed, TimedJoin
from counterflow.protocols.design import Design
from counterflow.windows.store import Batch

SIMULATED_ROWS = 20_000  # of a window


@dataclass(frozen=True)
class Rate:
    """What nodes sustain; `tuples_per_s` is each stream's, as in the papers on handshake join."""

    tuples_per_s: float
    comparisons_per_s: float
    busy: float


@cache
def inputs_of(rows: int, domain: float = DOMAIN) -> Inputs:
    return band_inputs(rows, domain=domain)


def stamped(inputs: Inputs, tuples: int, left_window: int, right_window: int) -> tuple[Batch, Batch]:
    """Return both streams, whose tuples take turns, each tuple with the range of rows that it may meet."""
    numbers = np.arange(tuples)
    left = inputs.batch("left", 0, tuples, np.maximum(numbers - right_window, 0), numbers - 1)
    right = inputs.batch("right", 0, tuples, np.maximum(numbers + 1 - left_window, 0), numbers)
    return left, right


def square(nodes: int) -> tuple[int, int]:
    """Return the layout for DP-Join that is as square as the nodes allow."""
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
    together: int = 1,
    warm: bool = True,
    right_window: int | None = None,
    domain: float = DOMAIN,
    in_flight: int = 0,
    stored: int = SIMULATED_ROWS,
) -> Timed:
    """Simulate a join: `tuples` of each side come, at a rate or as fast as they are taken; with `warm` to full windows.

    `rate` counts both streams' tuples a second. The driver holds back `together` of them and then hands them on at
    once; latency counts from the arrival, not from that. What an index finds here is charged as a nested loop. A large
    window keeps `stored` tuples; each stands for several and is charged as such.
    """
    right_window = window if right_window is None else right_window
    stands_for = max(1, round(max(window, right_window) / stored))
    window, right_window = max(window // stands_for, 1), max(right_window // stands_for, 1)
    costs = replace(costs, comparison=costs.comparison * stands_for)
    before = max(window, right_window) if warm else 0
    inputs = inputs_of(before + tuples, domain)
    left, right = stamped(inputs, before + tuples, window, right_window)
    design = Design(
        algorithm,
        nodes,
        batch_rows=batch,
        layout=(layout or square(nodes)) if algorithm == "dpjoin" else (1, 1),
        in_flight=in_flight or min(1024, max(256, 8 * batch)),
        outbox_rows=1 << 15,
        expected_rows=(window + 4 * batch, right_window + 4 * batch),
    )
    join = TimedJoin(inputs.spec, design, left, right, costs, warm=2 * before, results=1 << 21)
    if not rate:
        run = join.run()
    else:
        arrival = (np.arange(2 * tuples) + 1) / rate
        last = np.minimum(np.arange(2 * tuples) // together * together + together, 2 * tuples) - 1
        run = join.run(arrival[last], whole_batches=whole_batches)
        run.due[2 * before : 2 * (before + tuples)] = arrival
    return replace(run, comparisons=run.comparisons * stands_for)


def nested_loop_rate(algorithm: str, nodes: int, window_s: float, costs: Costs, smoke: bool = False) -> Rate:
    """Return what the nodes sustain, from one run with windows as at the rate of nodes that do nothing but compare.

    It counts comparisons, not tuples: after a quick fill handshake join still owes the pairs of what filled it. Few
    tuples are in flight: where a stored tuple stands for many, so does one in flight, and they would meet in one node.
    """
    window = int((nodes * 1e9 * window_s / (2 * costs.comparison)) ** 0.5)
    if algorithm == "handshake":
        stored, tuples = 6_000, 1_000
    else:
        stored, tuples = SIMULATED_ROWS, 2_000 if nodes >= 128 else 1_000
    if smoke:
        stored, tuples = 1_000, 200
    run = simulate(algorithm, nodes, window, tuples, costs, batch=16, in_flight=128, stored=stored)
    return Rate(float((run.comparisons_per_s / (2 * window_s)) ** 0.5), run.comparisons_per_s, float(run.busy.mean()))
