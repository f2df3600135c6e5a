"""The collector of measurements: it takes results, puts them in order if asked to, and says how old they are.

In order costs a constant for each result: it goes to a shelf of its later tuple when it is found, and when all nodes
are done with that tuple, the shelf is emptied. What waits is not looked at again, and only the few results of one
tuple are sorted. What does not fit (many results of a tuple, or tuples far ahead) hangs on lists.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import clock_ns, load_acquire, store_release
from counterflow.lockfree.shared_words import Words
from counterflow.lockfree.waiting import notify
from counterflow.protocols import words as w
from counterflow.protocols.node import node_at, stamp_arrays, words_at
from counterflow.protocols.threads import progress, take_results

# --- what was found, and how far the collector is: words of `found`
PAIRS, CHECKSUM, TOO_LATE = 0, 1, 2
WAITING, WAITING_MOST, FREE = 3, 4, 5
COUNTED_FROM = 6  # results of lower ranks are of two tuples that filled the windows
RELEASED = 7  # results of lower ranks are out
PUNCTUATED_AT, PUNCTUATED_PAIRS = 8, 9  # the last punctuation: its rank, and the results before it
PUNCTUATED_LEAST = 10  # the fewest results between two punctuations
ENDED = 11  # when all results were out
LAST_RANK = 12  # of the last result that came through a gate
FOUND_WORDS = 13
PUNCTUATION = 1 << 14  # tuples from one to the next: several times what may be under way, whose results wait
BEGAN = 0  # a word of `clock`, from which on tuples are due
# A shelf is a cache line: the later tuple of its results with how many there are, and their earlier tuples.
SHELF_WORDS = 8
SHELVES, DEEP = 1 << 13, SHELF_WORDS - 1
AT_ONCE = 256  # shelves that are emptied at once
NONE = (1 << 63) - 1  # an empty place on a shelf
PLACES = 1 << 20  # for results that do not fit on a shelf
BINS_PER_DOUBLING = 64
BINS = BINS_PER_DOUBLING * 40
OUT_PLACES = PLACES + (AT_ONCE + 1) * DEEP
END = -1  # of a list


class Watch(NamedTuple):
    """What a turn of the collector looks at."""

    both: bool  # a pair lives as long as both tuples do: handshake join
    ordered: bool
    totals: Words  # how many left and right tuples there are
    due_ns: Words  # by rank, when a tuple was due; its results' ages count from then
    clock: Words
    shelves: Words
    places: Words
    following: Words
    lists: Words
    out: Words
    found: Words
    histogram: Words


def new_watch(both: bool, ordered: bool, totals: Words, due_ns: Words, clock: Words, counted_from: int) -> Watch:
    shelves, following = np.full(SHELVES * SHELF_WORDS, NONE), np.arange(1, PLACES + 1)
    shelves[::SHELF_WORDS], following[-1] = 0, END
    found = np.zeros(FOUND_WORDS, np.int64)
    found[[COUNTED_FROM, RELEASED, PUNCTUATED_AT]], found[PUNCTUATED_LEAST] = counted_from, NONE
    return Watch(
        both,
        ordered,
        totals,
        due_ns,
        clock,
        shelves,
        places=np.zeros(w.RESULT_WORDS * PLACES, np.int64),
        following=following,
        lists=np.full(len(due_ns), END),
        out=np.zeros(2 * OUT_PLACES, np.int64),
        found=found,
        histogram=np.zeros(BINS, np.int64),
    )


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
def watch(m: Words, c: Watch) -> int:
    """A turn of the collector (low-latency handshake join, 6.1.3): read how far all nodes are, then empty their queues.

    If `ordered`, results wait until all with a lower rank are out. Those of a gate are checked to be in order instead.
    When all are out, everybody stops.
    """
    found, released, last = c.found, c.found[RELEASED], c.totals[0] + c.totals[1]
    complete = complete_rank(m, c.both, c.totals)
    if c.ordered:
        taken = shelve_results(m, c)
        empty_shelves(c, released, complete)
        if complete >= found[PUNCTUATED_AT] + PUNCTUATION:
            found[PUNCTUATED_LEAST] = min(found[PUNCTUATED_LEAST], found[PAIRS] - found[PUNCTUATED_PAIRS])
            found[PUNCTUATED_AT], found[PUNCTUATED_PAIRS] = complete, found[PAIRS]
    else:
        taken = take_results(m, c.places, PLACES)
        now = clock_ns() - c.clock[BEGAN]
        for i in range(taken):
            at = i * w.RESULT_WORDS
            rank = c.places[at] >> 1
            if m[w.GATE_OUT] != 0:  # in order already: ScaleJoin's second gate
                found[TOO_LATE] += rank < found[LAST_RANK]
                found[LAST_RANK] = rank
            if rank >= found[COUNTED_FROM]:
                count_result(c.places[at + 1], c.places[at + 2], found)
                count_ages(rank, 1, now, c.due_ns, c.histogram)
    found[RELEASED] = max(complete, released)
    if found[RELEASED] >= last and taken == 0:
        found[ENDED] = clock_ns()
        store_release(m, w.STOP, 1)
    return w.WORKED if taken > 0 or complete > released else w.IDLE


@compiled
def shelve_results(m: Words, c: Watch) -> int:
    """Move results from the nodes' queues to the shelves of their later tuples; returns how many."""
    found, released = c.found, c.found[RELEASED]
    taken, too_late, ignored, counted_from = 0, 0, 0, found[COUNTED_FROM]
    for k in range(m[w.NODES]):
        node = node_at(m, k)
        box = m[node + w.OUTBOX]
        sent, at = load_acquire(m, box + w.OUTBOX_SENT), m[box + w.OUTBOX_TAKEN]
        size, first = m[box + w.OUTBOX_SIZE], at
        results = words_at(m[box + w.OUTBOX_DATA], size * w.RESULT_WORDS)
        while at < sent:
            source = (at & (size - 1)) * w.RESULT_WORDS
            rank, side = results[source] >> 1, results[source] & 1  # of the later tuple
            earlier, later = results[source + 2 - side], 2 * results[source + 1 + side] + side
            if rank < counted_from:
                ignored += 1
            elif not shelve(c, released, rank, earlier, later):
                break
            else:
                too_late += rank < released
            at += 1
        if at > first:
            store_release(m, box + w.OUTBOX_TAKEN, at)
            notify(m, m[node + w.WAITER])
        taken += at - first
    found[TOO_LATE] += too_late
    found[WAITING] += taken - ignored
    found[WAITING_MOST] = max(found[WAITING_MOST], found[WAITING])
    return taken


