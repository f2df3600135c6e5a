"""The tables of docs/benchmarks.md: one function for each benchmark, from its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from counterflow.lab.bench.markdown import markdown_table, milliseconds, pick, pick_all, scaled, slashed

Row = dict[str, Any]

JOINS = {"hash": "equi-join", "band": "benchmark join"}


# --- kernels

PREFILTER = "scan with the prefilter (a kernel alone: no option of `cf.window_join` leads to it)"
BATCH = 1024  # rows; the limit in C is measured with this size only


def kernel_tables(rows: list[Row]) -> list[str]:
    """Return the access paths by window, the finite join beside DuckDB, and the hard cases."""
    paths = [row for row in rows if row["path"] not in ("finite_join", "robust")]
    windows = sorted({row["window_rows"] for row in paths})
    batches = {row["batch_rows"] for row in paths}
    large, small = max(batch for batch in batches if batch <= BATCH), min(batches)
    scans = f"G comparisons/s (share of the C limit), batches of {large:,}"
    lines: list[tuple[str, Callable[[int], str]]] = [
        (f"scan, {scans}", lambda w: _scan(paths, "scan", w, large, 1)),
        ("the same, two threads", lambda w: _scan(paths, "scan", w, large, 2)),
        (f"{PREFILTER}, one thread", lambda w: _scan(paths, "prefilter", w, large, 1)),
        ("the prefilter, two threads", lambda w: _scan(paths, "prefilter", w, large, 2)),
    ]
    for kind, name in (("hash", "hash index"), ("band", "band index")):
        lines += [
            (f"{name}, M tuples/s, batches of {large:,} / of {small}", _indexed(paths, kind, (large, small))),
            ("its matches a probe", _matches(paths, kind, large)),
        ]
    heading = ["one thread unless it says otherwise", *(f"window of {w:,} rows" for w in windows)]
    tables = [markdown_table(heading, [[name, *map(cell, windows)] for name, cell in lines]), _compile_times(rows)]
    return tables + _finite_table(rows) + _hard_cases(rows)


def _scan(rows: list[Row], path: str, window: int, batch: int, threads: int) -> str:
    row = pick(rows, path=path, window_rows=window, batch_rows=batch, threads=threads)
    if row is None:
        return ""
    share = f" ({row['ratio_to_limit']:.2f})" if "ratio_to_limit" in row else ""
    return f"{row['comparisons_per_s'] / 1e9:.1f}{share}"


def _indexed(rows: list[Row], kind: str, batches: tuple[int, int]) -> Callable[[int], str]:
    def cell(window: int) -> str:
        found = (
            pick(rows, path=kind, through="stream", window_rows=window, batch_rows=batch, threads=1)
            for batch in batches
        )
        return slashed(f"{row['tuples_per_s'] / 1e6:.1f}" for row in found if row)

    return cell


def _matches(rows: list[Row], kind: str, batch: int) -> Callable[[int], str]:
    def cell(window: int) -> str:
        row = pick(rows, path=kind, through="stream", window_rows=window, batch_rows=batch, threads=1)
        return f"{row['matches_per_probe']:.2g}" if row else ""

    return cell


def _compile_times(rows: list[Row]) -> str:
    longest: dict[str, float] = {}
    for row in rows:
        if row.get("compile_s"):
            longest[row["path"]] = max(longest.get(row["path"], 0.0), row["compile_s"])
    times = ", ".join(f"{path} {seconds:.2f} s" for path, seconds in longest.items())
    return f"Compiling, or loading what was compiled before, took apart from that: {times or 'nothing'}."


FINITE = {
    "counterflow": "`cf.window_join`",
    "duckdb_grid": "DuckDB, with a grid key made by hand",
    "duckdb_plain": "DuckDB, with the plain predicate",
}


def _finite_table(rows: list[Row]) -> list[str]:
    finite = pick_all(rows, path="finite_join")
    if not finite:
        return []
    sizes = f"{finite[0]['rows_per_side']:,} rows a side, windows of {finite[0]['window_rows']:,} rows, two threads"
    lines = [
        [FINITE[row["through"]], f"{row['seconds']:.3f} s", f"{row['cpu_seconds']:.2f} s", f"{row['pairs']:,}"]
        for row in finite
    ]
    return [markdown_table([f"two tables, {sizes}", "time", "CPU time", "pairs"], lines)]


def _hard_cases(rows: list[Row]) -> list[str]:
    lines = []
    for row in pick_all(rows, path="robust"):
        rate = (
            f"{scaled(row['tuples_per_s'])} tuples/s" if "tuples_per_s" in row else f"{row['probe_ns']:.0f} ns a probe"
        )
        name = row["case"].replace("_", " ")
        lines.append([name, f"{row['window_rows']:,}", rate, f"{row['matches_per_probe']:.3g}"])
    return [markdown_table(["hard cases", "window", "", "matches a probe"], lines)] if lines else []


# --- local

AGES = ("latency_us_p50", "latency_us_p99", "latency_us_max")


def local_tables(rows: list[Row]) -> list[str]:
    """Return the algorithms side by side, or, for a chosen configuration, a row for each."""
    chosen = pick_all(rows, case="chosen")
    return [_chosen_table(chosen)] if chosen else [_algorithms_table(rows), *_merge_and_skew(rows)]


def _algorithms_table(rows: list[Row]) -> str:
    names = list(dict.fromkeys(row["algorithm"] for row in pick_all(rows, case="scan")))
    batches = sorted({row["batch_rows"] for row in pick_all(rows, case="index")})
    lines = [[f"nested loops, G comparisons/s (share of the bare scan){_windows(rows, 'scan')}"]]
    lines[0] += [_nested(pick(rows, case="scan", algorithm=name)) for name in names]
    sizes = f"M tuples/s, batches of {slashed(f'{batch:,}' for batch in batches)}"
    for kind, join in JOINS.items():
        cells = [
            slashed(
                f"{row['tuples_per_s'] / 1e6:.1f}"
                for batch in batches
                if (row := pick(rows, case="index", path=kind, algorithm=name, batch_rows=batch))
            )
            for name in names
        ]
        lines.append([f"{join} with an index, {sizes}", *cells])
    for kind, join in JOINS.items():
        timed = [pick(rows, case="latency", path=kind, algorithm=name, ordered=True) for name in names]
        ages = [milliseconds(row, AGES) for row in timed]
        of_all = [milliseconds(row, ("latency_us_p99_of_all",)) for row in timed]
        lines.append([f"latency of the {join} at half of that rate, p50 / p99 / max, ms", *ages])
        lines.append([f"p99 of the {join} over all results of all runs, ms", *of_all])
    orders = [pick(rows, case="index", algorithm=name) for name in names]
    lines.append(["results ordered by", *(row.get("ordered_by", "") if row else "" for row in orders)])
    layouts = {row["algorithm"]: f" {row['layout']}" for row in rows if "layout" in row}
    return markdown_table(["", *(name + layouts.get(name, "") for name in names)], lines)


def _windows(rows: list[Row], case: str) -> str:
    row = pick(rows, case=case)
    return f", windows of {row['window_rows']:,} rows" if row else ""


def _nested(row: Row | None) -> str:
    return f"{row['comparisons_per_s'] / 1e9:.1f} ({row['ratio_to_kernel']:.2f})" if row else ""


def _merge_and_skew(rows: list[Row]) -> list[str]:
    lines = [
        f"Handshake join with sorted basic blocks instead of the scan: {row['ratio_to_scan']:.2f} times its rate."
        for row in pick_all(rows, case="merge")
    ]
    spreads = ", ".join(f"{row['rates']} {row['spread']:.2g}" for row in pick_all(rows, case="skew"))
    if spreads:
        lines.append(f"How far ScaleJoin's workers differ in comparisons, by the streams' rates: {spreads}.")
    handshake = pick(rows, case="latency", algorithm="handshake")
    if handshake and "latency_us_p99" in handshake:
        share = handshake["latency_us_p99"] / 1e6 / handshake["window_s"]
        lines.append(f"Handshake join's p99 is {share:.2f} of the window; its bound is one half.")
    return lines


CHOSEN = "algorithm", "join", "workers", "window", "batch", "M tuples/s", "latency at", "p50 / p99 / max, ms"


def _chosen_table(rows: list[Row]) -> str:
    lines = [
        [
            row["algorithm"],
            JOINS.get(row["path"], row["path"]),
            str(row["workers"]),
            f"{row['window_rows']:,}",
            f"{row['batch_rows']:,}",
            f"{row['tuples_per_s'] / 1e6:.2f}",
            f"{row['share']:.0%} of that" if "share" in row else "",
            milliseconds(row, AGES),
        ]
        for row in rows
    ]
    return markdown_table(list(CHOSEN), lines)


# --- streams


def stream_tables(rows: list[Row]) -> list[str]:
    """Return what each algorithm gives through `cf.window_join`."""
    names = list(dict.fromkeys(row["algorithm"] for row in pick_all(rows, case="rate")))
    lines = []
    for kind, join in JOINS.items():
        mine = pick_all(rows, path=kind)
        rates, halves, gentle = (
            [pick(mine, case=case, algorithm=name) for name in names]
            for case in ("rate", "half the rate", "gentle rate")
        )
        first, calm = rates[0], gentle[0]
        if first is None or calm is None:
            continue
        figures = "latency_us_p50", "latency_us_p99"
        slow = f"at {calm['rate_tuples_per_s']:,.0f} tuples/s, batches of {calm['batch_rows']:,} rows"
        lines += [
            [
                f"{join}, M tuples/s, batches of {first['batch_rows']:,} rows",
                *(f"{row['tuples_per_s'] / 1e6:.1f}" if row else "" for row in rates),
            ],
            ["its latency at half of that, p50 / p99, ms", *(milliseconds(row, figures) for row in halves)],
            [slow, *(milliseconds(row, figures) for row in gentle)],
        ]
    sizes = f"Through `cf.window_join`, Arrow batches in and out, results in order{_windows(rows, 'rate')}:"
    return [
        sizes,
        markdown_table(["", *names], lines),
        *_rates_by_batch(rows, names),
        *_by_sources(rows),
        *_pushed_rows(rows),
        *_long_runs(rows),
    ]


def _rates_by_batch(rows: list[Row], names: list[str]) -> list[str]:
    """Return the rates with batches of every size beside those of bare nodes, where they were measured."""
    found = [row for row in pick_all(rows, case="rate") if "share_of_bare" in row]
    lines = []
    for kind, join in JOINS.items():
        for window in sorted({row["window_rows"] for row in found}):
            for batch in sorted({row["batch_rows"] for row in found}):
                size = dict(path=kind, window_rows=window, batch_rows=batch)
                cells = (pick(found, algorithm=name, **size) for name in names)
                figures = [f"{r['tuples_per_s'] / 1e6:.2f} ({r['share_of_bare']:.2f})" if r else "" for r in cells]
                lines.append([f"{join}, windows of {window:,} rows, batches of {batch:,}", *figures])
    said = "M tuples/s, and the share of what the best bare nodes make whose tuples lie ready:"
    return [said, markdown_table(["", *names], lines)] if lines else []


def _by_sources(rows: list[Row]) -> list[str]:
    found = pick_all(rows, case="sources")
    if not found:
        return []
    size = f"batches of {found[0]['batch_rows']:,}{_windows(rows, 'sources')}"
    how = "carried to the gate by a thread for each core"
    said = f"ScaleJoin, equality, by the physical sources of a side, {how}; {size}:"
    lines = [["M tuples/s", *(f"{row['tuples_per_s'] / 1e6:.2f}" for row in found)]]
    return [said, markdown_table(["sources a side", *(str(row["sources"]) for row in found)], lines)]


def _pushed_rows(rows: list[Row]) -> list[str]:
    found = pick_all(rows, case="pushed")
    lines = []
    for rate in sorted({row["rate_tuples_per_s"] for row in found}):
        cells = (pick(found, path=kind, rate_tuples_per_s=rate) for kind in JOINS)
        lines.append([f"{rate:,} rows/s", *(milliseconds(r, ("latency_us_p50", "latency_us_p99")) for r in cells)])
    said = f"Rows pushed one by one to `auto`{_windows(rows, 'pushed')}: p50 / p99 until a row has its pairs, ms:"
    return [said, markdown_table(["", *JOINS.values()], lines)] if lines else []


def _long_runs(rows: list[Row]) -> list[str]:
    found = pick_all(rows, case="memory")
    if not found:
        return []
    said = (
        f"The process's memory while {found[0]['rows']:,} rows go through windows of {found[0]['window_rows']:,}, one "
        "match a row, in order, MiB:"
    )
    figures = {
        "after a tenth of the rows": "resident_bytes_settled",
        "the most from then on": "resident_bytes_max",
    }
    lines = [[name, *(f"{row[figure] / 2**20:,.0f}" for row in found)] for name, figure in figures.items()]
    return [said, markdown_table(["", *(row["algorithm"] for row in found)], lines)]


# --- spark

THROUGH = {
    ("band", "counterflow"): "benchmark join",
    ("band", "identity"): "an operator that only passes the rows on",
    ("band", "spark_bucket_explode"): "Spark's own join with bucket and explode",
    ("band", "spark_grid"): "Spark's own join with a 2-D grid key made by hand",
    ("distance", "counterflow"): "the same points within a distance",
    ("equi", "counterflow"): "equi-join",
    ("equi", "spark_native"): "Spark's own equi-join",
}


def spark_tables(rows: list[Row]) -> list[str]:
    """Return micro-batches by join and window, and what the workers' memory did."""
    lines = []
    for (case, through), name in THROUGH.items():
        found = pick_all(rows, case=case, through=through)
        if found:
            layout = f", layout {found[0]['layout']}" if "layout" in found[0] else ""
            lines.append(
                [
                    name + layout,
                    "" if through == "identity" else slashed(f"{row['window_rows']:,}" for row in found),
                    slashed(f"{row['batch_ms_p50']:,.0f}" for row in found) + " ms",
                    slashed(f"{row['batch_ms_p90']:,.0f}" for row in found) + " ms",
                    slashed(f"{row['tuples_per_s']:,.0f}" for row in found),
                ]
            )
    joined = next(row for row in rows if row["case"] != "memory")
    said = (
        f"`local[{joined['partitions']}]`, {joined['batch_rows']:,} new rows a side in each micro-batch, full windows:"
    )
    heading = ["", "rows of a window", "a micro-batch, p50", "p90", "rows/s"]
    ranges = "The values' range grows with the window, so that a new row has the same number of matches."
    return [said, markdown_table(heading, lines), ranges, *map(_memory, pick_all(rows, case="memory"))]


