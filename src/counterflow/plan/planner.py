"""From rates, windows, cores and memory: layout, least parallelism, latency, state and shuffle."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, Literal

from counterflow.errors import OptionError
from counterflow.plan.calibration import Calibration
from counterflow.plan.model import Layout, Load, least_copies, least_latency, queued_latency_s

BUSY_MAX = 0.9  # beyond it waiting grows without bound
WORKERS_MAX = 1024
# `counterflow bench spark` (README): a micro-batch of 100,000 rows takes about 0.64 s on two cores with layout 1x2,
# where half of the rows are sent twice; and hardly less with fewer rows: planning, state and commits.
SPARK_SENT_ROW_S = 2 * 0.64 / 150_000  # of a core
SPARK_BATCH_S = 0.6

Access = Literal["scan", "index"]
Engine = Literal["local", "spark"]


@dataclass(frozen=True)
class Question:
    """A join to be planned, and what there is to run it."""

    load: Load
    cores: int
    memory_bytes: float = inf
    access: Access = "scan"
    engine: Engine = "local"
    row_bytes: float = 64.0  # of a stored row and its part of an index

    def __post_init__(self) -> None:
        load = self.load
        for name in ("left_rate", "right_rate", "left_window_s", "right_window_s"):
            if not 0 < getattr(load, name) < inf:
                raise OptionError(f"{name}={getattr(load, name)!r}: give a number above 0")
        if not 0 <= load.hit_rate <= 1:
            raise OptionError(f"hit_rate={load.hit_rate!r}: give the share of pairs that match, from 0 to 1")
        if not (self.cores >= 1 and self.memory_bytes > 0 and self.row_bytes > 0):  # NaN is not above 0
            raise OptionError("cores, memory and the bytes of a row have to be above 0")
        if self.access not in ("scan", "index") or self.engine not in ("local", "spark"):
            raise OptionError(f"access {self.access!r}, engine {self.engine!r}: use scan or index, local or spark")


@dataclass(frozen=True)
class Plan:
    """A join's plan, with as few `workers` as sustain the rates; if the cores do not, those that come nearest."""

    workers: int
    layout: Layout
    sustained: bool
    needed: int | None  # workers that would sustain the rates; None: no number of them
    utilisation: float
    highest_share: float  # of the rates: what all cores sustain
    latency_s: float
    results_per_s: float
    comparisons_per_s: float
    window_rows: tuple[float, float]
    state_bytes: float
    fits: bool
    shuffle_rows_per_s: float  # rows sent to workers, copies included
    reasons: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        found = {**asdict(self), "layout": f"{self.layout[0]}x{self.layout[1]}"}
        return {name: None if value == inf else value for name, value in found.items()}


def make_plan(question: Question, calibration: Calibration) -> Plan:
    load, cores = question.load, question.cores
    needed = next((n for n in range(1, WORKERS_MAX + 1) if _busy(question, calibration, n) <= BUSY_MAX), None)
    sustained = needed is not None and needed <= cores
    workers = needed if sustained and needed is not None else _least_busy(question, calibration)
    layout = _layout(question, workers)
    copies = (layout[1], layout[0]) if question.engine == "spark" else (1, 1)
    state = (copies[0] * load.left_rows + copies[1] * load.right_rows) * question.row_bytes
    busy = _busy(question, calibration, workers)
    return Plan(
        workers=workers,
        layout=layout,
        sustained=sustained,
        needed=needed,
        utilisation=busy,
        highest_share=_highest_share(question, calibration),
        latency_s=_latency_s(question, calibration, layout, busy),
        results_per_s=load.results_per_s,
        comparisons_per_s=load.comparisons_per_s,
        window_rows=(load.left_rows, load.right_rows),
        state_bytes=state,
        fits=state <= question.memory_bytes,
        shuffle_rows_per_s=load.left_rate * layout[1] + load.right_rate * layout[0],
        reasons=_reasons(question, layout),
    )


def _layout(question: Question, workers: int) -> Layout:
    load = question.load
    if question.engine == "spark":
        return least_copies(workers, load.left_rows, load.right_rows)
    return least_latency(workers, load)


def _busy(question: Question, calibration: Calibration, workers: int) -> float:
    """Return the share of their time that the workers need for what comes."""
    load = question.load
    if question.access == "scan":
        joined = load.tuples_per_s / calibration.scanned_per_s(load.rows_searched, workers)
    else:
        joined = load.tuples_per_s / calibration.lookups_per_s(load.rows_searched, workers)
    if question.engine == "local":
        return joined
    rows, columns = _layout(question, workers)
    return joined + (load.left_rate * columns + load.right_rate * rows) * SPARK_SENT_ROW_S / workers


def _least_busy(question: Question, calibration: Calibration) -> int:
    """Return all cores; on Spark fewer may be better: a prime number of cells can only be a line, which copies most."""
    if question.engine == "local":
        return question.cores
    return min(range(1, question.cores + 1), key=lambda n: _busy(question, calibration, n))


def _highest_share(question: Question, calibration: Calibration) -> float:
    """Return the share of the rates that all cores sustain, by halving: work grows with the rates, as windows do."""

    def sustained(share: float) -> bool:
        scaled = _scaled(question, share)
        return _busy(scaled, calibration, _least_busy(scaled, calibration)) <= BUSY_MAX

    low, high = 0.0, 1.0
    while sustained(high) and high < 1e9:
        low, high = high, 2 * high
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if sustained(middle) else (low, middle)
    return low


def _scaled(question: Question, share: float) -> Question:
    load = question.load
    scaled = Load(
        load.left_rate * share, load.right_rate * share, load.left_window_s, load.right_window_s, load.hit_rate
    )
    return Question(scaled, question.cores, question.memory_bytes, question.access, question.engine, question.row_bytes)


def _latency_s(question: Question, calibration: Calibration, layout: Layout, busy: float) -> float:
    """Return the average time from a tuple's arrival to its results; infinite if the rates are not sustained."""
    load, workers = question.load, layout[0] * layout[1]
    if busy >= 1:
        return inf
    if question.access == "scan":
        comparison_s = workers / calibration.comparisons_per_s(load.rows_searched, workers)
        joined = queued_latency_s(load, layout, comparison_s) + calibration.tuple_s
    else:
        joined = 1 / calibration.lookups_per_s(load.rows_searched, workers) / (1 - busy)
    if question.engine == "local":
        return joined
    return joined + 1.5 * SPARK_BATCH_S  # half a micro-batch until the next begins, and that one


def _reasons(question: Question, layout: Layout) -> list[str]:
    rows, columns = layout
    if rows * columns == 1:
        return ["one worker suffices: there is nothing to lay out"]
    copied = f"a left row goes to {columns} workers, a right one to {rows}"
    if question.engine == "spark":
        return [f"{rows}x{columns} copies and stores least (what layout='auto' takes for as many cells): {copied}"]
    return [f"{rows}x{columns} has the least latency by DP-Join's Expression 6: {copied}, which share one copy"]
