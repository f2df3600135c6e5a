"""The memory of one join: the words, the driver's arenas, the nodes' segments; and what nodes need from time to time.

Whoever steps the nodes (threads, a simulator) is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import proxy

import numpy as np

from counterflow.cores import usable_cores
from counterflow.lockfree.message_ring import ring_init, ring_size
from counterflow.lockfree.scale_gate import gate_init, gate_size
from counterflow.lockfree.shared_words import LINE, shared_words
from counterflow.lockfree.waiting import SPIN_ROUNDS, STRATEGIES, waiter_init, waiter_size
from counterflow.predicate.expression import Expression, Side
from counterflow.predicate.split import Split
from counterflow.protocols import celljoin, dp_join, handshake, low_latency, scale_join
from counterflow.protocols import kang as three_steps
from counterflow.protocols import words as w
from counterflow.protocols.incoming import Arena, address, descriptor
from counterflow.windows.access import choose_path
from counterflow.windows.compiled import block
from counterflow.windows.compiled.compiled_predicate import BASIC_BLOCK, Access, CompiledPredicate
from counterflow.windows.compiled.compiled_window import empty_index
from counterflow.windows.vectors import Array

STEPS = {
    "kang": three_steps.step,
    "celljoin": celljoin.step,
    "handshake": handshake.step,
    "llhj": low_latency.step,
    "dpjoin": dp_join.step,
    "scalejoin": scale_join.step,
}
SIDES: tuple[Side, Side] = ("left", "right")
UNLIMITED = 1 << 60
CAPACITY_MIN = 1 << 10
PAGE = 1 << 12  # of memory, in bytes
OUTPUT_MIN = 1 << 13  # pairs that one call of a kernel writes; more than a block of the scan


@dataclass(frozen=True)
class Design:
    """What kind of machine: the algorithm, its nodes, and sizes."""

    algorithm: str
    nodes: int = 1
    batch_rows: int = 64
    layout: tuple[int, int] = (1, 1)  # DP-Join's
    access: Access = "auto"
    basic_block: int = BASIC_BLOCK  # rows in a block that is sorted, with access="merge"
    symmetric: bool = False  # handshake join as in the first report
    in_flight: int = 1 << 13  # tuples of a side that the driver is ahead of the slowest node, at most
    outbox_rows: int = 1 << 13  # results that a node is ahead of the collector, at most
    ordered_output: bool = False  # ScaleJoin's second gate: the collector gets results in order
    expected_rows: tuple[int, int] = (0, 0)  # of the whole windows
    strategy: str = "park"
    nullable: bool = False
    capacity_min: int = CAPACITY_MIN  # rows of a segment
    wired: bool = False  # every queue has a sender's and a receiver's half: a simulator carries messages over

    @property
    def lanes(self) -> tuple[int, int]:
        return self.layout if self.algorithm == "dpjoin" else (1, 1)

    def lane(self, node: int, side: int) -> int:
        """Of the tuples of a side that the node gets."""
        if self.algorithm != "dpjoin":
            return 0
        return node // self.layout[1] if side == w.LEFT else node % self.layout[1]

    def stored(self, node: int, side: int) -> tuple[int, int]:
        """(stride, offset) of the tuples that the node stores."""
        if self.algorithm == "dpjoin":
            return self.layout[side], self.lane(node, side)
        return (self.nodes, node) if self.algorithm in ("llhj", "scalejoin") else (1, 0)

    @property
    def meets_later(self) -> bool:
        """Whether a probe may find tuples stored that came after it."""
        return self.algorithm in ("handshake", "llhj", "dpjoin")


@dataclass(frozen=True)
class Wire:
    """A queue in two halves: of a sender (-1: the driver) and of a receiver."""

    sender: int
    receiver: int
    sent: int
    received: int
    rightwards: bool


class Machine:
    def __init__(self, predicate: Expression, parts: Split, design: Design) -> None:
        self.design, self.step = design, STEPS[design.algorithm]
        self.predicates = tuple(
            CompiledPredicate(
                choose_path(parts, side),
                predicate,
                design.access,
                design.nullable,
                narrow=True,
                basic_block=design.basic_block,
            )
            for side in SIDES
        )
        self._lay_out()
        capacity = 1 << max(2 * design.in_flight - 1, 2 * design.batch_rows - 1).bit_length()
        self.arenas = tuple(
            Arena(side, self.predicates[side], self.predicates[1 - side], design.lanes[side], capacity)
            for side in (w.LEFT, w.RIGHT)
        )
        self.segments: dict[int, Segment] = {}
        self._make_segments()
        self.publish_arenas()

    # --- words

    def _lay_out(self) -> None:
        """Give everything its place."""
        design, m_size = self.design, 0

        def place(size: int) -> int:
            nonlocal m_size
            at, m_size = m_size, m_size + -(-size // LINE) * LINE
            return at

        place(w.HEADER_WORDS)
        nodes = [place(w.NODE_WORDS) for _ in range(design.nodes)]
        segments = [[place(w.SEGMENT_WORDS) for _ in range(3)] for _ in nodes]
        outbox_size = 1 << (design.outbox_rows - 1).bit_length()
        outboxes = [place(w.OUTBOX_WORDS) for _ in nodes]
        waiters = [place(waiter_size()) for _ in range(design.nodes + 2)]
        ring_rows = 1 << (4 * design.in_flight - 1).bit_length()
        rings = {link: place(ring_size(ring_rows)) for link in _links(design)}
        halves = {link: place(ring_size(ring_rows)) if design.wired else ring for link, ring in rings.items()}
        gates = {word: (place(gate_size(*sizes)), *sizes) for word, sizes in _gates(design)}
        self.m = m = shared_words(m_size)
        for word, (gate, *sizes) in gates.items():
            gate_init(m, gate, *sizes)
            m[word] = gate
        m[w.NODES], m[w.BATCH_ROWS], m[w.SELF] = design.nodes, design.batch_rows, m.ctypes.data
        m[w.STRATEGY], m[w.FIRST_NODE] = STRATEGIES[design.strategy], nodes[0]
        m[w.VARIANT] = int(design.symmetric)
        m[w.CROWDED] = SPIN_ROUNDS if design.nodes + 2 > len(usable_cores()) else 0
        m[w.DRIVER], m[w.COLLECTOR] = waiters[-2:]
        for waiter in waiters:
            waiter_init(m, waiter)
        self.outboxes: list[Outbox] = []
        self.inputs: dict[tuple[int, int], int] = {}  # the driver's rings: of a node, from the left or the right
        neighbours: dict[int, set[int]] = {k: set() for k in range(design.nodes)}
        for k, node in enumerate(nodes):
            m[node + w.OUTBOX], m[node + w.WAITER] = outboxes[k], waiters[k]
            self.outboxes.append(Outbox(m, outboxes[k], outbox_size))
            m[node + w.SEGMENT], m[node + w.SEGMENT + 1], m[node + w.TRANSIT] = segments[k]
        self.wires: list[Wire] = []
        for (sender, receiver, inbox, outlet), received in rings.items():
            ring = halves[sender, receiver, inbox, outlet]
            ring_init(m, received, ring_rows)
            ring_init(m, ring, ring_rows)
            m[nodes[receiver] + inbox] = received
            if design.wired:
                self.wires.append(Wire(sender, receiver, ring, received, inbox == w.FROM_LEFT))
            if sender < 0:
                self.inputs[receiver, inbox] = ring
            else:
                m[nodes[sender] + outlet] = ring if outlet else 0
                neighbours[sender].add(receiver)
                neighbours[receiver].add(sender)
        for k, node in enumerate(nodes):
            told = [waiters[-1], waiters[-2], *(waiters[other] for other in sorted(neighbours[k]))][: w.NOTIFIED_MAX]
            m[node + w.NOTIFIED : node + w.NOTIFIED + len(told)] = told
        self.nodes, self.waiters = nodes, waiters

    # --- windows

    def _make_segments(self) -> None:
        design = self.design
        for k, node in enumerate(self.nodes):
            for side in (w.LEFT, w.RIGHT):
                stride, offset = design.stored(k, side)
                shares = None
                if design.algorithm == "celljoin" and k > 0:
                    shares = self.segments[int(self.m[self.nodes[0] + w.SEGMENT + side])]
                if design.algorithm == "dpjoin":
                    first = k - k % design.layout[1] if side == w.LEFT else k % design.layout[1]
                    if first != k:
                        shares = self.segments[int(self.m[self.nodes[first] + w.SEGMENT + side])]
                rows = design.expected_rows[side] // stride
                at = int(self.m[node + w.SEGMENT + side])
                self.segments[at] = Segment(self, at, side, stride, offset, rows, design.access != "scan", shares)
                self.m[node + w.DONE + side] = design.lane(k, side)  # the first tuple that it gets
            if design.algorithm == "llhj":
                at = int(self.m[node + w.TRANSIT])
                indexed = design.access != "scan"
                self.segments[at] = Segment(self, at, w.RIGHT, 1, 0, 2 * design.in_flight, indexed, None)
        if design.algorithm == "dpjoin":
            self._share_segments()

    def _share_segments(self) -> None:
        rows, columns = self.design.layout
        step = self.segment_at(1, w.LEFT) - self.segment_at(0, w.LEFT) if self.design.nodes > 1 else 0
        for i in range(rows):
            at = self.segment_at(i * columns, w.LEFT)
            self.m[at + w.SHARERS], self.m[at + w.SHARE_STEP] = columns, step
        for j in range(columns):
            at = self.segment_at(j, w.RIGHT)
            self.m[at + w.SHARERS], self.m[at + w.SHARE_STEP] = rows, columns * step

    @property
    def may_be_unsure(self) -> bool:
        """Whether compiled code may find pairs that have to be checked."""
        accept = self.predicates[0].kernels.accept
        return not accept.complete or any(line.startswith("unsure |=") for line in accept.lines)

    def segment_at(self, k: int, side: int) -> int:
        return int(self.m[self.nodes[k] + w.SEGMENT + side])

    def publish_arenas(self) -> None:
        """Let the nodes know where arriving tuples lie; again when an arena has moved."""
        for k, node in enumerate(self.nodes):
            for side, arena in enumerate(self.arenas):
                place = arena.places[self.design.lane(k, side)]
                self.m[node + w.STAMPS + side] = address(place.stamps)
                for at in self._segments_of(k):
                    role = block.STORED if self.m[at + w.SIDE] == side else block.PROBING
                    self.m[at + role] = address(place.stored if role == block.STORED else place.probing)

    def set_bands(self, side: int, bands: Array) -> None:
        """How wide the cells of the grids over a side's tuples are; known with its first tuples."""
        for segment in self.segments.values():
            if segment.indexed and segment.predicate is self.predicates[side]:
                segment.bands[:] = bands

    def _segments_of(self, k: int) -> Iterator[int]:
        node = self.nodes[k]
        yield from (int(self.m[node + w.SEGMENT]), int(self.m[node + w.SEGMENT + 1]))
        if self.design.algorithm == "llhj":
            yield int(self.m[node + w.TRANSIT])

    def touch(self) -> None:
        """Every page of the windows once: the system hands memory out when it is first used, and takes its time."""
        for segment in self.segments.values():
            for array in (*segment.ring, *segment.stamps, segment.heads, segment.records):
                touch(array)

    def attend(self, k: int) -> None:
        """Give node k what it needs; called by whoever steps it."""
        node = self.nodes[k]
        need, segment = int(self.m[node + w.NEED]), self.segments[int(self.m[node + w.NEED_AT])]
        {
            w.NEED_ROOM: segment.grow,
            w.NEED_POOL: segment.grow_records,
            w.NEED_OUTPUT: segment.grow_output,
            w.NEED_SCAN: segment.load_scan,
            w.NEED_OUTBOX: self.outboxes[k].grow,
        }[need]()
        self.m[node + w.NEED] = 0


