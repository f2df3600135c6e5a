"""A static DataFrame on its way to the workers: read once, or again every so often, into an Arrow file for all of them.

    driver:   table -> rows as blobs -> one Arrow file ── Spark's own way of handing files out ──> every executor
    worker:   maps the file, and an index of it (`cell/table_window.py`)

The rows pass the driver partition by partition, so its memory needs no room for the table, but its disk does. A file
never changes: a later reading is another file. Its name says from when on it counts, and a micro-batch, whose own time
Spark keeps in the checkpoint, takes the newest file that counts by then: so all of its tasks, and those that run again,
see the same rows.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from counterflow.engines.spark.cell.table_window import FILES_KEPT, file_name
from counterflow.engines.spark.session.worker import readable, settle_worker
from counterflow.engines.spark.state.blobs import BLOB_ROWS_MAX, from_blob, gathered, to_blob
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.store import passing, predicate_columns

BLOB = "payload BINARY"
LAG_S = 1.0  # a file counts this long after it was handed out, at least
LAG_TIMES = 4  # and this many times as long as handing out the last one took


def spark_files() -> str:
    """Return the folder in which Spark puts the files that it hands out, on the driver or in a worker."""
    from pyspark import SparkFiles  # a client of Spark Connect alone has none

    return SparkFiles.getRootDirectory()


def _read(spec: JoinSpec) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that packs the table's rows, without those that can match nothing."""
    assert spec.table_side is not None
    side = spec.side(spec.table_side)

    @readable
    def counterflow_read_table(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        for table in gathered(pa.Table.from_batches([batch]) for batch in batches):
            table = table if table.schema == side.schema else table.cast(side.schema)
            columns = predicate_columns(spec.predicate, side.side, table)
            able = passing(spec.parts.filters(side.side), side.side, columns, len(table), spec.required[side.side])
            table = table if able is None else table.take(pa.array(able))
            yield pa.RecordBatch.from_arrays([pa.array([to_blob(table)], pa.binary())], ["payload"])

    return counterflow_read_table


class TableFiles:
    """The files of one table, on the driver. The first one is there when it is made, and counts from the beginning."""

    def __init__(self, frame: Any, spec: JoinSpec) -> None:
        self.frame, self.spec, self.session = frame, spec, frame.sparkSession
        self.name = f"counterflow-table-{uuid.uuid4().hex}"
        self._handing_s = 0.0  # that handing the last file out took
        self.folder = Path(tempfile.mkdtemp(prefix="counterflow-table-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self._files: list[Path] = []
        self._hand_out(self._written(), 0)

    def read_again(self) -> None:
        """Read the table anew. What is read counts a moment later, when every task that starts then has the file."""
        written = self._written()
        lag_s = max(LAG_S, LAG_TIMES * self._handing_s)
        self._hand_out(written, int((time.time() + lag_s) * 1e6))
        for old in self._files[:-FILES_KEPT]:
            os.truncate(old, 0)  # an executor that comes later asks Spark for all files: it must be there
            (Path(spark_files()) / old.name).unlink(missing_ok=True)  # the copy that Spark has made here
        self._files = self._files[-FILES_KEPT:]

    def _written(self) -> Path:
        assert self.spec.table_side is not None
        path, schema = self.folder / "new", self.spec.side(self.spec.table_side).schema
        blobs = self.frame.mapInArrow(_read(self.spec), BLOB).toLocalIterator(prefetchPartitions=True)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for (blob,) in blobs:
                writer.write_table(from_blob(bytes(blob)), max_chunksize=BLOB_ROWS_MAX)
        return path

    def _hand_out(self, written: Path, from_us: int) -> None:
        path = self.folder / file_name(self.name, from_us)
        written.rename(path)
        began = time.monotonic()
        self.session.sparkContext.addFile(str(path))
        self._handing_s = time.monotonic() - began
        self._files.append(path)


def keep_fresh(files: TableFiles, seconds: float) -> None:
    """Read a table again every so often, in a thread of its own, while streams of its session run."""

    def run() -> None:
        time.sleep(seconds)
        while refreshed(files, seconds):
            time.sleep(seconds)

    threading.Thread(target=run, name="counterflow table", daemon=True).start()


def refreshed(files: TableFiles, seconds: float) -> bool:
    """Read the table, if a stream of its session runs; return False if the session has stopped."""
    try:
        if files.session.streams.active:
            files.read_again()
    except Exception as error:  # whatever Spark says: the join goes on with what it has
        if _has_stopped(files.session):
            return False
        warnings.warn(
            f"the table beside a stream could not be read again: the join goes on with the rows that it has, and tries "
            f"again in {seconds:g} s ({error})",
            stacklevel=1,
        )
    return True


def _has_stopped(session: Any) -> bool:
    try:
        session.conf.get("spark.app.name", "")
    except Exception:
        return True
    return False
