"""Late rows as Parquet files, one folder a side, for users who ask for them.

A file's name names the query, the join, the cell and the batch: a task that Spark runs again writes the same file
again.
"""

from __future__ import annotations

import uuid

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from counterflow.engines.spark.cell.row_order import RESERVED
from counterflow.errors import InputError
from counterflow.predicate.expression import Side


def write_late_rows(target: str, side: Side, name: str, table: pa.Table) -> None:
    """Write rows to `target`, a folder or URI, so that nobody sees half a file."""
    table = table.drop_columns([name for name in table.column_names if name.startswith(RESERVED)])
    try:
        system, path = fs.FileSystem.from_uri(target) if "://" in target else (fs.LocalFileSystem(), target)
        folder = f"{path}/{side}"
        system.create_dir(folder, recursive=True)
        temporary = f"{folder}/_{name}-{uuid.uuid4().hex}"  # Spark ignores names with _; two attempts may write at once
        pq.write_table(table, temporary, filesystem=system)
        system.move(temporary, f"{folder}/{name}.parquet")
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"late rows cannot be written to {target!r}: {error}") from error
