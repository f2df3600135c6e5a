"""A join on real cores without Python: threads on a core each, on which nodes, driver and collector take turns.

    core 0:   node 0 ─► driver? ─► collector? ─► node 0 ─► ...
    core 1:   node 1 ─► driver? ─► collector? ─► node 1 ─► ...

A thread steps its nodes, and after each round it takes the driver's and the collector's turns, unless another thread is
at it just now; so cores are equally busy. (Where there are more cores than nodes, threads without a node do that
alone.) And nothing waits for the system to run it: with a thread for each part and fewer cores than that, the system
lets one thread look for work while another one has some, for milliseconds.

The driver's turn is the product's `feed`, for tuples that are due; the collector's is its `collect`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from counterflow.cores import pin_thread, usable_cores
from counterflow.jit import compiled, inlined
from counterflow.lab.replay.loaded import Loaded
from counterflow.lab.replay.quiet import end_quiet, quieten
from counterflow.lab.replay.watching import (
    BEGAN,
    CHECKSUM,
    ENDED,
    PAIRS,
    PUNCTUATED_LEAST,
    TOO_LATE,
    WAITING_MOST,
    Watch,
    new_watch,
    watch,
)
from counterflow.lockfree.atomics import clock_ns, compare_and_swap, fetch_add, load_acquire, store_release
from counterflow.lockfree.shared_words import LINE, Words, shared_words
from counterflow.lockfree.waiting import YIELD, idle
from counterflow.protocols import words as w
from counterflow.protocols.feed import backlog, feed, finish, progress
from counterflow.protocols.machine import Machine
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array

# --- words of `clock` besides BEGAN: how many threads run, and whether one has the driver's or the collector's turn
RUNNING, DRIVES, COLLECTS, CLOCK_WORDS = LINE, 2 * LINE, 3 * LINE, 4 * LINE
FILLS = 1  # not 0: when all nodes are done with what was sent, everybody stops
ALL_DONE = -1
BACKLOG = 2  # messages that wait for a node while tuples come at a rate
LOOK_S, RESTED_NS = 0.005, 60_000_000  # how often to look whether tuples move, and when they are taken to rest
PAGE = 1 << 12  # of memory, in bytes


class Drive(NamedTuple):
    """What a turn of the driver looks at: rank i is due at due_ns[i] after the beginning; all at once where it is 0."""

    due_ns: Words
    clock: Words


@compiled
def drive(m: Words, d: Drive) -> int:
    """Feed the tuples that are due, in their order, a batch of them at the most."""
    f, due_ns, batch = m[w.HEADER_FEED], d.due_ns, m[w.HEADER_BATCH_ROWS]
    at, last = m[f + w.FEED_AT], m[f + w.FEED_OFFERED] + m[f + w.FEED_OFFERED + 1]
    if at == last:
        left, right = m[f + w.FEED_SENT], m[f + w.FEED_SENT + 1]
        if d.clock[FILLS] != 0 and progress(m, w.LEFT) >= left and progress(m, w.RIGHT) >= right:
            store_release(m, w.HEADER_STOP, 1)
        return feed(m, 0)
    to = min(at + batch, last)
    if due_ns[at] > 0:
        now = clock_ns() - d.clock[BEGAN]
        while to > at and due_ns[to - 1] > now:
            to = at + (to - at) // 2 if due_ns[at + (to - at) // 2] > now else to - 1
        if to == at or (to - at < batch and backlog(m) > BACKLOG):
            return w.IDLE  # nodes take what is queued; more small messages would only slow them down
    return feed(m, to - at)


@inlined
def take_turn(clock: Words, part: int) -> bool:
    return load_acquire(clock, part) == 0 and compare_and_swap(clock, part, 0, 1)


@cache
def crew_member(step: Any) -> Any:
    """Return the loop of a core's thread: until the join is stopped, or a node needs something of its owner."""

    @compiled
    def work(m: Words, number: int, threads: int, d: Drive, c: Watch) -> int:
        """Returns the node in need, or ALL_DONE."""
        clock, nodes, turn = d.clock, m[w.HEADER_NODES], 0
        serves = number >= nodes or threads <= nodes  # threads without a node leave the others to theirs
        fetch_add(clock, RUNNING, 1)
        while load_acquire(m, w.HEADER_STOP) == 0:
            worked = False
            for k in range(number, nodes, threads):
                state = step(m, k)
                if state == w.NEEDS:
                    fetch_add(clock, RUNNING, -1)
                    return k
                worked |= state == w.WORKED
            if serves and take_turn(clock, DRIVES):
                if clock[BEGAN] == 0 and load_acquire(clock, RUNNING) == threads:
                    clock[BEGAN] = clock_ns()  # no tuple waits for a thread's start, or its compilation
                if clock[BEGAN] != 0:
                    worked |= drive(m, d) == w.WORKED
                store_release(clock, DRIVES, 0)  # with the next one's `take_turn`
            if serves and take_turn(clock, COLLECTS):
                worked |= watch(m, c) == w.WORKED
                store_release(clock, COLLECTS, 0)
            if worked:
                turn = 0
            else:
                idle(m, m[w.HEADER_DRIVER], turn, YIELD)
                turn += 1
        fetch_add(clock, RUNNING, -1)
        return ALL_DONE

    return work


