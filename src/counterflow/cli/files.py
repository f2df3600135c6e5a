"""Files in and out: CSV and Parquet as Arrow tables."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import counterflow as cf
from counterflow.errors import InputError, OptionError


def read_table(path: Path, side: str) -> pa.Table:
    _check_input(path, side)
    try:
        if path.suffix.lower() == ".csv":
            return pa.csv.read_csv(path)
        return pa.parquet.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"cannot read the {side} input {path}: {error}") from error


def read_schema(path: Path, side: str) -> pa.Schema:
    """The columns only: a Parquet footer, or a CSV's first block."""
    _check_input(path, side)
    try:
        if path.suffix.lower() == ".csv":
            with pa.csv.open_csv(path) as reader:
                return reader.schema
        return pa.parquet.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"cannot read the {side} input {path}: {error}") from error


def _check_input(path: Path, side: str) -> None:
    if not path.exists():
        raise InputError(f"the {side} input {path} does not exist")
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"the {side} input {path} is neither .csv nor .parquet")


def check_output(output: str) -> None:
    """Before the work, not after it."""
    path = Path(output)
    if output != "-" and path.suffix.lower() not in (".csv", ".parquet"):
        raise OptionError(f"--output {output}: use a name that ends in .csv or .parquet, or '-' for CSV on stdout")
    if output != "-" and not path.resolve().parent.is_dir():
        raise OptionError(f"--output {output}: the folder {path.resolve().parent} does not exist")


def write_table(table: pa.Table, output: str) -> None:
    try:
        if output == "-":
            pa.csv.write_csv(table, sys.stdout.buffer)
        elif output.lower().endswith(".csv"):
            pa.csv.write_csv(table, output)
        else:
            pa.parquet.write_table(table, output)
    except BrokenPipeError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise OptionError(f"--output {output}: cannot be written: {error}") from error


@contextmanager
def progress(console: Console) -> Iterator[Callable[[int, int, int], None]]:
    """A bar on stderr while a join runs (shown on terminals only)."""
    columns = (
        TextColumn("joining"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,} rows, {task.fields[pairs]:,} pairs"),
    )
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("join", total=1, pairs=0)
        yield lambda done, total, pairs: bar.update(task, completed=done, total=total, pairs=pairs)


def join_on_spark(left: pa.Table, right: pa.Table, *, layout: str, **options: Any) -> pa.Table:
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
