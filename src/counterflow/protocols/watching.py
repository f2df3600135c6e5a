"""The collector of measurements: it takes results, puts them in order if asked to, and says how old they are.

In order costs a constant for each result: it goes to a shelf of its later tuple when it is found, and when all nodes
are done with that tuple, the shelf is emptied. What waits is not looked at again, and only the few results of one
tuple are sorted. What does not fit (many results of a tuple, or tuples far ahead) hangs on lists.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import clock_ns, load_acquire, store_release
from counterflow.lockfree.waiting import idle, notify
from counterflow.lockfree.words import Words
from counterflow.protocols import words as w
from counterflow.protocols.node import node_at, stamp_arrays, words_at
from counterflow.protocols.running import let_others_run, progress, take_results

# --- what was found: words of `found`
PAIRS, CHECKSUM, WAITING_MOST, BEGAN, COUNTED_FROM, TOO_LATE, WAITING, FREE, RUNS = 0, 1, 2, 3, 4, 5, 6, 7, 8
FOUND_WORDS = 9
SHELVES, DEEP = 1 << 14, 8  # of so many tuples, with so many results each
PLACES = 1 << 20  # for results that do not fit on a shelf
BINS_PER_DOUBLING = 64
BINS = BINS_PER_DOUBLING * 40
END = -1  # of a list


@inlined
def complete_rank(m: Words, both: bool, totals: Words) -> int:
    """All pairs whose later tuple comes before this rank are found; `both`: a pair lives as long as both tuples do."""
    ranks = (rank_of(m, 0, progress(m, 0), totals), rank_of(m, 1, progress(m, 1), totals))
    return max(ranks[0], ranks[1]) if both else min(ranks[0], ranks[1])


@inlined
def rank_of(m: Words, side: int, number: int, totals: Words) -> int:
    if number >= totals[side]:
        return totals[0] + totals[1]
    lanes = m[w.LANES + side]
    node = node_at(m, m[w.HEADS + side] * (number % lanes))
    _, high, mask = stamp_arrays(m[node + w.STAMPS + side])
    return number + high[(number // lanes) & mask] + 1


@compiled
def watch(
    m: Words,
    both: bool,
    ordered: bool,
    totals: Words,
    due_ns: Words,
    shelves: Words,
    filled: Words,
    places: Words,
    following: Words,
    lists: Words,
    scratch: Words,
    found: Words,
    histogram: Words,
) -> None:
    """Collect until all is complete. If `ordered`, results wait until all with a lower rank are out."""
    turn, since, released = 0, clock_ns(), 0
    last = totals[0] + totals[1]
    store_release(found, RUNS, 1)
    while True:
        complete = complete_rank(m, both, totals)
        if ordered:
            taken = shelve_results(m, shelves, filled, places, following, lists, released, found)
            empty_shelves(shelves, filled, places, following, lists, scratch, released, complete, due_ns,
                          found, histogram)  # fmt: skip
        else:
            taken = take_results(m, places, PLACES)
            now = clock_ns() - found[BEGAN]
            for i in range(taken):
                at = i * w.RESULT_WORDS
                count_result(places[at] >> 1, places[at + 1], places[at + 2], now, due_ns, found, histogram)
        moved, released = complete > released, complete
        if released >= last and taken == 0:
            store_release(m, w.STOP, 1)
            return
        if taken == 0 and not moved:
            idle(m, m[w.COLLECTOR], turn + m[w.CROWDED], m[w.STRATEGY])
            turn += 1
        else:
            turn = 0
            since = let_others_run(m, since)


@compiled
def shelve_results(
    m: Words, shelves: Words, filled: Words, places: Words, following: Words, lists: Words, released: int, found: Words
) -> int:
    """Move results from the nodes' queues to the shelves of their later tuples; returns how many."""
    taken, too_late = 0, 0
    for k in range(m[w.NODES]):
        node = node_at(m, k)
        box = m[node + w.OUTBOX]
        sent, at = load_acquire(m, box + w.OUTBOX_SENT), m[box + w.OUTBOX_TAKEN]
        size, first = m[box + w.OUTBOX_SIZE], at
        results = words_at(m[box + w.OUTBOX_DATA], size * w.RESULT_WORDS)
        while at < sent:
            source = (at & (size - 1)) * w.RESULT_WORDS
            rank = results[source] >> 1
            shelf, side = rank & (SHELVES - 1), results[source] & 1  # of the later tuple
            earlier, later = results[source + 2 - side], 2 * results[source + 1 + side] + side
            too_late += rank < released
            on_shelf = filled[shelf]
            if rank < released + SHELVES and on_shelf < DEEP:
                place = 2 * (shelf * DEEP + on_shelf)
                shelves[place], shelves[place + 1] = earlier, later
                filled[shelf] = on_shelf + 1
            elif not hang(places, following, lists, found, rank, earlier, later):
                break
            at += 1
        if at > first:
            store_release(m, box + w.OUTBOX_TAKEN, at)
            notify(m, m[node + w.WAITER])
        taken += at - first
    found[TOO_LATE] += too_late
    found[WAITING] += taken
    found[WAITING_MOST] = max(found[WAITING_MOST], found[WAITING])
    return taken


