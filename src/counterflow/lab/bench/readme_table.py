"""README's table: what a user gets through the public call."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from counterflow.lab.bench.markdown import described, markdown_table, pick, pick_all, short

Report = dict[str, Any]
Row = dict[str, Any]

NEEDED = ("kernels", "streams", "spark")
HEADING = ["join", "`cf.window_join`", "beside it"]
DUCKDB = {"duckdb_plain": "DuckDB", "duckdb_grid": "with a grid key by hand"}
SHOWN = {"haversine": "10 km on the globe", "overlap": "overlaps of intervals", "levenshtein": "texts two edits apart"}
SPARK = {
    "spark_grid": "with a grid key by hand",
    "spark_bucket_explode": "with bucket and explode",
    "spark_native": "Spark's own",
}


def readme_table(reports: list[Report]) -> str | None:
    """Return the table with its machines, from the newest report of each kind; None if a kind is missing."""
    whole = (report for report in reports if not report["smoke"])
    newest = {report["benchmark"]: report for report in sorted(whole, key=lambda report: report["date"])}
    if not all(name in newest for name in NEEDED):
        return None
    kernels, streams, spark = (newest[name]["results"] for name in NEEDED)
    shown = [name for name in (*NEEDED, "predicates") if name in newest]
    finite = newest["predicates"]["results"] if "predicates" in newest else []
    lines = [_tables(kernels), *_finite(finite), *_streams(streams), _spark(spark, "band"), _spark(spark, "equi")]
    said = f"{_sizes(spark)} {_machines([newest[name] for name in shown])}"
    return f"{markdown_table(HEADING, lines)}\n\n{said}"


def _tables(rows: list[Row]) -> list[str]:
    seconds = {row["through"]: row["seconds"] for row in pick_all(rows, path="finite_join")}
    ours = pick_all(rows, path="finite_join", through="counterflow")[0]
    beside = ", ".join(f"{name} {short(seconds[way])} s" for way, name in DUCKDB.items() if way in seconds)
    return [f"tables of {ours['rows_per_side']:,} rows, two bands", f"{short(ours['seconds'])} s", beside]


def _finite(rows: list[Row]) -> list[list[str]]:
    """Return joins of tables by the predicates of `SHOWN`, beside DuckDB's."""
    lines = []
    for name, said in SHOWN.items():
        ours, theirs = (pick(rows, case="finite", predicate=name, system=who) for who in ("counterflow", "duckdb"))
        if ours is not None:
            beside = f"DuckDB {short(theirs['seconds'])} s" if theirs else "DuckDB more than two minutes"
            lines.append([f"tables of {ours['rows']:,} rows, {said}", f"{short(ours['seconds'])} s", beside])
    return lines


def _streams(rows: list[Row]) -> list[list[str]]:
    """Return the rates that the default algorithm sustains, and how old results are at gentle ones."""
    lines = []
    for kind, name in (("hash", "equality"), ("band", "two bands")):
        full = pick_all(rows, case="rate", path=kind, algorithm="auto")[0]
        lines.append([f"streams in process, {name}", f"{full['tuples_per_s'] / 1e6:.1f} M rows/s", ""])
    calm = pick_all(rows, case="gentle rate", path="band", algorithm="auto")[0]
    p50, p99 = (short(calm[f"latency_us_{name}"] / 1000) for name in ("p50", "p99"))
    lines.append([f"the same at {calm['rate_tuples_per_s']:,.0f} rows/s", f"p50 {p50} ms, p99 {p99} ms", ""])
    for row in pick_all(rows, case="pushed", path="band")[-1:]:  # the highest rate
        p50, p99 = (short(row[f"latency_us_{name}"] / 1000) for name in ("p50", "p99"))
        lines.append([f"rows pushed one by one, {row['rate_tuples_per_s']:,.0f}/s", f"p50 {p50} ms, p99 {p99} ms", ""])
    return lines


def _spark(rows: list[Row], case: str) -> list[str]:
    small, *larger = (short(row["batch_ms_p50"] / 1000) for row in pick_all(rows, case=case, through="counterflow"))
    ours = f"{small} ({larger[-1]}) s" if larger else f"{small} s"
    found = ((name, pick(rows, case=case, through=through)) for through, name in SPARK.items())
    beside = ", ".join(f"{name} {short(row['batch_ms_p50'] / 1000)} s" for name, row in found if row)
    return [f"Spark, {'two bands' if case == 'band' else 'equality'}", ours, beside]


def _sizes(spark: list[Row]) -> str:
    ours = pick_all(spark, case="band", through="counterflow")
    small, large = (f"{row['window_rows']:,}" for row in (ours[0], ours[-1]))
    brackets = f" (in brackets: {large})" if len(ours) > 1 else ""
    batch = f"On Spark, a micro-batch with {ours[0]['batch_rows']:,} new rows a side."
    return f"Windows of {small} rows a side{brackets}. {batch}"


def _machines(reports: list[Report]) -> str:
    """Return on what each was measured; a machine that several share is named once."""
    machines: dict[str, list[str]] = {}
    for report in reports:
        date = f"{datetime.fromisoformat(report['date']):%B %Y}"
        machines.setdefault(f"{described(report['machine'])}, {date}", []).append(f"`{report['benchmark']}`")
    said = "; ".join(f"{', '.join(names)} on {machine}" for machine, names in machines.items())
    return f"`counterflow bench`: {said}."
