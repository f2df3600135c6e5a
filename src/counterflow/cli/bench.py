"""`counterflow bench`: measure, print."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from counterflow.cli.terminal import notes, say

app = typer.Typer(no_args_is_help=True, help="Measure this machine; every benchmark checks its own output.")

RATES = ("comparisons_per_s", "tuples_per_s")
RATIOS = ("ratio_to_limit", "ratio_to_counterflow", "probe_cost_ratio")


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Tiny sizes, to see that it works.")]


@app.command()
def kernels(as_json: Json = False, smoke: Smoke = False) -> None:
    """Measure scan, prefilter, hash and band indexes, the finite join, and hard cases."""
    from counterflow.lab.bench.kernels import bench_kernels

    _measure(bench_kernels, smoke, as_json, show)


@app.command()
def spark(as_json: Json = False, smoke: Smoke = False) -> None:
    """Measure band join and equi-join on Spark, beside an identity operator and Spark's own joins; workers' memory."""
    from counterflow.lab.bench.spark_joins import bench_spark

    _measure(bench_spark, smoke, as_json, show_spark)


@app.command()
def local(
    as_json: Json = False,
    smoke: Smoke = False,
    algorithm: Annotated[list[str] | None, typer.Option(help="Only these; may be given several times.")] = None,
    workers: Annotated[int | None, typer.Option(help="Nodes; one for each core unless given.")] = None,
    batch_rows: Annotated[int | None, typer.Option(help="Tuples of a node at once, at most; 64 unless given.")] = None,
    window_rows: Annotated[int | None, typer.Option(help="Rows of each window; 100,000 unless given.")] = None,
    predicate: Annotated[str | None, typer.Option(help="equi, or band (unless given): the benchmark join.")] = None,
    access: Annotated[str | None, typer.Option(help="auto (an index; unless given), scan or merge.")] = None,
    share: Annotated[float | None, typer.Option(help="Of the sustained rate, for latency; 0.5 unless given.")] = None,
    waiting: Annotated[
        str | None, typer.Option(help="park, yield or spin: latency at a low rate, a thread for each node.")
    ] = None,
) -> None:
    """Measure the six algorithms in process: rates with and without an index, and latency at half the rate.

    With an option that chooses a configuration only that one is measured: its rate, and latency at a share of it.
    """
    given = dict(
        algorithms=tuple(algorithm) if algorithm else None,
        workers=workers,
        batch_rows=batch_rows,
        window_rows=window_rows,
        predicate=predicate,
        access=access,
        share=share,
        waiting=waiting,
    )
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if chosen:
        from counterflow.lab.bench.local_configuration import Choice, bench_chosen

        _measure(partial(bench_chosen, Choice(**chosen)), smoke, as_json, show_local)
    else:
        from counterflow.lab.bench.local_algorithms import bench_local

        _measure(bench_local, smoke, as_json, show_local)


@app.command()
def streams(as_json: Json = False, smoke: Smoke = False) -> None:
    """Measure streams of Arrow batches through cf.window_join: rates, and latency at half of them and below."""
    from counterflow.lab.bench.public_streams import bench_streams

    _measure(bench_streams, smoke, as_json, show_local)


@app.command()
def gate(as_json: Json = False, smoke: Smoke = False) -> None:
    """Measure a ScaleGate alone, sources by readers: inserts and gets a second, every reader's order checked."""
    from counterflow.lab.bench.gate import bench_gate

    _measure(bench_gate, smoke, as_json, show_gate)


@app.command()
def layouts(as_json: Json = False, smoke: Smoke = False) -> None:
    """Measure Spark's layouts side by side, up to 16 cells in local mode and up to 1,024 by counting rows."""
    from counterflow.lab.bench.layouts import bench_layouts

    _measure(bench_layouts, smoke, as_json, show_layouts)


