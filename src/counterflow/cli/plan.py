"""`counterflow plan`: what a join needs, before it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from counterflow.cli.laboratory import has_laboratory
from counterflow.cli.terminal import notes, say
from counterflow.errors import OptionError
from counterflow.predicate.durations import duration_us
from counterflow.spec.window_sizes import INT64_MAX

if TYPE_CHECKING:
    from counterflow.plan.calibration import Calibration
    from counterflow.plan.computer import Computer

LEAST, MOST = 1e-6, 1e12  # tuples a second, bytes or GiB: what is beyond is a slip of the finger
DEVIATION_MAX = 0.25  # of a prediction, with --verify


def plan(
    left_rate: Annotated[float, typer.Option(min=LEAST, max=MOST, help="Tuples a second of the left stream.")] = 1000.0,
    right_rate: Annotated[
        float | None, typer.Option(min=LEAST, max=MOST, help="Of the right stream (default: as the left one).")
    ] = None,
    window: Annotated[str, typer.Option(help="'5 minutes'; LEFT,RIGHT if the two differ.")] = "5 minutes",
    hit_rate: Annotated[float, typer.Option(help="The share of pairs in the window that match.")] = 1 / 250_000,
    cores: Annotated[int | None, typer.Option(min=1, max=4096, help="Default: those of this machine.")] = None,
    memory: Annotated[
        float | None, typer.Option(max=MOST, help="GiB for windows (default: this machine's memory).")
    ] = None,
    row_bytes: Annotated[float, typer.Option(max=MOST, help="Of a stored row, its part of an index included.")] = 64.0,
    access: Annotated[
        str, typer.Option(help="scan (any predicate) or index (one with a band or an equality).")
    ] = "scan",
    engine: Annotated[str, typer.Option(help="local (in process) or spark.")] = "local",
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure this machine anew, half a minute.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare predictions with the local engine on three windows, 2 to 3 min.")
    ] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny sizes, to see that it works; nothing is kept.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the layout, least parallelism, latency, state and shuffle of a join with these rates and windows."""
    from counterflow.plan.computer import this_computer
    from counterflow.plan.model import Load
    from counterflow.plan.planner import Question, make_plan

    left_s, right_s = parse_windows(window)
    here = this_computer()
    question = Question(
        Load(left_rate, left_rate if right_rate is None else right_rate, left_s, right_s, hit_rate),
        cores or here.cores,
        (memory * 2**30) if memory is not None else float(here.memory_bytes),
        access,  # type: ignore[arg-type]
        engine,  # type: ignore[arg-type]
        row_bytes,
    )
    with notes.status("starting") as status:
        calibration = _calibration(here, calibrate, smoke, status.update)
        rows = _verified(here, smoke, status.update) if verify else []
    found = make_plan(question, calibration)
    if as_json:
        typer.echo(json.dumps({"plan": found.as_json(), "machine": calibration.machine,
                               "calibrated": calibration.date, "verified": rows}))  # fmt: skip
    else:
        show(found, question, calibration)
        show_verified(rows)
    if any(abs(row["ratio"] - 1) > DEVIATION_MAX for row in rows) and not smoke:
        notes.print(f"[bold red]a prediction is off by more than {DEVIATION_MAX:.0%}[/]")
        raise typer.Exit(1)


def _calibration(here: Computer, afresh: bool, smoke: bool, note: Callable[[str], None]) -> Calibration:
    """Return what was kept of this machine, what is measured now, or, without the laboratory, published rates."""
    from counterflow.plan.calibration import PUBLISHED, keep_calibration, kept_calibration

    found = None if afresh or smoke else kept_calibration(here)
    if found is not None:
        return found
    if not (afresh or smoke or has_laboratory()):
        say(
            "this machine was not measured, as the laboratory (counterflow.lab) is not installed: the plan is for "
            f"{PUBLISHED.machine}, {PUBLISHED.cores} cores; install the whole package to measure yours"
        )
        return PUBLISHED
    from counterflow.lab.bench.plan_calibration import SMOKE, CalibrationSizes
    from counterflow.lab.bench.plan_calibration import calibrate as measure

    found = measure(here, SMOKE if smoke else CalibrationSizes(), note)
    if not smoke:
        keep_calibration(found)
    return found


def _verified(here: Computer, smoke: bool, note: Callable[[str], None]) -> list[dict[str, Any]]:
    from counterflow.lab.bench.plan_calibration import SMOKE, CalibrationSizes
    from counterflow.lab.bench.plan_verification import verify

    return verify(here, SMOKE if smoke else CalibrationSizes(), note)


def parse_windows(text: str) -> tuple[float, float]:
    """Return the left and the right window in seconds."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 2:
        raise OptionError(f"--window {text!r}: give one window, or LEFT,RIGHT")
    sizes = [duration_us(part) for part in parts]
    if max(sizes) > INT64_MAX:
        raise OptionError(f"--window {text!r} is longer than 64-bit time")
    return sizes[0] / 1e6, sizes[-1] / 1e6


def show(found: Any, question: Any, calibration: Any) -> None:
    console = Console(width=None if notes.is_terminal else 120, highlight=False)
    load = question.load
    table = Table("", "", show_header=False)
    workers = f"{found.workers} of {question.cores} cores"
    if not found.sustained:
        needed = "no number of workers suffices" if found.needed is None else f"{found.needed} would be needed"
        workers = f"all {question.cores} cores, which do not sustain the rates: {needed}"
    rows = {
        "streams": f"{load.left_rate:,.0f} and {load.right_rate:,.0f} tuples/s, windows of {found.window_rows[0]:,.0f} "
        f"and {found.window_rows[1]:,.0f} rows",
        "work": f"{found.comparisons_per_s:,.0f} comparisons/s as a nested loop, {found.results_per_s:,.1f} results/s",
        "workers": workers,
        "layout": f"{found.layout[0]}x{found.layout[1]}",
        "busy": f"{found.utilisation:.0%}",
        "highest rates": f"{found.highest_share:.2f} times these, with {question.cores} cores",
        "latency, mean": "grows without end" if found.latency_s == float("inf") else _duration(found.latency_s),
        "state": f"{found.state_bytes / 2**20:,.1f} MiB{'' if found.fits else ', which is more than there is'}",
        "rows to workers": f"{found.shuffle_rows_per_s:,.0f} a second, copies included",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    for reason in found.reasons:
        console.print(reason)
    console.print(f"calibrated on {calibration.machine}, {calibration.cores} cores, {calibration.date}")


def _duration(seconds: float) -> str:
    return (
        f"{seconds * 1e6:.0f} µs"
        if seconds < 1e-3
        else f"{seconds * 1e3:.2f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
    )


def show_verified(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = Table("access", "window", "workers", "predicted tuples/s", "measured", "ratio", "least and most")
    for row in rows:
        table.add_row(
            row["access"], f"{row['window_rows']:,}", str(row["workers"]), f"{row['predicted_tuples_per_s']:,.0f}",
            f"{row['measured_tuples_per_s']:,.0f}", f"{row['ratio']:.2f}",
            f"{row['ratio_least']:.2f} to {row['ratio_most']:.2f}",
        )  # fmt: skip
    Console(width=None if notes.is_terminal else 120, highlight=False).print(table)
