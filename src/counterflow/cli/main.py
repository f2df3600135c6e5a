"""The commands of `counterflow`."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import counterflow as cf
from counterflow.cli import bench
from counterflow.cli import output_files as files
from counterflow.cli.laboratory import MISSING, is_missing_laboratory
from counterflow.cli.plan import plan
from counterflow.cli.rescale import rescale
from counterflow.cli.simulate import simulate
from counterflow.cli.terminal import complain, interruptible, notes, plain, say
from counterflow.engines.local.input.files import file_schema, file_table
from counterflow.errors import CounterflowError, OptionError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Join two streams on any predicate within sliding windows, in process or on Spark.",
)
app.add_typer(bench.app, name="bench")
app.command()(simulate)
app.command()(plan)
app.command()(rescale)

FIGURES_FOLDER = Path("reproduced")
LeftFile = Annotated[
    Path, typer.Argument(help="Left input: a Parquet, CSV (also .gz or .bz2) or Arrow IPC file.", metavar="LEFT")
]
RightFile = Annotated[
    Path, typer.Argument(help="Right input: a Parquet, CSV (also .gz or .bz2) or Arrow IPC file.", metavar="RIGHT")
]
Where = Annotated[str, typer.Option(help="The condition, in SQL, over l. and r. columns.")]
Time = Annotated[str, typer.Option(help="The time column; LEFT,RIGHT if the two differ.")]
WindowOption = Annotated[
    str,
    typer.Option(
        help="'15 minutes'; an integer for integer times; 'rows:100'; 'none': no bound; LEFT,RIGHT if the two differ."
    ),
]
How = Annotated[str, typer.Option(help="inner, left, right, full, semi or anti.")]
Suffix = Annotated[str, typer.Option(help="Added to right columns whose name is taken.")]
Ordered = Annotated[bool, typer.Option("--ordered", help="Results in order of time.")]
Engine = Annotated[str, typer.Option(help="local (in process) or spark.")]
LayoutOption = Annotated[str, typer.Option(help="Cells on Spark, such as 2x3, hash:4 or band:4; or auto.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"counterflow {cf.__version__}")
        raise typer.Exit


@app.command()
def demo(
    seconds: Annotated[int, typer.Option(min=1, max=86_400, help="How long the streams run.")] = 20,
    rate: Annotated[int, typer.Option(min=20, max=1_000_000, help="Rows a second, both streams together.")] = 400,
    layout: LayoutOption = "auto",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to put inputs and results (default: a new temporary folder)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Vessels and lightning: two live streams joined on Spark, in one process, then checked pair by pair."""
    from counterflow.cli.demo import Demo

    cf.Spark(layout=layout)  # refuse a bad layout before Spark starts
    summary = Demo(seconds=seconds, rate=rate, layout=layout, output=output, notes=notes).run()
    if as_json:
        typer.echo(json.dumps(summary))
    if not summary["verified"]:
        raise typer.Exit(1)


@app.command()
def join(
    left: LeftFile,
    right: RightFile,
    where: Where,
    time: Time,
    window: WindowOption = "none",
    how: How = "inner",
    suffix: Suffix = "_right",
    ordered: Ordered = False,
    output: Annotated[
        str, typer.Option("--output", "-o", help="A .csv or .parquet file; '-' writes CSV to stdout.")
    ] = "-",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output file if there is one.")] = False,
    engine: Engine = "local",
    layout: LayoutOption = "auto",
) -> None:
    """Join two files."""
    check_engine(engine, layout)
    files.check_output(output, (left, right), force)
    options = join_options(where, time, window, how, suffix, ordered)
    tables = file_table(left, "the left input"), file_table(right, "the right input")
    if engine == "spark":
        result = files.join_on_spark(*tables, layout=layout, **options)
    else:
        with files.progress() as progress, interruptible():
            result = cf.window_join(*tables, engine=cf.Local(progress=progress), **options)
    files.write_table(result, output, force)
    say(f"{len(result):,} rows to {'stdout' if output == '-' else output}")