def touch(array: Array) -> None:
    octets = array.reshape(-1).view(np.uint8)
    octets[::PAGE] |= 0  # numpy would leave out an assignment to itself


def _gates(design: Design) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """ScaleJoin's gates: which one, its sources, its readers, and how many tuples of a source it holds."""
    if design.algorithm == "scalejoin":
        yield w.GATE_IN, (2, design.nodes, design.in_flight)
        if design.ordered_output:
            yield w.GATE_OUT, (design.nodes, 1, design.outbox_rows)


def _links(design: Design) -> Iterator[tuple[int, int, int, int]]:
    """The rings: sender (-1: the driver), receiver, and where each of them knows it."""
    last = design.nodes - 1
    if design.algorithm in ("kang", "scalejoin"):
        for k in range(design.nodes):
            yield -1, k, w.FROM_LEFT, 0
    elif design.algorithm == "celljoin":
        yield -1, 0, w.FROM_LEFT, 0
        for k in range(1, design.nodes):
            yield 0, k, w.FROM_RIGHT, 0
    elif design.algorithm == "dpjoin":
        columns = design.layout[1]
        for k in range(design.nodes):
            i, j = divmod(k, columns)
            yield (k - 1 if j else -1), k, w.FROM_LEFT, w.TO_RIGHT
            yield (k - columns if i else -1), k, w.FROM_RIGHT, w.TO_LEFT
    else:
        yield -1, 0, w.FROM_LEFT, 0
        yield -1, last, w.FROM_RIGHT, 0
        for k in range(last):
            yield k, k + 1, w.FROM_LEFT, w.TO_RIGHT
            yield k + 1, k, w.FROM_RIGHT, w.TO_LEFT


