"""The collector of measurements: it takes results, puts them in order if asked to, and says how old they are.

In order costs a constant for each result: it is hung on a list of its later tuple when it is found, and when all nodes
are done with that tuple, the list goes out. Nothing is sorted, and what waits is not looked at again.
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
from counterflow.protocols.node import node_at, stamp_arrays
from counterflow.protocols.running import let_others_run, progress, take_results

# --- what was found: words of `found`
PAIRS, CHECKSUM, WAITING_MOST, BEGAN, COUNTED_FROM, TOO_LATE, WAITING, FREE = 0, 1, 2, 3, 4, 5, 6, 7
FOUND_WORDS = 8
PLACES = 1 << 20  # for results that wait
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
    places: Words,
    following: Words,
    lists: Words,
    found: Words,
    histogram: Words,
) -> None:
    """Collect until all is complete. If `ordered`, results wait until all with a lower rank are out."""
    turn, since, released = 0, clock_ns(), 0
    last = totals[0] + totals[1]
    while True:
        complete = complete_rank(m, both, totals)
        if ordered:
            taken = hang_results(m, places, following, lists, released, found)
            release_lists(places, following, lists, released, complete, due_ns, found, histogram)
        else:
            taken = take_results(m, places, PLACES)
            now = clock_ns() - found[BEGAN]
            for i in range(taken):
                count_result(places, i, now, due_ns, found, histogram)
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
def hang_results(m: Words, places: Words, following: Words, lists: Words, released: int, found: Words) -> int:
    """Move results from the nodes' queues to places, each on the list of its later tuple; returns how many."""
    free, taken = found[FREE], 0
    for k in range(m[w.NODES]):
        node = node_at(m, k)
        box = m[node + w.OUTBOX]
        sent, at = load_acquire(m, box + w.OUTBOX_SENT), m[box + w.OUTBOX_TAKEN]
        mask, first = m[box + w.OUTBOX_SIZE] - 1, at
        while at < sent and free != END:
            source, place = box + w.OUTBOX_DATA + (at & mask) * w.RESULT_WORDS, free
            free = following[place]
            for word in range(w.RESULT_WORDS):
                places[place * w.RESULT_WORDS + word] = m[source + word]
            rank = m[source] >> 1
            found[TOO_LATE] += rank < released
            hang(places, following, lists, rank, place)
            at += 1
        if at > first:
            store_release(m, box + w.OUTBOX_TAKEN, at)
            notify(m, m[node + w.WAITER])
        taken += at - first
    found[FREE], found[WAITING] = free, found[WAITING] + taken
    found[WAITING_MOST] = max(found[WAITING_MOST], found[WAITING])
    return taken


@inlined
def hang(places: Words, following: Words, lists: Words, rank: int, place: int) -> None:
    """By the earlier tuple, the newest first: nodes find them from the oldest to the newest."""
    here, number = lists[rank], earlier(places, place)
    if here == END or earlier(places, here) < number:
        following[place], lists[rank] = here, place
        return
    while following[here] != END and earlier(places, following[here]) > number:
        here = following[here]
    following[place], following[here] = following[here], place


@inlined
def earlier(places: Words, place: int) -> int:
    """The number of the earlier tuple of a result."""
    at = place * w.RESULT_WORDS
    return places[at + 1] if places[at] & 1 else places[at + 2]


@compiled
def release_lists(
    places: Words,
    following: Words,
    lists: Words,
    first: int,
    end: int,
    due_ns: Words,
    found: Words,
    histogram: Words,
) -> None:
    """Hand out the lists of these ranks, each turned round: the oldest partner first."""
    now, free = clock_ns() - found[BEGAN], found[FREE]
    for rank in range(first, end):
        here, out = lists[rank], END
        while here != END:
            after = following[here]
            following[here], out, here = out, here, after
        while out != END:
            count_result(places, out, now, due_ns, found, histogram)
            found[WAITING] -= 1
            after = following[out]
            following[out], free, out = free, out, after
    found[FREE] = free


@inlined
def count_result(places: Words, place: int, now: int, due_ns: Words, found: Words, histogram: Words) -> None:
    """A result goes out: this is where a consumer would take it."""
    at = place * w.RESULT_WORDS
    rank = places[at] >> 1
    if rank >= found[COUNTED_FROM]:  # the others are of two tuples that filled the windows
        found[PAIRS] += 1
        found[CHECKSUM] += (places[at + 1] * 31 + places[at + 2] * 17) & 0xFFFFFF
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
        following = np.arange(1, PLACES + 1)
        following[-1] = END
        lists = np.full(int(totals.sum()) + 1, END)
        places = np.zeros(PLACES * w.RESULT_WORDS, np.int64)
        arguments = (m, both, ordered, totals, due_ns, places, following, lists, self.found, self.histogram)
        self.thread = threading.Thread(target=watch, args=arguments)

    def start(self) -> int:
        """Returns the time from which results' ages are counted."""
        self.found[BEGAN] = time.monotonic_ns()
        self.thread.start()
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
