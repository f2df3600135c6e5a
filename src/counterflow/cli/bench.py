"""`counterflow bench`: measure, print."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="Measure this machine; every benchmark checks its own output.")
notes = Console(stderr=True, highlight=False)

RATES = ("comparisons_per_s", "tuples_per_s")
RATIOS = ("ratio_to_limit", "ratio_to_counterflow", "probe_cost_ratio")


@app.callback()
def root() -> None:
    pass  # so that `kernels` stays a command of its own while it is the only one


@app.command()
def kernels(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny sizes, to see that it works.")] = False,
) -> None:
    """Scan, prefilter, hash and band indexes, the finite join, and hard cases."""
    from counterflow.bench.kernels import bench_kernels

    with notes.status("starting") as status:

        def note(text: str) -> None:
            status.update(text)
            if not notes.is_terminal:
                notes.print(text)

        report = bench_kernels(smoke, note)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        show(report)
    if not all(row["verified"] for row in report["results"]):
        notes.print("[bold red]some output was wrong:[/] see the rows that are not verified")
        raise typer.Exit(1)


def show(report: dict[str, Any]) -> None:
    console = Console(width=None if notes.is_terminal else 140, highlight=False)
    machine = report["machine"]
    console.print(f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB")
    console.print(", ".join(f"{name} {version}" for name, version in report["versions"].items()))
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
