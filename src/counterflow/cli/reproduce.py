"""`counterflow reproduce`: the papers' figures again, and a page of them."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

import typer

from counterflow.cli.output_files import make_folder
from counterflow.cli.terminal import notes, say
from counterflow.errors import OptionError


def list_figures(as_json: bool) -> None:
    from counterflow.lab.reproduce.all_figures import FIGURES

    typer.echo(json.dumps(list(FIGURES)) if as_json else "\n".join(FIGURES))


def reproduce(names: list[str], output: Path, as_json: bool, smoke: bool) -> bool:
    """Make the figures and the page, and return whether all checks hold; tiny sizes (`smoke`) always do."""
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError("figures need matplotlib: pip install 'counterflow[plots]'")
    from counterflow.lab.bench.host import heading
    from counterflow.lab.reproduce.all_figures import FIGURES, chosen
    from counterflow.lab.reproduce.figures_page import write_page

    names, began = chosen(names), time.perf_counter()
    make_folder(output)
    report = heading("reproduce", smoke)
    figures = []
    with notes.status("starting") as status:
        for i, name in enumerate(names, 1):
            started = time.perf_counter()
            figure = FIGURES[name](smoke, lambda text, name=name: status.update(f"{name}: {text}"))  # type: ignore[misc]
            figure.write(output)
            figures.append(figure)
            mark = "[green]holds[/]" if figure.holds else "[bold red]fails[/]"
            notes.print(f"{i:2} of {len(names)}  {name:16} {time.perf_counter() - started:6.1f} s  {mark}")
            for what in (what for what, held in figure.checks.items() if not held):
                say(f"          not so: {what}")
    page = write_page(figures, report, output)
    say(f"{len(figures)} figures in {time.perf_counter() - began:.0f} s: {page}")
    if as_json:
        seconds = time.perf_counter() - began
        found = [figure.as_json() for figure in figures]
        typer.echo(json.dumps({**report, "seconds": seconds, "page": str(page), "figures": found}, default=float))
    return smoke or all(figure.holds for figure in figures)
