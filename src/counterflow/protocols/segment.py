"""What a node has beside its words: its part of a window, in arrays that grow, and its outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import proxy

import numpy as np

from counterflow.protocols import words as w
from counterflow.protocols.incoming import address, descriptor
from counterflow.windows.compiled.block import BAND_WORDS, NUMBERS_WORDS, WORK_SHAPE
from counterflow.windows.compiled.compiled_window import empty_index
from counterflow.windows.vectors import Array

if TYPE_CHECKING:
    from counterflow.protocols.machine import Machine

UNLIMITED = 1 << 60
OUTPUT_MIN = 1 << 13  # pairs that one call of a kernel writes; more than a block of the scan


class Outbox:
    """A node's results on their way to the collector; or those of a batch, on their way to a gate that wants order."""

    def __init__(self, m: Array, at: int, size: int) -> None:
        self.m, self.at = m, at
        m[at + w.OUTBOX_ROWS] = size
        self.results = self.spare = np.empty(0, np.int64)
        self._make(size)

    def _make(self, size: int) -> None:
        self.results = np.empty(size * w.RESULT_WORDS, np.int64)
        self.spare = np.empty_like(self.results) if self.m[w.HEADER_GATE_OUT] else self.spare
        self.m[self.at + w.OUTBOX_DATA] = address(self.results)
        self.m[self.at + w.OUTBOX_SPARE] = address(self.spare)
        self.m[self.at + w.OUTBOX_SIZE] = size

    def grow(self) -> None:
        """Make room for more results. Only before a gate: nobody else knows those of a batch that is not complete."""
        before = self.results
        self._make(2 * int(self.m[self.at + w.OUTBOX_SIZE]))
        self.results[: len(before)] = before


