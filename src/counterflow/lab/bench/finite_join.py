"""The finite join: two Arrow tables in, one out, all columns, against DuckDB on the same tables in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import counterflow as cf
from counterflow.lab.bench.benchmark_inputs import BAND, DOMAIN, WHERE
from counterflow.lab.bench.report import Report, timed
from counterflow.windows.vectors import Array

Tables = tuple[pa.Table, pa.Table]
CELL = 20.5  # a band of 10 to each side, and what rounding may add, meets two cells of this width
CHUNK = 1 << 16  # DuckDB's threads share the chunks of an Arrow table

COLUMNS = "l.ts, l.x, l.y, l.z, r.ts AS ts_right, r.a, r.b, r.c, r.d, greatest(l.ts, r.ts) AS pair_time"
# A pair is in the window if neither row is before the oldest that the other one may meet.
WINDOW = "l.ordinal >= r.oldest AND r.ordinal >= l.oldest"
EXACT = f"l.x BETWEEN r.a - {BAND} AND r.a + {BAND} AND abs(l.y - r.b) <= {BAND} AND {WINDOW}"


def _cell(x: str, y: str) -> str:
    return f"CAST(floor({x} / {CELL}::DOUBLE) AS BIGINT) * 65536 + CAST(floor({y}::DOUBLE / {CELL}) AS BIGINT)"


def _grid(exploded: str) -> str:
    left = f"SELECT *, {_cell('x', 'y')} AS cell FROM l"
    return f"SELECT {COLUMNS} FROM ({left}) l JOIN ({exploded}) r ON l.cell = r.cell AND {EXACT}"


GRIDS = {
    "four cells": _grid(
        f"SELECT r.*, {_cell('(a - 10)', '(b - 10.01)')} + i * 65536 + j AS cell "
        "FROM r, (VALUES (0, 0), (0, 1), (1, 0), (1, 1)) AS v(i, j)"
    ),
    "unnested": _grid(f"SELECT r.*, {_cell('(a - 10)', '(b - 10.01)')} + unnest([0, 1, 65536, 65537]) AS cell FROM r"),
}
PLAIN = (
    f"SELECT {COLUMNS} FROM l JOIN r ON l.x >= r.a - {BAND} AND l.x <= r.a + {BAND} "
    f"AND l.y >= r.b - 10.01 AND l.y <= r.b + 10.01 AND abs(l.y - r.b) <= {BAND} AND {WINDOW}"
)


def finite_inputs(rows: int, seed: int = 3, domain: int = DOMAIN) -> Tables:
    """Return R(ts, x int32, y float32, z 20 characters) and S(ts, a int32, b float32, c double, d bool), by time."""
    rng = np.random.default_rng(seed)

    def side(x: str, y: str) -> dict[str, pa.Array]:
        return {
            "ts": pa.array(np.sort(rng.integers(0, 2 * rows, rows)), pa.timestamp("us")),  # with equal times
            x: pa.array(rng.integers(1, domain + 1, rows, dtype=np.int32)),
            y: pa.array(rng.uniform(1, domain, rows).astype(np.float32)),
        }

    texts = pa.array([f"{i:020d}" for i in range(rows)])
    right_only = {"c": pa.array(rng.random(rows)), "d": pa.array(rng.random(rows) < 0.5)}
    return pa.table({**side("x", "y"), "z": texts}), pa.table({**side("a", "b"), **right_only})


def measure_finite(report: Report) -> None:
    sizes = report.sizes
    domain = DOMAIN if sizes.finite_rows > 10_000 else 1000  # so that few rows have pairs too
    tables = finite_inputs(sizes.finite_rows, domain=domain)
    report.note(f"finite join of {sizes.finite_rows:,} by {sizes.finite_rows:,} rows")

    def ours() -> pa.Table:
        return cf.window_join(*tables, where=WHERE["band"], time="ts", window=cf.rows(sizes.finite_window))

    with report.compiling("finite_join"):
        result = ours()
    ways: dict[str, Callable[[], pa.Table]] = {"counterflow": ours}
    try:
        ways |= _duckdb_ways(tables, sizes.finite_window, report)
    except ImportError:
        report.remarks.append("duckdb is not installed: the finite join was not compared with it")
    seconds: dict[str, list[tuple[float, float]]] = {through: [] for through in ways}
    verified = dict.fromkeys(ways, True)
    for turn in range(sizes.repeats):
        for through, way in ways.items():
            if through == "duckdb_plain" and turn:
                continue
            found: list[pa.Table] = []
            seconds[through].append(timed(lambda way=way, found=found: found.append(way())))  # type: ignore[misc]
            verified[through] &= _same(found[0], result)
    if len(ways) == 1:
        verified["counterflow"] = _sample_is_right(tables, result, sizes.finite_window)
    medians = {through: statistics.median(wall for wall, _ in taken) for through, taken in seconds.items()}
    for through, taken in seconds.items():
        report.add(
            {
                "path": "finite_join",
                "through": through,
                "rows_per_side": sizes.finite_rows,
                "window_rows": sizes.finite_window,
                "threads": 2,
                "seconds": medians[through],
                "cpu_seconds": statistics.median(cpu for _, cpu in taken),
                "repeats": len(taken),
                "ratio_to_counterflow": medians[through] / medians["counterflow"],
                "pairs": len(result),
                "compile_s": report.compile_s("finite_join") if through == "counterflow" else 0.0,
                "verified": verified[through] and all(verified.values()),
            }
        )


def _duckdb_ways(tables: Tables, window: int, report: Report) -> dict[str, Callable[[], pa.Table]]:
    """Return DuckDB's queries; each row's ordinal, and the oldest that it may meet, are given to it for nothing."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET threads = 2")
    connection.execute("SET preserve_insertion_order = false")
    for name, table in zip("lr", _with_ordinals(tables, window), strict=True):
        connection.register(name, pa.Table.from_batches(table.to_batches(max_chunksize=CHUNK)))

    def query(text: str) -> Callable[[], pa.Table]:
        return lambda: connection.sql(text).to_arrow_table()

    tried = {name: min(timed(query(text))[0] for _ in range(2)) for name, text in GRIDS.items()}
    best = min(tried, key=lambda name: tried[name])
    times = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in tried.items())
    report.remarks.append(f"duckdb_grid is the faster of two formulations ({times}); ordinals are given to DuckDB")
    return {"duckdb_grid": query(GRIDS[best]), "duckdb_plain": query(PLAIN)}