def _memory(row: Row) -> str:
    first, last = (f"{row[f'worker_bytes_{when}'] / 2**20:.0f}" for when in ("first", "last"))
    return f"Memory of the Python workers over {row['batches']:,} micro-batches: from {first} to {last} MiB."


# --- gate


def gate_tables(rows: list[Row]) -> list[str]:
    """Return inserts and gets by sources and readers, one table for each number of tuples between promises."""
    tables = []
    for promise_rows in sorted({row["promise_rows"] for row in rows}):
        mine = pick_all(rows, promise_rows=promise_rows)
        readers = sorted({row["readers"] for row in mine})
        lines = []
        for sources in sorted({row["sources"] for row in mine}):
            cells = (pick(mine, sources=sources, readers=count) for count in readers)
            rates = [
                [f"{row[rate] / 1e6:.1f}" for rate in ("inserts_per_s", "gets_per_s")] if row else [] for row in cells
            ]
            lines.append([_plural(sources, "source"), *map(slashed, rates)])
        each = "every tuple, as in the paper" if promise_rows == 1 else f"every {promise_rows} tuples, as in the join"
        tables.append(f"M inserts/s / M gets/s of all threads together, with a promise for {each}:")
        tables.append(markdown_table(["", *(_plural(count, "reader") for count in readers)], lines))
    return tables


