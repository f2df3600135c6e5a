"""Template: the merge join of sorted basic blocks (handshake join's first report, Section 5).

Rows stay in the order in which they came, in basic blocks; within a block they are sorted by the first band key. A
batch of probes is sorted by where their bands begin, and then merged with each block of the window:

    probes   [----]  [----]    [----]      one cursor goes over the probes,
    block       x  x    x  x x        x    one over the rows: it never goes back to what lies before a band

Two numbers stand for what is no key. A row that may match anything is first in its block, as minus infinity, and each
probe looks at it; a place without a row, or with one that matches nothing, is last, as NaN, and no probe gets there.
"""

import numpy as np
from numba import int64, njit, uint32

from counterflow.kernels.compiled.templates.places import *

# ---- holes: what stands here is only the meaning; `build` writes them

APPEND, PROBE, ENTRY, BASIC_BLOCK = None, None, {}, 128  # BASIC_BLOCK: rows in a block


def accept(probe, stored, constants):
    """Whether the pair satisfies the predicate: 0 no, 1 yes, 2 if that takes more than compiled code."""


def probe_values(columns, i):
    """The predicate's columns of one probing row."""


def record_values(record):
    """The predicate's columns of a record."""


def fill(record, columns, i):
    """Write the predicate's columns of a row into its record."""


# ---- the text from here on is used as it stands

BATCH = 1024  # probes that are sorted together, at most
AT_BLOCK, AT_PROBE = 6, 7  # in `status`: where a merge goes on


@njit(**OPTIONS)
def block_at(block, heads):
    """Where a block begins. There is one more than the window needs, so a new one overwrites none that is in use."""
    return block % (len(heads) // BASIC_BLOCK) * BASIC_BLOCK


@njit(**OPTIONS)
def last_if_nan(value):
    """NaN is last in Spark's order; beside infinity it costs candidates, never pairs."""
    return np.inf if np.isnan(value) else value


@njit(APPEND, **ENTRY)
def append(begin, end, hashes, keys, usable, bands, columns, heads, records, pool, numbers, first_row, next_row):
    """Insert rows into the newest block, which is kept sorted; `heads` are the keys of the records beside them."""
    block_keys = heads.view(np.float64)
    for i in range(begin, end):
        row = next_row + i
        first = block_at(row // BASIC_BLOCK, heads)
        e = first + row % BASIC_BLOCK
        if e == first:
            block_keys[first : first + BASIC_BLOCK] = np.nan
        if usable[i] == NOWHERE:
            continue
        key = last_if_nan(keys[0, i])
        if usable[i] == ANYWHERE or (bands[0, NAN_ROW_MEETS_ALL] != 0 and np.isnan(keys[0, i])):
            key = -np.inf
        while e > first and not block_keys[e - 1] <= key:
            block_keys[e] = block_keys[e - 1]
            records[e] = records[e - 1]
            e -= 1
        block_keys[e] = key
        records[e].row = uint32(row)
        fill(records[e], columns, i)
    return end


@njit(**OPTIONS)
def sort_probes(begin, end, keys, usable, bands, oldest, newest, order, lower, upper):
    """Those probes that can match, with their bands, sorted by where these begin (Shell's sort); returns how many."""
    n = 0
    for p in range(begin, end):
        if usable[p] == NOWHERE or newest[p] < oldest[p]:
            continue
        order[n], lower[n], upper[n] = p, -np.inf, np.inf
        if usable[p] == BY_KEY:
            least, most = key_range(keys[0, p], bands, 0)
            lower[n], upper[n] = last_if_nan(least), last_if_nan(most)
        n += 1
    gap = n * 5 // 11
    while gap > 0:
        for i in range(gap, n):
            p, least, most, j = order[i], lower[i], upper[i], i
            while j >= gap and lower[j - gap] > least:
                order[j], lower[j], upper[j] = order[j - gap], lower[j - gap], upper[j - gap]
                j -= gap
            order[j], lower[j], upper[j] = p, least, most
        gap = 1 if gap == 2 else gap * 5 // 11
    return n


@njit(**OPTIONS)
def blocks_of(order, n, oldest, newest):
    """The first and the last block in which a probe's window has rows."""
    first, last = int64(0), int64(-1)
    for c in range(n):
        p = order[c]
        first = oldest[p] if c == 0 else min(first, oldest[p])
        last = max(last, newest[p])
    return first // BASIC_BLOCK, last // BASIC_BLOCK


@njit(**OPTIONS)
def check(begin, end, p, values, base, span, records, constants, out_probe, out_row, found, unsure):
    """The whole predicate, and the probe's window, on the records of a block from `begin` to `end`."""
    for e in range(begin, end):
        record = records[e]
        verdict = accept(values, record_values(record), constants)
        age = int64(uint32(record.row - uint32(base)))
        holds = int64(verdict != 0) & int64(age <= span)
        out_probe[found] = p  # always written, kept only if it holds
        out_row[found] = base + age
        found += holds
        unsure |= holds & int64(verdict >> 1)
    return found, unsure


@njit(PROBE, **ENTRY)
def probe(
    end,
    hashes,
    keys,
    usable,
    bands,
    oldest,
    newest,
    columns,
    constants,
    heads,
    records,
    first_row,
    chains,
    out_probe,
    out_row,
    over,
    status,
):
    """Pairs of probing rows and stored rows, these from the probe's `oldest` to its `newest`.

    Stops when the output is full, to go on later: the probes are then sorted again, to the same order.
    """
    block_keys = heads.view(np.float64)
    order, lower, upper = chains[0], chains[1].view(np.float64), chains[2].view(np.float64)
    found, unsure = status[FOUND], status[UNSURE]
    for begin in range(status[AT], end, BATCH):
        n = sort_probes(begin, min(begin + BATCH, end), keys, usable, bands, oldest, newest, order, lower, upper)
        first, last = blocks_of(order, n, oldest, newest)
        for block in range(max(first, status[AT_BLOCK]), last + 1):
            start = block_at(block, heads)
            stop, at = start + BASIC_BLOCK, start
            while at < stop and block_keys[at] == -np.inf:
                at += 1
            anywhere = at
            for c in range(status[AT_PROBE], n):
                while at < stop and block_keys[at] < lower[c]:
                    at += 1
                after = at
                while after < stop and block_keys[after] <= upper[c]:
                    after += 1
                if after == at and anywhere == start:
                    continue
                if found + BASIC_BLOCK >= len(out_probe):
                    status[AT], status[AT_BLOCK], status[AT_PROBE] = begin, block, c
                    status[FOUND], status[UNSURE], status[WAITING] = found, unsure, BASIC_BLOCK
                    return
                p = order[c]
                values, base, span = probe_values(columns, p), oldest[p], newest[p] - oldest[p]
                for a, b in ((start, anywhere), (at, after)):
                    found, unsure = check(
                        a, b, p, values, base, span, records, constants, out_probe, out_row, found, unsure
                    )
            status[AT_PROBE] = 0
        status[AT_BLOCK] = 0
    status[AT], status[FOUND], status[LEFT_OVER], status[UNSURE], status[WAITING] = end, found, 0, unsure, 0
