"""Streams for the tests: tables as files that a Spark file source reads one micro-batch at a time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema


def write_batches(folder: Path, batches: list[pa.Table], first: int = 0) -> None:
    """One file a batch; the modification times say in which order the source takes them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches, first):
        path = folder / f"{number:04d}.parquet"
        pq.write_table(batch, folder / f".{path.name}")
        os.utime(folder / f".{path.name}", (1_600_000_000 + number, 1_600_000_000 + number))
        (folder / f".{path.name}").rename(path)


def read_stream(spark: Any, folder: Path, like: pa.Table, delay: str = "1 minute", files: int = 1) -> Any:
    """A streaming DataFrame of the folder's files, `files` a micro-batch, with a watermark on `ts`."""
    schema = from_arrow_schema(like.schema)  # a Connect session cannot make a DataFrame of an empty table
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(folder))
    return source.withWatermark("ts", delay)


def run_available(frame: Any, folder: Path, mode: str = "append") -> Any:
    """Run a query over what is there now and stop; the sink is Parquet with exactly-once files."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def results(spark: Any, frame: Any, folder: Path) -> pa.Table:
    return spark.read.schema(frame.schema).parquet(str(folder / "out")).toArrow()


def files_in_order(folder: Path) -> list[Path]:
    """Return the files of the sink in the order of their batches; now and then Spark makes one entry of all before."""
    log = {path.name: path for path in (folder / "out" / "_spark_metadata").iterdir() if not path.name.startswith(".")}
    compacted = max((int(name.split(".")[0]) for name in log if name.endswith(".compact")), default=-1)
    entries = [log[f"{compacted}.compact"]] if compacted >= 0 else []
    entries += [log[str(n)] for n in range(compacted + 1, 1 + max(int(name.split(".")[0]) for name in log))]
    lines = [line for entry in entries for line in entry.read_text().splitlines()[1:]]
    return [Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines]


def results_in_order(folder: Path, schema: pa.Schema) -> pa.Table:
    """Return what the sink has written, in the order of its batches; columns that a file has not yet are NULL."""
    tables = [schema.empty_table(), *(pq.read_table(path) for path in files_in_order(folder))]
    tables = [table.cast(pa.schema([schema.field(name) for name in table.column_names])) for table in tables]
    return pa.concat_tables(tables, promote_options="default")


def cut(table: pa.Table, batches: int) -> list[pa.Table]:
    """A table in `batches` consecutive pieces."""
    size = -(-len(table) // batches)
    return [table.slice(i * size, size) for i in range(batches)]