@inlined
def shelve(c: Watch, released: int, rank: int, earlier: int, later: int) -> bool:
    """On its later tuple's shelf, or else on its list; False if there is no place left."""
    shelf = (rank & (SHELVES - 1)) * SHELF_WORDS
    count = c.shelves[shelf] & (SHELF_WORDS - 1)
    if rank < released + SHELVES and count < DEEP:
        c.shelves[shelf], c.shelves[shelf + 1 + count] = later * SHELF_WORDS + count + 1, earlier
        return True
    place = c.found[FREE]
    if place == END:
        return False
    c.found[FREE] = c.following[place]
    c.places[2 * place], c.places[2 * place + 1] = earlier, later
    c.following[place], c.lists[rank] = c.lists[rank], place
    return True


@compiled
def empty_shelves(c: Watch, first: int, end: int) -> None:
    """Hand out the results of these ranks, each tuple's by its partners."""
    now = clock_ns() - c.clock[BEGAN]
    shelves, lists, earlier, later = c.shelves, c.lists, c.out[:OUT_PLACES], c.out[OUT_PLACES:]
    for begin in range(first, end, AT_ONCE):
        taken = 0
        for rank in range(begin, min(begin + AT_ONCE, end)):
            shelf = (rank & (SHELVES - 1)) * SHELF_WORDS
            count = shelves[shelf] & (SHELF_WORDS - 1)
            empty_shelf(shelves, shelf, earlier, later, taken)
            if lists[rank] != END:
                count += take_list(c, earlier, later, taken + count, rank)
                sort(earlier, taken, count)
            taken += count
            count_ages(rank, count, now, c.due_ns, c.histogram)
        c.found[WAITING] -= taken
        for i in range(taken):
            one, other, side = later[i] >> 1, earlier[i], later[i] & 1
            count_result(one if side == w.LEFT else other, other if side == w.LEFT else one, c.found)


