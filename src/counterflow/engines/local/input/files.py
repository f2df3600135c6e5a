"""Files: Parquet, CSV and Arrow IPC, read whole or batch by batch. `label` names the input in errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from counterflow.engines.local.input.tables import plain_schema
from counterflow.errors import InputError

BATCH_ROWS = 1 << 16
_SUFFIXES = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv", ".csv.gz", ".csv.bz2"),
    "ipc": (".arrow", ".arrows", ".ipc", ".feather"),
}


def file_table(path: Path, label: str) -> pa.Table:
    """Return all rows."""
    from pyarrow import csv, parquet  # not before files are read: importing them takes a while

    with _readable(path, label) as kind:
        if kind == "parquet":
            table = parquet.read_table(path)
        elif kind == "csv":
            table = csv.read_csv(path)
        else:
            with pa.OSFile(str(path)) as file, _ipc(file) as reader:
                table = reader.read_all()
        _decode_names(table.schema)
        return table


def file_schema(path: Path, label: str) -> pa.Schema:
    """Return the columns: a Parquet or Arrow file's own, or those of a CSV's first block."""
    from pyarrow import csv, parquet

    with _readable(path, label) as kind:
        if kind == "parquet":
            schema = parquet.read_schema(path)
        elif kind == "csv":
            with csv.open_csv(path) as reader:
                schema = reader.schema
        else:
            with pa.memory_map(str(path)) as file, _ipc(file) as reader:
                schema = reader.schema
        _decode_names(schema)
        return plain_schema(schema.remove_metadata())


def file_batches(path: Path, schema: pa.Schema | None, label: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows, batch by batch; a CSV's with the types of `schema`, so that all blocks and files agree."""
    from pyarrow import csv, parquet

    with _readable(path, label) as kind:
        if kind == "parquet":
            with parquet.ParquetFile(path) as file:
                yield from file.iter_batches(BATCH_ROWS)
        elif kind == "csv":
            with csv.open_csv(path, convert_options=csv.ConvertOptions(column_types=schema)) as reader:
                yield from reader
        else:
            with pa.OSFile(str(path)) as file, _ipc(file) as reader:
                if isinstance(reader, pa.RecordBatchStreamReader):
                    yield from reader
                else:
                    yield from (reader.get_batch(i) for i in range(reader.num_record_batches))


def _ipc(file: Any) -> Any:
    """Open an Arrow file. Arrow has two formats for the same suffixes: one for files, one for streams."""
    magic = file.read(6)
    file.seek(0)
    return pa.ipc.open_file(file) if magic == b"ARROW1" else pa.ipc.open_stream(file)


def _decode_names(schema: pa.Schema) -> None:
    """Raise an error where names are not UTF-8: Arrow does so only when they are asked for."""
    len(schema.names)


@contextmanager
def _readable(path: Path, label: str) -> Iterator[str]:
    """Tell the file's kind; whatever is wrong with the file is an `InputError`."""
    name = path.name.lower()
    kind = next((kind for kind, suffixes in _SUFFIXES.items() if name.endswith(suffixes)), None)
    if kind is None:
        known = ", ".join(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
        raise InputError(f"{label} {path} is of no known kind: its name must end in one of {known}")
    try:
        if not path.exists():
            raise InputError(f"{label} {path} does not exist")
        yield kind
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a header that is not UTF-8
        raise InputError(f"cannot read {label} {path}: {error}") from error
