"""What a node's work costs: on this machine, measured in a few seconds, and on the papers', from their own numbers.

`python -m counterflow.lab.reproduce.calibrate` prints the nanoseconds of a comparison; with NUMBA_LOOP_VECTORIZE=0 in
the environment, those of one without vector instructions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache

from counterflow.cores import usable_cores
from counterflow.errors import CounterflowError
from counterflow.lab.bench.benchmark_inputs import Inputs, make_inputs
from counterflow.lab.bench.latency import quantile
from counterflow.lab.bench.replay_runs import BareScan, MeasuredJoin
from counterflow.lab.simulator.timed_join import Costs

MINUTE = 60
ROWS, SMOKE_ROWS = 200_000, 4_000  # of a measured window
PAIRS, SMOKE_PAIRS = 4_000, 400
BATCH = 128
REPEATS = 5
RUNNING = 0.05  # share of rare tuples whose threads surely had a core: the median is a wait for one on a busy machine
NO_VECTORS = {"NUMBA_LOOP_VECTORIZE": "0", "NUMBA_SLP_VECTORIZE": "0"}


def comparison_ns(nodes: int, tuples_per_s: float, window_s: float) -> float:
    """Return the nanoseconds one comparison takes, given each stream's rate that `nodes` busy nodes sustain."""
    return nodes * 1e9 / (2 * tuples_per_s**2 * window_s)


def ideal_rate(nodes: int, window_s: float, costs: Costs) -> float:
    """Return the tuples a second of each stream if nodes do nothing but compare: it grows as the root of the nodes."""
    return float((nodes * 1e9 / (2 * costs.comparison * window_s)) ** 0.5)


# --- the papers' machines
# AMD Opteron 6174, 2.2 GHz, SIMD. LLHJ, 7.3: with 40 cores and 15 minute windows a batch of 64 tuples of a stream every
# 20 ms, so 3,200 tuples/s: 2.17 ns a comparison. (SIGMOD, 5.4: 1,400 tuples/s with 8 cores, that is 2.27 ns.)
# A hop takes less than 1 us (LLHJ, 7.3.1). The rest is not in the papers: some hundred cycles, too little to show.
OPTERON = Costs(
    step=300, tuple=60, comparison=comparison_ns(40, 64 / 0.020, 15 * MINUTE), result=50, message=60, hop=1000
)
# The same machine with the equality of Table 2: 5,117 tuples/s with 40 cores and 15 minute windows.
OPTERON_EQUALITY = Costs(
    step=300, tuple=60, comparison=comparison_ns(40, 5117, 15 * MINUTE), result=50, message=60, hop=1000
)
# Intel Xeon X7560 (first report, Section 5), merge join: 4,000 tuples/s with 16 cores and 10 minute windows. What a
# pair in the windows costs; most are not looked at.
NEHALEM_MERGE = Costs(
    step=300, tuple=60, comparison=comparison_ns(16, 4000, 10 * MINUTE), result=50, message=60, hop=1000
)


# --- this machine


@cache
def _inputs(smoke: bool) -> Inputs:
    rows, pairs = (SMOKE_ROWS, SMOKE_PAIRS) if smoke else (ROWS, PAIRS)
    return make_inputs("band", rows + pairs, rows)


@dataclass(frozen=True)
class ThreadedCase:
    """A join to be measured on real threads: a nested loop of one of the algorithms, or a merge join."""

    algorithm: str
    workers: int
    access: str = "scan"
    ordered: bool = True


_MEASURED: dict[tuple[ThreadedCase, bool], float] = {}