@inlined
def empty_shelf(shelves: Words, shelf: int, earlier: Words, later: Words, at: int) -> None:
    """All its places, as no processor guesses how many results there are; what is too much is written over."""
    owner = shelves[shelf] // SHELF_WORDS
    a, b, c = shelves[shelf + 1], shelves[shelf + 2], shelves[shelf + 3]
    few = shelves[shelf] & (SHELF_WORDS - 1) <= 3
    shelves[shelf], shelves[shelf + 1], shelves[shelf + 2], shelves[shelf + 3] = 0, NONE, NONE, NONE
    later[at], later[at + 1], later[at + 2] = owner, owner, owner
    if few:
        b, c = min(b, c), max(b, c)
        a, c = min(a, c), max(a, c)
        a, b = min(a, b), max(a, b)
    else:
        d, e, f, g = shelves[shelf + 4], shelves[shelf + 5], shelves[shelf + 6], shelves[shelf + 7]
        for i in range(4, SHELF_WORDS):
            shelves[shelf + i] = NONE
        # A sorting network (tests check it): there is nothing to guess here either.
        a, g, c, d, e, f = min(a, g), max(a, g), min(c, d), max(c, d), min(e, f), max(e, f)
        a, c, b, e, d, g = min(a, c), max(a, c), min(b, e), max(b, e), min(d, g), max(d, g)
        a, b, c, f, d, e = min(a, b), max(a, b), min(c, f), max(c, f), min(d, e), max(d, e)
        b, c, e, g = min(b, c), max(b, c), min(e, g), max(e, g)
        c, d, e, f = min(c, d), max(c, d), min(e, f), max(e, f)
        b, c, d, e, f, g = min(b, c), max(b, c), min(d, e), max(d, e), min(f, g), max(f, g)
        earlier[at + 3], earlier[at + 4], earlier[at + 5], earlier[at + 6] = d, e, f, g
        later[at + 3], later[at + 4], later[at + 5], later[at + 6] = owner, owner, owner, owner
    earlier[at], earlier[at + 1], earlier[at + 2] = a, b, c


@compiled
def take_list(c: Watch, earlier: Words, later: Words, at: int, rank: int) -> int:
    """A tuple's results from its list; returns how many."""
    count = 0
    while c.lists[rank] != END:
        place = c.lists[rank]
        earlier[at + count], later[at + count] = c.places[2 * place], c.places[2 * place + 1]
        c.lists[rank], c.following[place], c.found[FREE] = c.following[place], c.found[FREE], place
        count += 1
    return count


@compiled
def sort(values: Words, first: int, count: int) -> None:
    """Shell's."""
    gap = 1
    while 3 * gap + 1 < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(first + gap, first + count):
            value, to = values[i], i
            while to - gap >= first and values[to - gap] > value:
                values[to] = values[to - gap]
                to -= gap
            values[to] = value
        gap //= 3


@inlined
def count_result(left: int, right: int, found: Words) -> None:
    """A result goes out: this is where a consumer would take it."""
    found[PAIRS] += 1
    found[CHECKSUM] += (left * 31 + right * 17) & 0xFFFFFF


@inlined
def count_ages(rank: int, count: int, now: int, due_ns: Words, histogram: Words) -> None:
    if due_ns[rank] > 0:
        histogram[bin_of(now - due_ns[rank])] += count


@inlined
def bin_of(ns: int) -> int:
    value, shift = max(ns, 1), 0
    while value >= 2 * BINS_PER_DOUBLING:
        value >>= 1
        shift += 1
    return min(shift * BINS_PER_DOUBLING + value, BINS - 1)
