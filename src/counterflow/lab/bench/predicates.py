"""`counterflow bench predicates`: every kind of predicate through `cf.window_join`, at windows of three sizes.

Streams of Arrow batches with `auto`, windows of rows; values spread over a range that grows with the window, so that a
row has as many matches at each. So what grows with the window is what the index leaves to be looked at: candidates are
counted by the join itself. The pairs of some rows are compared with those of a scan.

Beside it, finite tables through `cf.window_join` and through DuckDB, by CPU time.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.api import window_join
from counterflow.engines.local.input.streams import stream
from counterflow.lab.bench.host import heading
from counterflow.lab.bench.predicate_inputs import CASES, PredicateCase, table_of
from counterflow.lab.bench.report import Note, Row, timed
from counterflow.predicate.expression import SIDES, Side
from counterflow.spec.join_spec import build_spec
from counterflow.spec.window_sizes import rows
from counterflow.windows.access import choose_path
from counterflow.windows.store import Batch, WindowStore, predicate_columns
from counterflow.windows.vectors import Array

SETTLED_S = 0.05
FOUND = pa.schema({"i": pa.int64(), "i_right": pa.int64()})
LONG_S = 10.0  # DuckDB is not asked again for what took so long


@dataclass(frozen=True)
class PredicateSizes:
    windows: tuple[int, ...] = (20_000, 200_000, 2_000_000)
    filled: int = 50_000  # rows of a side before it is measured, at least: by then the predicate is being compiled
    rows: int = 100_000  # of a side, after that
    batch: int = 8192
    checked: int = 2_000  # rows of a side whose pairs are compared with the scan's
    checked_slow: int = 4  # the same where a comparison takes a microsecond and more
    repeats: int = 3
    finite_rows: int = 200_000
    finite_window: int = 20_000
    duckdb_s: float = 120.0


SMOKE = PredicateSizes((500, 2_000), 500, 1_000, 256, 50, 5, 1, 2_000, 500, 20.0)


def bench_predicates(smoke: bool, note: Note) -> dict[str, Any]:
    """Return rates and candidates of each predicate, by window; and times of finite joins beside DuckDB's."""
    sizes, found = SMOKE if smoke else PredicateSizes(), []
    for case in CASES:
        for window in sizes.windows:
            note(f"{case.name}, windows of {window:,} rows")
            found.append(PredicateRun(case, window, sizes).take())
    for case in CASES:
        note(f"{case.name}, tables")
        found += finite(case, sizes)
    return {**heading("predicates", smoke), "remarks": [], "results": found, "ratios": _ratios(found)}