def _with_ordinals(tables: Tables, window: int) -> Tables:
    left, right = (table["ts"].cast(pa.int64()).to_numpy() for table in tables)
    before_left = np.searchsorted(right, left, "left")  # at equal times the left row is earlier
    before_right = np.searchsorted(left, right, "right")

    def added(table: pa.Table, before: Array) -> pa.Table:
        table = table.append_column("ordinal", pa.array(np.arange(len(table))))
        return table.append_column("oldest", pa.array(before - window))

    return added(tables[0], before_left), added(tables[1], before_right)


def _same(found: pa.Table, expected: pa.Table) -> bool:
    """Say whether both hold the same pairs: z tells left rows apart, c right ones."""
    if len(found) != len(expected) or found.column_names != expected.column_names:
        return False
    keys: list[Any] = [("z", "ascending"), ("c", "ascending")]
    return bool(_plain(found).sort_by(keys).equals(_plain(expected).sort_by(keys)))


def _plain(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([("z", pa.string()) if f.name == "z" else (f.name, f.type) for f in table.schema]))


def _sample_is_right(tables: Tables, result: pa.Table, window: int) -> bool:
    """Say whether the pairs of some right rows are right, by comparing these with every left row."""
    left, right = _with_ordinals(tables, window)
    columns = {name: table[name].to_numpy() for table in (left, right) for name in table.column_names if name != "z"}
    left_oldest, ordinals = left["oldest"].to_numpy(), left["ordinal"].to_numpy()
    found, c = result["z"].to_pylist(), result["c"].to_numpy()
    for i in range(0, len(right), max(len(right) // 200, 1)):
        near = (np.abs(columns["x"] - columns["a"][i]) <= BAND) & (np.abs(columns["y"] - columns["b"][i]) <= BAND)
        near &= (ordinals >= columns["oldest"][i]) & (i >= left_oldest)
        mine = sorted(found[j] for j in np.flatnonzero(c == columns["c"][i]))
        if mine != [f"{j:020d}" for j in np.flatnonzero(near)]:
            return False
    return True
