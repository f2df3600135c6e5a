"""Files as streams: Parquet, CSV and Arrow IPC, read batch by batch."""

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


def file_schema(path: Path, label: str) -> pa.Schema:
    """The columns: a Parquet or Arrow file's own, or those of a CSV's first block."""
    from pyarrow import csv, parquet  # not before files are read: importing them takes a while

    with _readable(path, label) as kind:
        if kind == "parquet":
            return plain_schema(parquet.read_schema(path).remove_metadata())
        if kind == "csv":
            with csv.open_csv(path) as reader:
                return reader.schema
        with pa.memory_map(str(path)) as file, _ipc(file) as reader:
            return plain_schema(reader.schema.remove_metadata())


def file_batches(path: Path, schema: pa.Schema | None, label: str) -> Iterator[pa.RecordBatch]:
    """A CSV is read with the types of `schema`, so that all blocks and files agree."""
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
    """Arrow has two formats for the same suffixes: one for files, one for streams."""
    magic = file.read(6)
    file.seek(0)
    return pa.ipc.open_file(file) if magic == b"ARROW1" else pa.ipc.open_stream(file)


@contextmanager
def _readable(path: Path, label: str) -> Iterator[str]:
    name = path.name.lower()
    kind = next((kind for kind, suffixes in _SUFFIXES.items() if name.endswith(suffixes)), None)
    if kind is None:
        known = ", ".join(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
        raise InputError(f"{label}: {path} is of no known kind: its name must end in one of {known}")
    if not path.exists():
        raise InputError(f"{label}: {path} does not exist")
    try:
        yield kind
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{label}: cannot read {path}: {error}") from error