class PredicateRun:
    """A predicate over streams with full windows."""

    def __init__(self, case: PredicateCase, window: int, sizes: PredicateSizes) -> None:
        self.case, self.window, self.sizes = case, window, sizes
        self.filled = max(window, sizes.filled)
        columns = case.draw(np.random.default_rng(1), self.filled + sizes.rows, window)
        self.tables = table_of(columns[0], right=False), table_of(columns[1], right=True)
        schemas = [table.schema for table in self.tables]
        self.spec = build_spec(schemas[0], schemas[1], where=case.where, time="ts", window=rows(window))

    def take(self) -> Row:
        taken = [self._run() for _ in range(self.sizes.repeats)]
        seconds, candidates, scanned = (
            statistics.median(run[name] for run in taken) for name in ("seconds", "candidates", "scanned")
        )
        pairs, found, probes = taken[0]["pairs"], taken[0]["found"], 2 * self.sizes.rows
        return {
            "case": "stream",
            **self.case.row(),
            "window_rows": self.window,
            "batch_rows": self.sizes.batch,
            "path": choose_path(self.spec.parts, "left").name,
            "seconds": seconds,
            "tuples_per_s": probes / seconds,
            "candidates_per_row": candidates / probes,
            "candidates_per_pair": candidates / max(pairs, 1),
            "matches_per_row": pairs / probes,
            "scanned_per_row": scanned / probes,
            "repeats": len(taken),
            "verified": all(run["found"].equals(found) for run in taken) and self._is_right(found),
        }

    def _run(self) -> dict[str, Any]:
        self.both_full = threading.Barrier(2, self._begin)
        left, right = (stream(self._batches(table)) for table in self.tables)
        window = rows(self.window)
        self.joined = window_join(left, right, where=self.case.where, time="ts", window=window, ordered=True)
        parts = [batch.select(["i", "i_right"]) for batch in self.joined]
        seconds, now, before = time.perf_counter() - self.began, self.joined.metrics(), self.before
        scans = [now["candidates_by"].get(name, 0) - before["candidates_by"].get(name, 0) for name in ("scan", "numpy")]
        del self.joined, self.both_full  # they refer to this run
        found = pa.Table.from_batches(parts, FOUND)
        later = np.maximum(found["i"].to_numpy(), found["i_right"].to_numpy())
        return {
            "seconds": seconds,
            "candidates": now["candidates"] - before["candidates"],
            "pairs": int((later >= self.filled).sum()),
            "scanned": sum(scans),
            "found": found.combine_chunks(),
        }

    def _begin(self) -> None:
        """Wait until the rows that fill the windows are joined, by compiled code: nothing moves any more."""
        before = {**self.joined.metrics(), "compiling": True}
        while (now := self.joined.metrics()) != before or now["rows_left"] + now["rows_right"] < 2 * self.filled:
            before = {**now, "compiling": False}
            time.sleep(SETTLED_S)
        self.before, self.began = now, time.perf_counter()

    def _batches(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        batches = table.slice(self.filled).to_batches(self.sizes.batch)
        yield from table.slice(0, self.filled).to_batches(self.sizes.batch)
        self.both_full.wait()
        yield from batches

    # --- the scan

    def _is_right(self, found: pa.Table) -> bool:
        """Return whether the pairs of some rows are those that a scan finds."""
        count = self.sizes.checked_slow if self.case.slow else self.sizes.checked
        numbers = np.unique(np.linspace(self.filled, self.filled + self.sizes.rows - 1, count).astype(np.int64))
        pairs = np.stack([found["i"].to_numpy(), found["i_right"].to_numpy()], axis=1)
        return all(self._same(side, numbers, pairs) for side in SIDES)

    def _same(self, side: Side, numbers: Array, pairs: Array) -> bool:
        """Compare the pairs whose later row is one of these, of a side."""
        k = SIDES.index(side)
        stored_side: Side = "right" if side == "left" else "left"
        stored = self.tables[1 - k]
        at = np.arange(len(stored))
        store = WindowStore(stored_side, self.spec.predicate, self.spec.parts, access="scan", compile_after=0)
        store.append(Batch(stored_side, predicate_columns(self.spec.predicate, stored_side, stored), at, at, at, at))
        newest = numbers - 1 if side == "left" else numbers  # at equal numbers the left row is the earlier one
        columns = predicate_columns(self.spec.predicate, side, self.tables[k].take(pa.array(numbers)))
        probes = Batch(side, columns, numbers, numbers, newest - self.window + 1, newest)
        want = [np.stack([numbers[p], opposite], axis=1) for p, opposite in store.probe(probes)]
        later = pairs[:, k] > pairs[:, 1 - k] if side == "left" else pairs[:, k] >= pairs[:, 1 - k]
        got = pairs[later & np.isin(pairs[:, k], numbers)][:, [k, 1 - k]]
        return _sorted(np.concatenate([np.empty((0, 2), np.int64), *want])).tolist() == _sorted(got).tolist()


def _sorted(pairs: Array) -> Array:
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


# --- finite tables, beside DuckDB

IN_DUCKDB = {
    "haversine": (
        "2 * 6371008.8 * asin(sqrt(least(1, pow(sin(radians(l.lat - r.lat) / 2), 2) + cos(radians(l.lat)) * "
        "cos(radians(r.lat)) * pow(sin(radians(l.lon - r.lon) / 2), 2)))) <= 10000"
    ),
    "radius by row": "sqrt(pow(l.x - r.x, 2) + pow(l.y - r.y, 2)) <= r.radius",
    "prefix": "starts_with(l.s, r.s)",
    "function with a band": "abs(l.x - r.x) <= 10 AND trunc(l.x)::BIGINT % 2 = trunc(r.x)::BIGINT % 2",
}


def finite(case: PredicateCase, sizes: PredicateSizes) -> list[Row]:
    """Return the CPU time of one join of tables, ours and DuckDB's; the window is a duration of so many rows."""
    n, window = sizes.finite_rows, sizes.finite_window
    columns = case.draw(np.random.default_rng(2), n, window)
    left, right = (table_of(part, k == 1) for k, part in enumerate(columns))
    counts: list[int] = []

    def join() -> None:
        counts.append(len(window_join(left, right, where=case.where, time="ts", window=window)))

    ours = [timed(join) for _ in range(sizes.repeats + 1)][1:]  # the first one compiles, or loads
    row = {"case": "finite", **case.row(), "rows": n, "window_rows": window, "pairs": counts[-1]}
    wall, cpu = (statistics.median(run[i] for run in ours) for i in (0, 1))
    mine = {**row, "system": "counterflow", "seconds": wall, "cpu_s": cpu, "verified": len(set(counts)) == 1}
    theirs = _duckdb(case, left, right, window, sizes)
    if theirs is None:
        return [mine]
    seconds, cpu_s, count = theirs
    return [mine, {**row, "system": "duckdb", "seconds": seconds, "cpu_s": cpu_s, "verified": count == counts[-1]}]


def _duckdb(
    case: PredicateCase, left: pa.Table, right: pa.Table, window: int, sizes: PredicateSizes
) -> tuple[float, float, int] | None:
    """Return DuckDB's median times and its number of pairs; None where it does not end in time."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET threads = 2")
    for name, table in (("l", left), ("r", right)):
        connection.register(f"arrow_{name}", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arrow_{name}")
    query = (
        "CREATE OR REPLACE TABLE found AS SELECT l.*, r.i AS i_right, r.ts AS ts_right FROM l, r "
        f"WHERE ({IN_DUCKDB.get(case.name, str(case.where))}) AND l.ts BETWEEN r.ts - {window} AND r.ts + {window}"
    )
    runs: list[tuple[float, float]] = []
    while len(runs) < sizes.repeats and sum(seconds for seconds, _ in runs) < LONG_S:
        timer = threading.Timer(sizes.duckdb_s, connection.interrupt)
        timer.start()
        try:
            runs.append(timed(lambda: connection.execute(query)))
        except duckdb.InterruptException:
            return None
        finally:
            timer.cancel()
    counted = connection.execute("SELECT count(*) FROM found").fetchone()
    assert counted is not None
    return statistics.median(r[0] for r in runs), statistics.median(r[1] for r in runs), int(counted[0])


# --- what it comes to


def _ratios(found: list[Row]) -> dict[str, float]:
    """Return how candidates grow with the window, rates beside the plain band's, and CPU times beside DuckDB's."""
    streams = {(row["predicate"], row["window_rows"]): row for row in found if row["case"] == "stream"}
    ratios = {}
    for case in CASES:
        windows = sorted(window for name, window in streams if name == case.name)
        first, last, plain = (
            streams[name, window]
            for name, window in ((case.name, windows[0]), (case.name, windows[-1]), ("plain band", windows[-1]))
        )
        name = case.name.replace(" ", "_")
        ratios[f"{name}_candidates_last_to_first"] = last["candidates_per_row"] / max(first["candidates_per_row"], 1e-9)
        ratios[f"{name}_to_plain_band"] = last["tuples_per_s"] / plain["tuples_per_s"]
        tables = {row["system"]: row for row in found if row["case"] == "finite" and row["predicate"] == case.name}
        if "duckdb" in tables:
            ratios[f"{name}_cpu_to_duckdb"] = tables["counterflow"]["cpu_s"] / tables["duckdb"]["cpu_s"]
    return ratios