@app.command()
def predicates(as_json: Json = False, smoke: Smoke = False) -> None:
    """Measure predicates of every kind through cf.window_join at windows of three sizes, and tables beside DuckDB."""
    from counterflow.lab.bench.predicates import bench_predicates

    _measure(bench_predicates, smoke, as_json, show_predicates)


def _measure(
    measure: Callable[[bool, Callable[[str], None]], dict[str, Any]],
    smoke: bool,
    as_json: bool,
    print_report: Callable[[dict[str, Any]], None],
) -> None:
    with notes.status("starting") as status:

        def note(text: str) -> None:
            status.update(text)
            if not notes.is_terminal:
                say(text)

        report = measure(smoke, note)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        print_report(report)
    if not all(row["verified"] for row in report["results"]):
        notes.print("[bold red]some output was wrong:[/] see the rows that are not verified")
        raise typer.Exit(1)


def _console(report: dict[str, Any]) -> Console:
    """Print the machine and the versions, and return the console for the rest."""
    console = Console(width=None if notes.is_terminal else 200, highlight=False)
    machine = report["machine"]
    console.print(f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB")
    console.print(", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    return console


def show(report: dict[str, Any]) -> None:
    console = _console(report)
    headings = (
        "path",
        "through",
        "window",
        "batch",
        "threads",
        "rate or time",
        "ratio",
        "matches",
        "bytes",
        "verified",
    )
    table = Table(*headings)
    for row in report["results"]:
        table.add_row(*_cells(row))
    console.print(table)
    for remark in report["remarks"]:
        console.print(remark)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row.get("case", row["path"]),
        row["through"],
        f"{row['window_rows']:,}",
        f"{row['batch_rows']:,}" if "batch_rows" in row else "",
        str(row["threads"]),
        _rate(row),
        next((f"{row[name]:.2f}" for name in RATIOS if name in row), ""),
        f"{row['matches_per_probe']:.3g}" if "matches_per_probe" in row else f"{row['pairs']:,} pairs",
        f"{row['bytes_per_row']:.0f}" if "bytes_per_row" in row else "",
        "yes" if row["verified"] else "NO",
    ]


def _rate(row: dict[str, Any]) -> str:
    for name in RATES:
        if name in row:
            unit = name.removesuffix("_per_s")
            return f"{row[name] / 1e9:.3g} G {unit}/s" if row[name] >= 1e9 else f"{row[name] / 1e6:.3g} M {unit}/s"
    return f"{row['seconds']:.3f} s" if "seconds" in row else f"{row['probe_ns']:.0f} ns a probe"


# --- spark

SPARK_COLUMNS = {
    "case": "case",
    "through": "through",
    "window_rows": "window",
    "layout": "layout",
    "batch_ms_p50": "batch ms",
    "add_batch_ms": "addBatch",
    "query_planning_ms": "plan",
    "state_commit_ms": "commit",
    "join_us": "join us",
    "state_us": "state us",
    "tuples_per_s": "tuples/s",
    "matches_per_row": "matches",
    "verified": "verified",
}


def show_spark(report: dict[str, Any]) -> None:
    from counterflow.lab.bench.spark_joins import ASKED

    console = _console(report)
    _show_table(console, report["results"], SPARK_COLUMNS)
    for row in report["results"]:
        if "growth_bytes" in row:
            sizes = " to ".join(f"{row[f'worker_bytes_{when}'] / 2**20:.0f} MiB" for when in ("first", "last"))
            console.print(f"memory of the workers over {row['batches']} batches: {sizes}")
    _show_ratios(console, report, ASKED)


LAYOUT_COLUMNS = {
    "case": "case",
    "values": "values",
    "layout": "layout",
    "cells": "cells",
    "threads": "threads",
    "rows_sent_per_row": "rows sent a row",
    "evenness": "evenness",
    "state_rows": "state rows",
    "batch_ms_p50": "batch ms",
    "tuples_per_s": "tuples/s",
    "verified": "verified",
}


def show_layouts(report: dict[str, Any]) -> None:
    """Print a line for each layout and number of cells."""
    console = _console(report)
    _show_table(console, report["results"], LAYOUT_COLUMNS)
    _show_ratios(console, report, {})


# --- local

LOCAL_COLUMNS = {
    "algorithm": "algorithm",
    "path": "path",
    "rates": "rates",
    "workers": "workers",
    "sources": "sources",
    "layout": "layout",
    "window_rows": "window",
    "batch_rows": "batch",
    "waiting": "waiting",
    "tuples_per_s": "tuples/s",
    "comparisons_per_s": "comparisons/s",
    "ratio_to_kernel": "of the kernel",
    "ratio_to_scan": "to the scan",
    "spread": "spread",
    "ordered_by": "ordered by",
    "ordering_costs": "ordering",
    "rate_tuples_per_s": "latency at",
    "latency_us_p50": "p50 us",
    "latency_us_p99": "p99 us",
    "latency_us_max": "max us",
    "latency_us_p99_of_all": "p99 of all",
    "stolen": "stolen",
    "hop_ns": "hop ns",
    "buffer_rows_max": "buffered",
    "punctuation_rows_min": "punctuated",
    "verified": "verified",
}


def show_local(report: dict[str, Any]) -> None:
    """Print a table for each case, with the columns that it has."""
    from counterflow.lab.bench.local_algorithms import ASKED

    console = _console(report)
    for case in dict.fromkeys(row["case"] for row in report["results"]):
        rows = [row for row in report["results"] if row["case"] == case]
        columns = {name: title for name, title in LOCAL_COLUMNS.items() if any(name in row for row in rows)}
        _show_table(console, rows, columns, case)
    _show_ratios(console, report, ASKED)


# --- gate

GATE_COLUMNS = {
    "sources": "sources",
    "readers": "readers",
    "promise_rows": "a promise for",
    "inserts_per_s": "inserts/s",
    "gets_per_s": "gets/s",
    "seconds": "seconds",
    "stolen": "stolen",
    "hop_ns": "hop ns",
    "verified": "verified",
}


def show_gate(report: dict[str, Any]) -> None:
    """Print a line for each number of sources and readers."""
    console = _console(report)
    _show_table(console, report["results"], GATE_COLUMNS)
    _show_ratios(console, report, dict.fromkeys(report["ratios"], ""))


def _show_table(
    console: Console, rows: list[dict[str, Any]], columns: dict[str, str], title: str | None = None
) -> None:
    table = Table(*columns.values(), title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(_shown(row.get(name)) for name in columns))
    console.print(table)


def _show_ratios(console: Console, report: dict[str, Any], wanted: dict[str, str]) -> None:
    for name, asked in wanted.items():
        seen = report["ratios"].get(name)
        if seen is not None:
            console.print(f"{name}: asked {asked or '-'}, seen {_shown(seen)}")
    for remark in report["remarks"]:
        console.print(remark)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        for unit, size in (("G", 1e9), ("M", 1e6)):
            if abs(value) >= size:
                return f"{value / size:.3g} {unit}"
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def show_predicates(report: dict[str, Any]) -> None:
    """Print what each predicate costs, by window, and its finite join beside DuckDB's."""
    console, rows = Console(), report["results"]
    table = Table("predicate", "window", "k tuples/s", "candidates a row", "matches a row", box=box.SIMPLE)
    for row in (row for row in rows if row["case"] == "stream"):
        table.add_row(
            row["predicate"],
            f"{row['window_rows']:,}",
            f"{row['tuples_per_s'] / 1e3:,.0f}",
            f"{row['candidates_per_row']:.2f}",
            f"{row['matches_per_row']:.2f}",
        )
    console.print(table)
    tables = Table("predicate", "system", "s", "CPU s", "pairs", box=box.SIMPLE)
    for row in (row for row in rows if row["case"] == "finite"):
        tables.add_row(
            row["predicate"], row["system"], f"{row['seconds']:.3f}", f"{row['cpu_s']:.3f}", f"{row['pairs']:,}"
        )
    console.print(tables)