class Segment:
    """A node's part of a window, or another node's that it looks at: `shares`."""

    def __init__(
        self, machine: Machine, at: int, side: int, stride: int, offset: int, rows: int, indexed: bool, shares: Any
    ) -> None:
        self.machine: Machine = proxy(machine)  # no cycle: a machine's memory goes when nobody needs it
        self.at, self.side, self.predicate, self.shares = at, side, machine.predicates[side], shares
        self.kernels, self.batch_rows = self.predicate.kernels, machine.design.batch_rows
        self.indexed = indexed and self.predicate.access == "index"
        self.sharers: list[Segment] = []
        self.kept: dict[int, Any] = {}  # what compiled code knows by address, by the word that has it
        self.retired: list[Any] = []  # rings that others may still be reading; each is half of the next
        self.pool = self.heads = self.records = np.empty(0, np.int64)
        self.bands = np.zeros((self.predicate.kernels.shape.dimensions, BAND_WORDS))
        self.ring: list[Array] = []
        self.stamps: list[Array] = []
        m = machine.m
        m[at + w.SEGMENT_STRIDE], m[at + w.SEGMENT_OFFSET], m[at + w.SEGMENT_SIDE] = stride, offset, side
        m[at + w.SEGMENT_SHARERS], m[at + w.SEGMENT_COPIES] = 1, int(shares is None)
        if self.indexed:
            m[at + w.SEGMENT_STORE], m[at + w.SEGMENT_PROBE] = (
                self.kernels.indexed.store.address,
                self.kernels.indexed.probe.address,
            )
        else:
            m[at + w.SEGMENT_STORE] = self.kernels.scanned.store.address
            self.load_scan()
        self._make_workspace()
        least = machine.design.capacity_min
        self.capacity = 1 << (max(least, 2 * self.batch_rows, rows + 2 * self.batch_rows) - 1).bit_length()
        if shares is None:
            self._make_ring(self.capacity)
        else:
            shares.sharers.append(self)
            self.ring = shares.ring
            m[at + w.SEGMENT_RING], m[at + w.SEGMENT_STORED_STAMPS] = (
                m[shares.at + w.SEGMENT_RING],
                m[shares.at + w.SEGMENT_STORED_STAMPS],
            )
        if self.indexed:
            self._point(w.SEGMENT_BANDS, self.bands)
        m[at + w.SEGMENT_CAPACITY] = self.capacity if self.indexed or shares is None else UNLIMITED

    def _point(self, word: int, array: Array) -> None:
        self.machine.m[self.at + word] = address(array)
        self.kept[word] = array

    def _make_workspace(self) -> None:
        n, shape = self.batch_rows, self.kernels.shape
        for word in (w.SEGMENT_OLDEST, w.SEGMENT_NEWEST, w.SEGMENT_CHOSEN, w.SEGMENT_BEGINS, w.SEGMENT_ENDS):
            self._point(word, np.zeros(n, np.int64))
        self._point(w.SEGMENT_PROBE_KEYS, np.zeros((shape.key_rows, n)))
        self._point(w.SEGMENT_WORK, np.zeros(WORK_SHAPE, np.int64))
        self._point(w.SEGMENT_NUMBERS, np.zeros(NUMBERS_WORDS, np.int64))
        constants = [np.array([c]).view(np.int64)[0] for c in self.predicate.constants]
        self._point(w.SEGMENT_CONSTANTS, np.array([*constants, 0], np.int64))
        stage: list[Array] = [np.zeros(n, np.uint64), np.zeros(n, np.uint8), np.zeros((shape.key_rows, n))]
        columns = [np.zeros(n, dtype) for dtype in shape.dtypes(shape.stored_columns)]
        self._point(w.SEGMENT_STAGE, descriptor(0, *stage, *columns))
        self.kept[-w.SEGMENT_STAGE] = [*stage, *columns]
        self._make_output(max(OUTPUT_MIN, 2 * n))

    def _make_output(self, size: int) -> None:
        self._point(w.SEGMENT_OUT_PROBE, np.zeros(size, np.int64))
        self._point(w.SEGMENT_OUT_ROW, np.zeros(size, np.int64))
        self.machine.m[self.at + w.SEGMENT_OUT_SIZE] = size

    # --- the ring

    def _make_ring(self, capacity: int) -> None:
        """Make a ring: empty, and then untouched until its node stores; or with the rows of the one before."""
        m, at, shape = self.machine.m, self.at, self.kernels.shape
        ring: list[Array] = [np.empty(capacity, dtype) for dtype in shape.dtypes(shape.stored_columns)]
        if self.indexed:
            ring += [np.empty(capacity, np.uint64), np.empty(capacity, np.uint8)]
            ring.append(np.empty((shape.key_rows, capacity)))
        stamps = [np.empty(capacity, np.int64), np.empty(capacity, np.int64)]
        if m[at + w.SEGMENT_RING]:
            first = min(int(m[s.at + w.SEGMENT_FIRST_ROW]) for s in (self, *self.sharers))
            rows = np.arange(first, int(m[at + w.SEGMENT_NEXT_ROW]))
            old, new = rows & (len(self.stamps[0]) - 1), rows & (capacity - 1)
            for before, after in zip([*self.ring, *self.stamps], [*ring, *stamps], strict=True):
                after[..., new] = before[..., old]
        self.ring, self.stamps = ring, stamps
        described = descriptor(capacity - 1, *ring)
        stamped = descriptor(capacity - 1, *stamps)
        if self.sharers:
            self.retired.append(self.kept.get(w.SEGMENT_RING))
        self.kept[w.SEGMENT_RING] = [ring, stamps, described, stamped]
        for segment in (self, *self.sharers):
            segment.ring = ring
            if self.machine.design.protocol.meets_later:
                m[segment.at + w.SEGMENT_STORED_STAMPS] = address(stamped)
            m[segment.at + w.SEGMENT_RING] = address(described)

    def grow(self) -> None:
        self.capacity *= 2
        if self.shares is None:
            self._make_ring(self.capacity)
        if self.indexed:
            self._make_index()
        self.machine.m[self.at + w.SEGMENT_CAPACITY] = self.capacity

    # --- the index

    def touch(self) -> None:
        """Make the index, whose memory is written at once, before the node's first step."""
        if self.indexed and not len(self.heads):
            self._make_index()

    def _make_index(self) -> None:
        """Make an index over the rows that are there."""
        m, at = self.machine.m, self.at
        self.heads, self.records, self.pool = empty_index(self.kernels.shape, self.capacity)
        first, end = int(m[at + w.SEGMENT_FIRST_ROW]), int(m[at + w.SEGMENT_NEXT_ROW])
        *columns, hashes, usable, keys = self.ring
        numbers = np.empty(NUMBERS_WORDS, np.int64)
        for begin in range(first, end, 1 << 16):
            rows = np.arange(begin, min(begin + (1 << 16), end)) & (len(hashes) - 1)
            part = hashes[rows], np.ascontiguousarray(keys[:, rows]), usable[rows]
            done, n = 0, len(rows)
            while done < n:
                done = self.kernels.indexed.append(
                    done, n, *part, self.bands, tuple(c[rows] for c in columns), self.heads, self.records, self.pool,
                    numbers, first, begin,
                )  # fmt: skip
                if done < n:
                    self._enlarge_records()
        self._point(w.SEGMENT_POOL, self.pool)
        self._point(w.SEGMENT_HEADS, self.heads)
        m[at + w.SEGMENT_HEADS_SIZE] = len(self.heads)
        self._point_records()

    def _enlarge_records(self) -> None:
        larger = np.empty(len(self.records) * 3 // 2, self.records.dtype)
        larger[: len(self.records)] = self.records
        self.records = larger

    def _point_records(self) -> None:
        self._point(w.SEGMENT_RECORDS, self.records)
        self.machine.m[self.at + w.SEGMENT_RECORDS_SIZE] = len(self.records)

    def grow_records(self) -> None:
        self._enlarge_records()
        self._point_records()

    def grow_output(self) -> None:
        waiting = int(self.machine.m[self.at + w.SEGMENT_WAITING])
        self._make_output(max(2 * int(self.machine.m[self.at + w.SEGMENT_OUT_SIZE]), 2 * waiting))

    def load_scan(self) -> None:
        """Let the node scan. What was written before is compared without bounds: with everything, right and slow."""
        self.machine.note_scanned(1 - self.side)
        self.machine.m[self.at + w.SEGMENT_SCAN] = self.kernels.scanned.scan.address
