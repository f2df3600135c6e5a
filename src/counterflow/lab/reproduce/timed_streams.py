"""Streams whose tuples come at given times, with windows of seconds, under the virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from counterflow.lab.bench.benchmark_inputs import BAND, Inputs, band_inputs, make_inputs
from counterflow.lab.bench.replay_runs import MeasuredJoin
from counterflow.lab.bench.report import Note, Row
from counterflow.lab.reproduce.virtual_runs import SIMULATED_ROWS, square
from counterflow.lab.simulator.timed_join import Costs, Timed, TimedJoin
from counterflow.protocols.design import Design
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array


@dataclass(frozen=True)
class Streams:
    """When the tuples of each stream come, in seconds; those before 0 fill the windows.

    A stored tuple stands for `stands_for`: windows are shorter by that factor, and a comparison takes longer.
    """

    left: Array
    right: Array
    windows_s: tuple[float, float]
    stands_for: float = 1.0

    @property
    def warm(self) -> int:
        return int((self.left < 0).sum() + (self.right < 0).sum())

    def stamped(self, inputs: Inputs) -> tuple[Batch, Batch]:
        """Return both sides, each tuple with the range of opposite ones that it meets; at equal times left is first."""
        high = np.searchsorted(self.right, self.left, "left") - 1, np.searchsorted(self.left, self.right, "right") - 1
        windows = [window / self.stands_for for window in self.windows_s]
        low = (
            np.searchsorted(self.right, self.left - windows[1], "left"),
            np.searchsorted(self.left, self.right - windows[0], "left"),
        )
        # A tuple that meets nothing still has its place in the order: low may not be beyond high + 1.
        low = np.minimum(low[0], high[0] + 1), np.minimum(low[1], high[1] + 1)
        left = inputs.batch("left", 0, len(high[0]), low[0], high[0])
        right = inputs.batch("right", 0, len(high[1]), low[1], high[1])
        return left, right


def steady(
    rates: tuple[float, float], windows_s: tuple[float, float], tuples: int, regular: bool = False, seed: int = 1
) -> Streams:
    """Return streams of constant rates, at random times unless `regular`; `tuples` come once the windows are full.

    Nothing in the papers' texts says how regular their tuples came.
    """
    rng = np.random.default_rng(seed)
    largest = max(rate * window for rate, window in zip(rates, windows_s, strict=True))
    stands_for = max(1.0, largest / SIMULATED_ROWS)
    seconds, before = tuples / sum(rates), max(windows_s) / stands_for

    def arrivals(rate: float, phase: float) -> Array:
        count = int(rate * (before + seconds))
        if regular:
            return (np.arange(count) + phase) / rate - before
        return np.sort(rng.uniform(-before, seconds, count))

    return Streams(arrivals(rates[0], 0.0), arrivals(rates[1], 0.5), windows_s, stands_for)


def simulate_streams(
    algorithm: str,
    nodes: int,
    streams: Streams,
    costs: Costs,
    *,
    layout: tuple[int, int] | None = None,
    batch: int = 1,
    at_once: bool = False,
    hit_rate: float = 1 / 250_000,
    stops_s: Sequence[float] = (),
) -> Timed:
    """Simulate the benchmark join; with `at_once`, tuples come as fast as they are taken.

    What is stored stands for several tuples: values are drawn from a domain that yields as many results as all would.
    """
    stands_for = streams.stands_for
    rows = max(len(streams.left), len(streams.right))
    domain = ((2 * BAND + 1) * 2 * BAND / (hit_rate * stands_for)) ** 0.5
    inputs = band_inputs(rows, domain=domain)
    left, right = streams.stamped(inputs)
    most = [int((batch.high - batch.low).max()) + 4096 for batch in (right, left)]
    design = Design(
        algorithm,
        nodes,
        batch_rows=batch,
        layout=(layout or square(nodes)) if algorithm == "dpjoin" else (1, 1),
        in_flight=min(1024, max(256, 8 * batch)),
        outbox_rows=1 << 15,
        expected_rows=(most[0], most[1]),
    )
    costs = replace(costs, comparison=costs.comparison * stands_for)
    join = TimedJoin(inputs.spec, design, left, right, costs, warm=streams.warm, results=1 << 21)
    times = np.sort(np.concatenate([streams.left, streams.right]))
    stops = np.searchsorted(times, stops_s)
    run = join.run(None if at_once else times[streams.warm :], stops=[int(stop) for stop in stops])
    return replace(run, comparisons=run.comparisons * stands_for, stages=run.stages * stands_for)


def measured_in_turns(cases: list[tuple[str, int]], smoke: bool, note: Note) -> dict[tuple[str, int], list[Row]]:
    """Run nested loops of (algorithm, workers) on real threads, three times each, in turns.

    On a shared machine a rate may halve within a minute: only runs of one turn can be compared.
    """
    window, pairs = (2_000, 400) if smoke else (200_000, 15_000)
    inputs = make_inputs("band", window + pairs, window)
    taken: dict[tuple[str, int], list[Row]] = {case: [] for case in cases}
    for turn in range(1 if smoke else 3):
        for algorithm, workers in cases:
            note(f"{algorithm} on {workers} threads of this machine, {turn + 1} of 3")
            run = MeasuredJoin(algorithm, workers, inputs, window, pairs, 128, "scan").take()
            assert run["verified"], run
            taken[algorithm, workers].append(run)
    return taken


def best(runs: list[Row]) -> float:
    """Return the most comparisons a second: other work on the machine only takes away."""
    return float(max(run["comparisons_per_s"] for run in runs))


def ratios(runs: list[Row], others: list[Row]) -> tuple[float, float, float]:
    """Return the median, least and most ratio of comparisons a second, turn by turn."""
    found = [run["comparisons_per_s"] / other["comparisons_per_s"] for run, other in zip(runs, others, strict=True)]
    return float(np.median(found)), min(found), max(found)
