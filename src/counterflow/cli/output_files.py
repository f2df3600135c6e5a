"""What `join` writes (a CSV or Parquet file, or stdout), its progress bar, and the same join on Spark."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import counterflow as cf
from counterflow.cli.terminal import notes, plain
from counterflow.errors import OptionError


def check_output(output: str, inputs: tuple[Path, ...], force: bool) -> None:
    """Refuse an output that cannot or must not be written: before the work, not after it."""
    if output == "-":
        if force:
            raise OptionError("--force overwrites a file, and stdout is none: leave it out, or name a file with -o")
        return
    path = Path(output)
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise OptionError(f"--output {output}: use a name that ends in .csv or .parquet, or '-' for CSV on stdout")
    try:
        target = path.resolve()
        if not target.parent.is_dir():
            raise OptionError(f"--output {output}: the folder {target.parent} does not exist")
        for given in inputs:
            if target.exists() and given.exists() and target.samefile(given):
                raise OptionError(f"--output {output} is the input {given}: choose another name")
        _check_free(output, target, force)
    except (OSError, RuntimeError) as error:  # a name that is too long, a folder that is closed, a loop of links
        raise OptionError(f"--output {output}: cannot be written: {error}") from error


def make_folder(path: Path) -> None:
    """Make the folder that `--output` names, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"--output {path}: the folder cannot be made: {error}") from error


def _check_free(output: str, target: Path, force: bool) -> None:
    if target.exists() and not target.is_file():
        raise OptionError(f"--output {output} exists and is not an ordinary file: choose another name")
    if target.exists() and not force:
        raise OptionError(f"--output {output} exists: choose another name, or overwrite it with --force")


def write_table(table: pa.Table, output: str, force: bool = False) -> None:
    """Write the result where `--output` says; a file is whole, or as it was before."""
    if output == "-":
        _print_table(table)
        return
    target = Path(output).resolve()
    # Beside the target and renamed in the end: a failed or interrupted join leaves what was there, or nothing.
    part = target.with_name(f".counterflow-{uuid.uuid4().hex}.part")
    write = pa.csv.write_csv if target.suffix.lower() == ".csv" else pa.parquet.write_table
    try:
        write(table, part)
        _check_free(output, target, force)  # it may have come meanwhile
        if target.exists():
            shutil.copymode(target, part)
        os.replace(part, target)
    except (pa.ArrowException, OSError) as error:
        raise OptionError(f"--output {output}: cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def _print_table(table: pa.Table) -> None:
    """Print CSV to stdout: byte for byte to a file or a program, without control characters to a terminal."""
    try:
        if not sys.stdout.isatty():
            pa.csv.write_csv(table, sys.stdout.buffer)
            return
        text = pa.BufferOutputStream()
        pa.csv.write_csv(table, text)
        sys.stdout.write(plain(text.getvalue().to_pybytes().decode(errors="backslashreplace"), keep="\n"))
    except pa.ArrowException as error:
        raise OptionError(f"the result cannot be written as CSV ({error}): write a .parquet file with -o") from error


@contextmanager
def progress() -> Iterator[Callable[[int, int, int], None]]:
    """Show a bar on stderr while a join runs, on terminals only."""
    columns = (
        TextColumn("joining"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,} rows, {task.fields[pairs]:,} pairs"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=notes, transient=True, disable=not notes.is_terminal) as bar:
        notes.show_cursor()  # the bar hides it, and Ctrl-C ends the process at once
        task = bar.add_task("join", total=1, pairs=0)
        yield lambda done, total, pairs: bar.update(task, completed=done, total=total, pairs=pairs)


def join_on_spark(left: pa.Table, right: pa.Table, *, layout: str, **options: Any) -> pa.Table:
    """Join two tables on a Spark in this process, and return the result."""
    from counterflow.engines.spark.session import local_session

    engine = cf.Spark(layout=layout)
    log = Path(tempfile.mkdtemp(prefix="counterflow-join-")) / "spark.log"
    spark = local_session("counterflow join", log=log)
    try:
        spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")  # times without a zone stay so
        frames = spark.createDataFrame(left), spark.createDataFrame(right)
        result: pa.Table = cf.window_join(*frames, engine=engine, **options).toArrow()
        return result
    finally:
        spark.stop()
        shutil.rmtree(log.parent, ignore_errors=True)