class Outbox:
    """A node's results on their way to the collector; or those of a batch, on their way to a gate that wants order."""

    def __init__(self, m: Array, at: int, size: int) -> None:
        self.m, self.at = m, at
        m[at + w.OUTBOX_ROWS] = size
        self.results = self.spare = np.empty(0, np.int64)
        self._make(size)

    def _make(self, size: int) -> None:
        self.results = np.empty(size * w.RESULT_WORDS, np.int64)
        self.spare = np.empty_like(self.results) if self.m[w.GATE_OUT] else self.spare
        self.m[self.at + w.OUTBOX_DATA] = address(self.results)
        self.m[self.at + w.OUTBOX_SPARE] = address(self.spare)
        self.m[self.at + w.OUTBOX_SIZE] = size

    def grow(self) -> None:
        """Only before a gate: nobody else knows the results of a batch that is not complete."""
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
        self.bands = np.zeros((len(self.predicate.path.bands), 7))
        self.ring: list[Array] = []
        self.stamps: list[Array] = []
        m = machine.m
        m[at + w.STRIDE], m[at + w.OFFSET], m[at + w.SIDE] = stride, offset, side
        m[at + w.SHARERS], m[at + block.COPIES] = 1, int(shares is None)
        if self.indexed:
            m[at + w.STORE], m[at + w.PROBE] = self.kernels.indexed.store.address, self.kernels.indexed.probe.address
        else:
            m[at + w.STORE] = self.kernels.scanned.store.address
            self.load_scan()
        self._make_workspace()
        least = machine.design.capacity_min
        self.capacity = 1 << (max(least, 2 * self.batch_rows, rows + 2 * self.batch_rows) - 1).bit_length()
        if shares is None:
            self._make_ring(self.capacity)
        else:
            shares.sharers.append(self)
            self.ring = shares.ring
            m[at + block.RING], m[at + w.STORED_STAMPS] = m[shares.at + block.RING], m[shares.at + w.STORED_STAMPS]
        if self.indexed:
            self._point(block.BANDS, self.bands)
            self._make_index()
        m[at + w.CAPACITY] = self.capacity if self.indexed or shares is None else UNLIMITED

    def _point(self, word: int, array: Array) -> None:
        self.machine.m[self.at + word] = address(array)
        self.kept[word] = array

    def _make_workspace(self) -> None:
        n, shape = self.batch_rows, self.kernels.shape
        for word in (block.OLDEST, block.NEWEST, block.CHOSEN, block.BEGINS, block.ENDS):
            self._point(word, np.zeros(n, np.int64))
        self._point(block.PROBE_KEYS, np.zeros((shape.dimensions, n)))
        self._point(block.WORK, np.zeros(block.WORK_SHAPE, np.int64))
        self._point(block.NUMBERS, np.zeros(64, np.int64))
        constants = [np.array([c]).view(np.int64)[0] for c in self.predicate.constants]
        self._point(block.CONSTANTS, np.array([*constants, 0], np.int64))
        stage: list[Array] = [np.zeros(n, np.uint64), np.zeros(n, np.uint8), np.zeros((shape.dimensions, n))]
        columns = [np.zeros(n, dtype) for dtype in shape.dtypes(shape.stored_columns)]
        self._point(block.STAGE, descriptor(0, *stage, *columns))
        self.kept[-block.STAGE] = [*stage, *columns]
        self._make_output(max(OUTPUT_MIN, 2 * n))

    def _make_output(self, size: int) -> None:
        self._point(block.OUT_PROBE, np.zeros(size, np.int64))
        self._point(block.OUT_ROW, np.zeros(size, np.int64))
        self.machine.m[self.at + block.OUT_SIZE] = size

    # --- the ring

    def _make_ring(self, capacity: int) -> None:
        """Empty, or with the rows of the one before."""
        m, at, shape = self.machine.m, self.at, self.kernels.shape
        ring: list[Array] = [np.empty(capacity, dtype) for dtype in shape.dtypes(shape.stored_columns)]
        if self.indexed:
            ring += [np.empty(capacity, np.uint64), np.empty(capacity, np.uint8)]
            ring.append(np.empty((shape.dimensions, capacity)))
        stamps = [np.empty(capacity, np.int64), np.empty(capacity, np.int64)]
        if m[at + block.RING]:
            first = min(int(m[s.at + block.FIRST_ROW]) for s in (self, *self.sharers))
            rows = np.arange(first, int(m[at + block.NEXT_ROW]))
            old, new = rows & (len(self.ring[-1].T) - 1), rows & (capacity - 1)
            for before, after in zip([*self.ring, *self.stamps], [*ring, *stamps], strict=True):
                after[..., new] = before[..., old]
        self.ring, self.stamps = ring, stamps
        described = descriptor(capacity - 1, *ring)
        stamped = descriptor(capacity - 1, *stamps)
        if self.sharers:
            self.retired.append(self.kept.get(block.RING))
        self.kept[block.RING] = [ring, stamps, described, stamped]
        for segment in (self, *self.sharers):
            segment.ring = ring
            if self.machine.design.meets_later:
                m[segment.at + w.STORED_STAMPS] = address(stamped)
            m[segment.at + block.RING] = address(described)

    def grow(self) -> None:
        self.capacity *= 2
        if self.shares is None:
            self._make_ring(self.capacity)
        if self.indexed:
            self._make_index()
        self.machine.m[self.at + w.CAPACITY] = self.capacity

    # --- the index

    def _make_index(self) -> None:
        """Over the rows that are there."""
        m, at = self.machine.m, self.at
        self.heads, self.records, self.pool = empty_index(self.kernels.shape, self.capacity)
        first, end = int(m[at + block.FIRST_ROW]), int(m[at + block.NEXT_ROW])
        *columns, hashes, usable, keys = self.ring
        numbers = np.empty(64, np.int64)
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
        self._point(block.POOL, self.pool)
        self._point(block.HEADS, self.heads)
        m[at + block.HEADS_SIZE] = len(self.heads)
        self._point_records()

    def _enlarge_records(self) -> None:
        larger = np.empty(len(self.records) * 3 // 2, self.records.dtype)
        larger[: len(self.records)] = self.records
        self.records = larger

    def _point_records(self) -> None:
        self._point(block.RECORDS, self.records)
        self.machine.m[self.at + block.RECORDS_SIZE] = len(self.records)

    def grow_records(self) -> None:
        self._enlarge_records()
        self._point_records()

    def grow_output(self) -> None:
        waiting = int(self.machine.m[self.at + block.WAITING])
        self._make_output(max(2 * int(self.machine.m[self.at + block.OUT_SIZE]), 2 * waiting))

    def load_scan(self) -> None:
        """What was written before is compared without bounds: with everything, which is right and slow."""
        self.machine.arenas[1 - self.side].scanned = True
        self.machine.m[self.at + w.SCAN] = self.kernels.scanned.scan.address