# --- predicates


def predicate_tables(rows: list[Row]) -> list[str]:
    """Return rates and candidates of each predicate by window, and finite joins beside DuckDB's."""
    streams, tables = (pick_all(rows, case=case) for case in ("stream", "finite"))
    windows = sorted({row["window_rows"] for row in streams})
    lines = []
    for name, where in {row["predicate"]: row["where"] for row in streams}.items():
        mine = [pick(streams, predicate=name, window_rows=window) for window in windows]
        rates = slashed(f"{row['tuples_per_s'] / 1e3:,.0f}" for row in mine if row)
        looked_at = slashed(f"{row['candidates_per_row']:.1f}" for row in mine if row)
        matches = slashed(f"{row['matches_per_row']:.1f}" for row in mine if row)
        lines.append([name, f"`{where}`".replace("|", "\\|"), rates, looked_at, matches])
    sizes = slashed(f"{window:,}" for window in windows)
    said = f"Streams through `cf.window_join`, batches of {streams[0]['batch_rows']:,}, windows of {sizes} rows a side:"
    heading = ["", "predicate", "thousand rows/s", "candidates a row", "matches a row"]
    return [said, markdown_table(heading, lines), *_beside_duckdb(tables)]


def _beside_duckdb(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = []
    for name in dict.fromkeys(row["predicate"] for row in rows):
        ours, theirs = (pick(rows, predicate=name, system=system) for system in ("counterflow", "duckdb"))
        assert ours is not None
        cells = [f"{theirs['cpu_s']:.2f}", f"{ours['cpu_s'] / theirs['cpu_s']:.2f}"] if theirs else ["did not end", ""]
        lines.append([name, f"{ours['pairs']:,}", f"{ours['cpu_s']:.2f}", *cells])
    size = f"Tables of {rows[0]['rows']:,} rows a side, windows of about {rows[0]['window_rows']:,} rows, CPU seconds"
    limit = "; DuckDB has two minutes" if any(line[-1] == "" for line in lines) else ""
    return [f"{size}{limit}:", markdown_table(["", "pairs", "Counterflow", "DuckDB", "ours to DuckDB's"], lines)]


def _plural(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


SECTIONS: dict[str, Callable[[list[Row]], list[str]]] = {
    "gate": gate_tables,
    "kernels": kernel_tables,
    "local": local_tables,
    "predicates": predicate_tables,
    "streams": stream_tables,
    "spark": spark_tables,
}
