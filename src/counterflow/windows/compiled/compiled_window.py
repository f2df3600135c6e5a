"""A window that compiled code searches: the index over a ring's rows, and the scan of the ring itself."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType

import numpy as np

from counterflow.predicate.expression import Column, Expression
from counterflow.windows.access import AccessPath
from counterflow.windows.compiled import forking  # noqa: F401  from here on forks wait for the compiler
from counterflow.windows.compiled.block import (
    AT,
    AT_BLOCK,
    CANDIDATES,
    FOUND,
    LEFT_OVER,
    NUMBERS_WORDS,
    POOL_WORDS,
    STATUS_WORDS,
    UNSURE,
    WAITING,
    WORK_SHAPE,
)
from counterflow.windows.compiled.build import Shape
from counterflow.windows.compiled.compiled_predicate import ANYWHERE, Access, CompiledPredicate, Keyed
from counterflow.windows.compiled.predicate_source import NotCompilable
from counterflow.windows.crew import Crew
from counterflow.windows.evaluate import Columns
from counterflow.windows.pair_buffers import PAIRS_MAX, Pairs
from counterflow.windows.row_ring import Ring, of_predicate
from counterflow.windows.vectors import Array

BUCKETS_PER_ROW = 2  # of the hash index: fewer rows in a bucket are fewer waits for memory
EMPTY = -(1 << 40)  # the newest row of an empty bucket: before all rows
PART_COMPARISONS = 1 << 24  # worth a thread: some 2 ms of scanning
TASK_COMPARISONS, TASK_PROBES = 1 << 27, 1 << 13  # at most in one call, which nobody can interrupt
PROBE_COMPARISONS = 1 << 10  # that take as long as a probe of the index
BLOCK_SPARE = 3  # records a row for which the grid index has room at first, as its blocks are rarely full
GROUP = 512  # rows that the prefilter tests at once
MISJUDGED = 4  # times as long as thought: then cells are too narrow
MANY_PROBES = 64  # whose lengths say something
PER_UNIT = 4  # the column of `bands` in the template `buckets`


class CompiledWindow(CompiledPredicate):
    """A ring that compiled code searches. Where it cannot, it raises NotCompilable: then numpy searches the window."""

    def __init__(
        self,
        ring: Ring,
        path: AccessPath,
        predicate: Expression,
        access: Access,
        nullable: bool,
        crew: Crew,
        name: str = "",
    ) -> None:
        """`name` comes before the names of what it keeps in a ring that is not its own alone."""
        super().__init__(path, predicate, access, nullable)
        self.ring, self.crew, self.predicate, self.name = ring, crew, predicate, name
        self.bands: Array | None = None
        self.probing_lengths: Array | None = None  # of intervals, that the grid's cells were made for
        self.numbers = np.empty(NUMBERS_WORDS, np.int64)  # the buckets' numbers, while rows are appended
        self.heads = self.records = self.pool = np.empty(0, np.int64)

    @property
    def nbytes(self) -> int:
        return self.heads.nbytes + self.records.nbytes

    def stored_columns(self, part: slice) -> tuple[Array, ...]:
        names = [ring_name(column) for column in self.kernels.shape.stored_columns]
        names += [self.name + name for name in self.extra]
        return tuple(self.ring.columns[name][part] for name in names)

    # --- rows in

    def append(self, rows: Keyed, begin: int) -> None:
        """Put rows into the index that are in the ring from number `begin` on."""
        n, shape = len(rows.usable), self.kernels.shape
        for column, values in zip(shape.stored_columns, rows.columns, strict=False):
            if column.type.name == "STRING":
                self.ring.write(ring_name(column), begin, values)
        for name, values in zip(self.extra, rows.columns[len(shape.stored_columns) :], strict=True):
            self.ring.write(self.name + name, begin, values)
        if self.access == "prefilter":
            self._append_codes(rows, begin)
        if self.access != "index":
            return
        if self.bands is None:
            self._start(rows)
        assert self.bands is not None
        kernel, done = self.kernels.index, 0
        while True:
            done = kernel.append(
                done, n, rows.hashes, rows.keys, rows.usable, self.bands, rows.columns,
                self.heads, self.records, self.pool, self.numbers, self.ring.first, begin,
            )  # fmt: skip
            if done == n:
                return
            self.grow()

    def grow(self) -> None:
        """Make more room in the index."""
        self.records = _grown(self.records, len(self.records) * 3 // 2)

    def _start(self, rows: Keyed) -> None:
        """Make an empty index for the ring's capacity; the first rows decide how large the grid's cells are."""
        self.bands = self.band_table(rows.keys, self.probing_lengths)
        self.heads, self.records, self.pool = empty_index(self.kernels.shape, self.ring.capacity)

    def learn(self, probes: Keyed | None, before: CompiledWindow | None) -> None:
        """Note how long the intervals are that will be looked for; `before` is the window that this one replaces."""
        known = None if before is None else before.probing_lengths
        found = known if probes is None else self.lengths(probes.keys)
        self.probing_lengths = found if known is None or found is None else np.maximum(found, known)

    def misjudges(self, probes: Keyed) -> bool:
        """Return whether its cells were made for intervals of quite another length than these probes have."""
        if not self.path.overlaps or self.bands is None or len(probes.usable) < MANY_PROBES:
            return False
        found = self.lengths(probes.keys)
        cells = found * self.bands[len(self.path.bands) :, PER_UNIT]
        if self.probing_lengths is None:
            return bool(((cells > MISJUDGED) | ((cells > 0) & (cells < 1 / MISJUDGED))).any())
        return bool(((cells > MISJUDGED) & (found > MISJUDGED * self.probing_lengths)).any())

    # --- the prefilter's bytes

    def _append_codes(self, rows: Keyed, begin: int) -> None:
        if self.bands is None:
            self.bands = self.band_table(rows.keys)
        wild = self.bands[:, 6] != 0
        if (rows.usable == ANYWHERE).any() or np.isnan(rows.keys[wild]).any():
            raise NotCompilable("what may match anything has no byte")
        for k in (0, 1):
            codes = np.empty(rows.keys.shape[1], np.uint8)
            self.kernels.prefilter.codes_of(rows.keys, self.bands, k, codes)
            self.ring.write(f"code{k}", begin, codes)

    def code_ranges(self, probes: Keyed) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        lower, width = np.empty((2, 2, len(probes.usable)), np.uint8)
        for k in (0, 1):
            self.kernels.prefilter.code_ranges(probes.keys, self.bands, k, lower[k], width[k])
        width[:, probes.usable == ANYWHERE] = 255
        return tuple(lower), tuple(width)

    # --- probes

    def probe(self, rows: Keyed, columns: Columns, oldest: Array, newest: Array, scanned: Array) -> Iterator[Task]:
        """Yield tasks with some pairs each, or none: numbers of probing rows and of stored rows, `oldest` to `newest`.

        Where there is no index, only the probes of `scanned` are searched for, and the stored rows are dealt out over
        the threads: each thread compares its part of them with all these probes. With an index the probes are dealt
        out. A task comes back after at most some tenths of a second, so that the caller can stop.
        """
        if self.access != "scan" and self.bands is None:
            return
        everyone = len(rows.usable)
        if self.access == "index":
            n, first, end, comparisons = everyone, self.ring.first, self.ring.next, everyone * PROBE_COMPARISONS
        else:
            n, (first, end) = len(scanned), _looked_at(oldest[scanned], newest[scanned])
            comparisons = n * (end - first)
        if n == 0:
            return
        threads = min(self.crew.threads, max(comparisons // PART_COMPARISONS, 1))
        dealt = threads if self.access != "index" else 1  # parts of the stored rows
        parts = min(max(threads // dealt, -(-comparisons // (dealt * TASK_COMPARISONS)), -(-n // TASK_PROBES)), n)
        bounds = ScanBounds(self, columns, rows, everyone)
        probes = list(pairwise(n * part // parts for part in range(parts + 1)))
        stored = list(pairwise(first + (end - first) * part // dealt for part in range(dealt + 1)))
        tasks = (Task(self, rows, bounds, oldest, newest, scanned, *p, *s) for p in probes for s in stored)
        yield from self.crew.deal(tasks, threads)


def _looked_at(oldest: Array, newest: Array) -> tuple[int, int]:
    """Return the first row that any probe looks at, and the one after the last."""
    first = int(oldest.min(initial=1 << 62))
    return first, max(int(newest.max(initial=-1)) + 1, first)


class ScanBounds:
    """The bounds that the scan's vector instructions test; computed when the first probe is scanned."""

    def __init__(self, window: CompiledWindow, columns: Columns, rows: Keyed, n: int) -> None:
        self.window, self.columns, self.rows, self.n = window, columns, rows, n
        self._found: tuple[tuple[Array, ...], tuple[Array, ...]] | None = None

    def get(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        if self._found is None:
            window = self.window
            if window.access == "prefilter":
                self._found = window.code_ranges(self.rows)
            else:
                self._found = window.scan_bounds(self.columns, self.n)
        return self._found


@dataclass
class Task:
    """Some probes on their way through the index, and those that it leaves over through the scan.

    `begin` and `end` say which of the probes, `first` and `last` between which stored rows it scans.
    """

    window: CompiledWindow
    rows: Keyed
    bounds: ScanBounds
    oldest: Array
    newest: Array
    scanned: Array
    begin: int
    end: int
    first: int
    last: int
    pairs: Pairs = field(default_factory=Pairs)
    unsure: bool = False
    done: bool = False
    candidates: int = 0  # that the index gave, not counted yet
    rows_scanned: int = 0  # not counted yet

    def __post_init__(self) -> None:
        self._steps = self._run()

    def step(self) -> None:
        """Find pairs until the buffer is full or all are found."""
        self.pairs.count, self.unsure = 0, False
        self.done = next(self._steps, None) is None

    def _run(self) -> Iterator[bool]:
        """Yield True whenever the buffer should be emptied."""
        window, rows = self.window, self.rows
        over = self.scanned[self.begin : self.end]
        if window.access == "index":
            kernel, status = window.kernels.index, np.zeros(STATUS_WORDS, np.int64)
            status[AT] = self.begin
            work = np.empty(WORK_SHAPE, np.int64)
            over = np.empty(self.end - self.begin, np.int64)
            while True:
                status[FOUND] = self.pairs.count
                kernel.probe(
                    self.end, rows.hashes, rows.keys, rows.usable, window.bands, self.oldest, self.newest,
                    rows.columns, window.constants, window.heads, window.records, window.ring.first, work,
                    self.pairs.probes, self.pairs.rows, over, status,
                )  # fmt: skip
                self.candidates += int(status[CANDIDATES])
                status[CANDIDATES] = 0
                if not (yield from self._after(status, finished=status[AT] == self.end and status[WAITING] == 0)):
                    break
            over = over[: status[LEFT_OVER]].copy()
        for begin, at in window.ring.spans("at") if len(over) else ():
            first, last = max(begin, self.first), min(begin + len(at), self.last)
            if first < last:
                yield from self._scan(over, first, last - first)

    def _scan(self, chosen: Array, begin: int, n: int) -> Iterator[bool]:
        window, ring = self.window, self.window.ring
        slot = begin & (ring.capacity - 1)
        part = slice(slot, slot + n)
        begins = np.maximum(self.oldest[chosen] - begin, 0)
        ends = np.minimum(self.newest[chosen] + 1 - begin, n)
        self.rows_scanned += int(np.maximum(ends - begins, 0).sum())
        lower, upper = self.bounds.get()
        stored = window.stored_columns(part)
        status = np.zeros(STATUS_WORDS, np.int64)
        kernel: ModuleType
        if window.access == "prefilter":
            kernel, names = window.kernels.prefilter, ["code0", "code1"]
            marks = np.empty(GROUP, np.uint8)
            extra: tuple[Array, ...] = (marks, marks.view(np.uint64))
        else:
            kernel, extra = window.kernels.scan, ()
            names = [of_predicate(column.name) for column in window.scan_columns]
        keys = tuple(ring.columns[name][part] for name in names)
        while True:
            status[FOUND] = self.pairs.count
            self.pairs.reserve(kernel.BLOCK + 1)
            kernel.scan(
                chosen, begins, ends, keys, lower, upper, self.rows.columns, begin, n, stored, window.constants,
                *extra, self.pairs.probes, self.pairs.rows, status,
            )  # fmt: skip
            if not (yield from self._after(status, finished=status[AT_BLOCK] >= n)):
                return

    def _after(self, status: Array, finished: bool) -> Generator[bool, None, bool]:
        """Hand out the pairs of a call, or make room for more; return whether the call must be repeated."""
        self.pairs.count = int(status[FOUND])
        self.unsure |= bool(status[UNSURE])
        if finished:
            return False
        if self.pairs.count >= PAIRS_MAX:
            status[UNSURE] = 0
            yield True
        else:
            self.pairs.reserve(max(int(status[WAITING]), len(self.pairs.probes) - self.pairs.count) + 2)
        return True


def ring_name(column: Column) -> str:
    """Return what a predicate's column is called in the ring, as compiled predicates get it."""
    return f"words {column.name}" if column.type.name == "STRING" else of_predicate(column.name)


def empty_index(shape: Shape, capacity: int) -> tuple[Array, Array, Array]:
    """Return `heads`, `records` and `pool` (template `buckets`) of an empty index for a ring of this capacity."""
    pool = np.full(POOL_WORDS, -1, np.int64)
    if shape.index == "sorted_blocks":  # one block more than the window needs, one place more in each
        size = (-(-capacity // shape.basic_block) + 1) * (shape.basic_block + 1)
        return np.full(size, np.inf).view(np.int64), np.empty(size, shape.record), pool
    if shape.index == "grid_index":
        pool[0] = pool[32] = 0
        return np.zeros(capacity + 1, np.int64), np.empty(BLOCK_SPARE * capacity, shape.record), pool
    return np.full(BUCKETS_PER_ROW * capacity + 1, EMPTY), np.empty(capacity, shape.record), pool


def _grown(records: Array, capacity: int) -> Array:
    grown = np.empty(capacity, records.dtype)
    grown[: len(records)] = records
    return grown