def measured(cases: list[ThreadedCase], smoke: bool) -> list[float]:
    """Return comparisons a second, the best of some runs in turns; a merge join counts as many as a scan makes."""
    rows, pairs = (SMOKE_ROWS, SMOKE_PAIRS) if smoke else (ROWS, PAIRS)
    missing = [case for case in cases if (case, smoke) not in _MEASURED]
    for _ in range(1 if smoke else REPEATS):
        for case in missing:
            batch = 2 * BATCH if case.algorithm == "handshake" else BATCH
            run = MeasuredJoin(
                case.algorithm, case.workers, _inputs(smoke), rows, pairs, batch, case.access, case.ordered
            )
            row = run.take()
            if not row["verified"]:
                raise CounterflowError(f"wrong pairs: {case}")
            rate = row["comparisons_per_s"] if case.access == "scan" else row["tuples_per_s"] * rows
            _MEASURED[case, smoke] = max(_MEASURED.get((case, smoke), 0.0), rate)
    return [_MEASURED[case, smoke] for case in cases]


def measured_rates(cases: list[ThreadedCase], window_s: float, smoke: bool) -> list[float]:
    """Return the tuples a second of each stream that the cases sustain: rate r needs 2 r (r window) comparisons."""
    return [float((found / (2 * window_s)) ** 0.5) for found in measured(cases, smoke)]


def real_cores() -> list[int]:
    """Return the numbers of workers that can be measured, each with a core of its own."""
    return [n for n in (1, 2, 4, 8, 16, 32) if n <= len(usable_cores())]


@cache
def _overheads(smoke: bool) -> Costs:
    """Return a tuple's and a step's cost from an index, a hop's from a rare tuple: the best of some runs each."""
    window, pairs = 2_000, (500 if smoke else 20_000)
    inputs = make_inputs("hash", window + pairs, window)
    turns = range(1 if smoke else REPEATS)

    def per_tuple_ns(batch: int) -> float:
        return float(
            min(
                1e9 / MeasuredJoin("llhj", 1, inputs, window, pairs, batch, "auto").take()["tuples_per_s"]
                for _ in turns
            )
        )

    def latency_ns() -> float:
        cores, tuples = len(usable_cores()), min(pairs, 2_000)
        run = MeasuredJoin("llhj", cores, inputs, window, tuples, 1, "auto", rate=10_000)
        run.take()
        return quantile(run.histogram, RUNNING)

    single, many = per_tuple_ns(1), per_tuple_ns(256)
    step = max(single - many, 1.0)
    hop = min(latency_ns() for _ in turns) / 2  # to the node, and from there to the collector
    return Costs(step=step, tuple=many, message=step / 4, hop=hop)  # a message: part of a step, not measured apart


def this_machine(smoke: bool, algorithm: str = "llhj") -> Costs:
    """Return this machine's costs, with the comparison of the algorithm's nested loop on one core."""
    return replace(_overheads(smoke), comparison=1e9 / measured([ThreadedCase(algorithm, 1)], smoke)[0])


def gain_of_vectors(smoke: bool) -> float:
    """Return how many times the comparisons of a plain scan vector instructions make; both measured in turns."""
    before = kernel_comparison_ns(smoke)
    plain = scalar_comparison_ns(smoke)
    return plain / min(before, kernel_comparison_ns(smoke))


def kernel_comparison_ns(smoke: bool = False) -> float:
    """Return the nanoseconds of a comparison in the bare scan on one core."""
    rows = SMOKE_ROWS if smoke else ROWS
    kernel = BareScan(make_inputs("band", rows + 256, rows), rows, 1)
    return 1e9 / max(kernel.measure() for _ in range(2 * REPEATS))


def scalar_comparison_ns(smoke: bool) -> float:
    """Return the same, compiled without vector instructions, in a process of its own."""
    environment = {**os.environ, **NO_VECTORS}
    command = [sys.executable, "-m", "counterflow.lab.reproduce.calibrate", *(["--smoke"] if smoke else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise CounterflowError(f"the scan without vector instructions failed: {done.stderr.strip()[-300:]}")
    return float(done.stdout)


if __name__ == "__main__":
    print(kernel_comparison_ns("--smoke" in sys.argv))
