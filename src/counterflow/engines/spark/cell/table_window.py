"""A table as a window that never moves: it is built once on each executor, and searched by all micro-batches.

The rows' file is mapped, and so is, once one worker has built it, what the predicate needs of them and the index over
that: the workers of an executor have all of it in memory once. Where nothing is compiled, or the index is of another
kind, each worker builds its own.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from counterflow.engines.spark.cell.grid import padded_sides
from counterflow.engines.spark.cell.side_window import PayloadSegment, SideRows, SideWindow, rows_of
from counterflow.errors import StateError
from counterflow.predicate.expression import opposite
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.crew import Crew
from counterflow.windows.gather import gather
from counterflow.windows.shared_window import read_window, write_window
from counterflow.windows.times import INT64
from counterflow.windows.vectors import Array

UNUSED_S = 600.0  # a table that was not used for so long is dropped when another one is opened
SUFFIX, INDEX = ".arrow", ".index"
SAMPLE = 1 << 10  # rows of the stream that an index is made for
FILES_KEPT = 2  # the newest one, and the one before for tasks of batches that began before it


def file_name(name: str, from_us: int) -> str:
    """Return the name of the file that a table has from this time on."""
    return f"{name}-{from_us:020d}{SUFFIX}"


class TableWindow:
    """The rows of a table, searched for the partners of a stream's rows."""

    def __init__(self, spec: JoinSpec, path: Path, threads: int) -> None:
        side = spec.table_side
        assert side is not None
        self.spec, self.side, self.path, self.crew = spec, side, path, Crew(threads)
        self._window: SideWindow | None = None  # until the first rows come, which tell how to search it

    def _opened(self, rows: SideRows) -> SideWindow:
        """Return the window: as another worker of this executor has built it, or built here for all of them."""
        with pa.memory_map(str(self.path)) as source, pa.ipc.open_file(source) as reader:
            parts = [pa.Table.from_batches([reader.get_batch(i)]) for i in range(reader.num_record_batches)]
        shared = self.path.with_name(f"{self.path.name}{INDEX}")
        try:
            with _one_worker_of_all(shared):
                if not shared.exists():
                    window = self._built(parts, rows)
                    all_rows = window.next == sum(map(len, parts))  # those that match nothing are not in the file
                    if not (all_rows and write_window(window.store, shared)):
                        return window
                window = SideWindow(self.spec, self.side, self.crew)
                read_window(window.store, shared)
        except (OSError, ValueError):  # a full disk, for instance
            return self._built(parts, rows)
        first = 0
        for part in parts:
            window.segments.append(PayloadSegment(first, part, _always(len(part))))
            first += len(part)
        return window

    def _built(self, parts: list[pa.Table], rows: SideRows) -> SideWindow:
        window = SideWindow(self.spec, self.side, self.crew)
        for part in parts:
            stored = rows_of(self.spec, self.side, part)
            window.append(replace(stored, times=_always(len(stored))), by_number=True)
        next(window.probe(_anywhere(rows[:SAMPLE])), None)  # large enough, it is compiled now
        return window

    def join(self, table: pa.Table) -> Iterator[pa.Table]:
        """Yield the results of a stream's rows: none of them depends on any other row of the stream."""
        rows = rows_of(self.spec, opposite(self.side), table)
        if self._window is None:
            self._window = self._opened(rows)
        rows = _anywhere(rows)
        alone = np.ones(len(rows), bool)
        for p, numbers in self._window.probe(rows):
            alone[p] = False
            if self.spec.how not in ("semi", "anti"):
                order, stored, _ = self._window.payload(numbers)
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


def _always(rows: int) -> Array:
    """Return the times of a table's rows, which are all the same: one number says it."""
    return np.broadcast_to(INT64.min, rows)


def _anywhere(rows: SideRows) -> SideRows:
    """Return the rows, looking for partners in all of the table."""
    return rows.within(np.zeros(len(rows), np.int64), np.full(len(rows), INT64.max))


@contextmanager
def _one_worker_of_all(path: Path) -> Iterator[None]:
    """Let one worker of this executor be here at a time."""
    with open(path.with_name(f"{path.name}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


@dataclass
class _Opened:
    path: Path
    window: TableWindow
    used: float = field(default_factory=time.monotonic)


_opened: dict[str, _Opened] = {}  # by the table's name, for all tasks of this worker process


def table_window(spec: JoinSpec, folder: str, name: str, at_us: int, threads: int = 1) -> TableWindow:
    """Return the table as it is to be seen at this time: the newest file of this name that counts by then."""
    path = _newest(Path(folder), name, at_us)
    opened = _opened.get(name)
    if opened is None or opened.path != path:
        now = time.monotonic()
        _opened.pop(name, None)  # before the next one needs as much memory
        for other in [key for key, found in _opened.items() if now - found.used > UNUSED_S]:
            del _opened[other]
        opened = _opened[name] = _Opened(path, TableWindow(spec, path, threads))
        for old in _files(Path(folder), name)[:-FILES_KEPT]:
            for needless in (old, old.with_name(f"{old.name}{INDEX}"), old.with_name(f"{old.name}{INDEX}.lock")):
                needless.unlink(missing_ok=True)  # another worker may have done it
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
