"""A join on real cores without Python: threads on a core each, on which nodes, driver and collector take turns.

    core 0:   node 0 ─► driver? ─► collector? ─► node 0 ─► ...
    core 1:   node 1 ─► driver? ─► collector? ─► node 1 ─► ...

A thread steps its nodes, and after each round it takes the driver's and the collector's turns, unless another thread is
at it just now; so cores are equally busy. (Where there are more cores than nodes, threads without a node do that
alone.) And nothing waits for the system to run it: with a thread for each part and fewer cores than that, the system
lets one thread look for work while another one has some, for milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from counterflow.cores import pin_thread, usable_cores
from counterflow.jit import compiled, inlined
from counterflow.lab.replay.feeding import (
    AHEAD,
    AT,
    BATCH,
    FILLS,
    LAST,
    Drive,
    Feed,
    drive,
    expire_lanes,
)
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
from counterflow.protocols.machine import Machine, touch
from counterflow.protocols.threads import finish
from counterflow.windows.compiled import block
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array

# --- words of `clock` besides BEGAN: how many threads run, and whether one has the driver's or the collector's turn
RUNNING, DRIVES, COLLECTS, CLOCK_WORDS = LINE, 2 * LINE, 3 * LINE, 4 * LINE
ALL_DONE = -1
LOOK_S, RESTED_NS = 0.005, 60_000_000  # how often to look whether tuples move, and when they are taken to rest


@inlined
def take_turn(clock: Words, part: int) -> bool:
    return load_acquire(clock, part) == 0 and compare_and_swap(clock, part, 0, 1)


@cache
def crew_member(step: Any) -> Any:
    """The loop of a core's thread: until the join is stopped, or a node needs something of its owner."""

    @compiled
    def work(m: Words, number: int, threads: int, d: Drive, c: Watch) -> int:
        """Returns the node in need, or ALL_DONE."""
        clock, nodes, turn = d.clock, m[w.NODES], 0
        serves = number >= nodes or threads <= nodes  # threads without a node leave the others to theirs
        fetch_add(clock, RUNNING, 1)
        while load_acquire(m, w.STOP) == 0:
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
                idle(m, m[w.DRIVER], turn, YIELD)
                turn += 1
        fetch_add(clock, RUNNING, -1)
        return ALL_DONE

    return work


class Replay:
    """A machine whose arenas hold all tuples of a run; the first `warm` ranks fill the windows and look for nothing.

    The others come at a rate, in tuples a second, or as fast as the nodes take them where it is 0.
    """

    def __init__(self, machine: Machine, left: Batch, right: Batch, warm: int, rate: float, ordered: bool) -> None:
        self.feed = feed = Feed(machine, left, right)
        self.machine, self.m, self.warm = machine, machine.m, warm
        self.handshake = machine.design.algorithm == "handshake"
        due = np.zeros(feed.total + 1, np.int64)
        if rate:
            due[warm:] = np.arange(1, feed.total - warm + 2) * (1e9 / rate)
        self.clock = shared_words(CLOCK_WORDS)
        self.drive = Drive(feed.way, feed.heads, feed.lanes, feed.state, feed.ends, due, self.clock)
        shelved = ordered and not machine.design.ordered_output  # a gate brings results in order by itself
        self.watch = new_watch(self.handshake, shelved, feed.totals, due, self.clock, warm)
        feed.state[AHEAD] = feed.total if self.handshake else machine.design.in_flight
        feed.state[BATCH] = machine.design.batch_rows
        self.work = crew_member(machine.step)
        self.error: BaseException | None = None
        machine.touch()
        for array in (self.watch.places, self.watch.out):
            touch(array)

    def fill(self) -> None:
        """Fill the windows."""
        self.m[w.QUIET : w.QUIET + 2] = self.feed.total
        with self._threads(self.warm):
            if self.handshake:
                self._await_rest()
                self.m[w.STOP] = 1
        self.m[w.QUIET : w.QUIET + 2] = 0

    def run(self) -> dict[str, Any]:
        """Release the rest, and collect all results; once, after `fill`."""
        before = self._comparisons()
        with self._threads(self.feed.total):
            if self.handshake:  # the rate is that of comparisons while tuples come; the rest is pushed through after it
                ended, compared = self._await_rest(), self._comparisons()
                self.m[w.QUIET : w.QUIET + 2] = self.feed.ends[self.warm, :2]  # of the rest only what is checked
                self._push_through()
        found = self.watch.found
        if not self.handshake:
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
        """Threads that run until tuples up to this rank are done with, or results are out; or something goes wrong."""
        state, count = self.feed.state, min(len(usable_cores()), self.machine.design.nodes + 2)
        assert state[AT] < last
        state[LAST], state[FILLS] = last, last == self.warm and not self.handshake
        self.m[w.STOP], self.clock[BEGAN] = 0, 0
        threads = [threading.Thread(target=self._work, args=(number, count), daemon=True) for number in range(count)]
        try:
            for thread in threads:
                thread.start()
            yield
            for thread in threads:
                thread.join()
        finally:  # an interrupt too
            self.m[w.STOP] = 1
        if self.error is not None:
            raise self.error

    def _work(self, number: int, threads: int) -> None:
        try:
            pin_thread(number)
            while (node := self.work(self.m, number, threads, self.drive, self.watch)) != ALL_DONE:
                self.machine.attend(node)
        except BaseException as error:
            self.error = error
            self.m[w.STOP] = 1

    def _comparisons(self) -> Array:
        return np.array([self.m[node + w.COMPARISONS] for node in self.machine.nodes])

    # --- handshake join: tuples rest where they are when loads are even

    def _await_rest(self) -> int:
        """Returns when something moved last."""
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
        wanted = self.feed.ends[self.feed.state[LAST], :2]
        return all(self.m[at + block.NEXT_ROW] >= wanted[side] for side, at in enumerate(ends))

    def _positions(self) -> Array:
        words = [
            self.machine.segment_at(k, s) + at
            for k in range(self.machine.design.nodes)
            for s in (0, 1)
            for at in (block.FIRST_ROW, block.NEXT_ROW)
        ]
        return self.m[words].copy()

    def _push_through(self) -> None:
        """Everything expires, and the nodes push on what they hold."""
        feed = self.feed
        while self.error is None and not expire_lanes(self.m, feed.heads, feed.lanes, feed.state, *feed.totals):
            time.sleep(1e-3)
        finish(self.m)
