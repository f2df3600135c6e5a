"""The window store: one side's live tuples, as columnar chunks, with append, probe and expire.

A row has a coordinate `at`; a probing row has the range of coordinates that are in its window. What a
coordinate is, its engine decides: the ordinal in the stream where tuples come in order (then one comparison
serves duration, row and mixed windows alike), or the time where they come as they come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from counterflow.errors import EvaluationError
from counterflow.kernels.access import AccessPath, SortedIndex
from counterflow.kernels.evaluate import Columns, matches, one_sided
from counterflow.kernels.vectors import Array, from_arrow_column
from counterflow.spec.expression import Expression, Side, columns_of

CANDIDATE_ROWS_MAX = 1 << 18  # candidate pairs checked at once: bounds the memory of a probe


@dataclass(frozen=True)
class Batch:
    """Rows of one side: the predicate's columns, a row id and a coordinate each; while probing, a range too."""

    side: Side
    columns: Columns
    rows: Array
    at: Array
    low: Array
    high: Array

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Array | slice) -> Batch:
        columns = {name: column.take(index) for name, column in self.columns.items()}
        return Batch(self.side, columns, self.rows[index], self.at[index], self.low[index], self.high[index])


@dataclass
class Chunk:
    """A batch in the store, in the order of its coordinates; rows before `start` have expired."""

    batch: Batch
    path: AccessPath
    start: int = 0

    @cached_property
    def index(self) -> SortedIndex | None:
        return self.path.index(self.batch.columns, len(self.batch))


@dataclass
class WindowStore:
    """The live tuples of `side`; `path` says how they are indexed."""

    side: Side
    path: AccessPath
    predicate: Expression
    chunks: deque[Chunk] = field(default_factory=deque)

    def __len__(self) -> int:
        return sum(len(chunk.batch) - chunk.start for chunk in self.chunks)

    def append(self, batch: Batch) -> None:
        assert batch.side == self.side
        if len(batch):
            in_order = bool((batch.at[1:] >= batch.at[:-1]).all())
            self.add(Chunk(batch if in_order else batch.take(np.argsort(batch.at, kind="stable")), self.path))

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)

    def expire(self, before: int) -> None:
        """Forget the rows with a coordinate less than `before`."""
        for chunk in self.chunks:
            chunk.start = max(chunk.start, int(np.searchsorted(chunk.batch.at, before, "left")))
        while self.chunks and self.chunks[0].start == len(self.chunks[0].batch):
            self.chunks.popleft()

    def probe(self, probing: Batch) -> Iterator[tuple[Chunk, Array, Array]]:
        """All pairs in the window that satisfy the predicate: a chunk, rows of `probing`, and rows of the chunk."""
        for chunk in self.chunks:
            for p, s in _candidates(chunk, probing):
                left, right = (probing, chunk.batch) if probing.side == "left" else (chunk.batch, probing)
                index = (p, s) if probing.side == "left" else (s, p)
                hit = matches(self.predicate, left.columns, right.columns, *index)
                if hit.any():
                    yield chunk, p[hit], s[hit]


def _candidates(chunk: Chunk, probing: Batch) -> Iterator[tuple[Array, Array]]:
    """Candidate pairs as (probing row, chunk row), each probe by the access that promises fewer of them."""
    at, n = chunk.batch.at, len(probing)
    begin = np.maximum(np.searchsorted(at, probing.low, "left"), chunk.start)
    end = np.maximum(np.searchsorted(at, probing.high, "right"), begin)
    if not (end > begin).any():
        return
    ranges = None
    if chunk.index is not None:
        ranges = chunk.path.ranges(chunk.index, probing.columns, n)
    if ranges is None or chunk.index is None:
        yield from _expand(np.arange(n), begin, end)
        return
    indexed = (ranges[1] - ranges[0]) < (end - begin)
    plain = np.flatnonzero(~indexed & (end > begin))
    yield from _expand(plain, begin[plain], end[plain])
    chosen = np.flatnonzero(indexed & (end > begin))
    for p, k in _expand(chosen, ranges[0][chosen], ranges[1][chosen]):
        s = chunk.index.rows[k]
        in_window = (s >= begin[p]) & (s < end[p])
        if in_window.any():
            yield p[in_window], s[in_window]


def _expand(probes: Array, begin: Array, end: Array) -> Iterator[tuple[Array, Array]]:
    """The pairs of each probe with each number of its range, in blocks of at most CANDIDATE_ROWS_MAX."""
    counts = end - begin
    keep = counts > 0
    probes, begin, counts = probes[keep], begin[keep], counts[keep]
    totals = np.cumsum(counts)
    first = 0
    while first < len(probes):
        done = int(totals[first - 1]) if first else 0
        last = max(int(np.searchsorted(totals, done + CANDIDATE_ROWS_MAX, "right")), first + 1)
        part = slice(first, last)
        size = int(totals[last - 1]) - done
        offsets = np.arange(size) - np.repeat(totals[part] - counts[part] - done, counts[part])
        p, s = np.repeat(probes[part], counts[part]), np.repeat(begin[part], counts[part]) + offsets
        for i in range(0, size, CANDIDATE_ROWS_MAX):  # one probe alone may exceed the block
            yield p[i : i + CANDIDATE_ROWS_MAX], s[i : i + CANDIDATE_ROWS_MAX]
        first = last


def predicate_columns(predicate: Expression, side: Side, table: pa.Table) -> Columns:
    """The vectors of the columns that the predicate uses of one side."""
    names = {column.name for column in columns_of(predicate) if column.side == side}
    return {name: from_arrow_column(name, table[name]) for name in names}


def passing(filters: list[Expression], side: Side, columns: Columns, n: int) -> Array | None:
    """The rows that pass the one-sided conditions; None if all do or if that cannot be told beforehand."""
    keep = np.ones(n, bool)
    try:
        for condition in filters:
            keep &= one_sided(condition, side, columns, n).is_true()
    except EvaluationError:
        return None
    return None if keep.all() else np.flatnonzero(keep)
