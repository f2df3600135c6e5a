"""Small joins to be run under many schedules: a case is all that decides the join, but not who moves when."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.lab.simulator.window_forms import draw_form, draw_window
from counterflow.protocols import words as w
from counterflow.protocols.design import Design, Sources
from counterflow.protocols.registry import NAMES, protocol
from counterflow.spec.join_spec import JoinSpec, build_spec
from counterflow.windows.vectors import Array

NODES_MAX = 16
PREDICATES = {
    "equality": "l.k = r.k",
    "band": "l.x BETWEEN r.x - 2 AND r.x + 2",
    "inequality": "l.x < r.x",
    "everything": "l.x + r.x >= 0",
}
SCHEMA = pa.schema({"t": pa.int64(), "k": pa.int64(), "x": pa.int64()})


@dataclass(frozen=True)
class Case:
    """A join; `seed` decides its tuples."""

    algorithm: str
    nodes: int = 2
    layout: tuple[int, int] = (1, 1)  # DP-Join's
    symmetric: bool = False  # handshake join's first form
    ordered: bool = False  # ScaleJoin's second gate
    batch_rows: int = 1
    in_flight: int = 16
    outbox_rows: int = 16
    access: str = "scan"
    predicate: str = "equality"
    window: Any = 3  # as in a call
    left_rows: int = 12
    right_rows: int = 12
    tight: bool = False  # rings begin small and grow when they must, which takes time
    seed: int = 0
    sources: tuple[int, int] = (0, 0)  # that add left and right tuples to ScaleJoin's gate themselves; 0: a driver does

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """Return tuples in order of time, many at the same time."""
        rng = np.random.default_rng(self.seed)
        span = max(self.left_rows, self.right_rows) // 2 + 1
        return _table(rng, self.left_rows, span), _table(rng, self.right_rows, span)

    def owners(self) -> tuple[Array, Array]:
        """Return the source of each left and of each right tuple; at equal times they ascend, as the order wants."""
        rng, found = np.random.default_rng(self.seed + 1), []
        for table, first, count in zip(self.tables(), (0, self.sources[0]), self.sources, strict=True):
            drawn = first + rng.integers(0, count, len(table))
            found.append(drawn[np.lexsort((drawn, table["t"].to_numpy()))])
        return found[0], found[1]

    @property
    def spec(self) -> JoinSpec:
        return _spec(self.predicate, self.window)

    def design(self, window_rows: tuple[int, int]) -> Design:
        return Design(
            self.algorithm,
            self.nodes,
            batch_rows=self.batch_rows,
            layout=self.layout,
            access=self.access,  # type: ignore[arg-type]
            symmetric=self.symmetric,
            in_flight=self.in_flight,
            outbox_rows=self.outbox_rows,
            ordered_output=self.ordered,
            expected_rows=(0, 0) if self.tight else window_rows,
            capacity_min=4,
            wired=True,
            sources=Sources(*self.sources, (self.spec.left.window, self.spec.right.window))
            if any(self.sources)
            else None,
        )


def _table(rng: np.random.Generator, count: int, span: int) -> pa.Table:
    values = np.sort(rng.integers(0, span, count)), rng.integers(0, 3, count), rng.integers(0, 12, count)
    return pa.table(dict(zip(SCHEMA.names, values, strict=True)), schema=SCHEMA)


@cache
def _spec(predicate: str, window: Any) -> JoinSpec:
    return build_spec(SCHEMA, SCHEMA, where=PREDICATES[predicate], time="t", window=window)


def random_case(seed: int, algorithms: tuple[str, ...] = NAMES, nodes: int | None = None) -> Case:
    """Return any small join, of `nodes` nodes where that is given."""
    rng = random.Random(seed)
    algorithm = algorithms[seed % len(algorithms)]
    traits = protocol(algorithm)
    count = 1 if traits.sequential else nodes or rng.choice([1, 2, 2, 3, 3, 4, 5, 6, 8, 11, NODES_MAX])
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    rows_of_layout = rng.choice(divisors)
    rows_max = rng.choice([14, 14, 14, 14, 40])  # rings come round several times only in long streams
    return Case(
        algorithm,
        count,
        layout=(rows_of_layout, count // rows_of_layout) if traits.matrix else (1, 1),
        symmetric=traits.symmetric_form and rng.random() < 0.3,
        ordered=traits.orders_results and rng.random() < 0.5,
        batch_rows=rng.choice([1, 1, 2, 3, 8]),
        in_flight=rng.choice([2, 4, 8, 32]),
        outbox_rows=rng.choice([1, 2, 16]),
        access=rng.choice(["auto", "scan"]),
        predicate=rng.choice(list(PREDICATES)),
        window=draw_window(draw_form(rng), rng),
        left_rows=rng.randint(1, rows_max),
        right_rows=rng.randint(1, rows_max),
        tight=rng.random() < (0.3 if traits.readers_keep_rows else 0.03),  # rings that are shared
        seed=seed,
        sources=_sources(rng) if traits.way == w.TO_GATE else (0, 0),
    )


def _sources(rng: random.Random) -> tuple[int, int]:
    """Return how many sources each side has; in half of all cases none, and a driver feeds the gate."""
    return (rng.choice([1, 2, 3, 5]), rng.choice([1, 2, 3, 5])) if rng.random() < 0.5 else (0, 0)
