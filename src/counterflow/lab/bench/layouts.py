"""`counterflow bench layouts`: DP-Join's matrices, `home`, `hash` and `band` side by side, on Spark and by counting.

On Spark in local mode each layout joins the same streams with 1 to 16 cells, on as many partitions as there are cores:
what a micro-batch costs that has more cells. Beyond this machine, up to 1,024 cells, the code that a query runs says
which rows it would send where: how often a row is sent, what the cells hold, and how even they are. There values are
uniform, or half of the rows have theirs in 1 percent of the range, of one column or of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

import counterflow as cf
from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.query.layout import Layout, choose_layout
from counterflow.engines.spark.query.routing import messages_of
from counterflow.engines.spark.state.blobs import from_blob
from counterflow.lab.bench.benchmark_inputs import DOMAIN, WHERE
from counterflow.lab.bench.host import heading
from counterflow.lab.bench.report import Note, Row
from counterflow.lab.bench.spark_joins import CORES, QueryCase, SparkBench, SparkSizes, bench_session
from counterflow.plan.model import least_copies
from counterflow.predicate.expression import SIDES, Side
from counterflow.spec.join_spec import JoinSpec, build_spec
from counterflow.windows.vectors import Array

Kind = Literal["matrix", "home", "hash", "band"]
KINDS: tuple[Kind, ...] = ("matrix", "home", "hash", "band")
VALUES = ("uniform", "crowd in one column", "crowd in both columns", "crowd in both columns, sampled")
CROWD = 0.01  # of the range
HOME_CELLS_MAX = 64  # beyond it, every row in every cell is not worth counting
PAIRS_MAX = 20_000  # that are looked for in the cells
MEASURED = ("window_rows", "batch_rows", "state_rows", "batch_ms_p50", "tuples_per_s", "pairs")


@dataclass(frozen=True)
class LayoutSizes:
    cells: tuple[int, ...] = (1, 2, 4, 8, 16)
    batch_rows: int = 20_000  # of each side
    window_rows: int = 100_000
    settle: int = 3
    measured: int = 8
    turns: int = 2
    routed_cells: tuple[int, ...] = (4, 16, 64, 256, 1024)
    routed_rows: int = 50_000
    sample_rows: int = 10_000


SMOKE = LayoutSizes(
    cells=(1, 2),
    batch_rows=500,
    window_rows=1_000,
    settle=1,
    measured=1,
    turns=1,
    routed_cells=(4, 16),
    routed_rows=4_000,
    sample_rows=2_000,
)


def bench_layouts(smoke: bool, note: Note) -> dict[str, Any]:
    """Return the report of all measurements; with `smoke` as small as they can be, to see that they work."""
    found, sizes = heading("layouts", smoke), SMOKE if smoke else LayoutSizes()
    rows = list(routed_rows(sizes, note))
    with bench_session(note) as (session, folder):
        spark_sizes = SparkSizes(batch_rows=sizes.batch_rows, settle=sizes.settle, measured=sizes.measured)
        bench = SparkBench(spark_sizes, session, folder, note)
        rows += list(_spark_rows(bench, sizes))
    remarks = [
        "evenness: the average cell's received rows as part of the fullest one's; state_rows: copies counted",
        f"on Spark: {CORES} cores and at most as many partitions, medians over micro-batches at a full window",
    ]
    ratios = {"verified": all(row["verified"] for row in rows)}
    return {**found, "remarks": [*remarks, *bench.remarks], "results": rows, "ratios": ratios}


def name_of(kind: Kind, cells: int) -> str:
    """Return what a user writes for a layout of this kind; a matrix as square as can be."""
    return "x".join(map(str, least_copies(cells, 1, 1))) if kind == "matrix" else f"{kind}:{cells}"


# --- counting


@dataclass(frozen=True)
class Routed:
    """Which rows each cell gets, by their ids: for each side the rows and the cells, one by one."""

    cells: int
    rows: dict[Side, Array]
    at: dict[Side, Array]
    stored: dict[Side, Array]

    @property
    def received(self) -> Array:
        return sum((np.bincount(self.at[side], minlength=self.cells) for side in SIDES), np.zeros(self.cells, np.int64))

    def meetings(self, left: Array, right: Array) -> Array:
        """Return for each pair of rows in how many cells that store the left one the right one is."""
        stored = self.stored["left"]
        rows, at = self.rows["left"][stored], self.at["left"][stored]
        order = np.argsort(rows, kind="stable")
        first, end = (np.searchsorted(rows[order], left, side) for side in ("left", "right"))
        pair = np.repeat(np.arange(len(left)), end - first)
        within = np.arange(len(pair)) - np.repeat(np.cumsum(end - first) - (end - first), end - first)
        cells = at[order[first[pair] + within]]
        met = np.isin(right[pair] * self.cells + cells, self.rows["right"] * self.cells + self.at["right"])
        return np.bincount(pair[met], minlength=len(left))


def routed(spec: JoinSpec, layout: Layout, tables: dict[Side, pa.Table]) -> tuple[Routed, bool]:
    """Return where a layout sends rows, and whether each is counted once."""
    parts: dict[str, dict[Side, Any]] = {name: {} for name in ("rows", "at", "stored")}
    once = True
    for side in SIDES:
        rows, at, stored, counted = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, bool)], []
        blob, ids = b"", np.empty(0, np.int64)
        for message in messages_of(spec, layout, spec.side(side), tables[side]):
            assert message.payload is not None
            if message.payload is not blob:  # the same one goes to several cells
                blob, ids = message.payload, from_blob(message.payload)["id"].to_numpy()
            rows.append(ids)
            at.append(np.full(len(ids), message.cell))
            stored.append(np.full(len(ids), message.stored))
            if message.counted:
                counted.append(ids)
        once &= np.array_equal(np.sort(np.concatenate(counted)), np.arange(len(tables[side])))
        for name, arrays in (("rows", rows), ("at", at), ("stored", stored)):
            parts[name][side] = np.concatenate(arrays)
    return Routed(layout.cells, **parts), once


def routed_rows(sizes: LayoutSizes, note: Note) -> Iterator[Row]:
    """Yield what each layout would send where, for any number of cells."""
    for values in VALUES:
        sampled = values.endswith("sampled")
        tables = _tables(sizes.routed_rows, values, seed=1)
        sample = tuple(_tables(sizes.sample_rows, values, seed=2).values()) if sampled else None
        for kind in ("band",) if sampled else KINDS:
            spec = _spec(tables, "hash" if kind == "hash" else "band")
            pairs = _pairs(spec, tables)
            for cells in sizes.routed_cells:
                if kind != "home" or cells <= HOME_CELLS_MAX:
                    note(f"routing {sizes.routed_rows:,} rows a side to {name_of(kind, cells)}, {values}")
                    layout = choose_layout(spec, Spark(layout=name_of(kind, cells), sample=sample), CORES)
                    yield _routed_row(name_of(kind, cells), values, spec, layout, tables, pairs)


def _routed_row(
    name: str, values: str, spec: JoinSpec, layout: Layout, tables: dict[Side, pa.Table], pairs: tuple[Array, Array]
) -> Row:
    found, once = routed(spec, layout, tables)
    return {
        "case": "routing",
        "values": values,
        "layout": name,
        "cells": layout.cells,
        "threads": 1,
        **_spread(found, tables),
        "state_rows": int(sum(found.stored[side].sum() for side in SIDES)),
        "pairs": len(pairs[0]),
        "verified": bool(once and (found.meetings(*pairs) == 1).all()),
    }


def _spread(found: Routed, tables: dict[Side, pa.Table]) -> Row:
    received = found.received
    return {
        "rows_sent_per_row": float(received.sum() / sum(map(len, tables.values()))),
        "evenness": float(received.mean() / received.max()),
    }


def _tables(rows: int, values: str, seed: int) -> dict[Side, pa.Table]:
    """Return two streams of the benchmark join, with a key that has one partner on average."""
    rng = np.random.default_rng(seed)
    crowded = {"uniform": 0, "crowd in one column": 1}.get(values, 2)

    def column(number: int, half: Array) -> Array:
        found = rng.uniform(1, DOMAIN, rows)
        return np.where(half & (number < crowded), rng.uniform(0.5, 0.5 + CROWD, rows) * DOMAIN, found)

    def table(names: tuple[str, str]) -> pa.Table:
        half = rng.random(rows) < 0.5
        whole, real = np.floor(column(0, half)).astype(np.int32), column(1, half).astype(np.float32)
        keys = pa.array(rng.integers(0, rows, rows))
        times = pa.array(np.arange(rows) * 20, pa.timestamp("us", "UTC"))
        return pa.table({"ts": times, "id": np.arange(rows), names[0]: whole, names[1]: real, "k": keys})

    return {"left": table(("x", "y")), "right": table(("a", "b"))}


def _spec(tables: dict[Side, pa.Table], kind: Literal["hash", "band"]) -> JoinSpec:
    schemas = (tables[side].schema for side in SIDES)
    return build_spec(*schemas, where=WHERE[kind], time="ts", window="1 hour")


def _pairs(spec: JoinSpec, tables: dict[Side, pa.Table]) -> tuple[Array, Array]:
    """Return the ids of some pairs that satisfy the predicate."""
    window = "10 milliseconds" if len(spec.parts.bands) else "1 hour"
    found = cf.window_join(*tables.values(), where=spec.where, time="ts", window=window, engine=cf.Local())
    step = -(-len(found) // PAIRS_MAX) or 1
    return found["id"].to_numpy()[::step], found["id_right"].to_numpy()[::step]


# --- on Spark


def _spark_rows(bench: SparkBench, sizes: LayoutSizes) -> Iterator[Row]:
    """Yield what each layout takes for a micro-batch; all cases run once, then once more in the opposite order."""
    from counterflow.lab.bench.spark_queries import SyntheticJoin

    cases = []
    for cells in sizes.cells:
        for kind in KINDS if cells > 1 else KINDS[:1]:  # one cell is one cell
            join = SyntheticJoin("equi" if kind == "hash" else "band", sizes.window_rows, sizes.batch_rows)
            case = QueryCase("spark", "counterflow", join, sizes.settle, sizes.measured, asked=name_of(kind, cells))
            cases.append((cells, case))
    for turn in range(sizes.turns):
        for cells, case in cases if turn % 2 == 0 else reversed(cases):
            bench.session.conf.set("spark.sql.shuffle.partitions", min(cells, CORES))
            bench.note(f"layout {case.asked}")
            bench.take(case)
    for cells, case in cases:
        yield _spark_row(bench, case, cells)


def _spark_row(bench: SparkBench, case: QueryCase, cells: int) -> Row:
    join, measured = case.join, bench.add(case)
    tables = {side: join.table(bench.session, side, join.window_rows) for side in SIDES}
    schemas = (tables[side].schema for side in SIDES)
    spec = build_spec(*schemas, where=WHERE["hash" if join.kind == "equi" else "band"], time="ts", window="1 hour")
    found, once = routed(spec, choose_layout(spec, Spark(layout=case.asked), CORES), tables)
    return {
        "case": "spark",
        "values": "uniform",
        "layout": case.asked,
        "cells": cells,
        "threads": 1,
        "partitions": min(cells, CORES),
        **_spread(found, tables),
        **{name: measured[name] for name in MEASURED},
        "verified": measured["verified"] and once,
    }
