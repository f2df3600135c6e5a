"""Late rows, written beside the join for who asks for them: Parquet files, one folder a side.

A file's name says which cell of which query wrote it in which of its batches: a task that Spark runs again writes the
same file again.
"""

from __future__ import annotations

import uuid

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from counterflow.engines.spark.routing import SOURCE, TIE
from counterflow.errors import InputError
from counterflow.predicate.expression import Side


def write_late_rows(target: str, side: Side, name: str, table: pa.Table) -> None:
    table = table.drop_columns([c for c in (SOURCE, TIE) if c in table.column_names])
    try:
        system, path = fs.FileSystem.from_uri(target) if "://" in target else (fs.LocalFileSystem(), target)
        folder = f"{path}/{side}"
        system.create_dir(folder, recursive=True)
        temporary = f"{folder}/_{name}-{uuid.uuid4().hex}"  # Spark ignores names that start so; two attempts may write
        pq.write_table(table, temporary, filesystem=system)
        system.move(temporary, f"{folder}/{name}.parquet")
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"late rows cannot be written to {target!r}: {error}") from error
