"""A table as a window that never moves: every worker process builds it once, and all micro-batches search it.

The file that the rows come from is mapped, so that the workers of a host share its pages; what the predicate needs of
them and the index over it are each worker's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from counterflow.engines.spark.cell.grid import padded_sides
from counterflow.engines.spark.cell.side_window import SideRows, SideWindow, rows_of
from counterflow.errors import StateError
from counterflow.predicate.expression import opposite
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.gather import gather
from counterflow.windows.times import INT64
from counterflow.windows.vectors import Array

UNUSED_S = 600.0  # a table that was not used for so long is dropped when another one is opened
SUFFIX = ".arrow"
FILES_KEPT = 2  # the newest one, and the one before for tasks of batches that began before it


def file_name(name: str, from_us: int) -> str:
    """Return the name of the file that a table has from this time on."""
    return f"{name}-{from_us:020d}{SUFFIX}"


class TableWindow:
    """The rows of a table, searched for the partners of a stream's rows."""

    def __init__(self, spec: JoinSpec, path: Path) -> None:
        side = spec.table_side
        assert side is not None
        self.spec, self.side = spec, side
        self.window = SideWindow(spec, side)
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                rows = rows_of(spec, side, pa.Table.from_batches([reader.get_batch(number)]))
                # All of them have the same time: one number says it.
                rows = replace(rows, times=np.broadcast_to(INT64.min, len(rows)))
                self.window.append(rows, by_number=True)

    def join(self, table: pa.Table) -> Iterator[pa.Table]:
        """Yield the results of a stream's rows: none of them depends on any other row of the stream."""
        rows = rows_of(self.spec, opposite(self.side), table)
        count = len(rows)
        rows = rows.within(np.zeros(count, np.int64), np.full(count, INT64.max))
        alone = np.ones(count, bool)
        for p, numbers in self.window.probe(rows):
            alone[p] = False
            if self.spec.how not in ("semi", "anti"):
                order, stored, _ = self.window.payload(numbers)
                yield self._results(rows, p[order], stored, None)
        if self.spec.how == "semi":
            yield from self._single(rows, np.flatnonzero(~alone))
        elif opposite(self.side) in padded_sides(self.spec):
            yield from self._single(rows, np.flatnonzero(alone))

    def _single(self, rows: SideRows, index: Array) -> Iterator[pa.Table]:
        if len(index):
            nothing = self.spec.side(self.side).schema.empty_table()
            yield self._results(rows, index, nothing, np.full(len(index), -1))

    def _results(self, rows: SideRows, index: Array, stored: pa.Table, stored_index: Array | None) -> pa.Table:
        halves = (rows.table, stored), (index, stored_index)
        (left, right), (left_rows, right_rows) = halves if self.side == "right" else (half[::-1] for half in halves)
        return gather(self.spec, left, right, left_rows, right_rows, rows.times[index])


@dataclass
class _Opened:
    path: Path
    window: TableWindow
    used: float = field(default_factory=time.monotonic)


_opened: dict[str, _Opened] = {}  # by the table's name, for all tasks of this worker process


def table_window(spec: JoinSpec, folder: str, name: str, at_us: int) -> TableWindow:
    """Return the table as it is to be seen at this time: the newest file of this name that counts by then."""
    path = _newest(Path(folder), name, at_us)
    opened = _opened.get(name)
    if opened is None or opened.path != path:
        now = time.monotonic()
        _opened.pop(name, None)  # before the next one needs as much memory
        for other in [key for key, found in _opened.items() if now - found.used > UNUSED_S]:
            del _opened[other]
        opened = _opened[name] = _Opened(path, TableWindow(spec, path))
        for old in _files(Path(folder), name)[:-FILES_KEPT]:
            old.unlink(missing_ok=True)  # another worker may have done it
    opened.used = time.monotonic()
    return opened.window


def _newest(folder: Path, name: str, at_us: int) -> Path:
    found = [path for path in _files(folder, name) if _counts_from(path) <= at_us]
    if not found:
        raise StateError(
            f"the table beside the stream is not on this executor (no file {name}-*{SUFFIX} in {folder}): it was read "
            "by the program that called window_join, and lasts as long as its Spark application: call window_join again"
        )
    return found[-1]


def _files(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"{name}-*{SUFFIX}"), key=_counts_from)


def _counts_from(path: Path) -> int:
    return int(path.name.removesuffix(SUFFIX).rpartition("-")[2])