@app.command()
def explain(
    left: LeftFile,
    right: RightFile,
    where: Where,
    time: Time,
    window: WindowOption = "none",
    how: How = "inner",
    suffix: Suffix = "_right",
    ordered: Ordered = False,
    as_json: Json = False,
) -> None:
    """Show how a join's predicate is split and executed, without reading the files' rows."""
    schemas = [file_schema(left, "the left input").empty_table(), file_schema(right, "the right input").empty_table()]
    options = join_options(where, time, window, how, suffix, ordered)
    explanation = cf.explain(*schemas, show=False, **options)
    typer.echo(json.dumps(explanation.to_dict()) if as_json else plain(str(explanation), keep="\n"))


@app.command()
def reproduce(
    figures: Annotated[list[str] | None, typer.Argument(help="Such as llhj-17; all, if none is given.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for figures and page.")] = FIGURES_FOLDER,
    only_list: Annotated[bool, typer.Option("--list", help="Print the figures' names.")] = False,
    as_json: Json = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny sizes, to see that it works.")] = False,
) -> None:
    """Make the papers' figures again: measured on the cores there are, simulated above; PNG, SVG, JSON, one page."""
    from counterflow.cli import reproduce as command

    if only_list:
        if figures or output != FIGURES_FOLDER or smoke:
            raise OptionError("--list prints the names of all figures: leave out the figures, --output and --smoke")
        command.list_figures(as_json)
    elif not command.reproduce(figures or [], output, as_json, smoke):
        raise typer.Exit(1)


def join_options(where: str, time: str, window: str, how: str, suffix: str, ordered: bool) -> dict[str, Any]:
    """Return what `cf.window_join` and `cf.explain` are called with."""
    sizes, columns = parse_window(window), parse_time(time)
    return dict(where=where, time=columns, window=sizes, how=how, suffix=suffix, ordered=ordered)


def parse_time(text: str) -> str | tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    return (parts[0], parts[1]) if len(parts) == 2 else text


def parse_window(text: str) -> object:
    """Return the window that a person typed."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 2:
        raise OptionError(f"--window {text!r}: give one window, or LEFT,RIGHT")
    sizes = [_one_window(part) for part in parts]
    return sizes[0] if len(sizes) == 1 else tuple(sizes)


def _one_window(text: str) -> object:
    if text.lower() == "none":
        return None
    if text.lower().startswith("rows:"):
        count = re.fullmatch(r"\s*(\+?[0-9]{1,18})\s*", text[5:])
        if count is None:
            raise OptionError(f"--window {text!r}: write rows:100 for the last 100 rows, with at most 18 digits")
        return cf.rows(int(count[1]))
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else text


def check_engine(name: str, layout: str) -> None:
    if name not in ("local", "spark"):
        raise OptionError(f"--engine {name!r}: use local or spark")
    if name == "local" and layout != "auto":
        raise OptionError(f"--layout {layout!r} lays out cells on Spark: use it with --engine spark, or leave it out")


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Say whether a record is something else than py4j's traceback of a Ctrl-C, for which we have one word."""
    return not record.getMessage().startswith(
        ("KeyboardInterrupt while sending command", "Exception occurred while shutting down connection")
    )


def main() -> None:
    """Run the command line; a user's error is one line, not a traceback."""
    for logger in (None, "py4j.clientserver"):
        logging.getLogger(logger).addFilter(_is_no_interrupt)
    try:
        sys.exit(app(standalone_mode=False, prog_name="counterflow"))
    except CounterflowError as error:
        complain(f"{type(error).__name__}: {error}")
        sys.exit(2)
    except ModuleNotFoundError as error:
        if not is_missing_laboratory(error):
            raise
        complain(MISSING)
        sys.exit(2)
    except MemoryError:
        complain("there is not enough memory: use smaller inputs, a shorter window or a condition that matches less")
        sys.exit(1)
    except KeyboardInterrupt:
        notes.print("interrupted")
        sys.exit(130)
    except BrokenPipeError:  # the reader of stdout has seen enough
        sys.exit(0)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        sys.exit(_complain_of_usage(error))


def _complain_of_usage(error: Any) -> int:
    """Print what typer finds wrong with the arguments as other errors are printed; return the exit code."""
    context = getattr(error, "ctx", None)
    message = error.format_message()  # empty, and help is printed, where a command was called without arguments
    if message:
        complain(message + (f" (see {context.command_path} --help)" if context is not None else ""))
    return int(error.exit_code)