@inlined
def hang(places: Words, following: Words, lists: Words, found: Words, rank: int, earlier: int, later: int) -> bool:
    """On a list; False if there is no place left."""
    place = found[FREE]
    if place == END:
        return False
    found[FREE] = following[place]
    places[2 * place], places[2 * place + 1] = earlier, later
    following[place], lists[rank] = lists[rank], place
    return True


@compiled
def empty_shelves(
    shelves: Words,
    filled: Words,
    places: Words,
    following: Words,
    lists: Words,
    scratch: Words,
    first: int,
    end: int,
    due_ns: Words,
    found: Words,
    histogram: Words,
) -> None:
    """Hand out the results of these ranks, each tuple's by its partners."""
    now = clock_ns() - found[BEGAN]
    for rank in range(first, end):
        shelf = rank & (SHELVES - 1)
        count = filled[shelf]
        if lists[rank] == END:
            results = shelves[2 * shelf * DEEP : 2 * (shelf + 1) * DEEP]
        else:
            count, results = take_list(shelves, shelf, count, places, following, lists, scratch, found, rank), scratch
        sort_by_earlier(results, count)
        for i in range(count):
            earlier, later, side = results[2 * i], results[2 * i + 1] >> 1, results[2 * i + 1] & 1
            left, right = (later, earlier) if side == w.LEFT else (earlier, later)
            count_result(rank, left, right, now, due_ns, found, histogram)
        found[WAITING] -= count
        filled[shelf] = 0


@compiled
def take_list(
    shelves: Words,
    shelf: int,
    count: int,
    places: Words,
    following: Words,
    lists: Words,
    scratch: Words,
    found: Words,
    rank: int,
) -> int:
    """A tuple's results on its shelf and on its list to `scratch`; returns how many."""
    for i in range(2 * count):
        scratch[i] = shelves[2 * shelf * DEEP + i]
    while lists[rank] != END:
        place = lists[rank]
        scratch[2 * count], scratch[2 * count + 1] = places[2 * place], places[2 * place + 1]
        lists[rank], following[place], found[FREE] = following[place], found[FREE], place
        count += 1
    return count


@inlined
def sort_by_earlier(results: Words, count: int) -> None:
    """Shell's sort: by insertion, as long as they are few."""
    gap = 1
    while 3 * gap + 1 < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            earlier, later, to = results[2 * i], results[2 * i + 1], i
            while to >= gap and results[2 * (to - gap)] > earlier:
                results[2 * to], results[2 * to + 1] = results[2 * (to - gap)], results[2 * (to - gap) + 1]
                to -= gap
            results[2 * to], results[2 * to + 1] = earlier, later
        gap //= 3


@inlined
def count_result(rank: int, left: int, right: int, now: int, due_ns: Words, found: Words, histogram: Words) -> None:
    """A result goes out: this is where a consumer would take it."""
    if rank >= found[COUNTED_FROM]:  # the others are of two tuples that filled the windows
        found[PAIRS] += 1
        found[CHECKSUM] += (left * 31 + right * 17) & 0xFFFFFF
        if due_ns[rank] > 0:
            histogram[bin_of(now - due_ns[rank])] += 1


@inlined
def bin_of(ns: int) -> int:
    value, shift = max(ns, 1), 0
    while value >= 2 * BINS_PER_DOUBLING:
        value >>= 1
        shift += 1
    return min(shift * BINS_PER_DOUBLING + value, BINS - 1)


class Watcher:
    """The thread that collects the results of one run."""

    def __init__(self, m: Words, both: bool, ordered: bool, totals: Words, due_ns: Words, counted_from: int) -> None:
        self.found, self.histogram = np.zeros(FOUND_WORDS, np.int64), np.zeros(BINS, np.int64)
        self.found[COUNTED_FROM] = counted_from
        shelves, filled = np.zeros(2 * SHELVES * DEEP, np.int64), np.zeros(SHELVES, np.int64)
        following = np.arange(1, PLACES + 1)
        following[-1] = END
        lists = np.full(int(totals.sum()) + 1, END)
        places, scratch = np.zeros((2, w.RESULT_WORDS * PLACES), np.int64)
        arguments = (
            m, both, ordered, totals, due_ns, shelves, filled, places, following, lists, scratch, self.found,
            self.histogram,
        )  # fmt: skip
        self.thread = threading.Thread(target=watch, args=arguments)

    def start(self) -> int:
        """Returns the time from which results' ages are counted."""
        self.thread.start()
        while not self.found[RUNS]:  # its start, or even its compilation, is nothing that results should wait for
            time.sleep(1e-3)
        self.found[BEGAN] = time.monotonic_ns()
        return int(self.found[BEGAN])

    def join(self) -> dict[str, Any]:
        self.thread.join()
        return {
            "pairs": int(self.found[PAIRS]),
            "checksum": int(self.found[CHECKSUM]),
            "buffer": int(self.found[WAITING_MOST]),
            "too_late": int(self.found[TOO_LATE]),
            "histogram": self.histogram,
        }