class Replay:
    """A machine that holds all tuples of a run; the first `warm` ranks fill the windows and find nothing.

    The others come at a rate, in tuples a second, or as fast as the nodes take them where it is 0. Where tuples rest in
    a row until others push them on, a run is over when they rest; what is still to be found is pushed through after it.
    """

    def __init__(self, machine: Machine, left: Batch, right: Batch, warm: int, rate: float, ordered: bool) -> None:
        self.loaded = loaded = Loaded(machine, left, right)
        self.machine, self.m, self.warm = machine, machine.m, warm
        self.rests = machine.design.protocol.found_until_both_leave
        due = np.zeros(loaded.total + 1, np.int64)
        if rate:
            due[warm:] = np.arange(1, loaded.total - warm + 2) * (1e9 / rate)
        self.clock = shared_words(CLOCK_WORDS)
        self.drive = Drive(due, self.clock)
        shelved = ordered and not machine.design.gates_results  # a gate brings results in order by itself
        self.watch = new_watch(shelved, loaded.totals, due, self.clock, warm)
        self.work = crew_member(machine.step)
        self.error: BaseException | None = None
        self.touched = False
        for array in (self.watch.places, self.watch.out):
            touch(array)

    def fill(self) -> None:
        """Fill the windows."""
        quieten(self.machine, *self.loaded.ends[self.warm, :2])
        with self._threads(self.warm):
            if self.rests:
                self._await_rest()
                self.m[w.HEADER_STOP] = 1
        self.touched = True
        end_quiet(self.machine)

    def run(self) -> dict[str, Any]:
        """Send the rest, and collect all results; once, after `fill`."""
        before = self._comparisons()
        with self._threads(self.loaded.total):
            if self.rests:  # the rate is that of comparisons while tuples come; the rest is pushed through after it
                ended, compared = self._await_rest(), self._comparisons()
                quieten(self.machine, *self.loaded.ends[self.warm, :2])  # of the rest only what is checked
                self.loaded.expire_all()
                finish(self.m)
        found = self.watch.found
        if not self.rests:
            ended, compared = int(found[ENDED]), self._comparisons()
        return {
            "seconds": (ended - int(self.clock[BEGAN])) / 1e9,
            "comparisons": [int(b - a) for a, b in zip(before, compared, strict=True)],
            "pairs": int(found[PAIRS]),
            "checksum": int(found[CHECKSUM]),
            "too_late": int(found[TOO_LATE]),
            "buffer": int(found[WAITING_MOST]),
            "punctuated": int(found[PUNCTUATED_LEAST]),
            "histogram": self.watch.histogram,
        }

    # --- threads

    @contextmanager
    def _threads(self, last: int) -> Iterator[None]:
        """Run threads until tuples up to this rank are done with, or results are out; or something goes wrong."""
        count = min(len(usable_cores()), self.machine.design.nodes + 2)
        assert self.m[self.machine.feed + w.FEED_AT] < last
        self.loaded.offer(last)
        self.m[w.HEADER_STOP], self.clock[BEGAN] = 0, 0
        self.clock[FILLS] = last == self.warm and not self.rests
        threads = [threading.Thread(target=self._work, args=(number, count), daemon=True) for number in range(count)]
        try:
            for thread in threads:
                thread.start()
            yield
            for thread in threads:
                thread.join()
        finally:  # an interrupt too
            self.m[w.HEADER_STOP] = 1
        if self.error is not None:
            raise self.error

    def _work(self, number: int, threads: int) -> None:
        try:
            pin_thread(number)
            if not self.touched:
                self._touch(range(number, self.machine.design.nodes, threads))
            while (node := self.work(self.m, number, threads, self.drive, self.watch)) != ALL_DONE:
                self.machine.attend(node)
        except BaseException as error:
            self.error = error
            self.m[w.HEADER_STOP] = 1

    def _touch(self, nodes: range) -> None:
        """Touch the windows' memory in the thread that steps these nodes: only it writes there, so none waits."""
        for segment in (self.machine.segments[at] for k in nodes for at in self.machine.segments_of(k)):
            segment.touch()
            own = (*segment.ring, *segment.stamps) if segment.shares is None else ()
            for array in (*own, segment.heads, segment.records):
                touch(array)

    def _comparisons(self) -> Array:
        return np.array([self.m[node + w.NODE_COMPARISONS] for node in self.machine.nodes])

    # --- tuples that rest where they are when loads are even

    def _await_rest(self) -> int:
        """Wait until nothing moves any more; returns when something moved last."""
        moved, before = time.monotonic_ns(), self._positions()
        while self.error is None and not (self._entered() and time.monotonic_ns() - moved > RESTED_NS):
            time.sleep(LOOK_S)
            positions = self._positions()
            if (positions != before).any():
                moved, before = time.monotonic_ns(), positions
        return moved

    def _entered(self) -> bool:
        """Whether all tuples have been taken at the row's ends; at first the nodes may still be compiled."""
        ends = self.machine.segment_at(0, w.LEFT), self.machine.segment_at(self.machine.design.nodes - 1, w.RIGHT)
        offered = self.machine.feed + w.FEED_OFFERED
        return all(self.m[at + w.SEGMENT_NEXT_ROW] >= self.m[offered + side] for side, at in enumerate(ends))

    def _positions(self) -> Array:
        words = [
            self.machine.segment_at(k, side) + word
            for k in range(self.machine.design.nodes)
            for side in (w.LEFT, w.RIGHT)
            for word in (w.SEGMENT_FIRST_ROW, w.SEGMENT_NEXT_ROW)
        ]
        return self.m[words].copy()


def touch(array: Array) -> None:
    """Touch every page once: the system hands memory out when it is first used, and takes its time."""
    octets = array.reshape(-1).view(np.uint8)
    octets[::PAGE] |= 0  # numpy would leave out an assignment to itself
