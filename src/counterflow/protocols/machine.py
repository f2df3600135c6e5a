"""The memory of one join: the words, where tuples come in, the nodes' segments; and what nodes need from time to time.

Whoever feeds and steps the nodes, and collects what they find (threads, a simulator), is elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from counterflow.cores import usable_cores
from counterflow.lockfree.message_ring import WAITER as RING_WAITER
from counterflow.lockfree.message_ring import ring_init, ring_size
from counterflow.lockfree.scale_gate import gate_init, gate_size
from counterflow.lockfree.shared_words import LINE, shared_words
from counterflow.lockfree.waiting import LAST_SLEEP_NS, SPIN_ROUNDS, STRATEGIES, waiter_init, waiter_size
from counterflow.predicate.expression import SIDES, Expression
from counterflow.predicate.split import Split
from counterflow.protocols import words as w
from counterflow.protocols.design import Design
from counterflow.protocols.incoming import Incoming, address
from counterflow.protocols.past import FIRST_OF_ALL, Past
from counterflow.protocols.segment import Outbox, Segment
from counterflow.protocols.sources import SourceRing, ring_capacity
from counterflow.protocols.traits import DRIVER, Link
from counterflow.windows.access import choose_path
from counterflow.windows.compiled.compiled_predicate import CompiledPredicate
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array

AnyRing = TypeVar("AnyRing", bound=Incoming)
BATCHES_IN_RING = 8  # of a node that stamps tuples itself: a batch ends where its ring does


@dataclass(frozen=True)
class Wire:
    """A queue in two halves: that of a sender (DRIVER, or a node) and that of a receiver."""

    sender: int
    receiver: int
    sent: int
    received: int
    rightwards: bool


class Machine:
    """The words `m` and everything that they point to.

    Memory lies near the thread that touches it first (handshake join, Section 5.1). With `touched=False` each node's
    own thread calls `touch` before its first step.
    """

    def __init__(self, predicate: Expression, parts: Split, design: Design, touched: bool = True) -> None:
        self.design, self.step = design, design.protocol.step
        self._banding, self._banded = threading.Lock(), [False, False]
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
        driven = design.sources is None
        self.incoming = tuple(
            self._ring(Incoming, side, design.lanes[side], capacity) for side in (w.LEFT, w.RIGHT) if driven
        )
        self._make_sources()
        self.segments: dict[int, Segment] = {}
        self._make_segments()
        self.publish_incoming()
        for k in range(design.nodes if touched else 0):
            self.touch(k)

    # --- words

    def _lay_out(self) -> None:
        """Give everything its place."""
        design, size = self.design, 0

        def place(words: int) -> int:
            nonlocal size
            at, size = size, size + -(-words // LINE) * LINE
            return at

        place(w.HEADER_WORDS)
        links = list(design.protocol.links(design))
        heads = heads_of(links)
        self.feed, self.collector = place(w.FEED_WORDS + len(heads) * w.HEAD_WORDS), place(w.COLLECT_WORDS)
        self.nodes = [place(w.NODE_WORDS) for _ in range(design.nodes)]
        segments = [[place(w.SEGMENT_WORDS) for _ in range(3)] for _ in self.nodes]
        outboxes = [place(w.OUTBOX_WORDS) for _ in self.nodes]
        sources = 0 if design.sources is None else len(design.sources)
        self.sources = [place(w.SOURCE_WORDS) for _ in range(sources)]
        self.past_at = [[place(w.PAST_WORDS) for _ in range(2)] for _ in self.nodes if sources]
        self.source_waiters = [place(waiter_size()) for _ in self.sources]
        self.waiters = [place(waiter_size()) for _ in range(design.nodes + 2)]
        ring_rows = 1 << (4 * design.in_flight - 1).bit_length()
        rings = {link: place(ring_size(ring_rows)) for link in links}
        halves = {link: place(ring_size(ring_rows)) if design.wired else ring for link, ring in rings.items()}
        told = neighbours_of(links, design.nodes)
        lists = [place(len(others) + 2) for others in told]
        gates = {word: (place(gate_size(*sizes)), sizes) for word, sizes in gates_of(design)}
        self.m = m = shared_words(size)
        for word, (gate, sizes) in gates.items():
            gate_init(m, gate, *sizes)
            m[word] = gate
        m[w.HEADER_NODES], m[w.HEADER_BATCH_ROWS], m[w.HEADER_SELF] = design.nodes, design.batch_rows, m.ctypes.data
        m[w.HEADER_STRATEGY], m[w.HEADER_FIRST_NODE] = STRATEGIES[design.strategy], self.nodes[0]
        m[w.HEADER_FEED], m[w.HEADER_COLLECT] = self.feed, self.collector
        m[w.HEADER_VARIANT] = int(design.symmetric)
        m[w.HEADER_CROWDED] = SPIN_ROUNDS if design.nodes + 2 > len(usable_cores()) else 0
        m[w.HEADER_DRIVER], m[w.HEADER_COLLECTOR] = self.waiters[-2:]
        m[self.collector + w.COLLECT_BOTH] = int(design.protocol.found_until_both_leave)
        m[w.HEADER_SOURCES], m[w.HEADER_FIRST_SOURCE] = sources, self.sources[0] if sources else 0
        m[w.HEADER_TELL] = sources * design.in_flight // 2
        for waiter in self.waiters:
            waiter_init(m, waiter)
        for waiter in self.source_waiters:  # one that looks by itself would find room for a few tuples
            waiter_init(m, waiter, first_sleep_ns=LAST_SLEEP_NS)
        self.outboxes: list[Outbox] = []
        for k, node in enumerate(self.nodes):
            m[node + w.NODE_OUTBOX], m[node + w.NODE_WAITER] = outboxes[k], self.waiters[k]
            self.outboxes.append(Outbox(m, outboxes[k], 1 << (design.outbox_rows - 1).bit_length()))
            m[node + w.NODE_SEGMENT : node + w.NODE_SEGMENT + 2] = segments[k][:2]
            m[node + w.NODE_TRANSIT] = segments[k][2]
            waiters = [*self.waiters[-2:], *(self.waiters[other] for other in told[k])]
            m[lists[k] : lists[k] + len(waiters)] = waiters
            m[node + w.NODE_NOTIFIED], m[node + w.NODE_NOTIFIED_COUNT] = lists[k], len(waiters)
        self._connect(rings, halves, ring_rows)
        self._make_feed([(halves[link], link.receiver) for link in heads])

    def _connect(self, rings: dict[Link, int], halves: dict[Link, int], ring_rows: int) -> None:
        """Let senders and receivers know their rings, and whom to wake."""
        m, nodes = self.m, self.nodes
        self.wires: list[Wire] = []
        for link, received in rings.items():
            sent = halves[link]
            for ring in (received, sent):
                ring_init(m, ring, ring_rows)
                m[ring + RING_WAITER] = self.waiters[link.receiver]
            m[nodes[link.receiver] + link.inbox] = received
            if self.design.wired:
                rightwards = link.inbox == w.NODE_FROM_LEFT
                self.wires.append(Wire(link.sender, link.receiver, sent, received, rightwards))
            if link.sender != DRIVER and link.outlet:
                m[nodes[link.sender] + link.outlet] = sent

    def _make_feed(self, heads: list[tuple[int, int]]) -> None:
        m, feed, design = self.m, self.feed, self.design
        m[feed + w.FEED_WAY], m[feed + w.FEED_AHEAD] = design.protocol.way, design.ahead
        m[feed + w.FEED_LANES : feed + w.FEED_LANES + 2] = design.lanes
        m[feed + w.FEED_HEADS] = len(heads)
        for i, (ring, k) in enumerate(heads):
            head = feed + w.FEED_TABLE + i * w.HEAD_WORDS
            m[head + w.HEAD_RING], m[head + w.HEAD_WAITER], m[head + w.HEAD_NODE] = ring, self.waiters[k], self.nodes[k]

    # --- sources

    def _ring(self, kind: type[AnyRing], side: int, lanes: int, capacity: int) -> AnyRing:
        return kind(side, self.predicates[side], self.predicates[1 - side], lanes, capacity)

    def _make_sources(self) -> None:
        """Make the rings of physical sources, and what each node needs to stamp their tuples."""
        design, m = self.design, self.m
        self.source_rings: list[SourceRing] = []
        self.node_rings: list[tuple[Incoming, ...]] = []
        self.pasts: dict[int, Past] = {}
        if design.sources is None:
            return
        for number, at in enumerate(self.sources):
            m[at + w.SOURCE_SIDE], m[at + w.SOURCE_WAITER] = self.source_side(number), self.source_waiters[number]
            m[at + w.SOURCE_FRONTIER] = FIRST_OF_ALL
            ring = self._ring(
                SourceRing, self.source_side(number), 1, ring_capacity(design.in_flight, design.sources.waiting_rows)
            )
            ring.publish(m, at)
            self.source_rings.append(ring)
        capacity = 1 << (BATCHES_IN_RING * design.batch_rows - 1).bit_length()
        for node, places in zip(self.nodes, self.past_at, strict=True):
            m[node + w.NODE_LATEST] = FIRST_OF_ALL
            m[node + w.NODE_PAST : node + w.NODE_PAST + 2] = places
            self.node_rings.append(tuple(self._ring(Incoming, side, 1, capacity) for side in (w.LEFT, w.RIGHT)))
            for side, at in enumerate(places):
                self.pasts[at] = Past(m, at, design.sources.windows[side], self.node_rings[-1][side].copied())

    def source_side(self, number: int) -> int:
        """Return the side of a source."""
        assert self.design.sources is not None
        return self.design.sources.side(number)

    def write_source(self, number: int, batch: Batch) -> None:
        """Write the next tuples of a source, of one round through its ring; there must be room for them."""
        side = self.source_side(number)
        self.source_rings[number].write(batch)
        bands = self.source_rings[number].bands
        with self._banding:  # once for a side, before any of its tuples is in the gate
            if bands is not None and not self._banded[side]:
                self._set_bands(side, bands)
                self._banded[side] = True

    # --- windows

    def _make_segments(self) -> None:
        design, protocol, indexed = self.design, self.design.protocol, self.design.access != "scan"
        for k, node in enumerate(self.nodes):
            for side in (w.LEFT, w.RIGHT):
                stride, offset = protocol.stores(design, k, side)
                owner = protocol.ring_of(design, k, side)
                shares = self.segments[self.segment_at(owner, side)] if owner != k else None
                rows = design.expected_rows[side] // stride
                at = self.segment_at(k, side)
                self.segments[at] = Segment(self, at, side, stride, offset, rows, indexed, shares)
                self.m[node + w.NODE_DONE + side] = design.lane(k, side)  # the first tuple that it gets
            if protocol.keeps_transit:
                at = int(self.m[node + w.NODE_TRANSIT])
                self.segments[at] = Segment(self, at, w.RIGHT, 1, 0, 2 * design.in_flight, indexed, None)
        if protocol.readers_keep_rows:
            self._note_readers()

    def touch(self, k: int) -> None:
        """Make what is written at once of node k's part of the windows; rings are touched when rows are stored."""
        for at in self.segments_of(k):
            self.segments[at].touch()

    def _note_readers(self) -> None:
        """Let the owner of a ring know the other nodes that read it: they are equally far apart."""
        for side in (w.LEFT, w.RIGHT):
            readers: dict[int, list[int]] = {}
            for k in range(self.design.nodes):
                readers.setdefault(self.design.protocol.ring_of(self.design, k, side), []).append(k)
            for owner, nodes in readers.items():
                at, second = (self.segment_at(k, side) for k in (owner, nodes[min(1, len(nodes) - 1)]))
                self.m[at + w.SEGMENT_SHARERS], self.m[at + w.SEGMENT_SHARE_STEP] = len(nodes), second - at

    @property
    def may_be_unsure(self) -> bool:
        """Whether compiled code may find pairs that have to be checked."""
        accept = self.predicates[0].kernels.accept
        return not accept.complete or any(line.startswith("unsure |=") for line in accept.lines)

    def segment_at(self, k: int, side: int) -> int:
        return int(self.m[self.nodes[k] + w.NODE_SEGMENT + side])

    def segments_of(self, k: int) -> list[int]:
        """Return where the segments of a node are, that of tuples in transit included."""
        found = [self.segment_at(k, w.LEFT), self.segment_at(k, w.RIGHT)]
        return [*found, int(self.m[self.nodes[k] + w.NODE_TRANSIT])] if self.design.protocol.keeps_transit else found

    # --- tuples that come

    def write(self, side: int, batch: Batch) -> None:
        """Write the next tuples of a side, of one round through their ring; there must be room for them."""
        incoming = self.incoming[side]
        self.m[self.feed + w.FEED_CLAIMED + side] = incoming.next + len(batch)  # before anything is overwritten
        banded = incoming.bands is not None
        incoming.write(batch)
        if not banded and incoming.bands is not None:
            self._set_bands(side, incoming.bands)

    def _set_bands(self, side: int, bands: Array) -> None:
        """Set how wide the cells of the grids over a side's tuples are; known with its first tuples."""
        for segment in self.segments.values():
            if segment.indexed and segment.predicate is self.predicates[side]:
                segment.bands[:] = bands

    def publish_incoming(self) -> None:
        """Let the nodes know where arriving tuples lie; again when they have moved."""
        for k, node in enumerate(self.nodes):
            for side, incoming in enumerate(self.incoming or self.node_rings[k]):
                place = incoming.places[self.design.lane(k, side)]
                self.m[node + w.NODE_STAMPS + side] = address(place.stamps)
                for segment in self.segments_of(k):
                    if self.m[segment + w.SEGMENT_SIDE] == side:
                        self.m[segment + w.SEGMENT_STORED] = address(place.stored)
                    else:
                        self.m[segment + w.SEGMENT_PROBING] = address(place.probing)

    def note_scanned(self, side: int) -> None:
        """Let tuples of a side be written with bounds, as nodes compare them with whole windows."""
        for ring in self.incoming or self.source_rings:
            if ring.side == side:
                ring.scanned = True

    # --- what nodes need

    def attend(self, k: int) -> None:
        """Give node k what it needs; called by whoever steps it."""
        node = self.nodes[k]
        need, at = int(self.m[node + w.NODE_NEED]), int(self.m[node + w.NODE_NEED_AT])
        self.m[node + w.NODE_NEED] = 0
        if need == w.NEED_PAST:
            self.pasts[at].grow()
            return
        segment = self.segments[at]
        {
            w.NEED_ROOM: segment.grow,
            w.NEED_POOL: segment.grow_records,
            w.NEED_OUTPUT: segment.grow_output,
            w.NEED_SCAN: segment.load_scan,
            w.NEED_OUTBOX: self.outboxes[k].grow,
        }[need]()


def heads_of(links: list[Link]) -> list[Link]:
    """Return the links at which tuples enter: first those of left tuples, each side's in the order of its lanes."""
    entering = [link for link in links if link.sender == DRIVER]
    return sorted(entering, key=lambda link: (link.inbox, link.receiver))


def neighbours_of(links: list[Link], nodes: int) -> list[list[int]]:
    """Return, for each node, the nodes that it sends to or hears from."""
    pairs = {(link.sender, link.receiver) for link in links if link.sender != DRIVER}
    pairs |= {(receiver, sender) for sender, receiver in pairs}
    return [sorted(other for node, other in pairs if node == k) for k in range(nodes)]


def gates_of(design: Design) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yield ScaleJoin's gates: the word that has one, its sources, its readers, and how many tuples a source has."""
    if design.protocol.way == w.TO_GATE:
        sources = 2 if design.sources is None else len(design.sources)
        yield w.HEADER_GATE_IN, (sources, design.nodes, design.in_flight)
    if design.gates_results:
        yield w.HEADER_GATE_OUT, (design.nodes, 1, design.outbox_rows)
