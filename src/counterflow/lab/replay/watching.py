"""The collector of measurements: it takes results, puts them in order if asked to, and says how old they are.

In order costs a constant for each result: it goes to a shelf of its later tuple when it is found, and when all nodes
are done with that tuple, the shelf is emptied. What waits is not looked at again, and only the few results of one
tuple are sorted. What does not fit (many results of a tuple, or tuples far ahead) hangs on lists.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import clock_ns, store_release
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.collect import collect, complete_rank

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
PLACES = 1 << 20  # for results that do not fit on a shelf; where there is none left, a run is not verified
TAKEN_MAX = 1 << 13  # results that are taken in one turn
BINS_PER_DOUBLING = 64
BINS = BINS_PER_DOUBLING * 40
OUT_PLACES = PLACES + (AT_ONCE + 1) * DEEP
END = -1  # of a list


class Watch(NamedTuple):
    """What a turn of the collector looks at."""

    ordered: bool
    totals: Words  # how many left and right tuples there are
    due_ns: Words  # by rank, when a tuple was due; its results' ages count from then
    clock: Words
    taken: Words
    shelves: Words
    places: Words
    following: Words
    lists: Words
    out: Words
    found: Words
    histogram: Words


def new_watch(ordered: bool, totals: Words, due_ns: Words, clock: Words, counted_from: int) -> Watch:
    shelves, following = np.full(SHELVES * SHELF_WORDS, NONE), np.arange(1, PLACES + 1)
    shelves[::SHELF_WORDS], following[-1] = 0, END
    found = np.zeros(FOUND_WORDS, np.int64)
    found[[COUNTED_FROM, RELEASED, PUNCTUATED_AT]], found[PUNCTUATED_LEAST] = counted_from, NONE
    return Watch(
        ordered,
        totals,
        due_ns,
        clock,
        np.zeros(w.RESULT_WORDS * TAKEN_MAX, np.int64),
        shelves,
        places=np.zeros(2 * PLACES, np.int64),
        following=following,
        lists=np.full(len(due_ns), END),
        out=np.zeros(2 * OUT_PLACES, np.int64),
        found=found,
        histogram=np.zeros(BINS, np.int64),
    )


@compiled
def watch(m: Words, c: Watch) -> int:
    """Take a turn of the collector; when all results are out, everybody stops.

    If `ordered`, results wait until all with a lower rank are out. Those of a gate are checked to be in order instead.
    """
    found, released, last = c.found, c.found[RELEASED], c.totals[0] + c.totals[1]
    taken = collect(m, c.taken, TAKEN_MAX)
    complete = complete_rank(m)
    if c.ordered:
        shelve_results(c, taken)
        empty_shelves(c, released, complete)
        if complete >= found[PUNCTUATED_AT] + PUNCTUATION:
            found[PUNCTUATED_LEAST] = min(found[PUNCTUATED_LEAST], found[PAIRS] - found[PUNCTUATED_PAIRS])
            found[PUNCTUATED_AT], found[PUNCTUATED_PAIRS] = complete, found[PAIRS]
    else:
        now = clock_ns() - c.clock[BEGAN]
        for i in range(taken):
            at = i * w.RESULT_WORDS
            rank = c.taken[at] >> 1
            if m[w.HEADER_GATE_OUT] != 0:  # in order already: ScaleJoin's second gate
                found[TOO_LATE] += rank < found[LAST_RANK]
                found[LAST_RANK] = rank
            if rank >= found[COUNTED_FROM]:
                count_result(c.taken[at + 1], c.taken[at + 2], found)
                count_ages(rank, 1, now, c.due_ns, c.histogram)
    found[RELEASED] = max(complete, released)
    if found[RELEASED] >= last and taken == 0:
        found[ENDED] = clock_ns()
        store_release(m, w.HEADER_STOP, 1)
    return w.WORKED if taken > 0 or complete > released else w.IDLE


@compiled
def shelve_results(c: Watch, taken: int) -> None:
    """Put results on the shelves of their later tuples."""
    found, released, results = c.found, c.found[RELEASED], c.taken
    too_late, ignored, counted_from = 0, 0, found[COUNTED_FROM]
    for i in range(taken):
        at = i * w.RESULT_WORDS
        rank, side = results[at] >> 1, results[at] & 1  # of the later tuple
        earlier, later = results[at + 2 - side], 2 * results[at + 1 + side] + side
        if rank < counted_from:
            ignored += 1
        else:
            too_late += rank < released or not shelve(c, released, rank, earlier, later)
    found[TOO_LATE] += too_late
    found[WAITING] += taken - ignored
    found[WAITING_MOST] = max(found[WAITING_MOST], found[WAITING])


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
