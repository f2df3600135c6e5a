"""Template: the sorted blocks, for a merge join as in handshake join's first report (Section 5).

Rows stay in the order in which they came, in basic blocks; within a block they are sorted by the first band key. A
batch of probes is sorted by where their bands begin, and then merged with each block of the window:

    probes   [----]  [----]    [----]      one cursor goes over the bands,
    block       x  x    x  x x        x    one over the rows: a row that lies before a band lies before all that follow

Keys are finite here. Minus infinity is a row that may match anything: first in its block, before all bands, and looked
at by each probe. Infinity is a place without a row, or with one that matches nothing; each block ends with one.
"""

import numpy as np
from numba import int64, njit, uint32

from counterflow.windows.compiled.templates.buckets import *
from counterflow.windows.compiled.templates.check_records import *
from counterflow.windows.compiled.templates.holes import *

# ---- holes: what stands here is only the meaning; `build` writes them, and those of `holes`

BASIC_BLOCK = 128  # rows in a block


# ---- the text from here on is used as it stands

PLACES = BASIC_BLOCK + 1
HIT_BITS = 9  # a hit is the place of a row and, in the last bits, the number of a band
BATCH = 1 << HIT_BITS  # probes that are sorted together, at most
FEW = BASIC_BLOCK // 3  # probes: fewer bisect a block, which takes as long as four steps of a merge
LARGEST = np.finfo(np.float64).max
AT_BLOCK, AT_HIT = 6, 7  # in `status`: where a search goes on


@njit(**OPTIONS)
def block_at(block, heads):
    """Return where a block begins. There is one more than the window needs: a new one overwrites none in use."""
    return block % (len(heads) // PLACES) * PLACES


@njit(**OPTIONS)
def finite(value):
    """Return a finite key in the same order, NaN last as in Spark. Ends that become equal cost candidates, no pairs."""
    return LARGEST if np.isnan(value) else min(max(value, -LARGEST), LARGEST)


@njit(APPEND, **ENTRY)
def append(begin, end, hashes, keys, usable, bands, columns, heads, records, pool, numbers, first_row, next_row):
    """Insert rows into the newest block, which is kept sorted; `heads` are the keys of the records beside them."""
    block_keys = heads.view(np.float64)
    for i in range(begin, end):
        row = next_row + i
        first = block_at(row // BASIC_BLOCK, heads)
        e = first + row % BASIC_BLOCK
        if e == first:
            block_keys[first : first + PLACES] = np.inf
        if usable[i] == NOWHERE:
            continue
        key = finite(keys[0, i])
        if usable[i] == ANYWHERE or (bands[0, NAN_ROW_MEETS_ALL] != 0 and np.isnan(keys[0, i])):
            key = -np.inf
        while e > first and block_keys[e - 1] > key:
            block_keys[e] = block_keys[e - 1]
            records[e] = records[e - 1]
            e -= 1
        block_keys[e] = key
        records[e].row = uint32(row)
        fill(records[e], columns, i)
    return end


@njit(**OPTIONS)
def sort_probes(begin, end, keys, usable, bands, oldest, newest, order, lower, upper):
    """Write the probes that can match and their bands, sorted by where these begin (Shell's sort); return how many."""
    n = 0
    for p in range(begin, end):
        if usable[p] == NOWHERE or newest[p] < oldest[p]:
            continue
        order[n], lower[n], upper[n] = p, -LARGEST, LARGEST
        if usable[p] == BY_KEY:
            least, most = key_range(keys[0, p], bands, 0)
            lower[n], upper[n] = finite(least), finite(most)
        n += 1
    gap = max(n * 5 // 11, 1)
    while gap > 0:
        for i in range(gap, n):
            p, least, most, j = order[i], lower[i], upper[i], i
            while j >= gap and lower[j - gap] > least:
                order[j], lower[j], upper[j] = order[j - gap], lower[j - gap], upper[j - gap]
                j -= gap
            order[j], lower[j], upper[j] = p, least, most
        gap = 1 if gap == 2 else gap * 5 // 11
    lower[n] = np.nan  # no row lies in what follows the last band
    return n


@njit(**OPTIONS)
def blocks_of(order, n, oldest, newest):
    """Return the first and the last block in which a probe's window has rows."""
    first, last = int64(0), int64(-1)
    for c in range(n):
        p = order[c]
        first = oldest[p] if c == 0 else min(first, oldest[p])
        last = max(last, newest[p])
    return first // BASIC_BLOCK, last // BASIC_BLOCK


@njit(**OPTIONS)
def merge(a, b, n, block_keys, lower, upper, hits):
    """Note which bands have rows in the blocks at `a` and `b`, and the first of these rows; return how many bands.

    In each step a block's cursor over the rows or its cursor over the bands moves on, without a branch to mispredict;
    two blocks are merged side by side, because a step has to wait for the one before it.
    """
    c, d, found, others = int64(0), int64(0), int64(0), n + 1
    for step in range(n + BASIC_BLOCK):
        at, bt = a + step - c, b + step - d
        key, other = block_keys[at], block_keys[bt]
        begun, other_begun = int64(key >= lower[c]), int64(other >= lower[d])
        inside, other_inside = begun & int64(key <= upper[c]), other_begun & int64(other <= upper[d])
        hits[found], hits[others] = at << HIT_BITS | c, bt << HIT_BITS | d  # always written, kept only if it holds
        found, others = found + inside, others + other_inside
        c, d = c + begun, d + other_begun
    return found, others - (n + 1)


@njit(**OPTIONS)
def bisect(a, n, block_keys, lower, upper, hits, found):
    """Do the same for one block, from place `found` of the hits on; note all bands if a row may match anything."""
    everyone = int64(block_keys[a] == -np.inf)
    for c in range(n):
        at, length = a, BASIC_BLOCK
        while length > 1:
            at += (length // 2) & -int64(block_keys[at + length // 2 - 1] < lower[c])
            length -= length // 2
        at += int64(block_keys[at] < lower[c])
        hits[found] = at << HIT_BITS | c
        found += everyone | int64(block_keys[at] <= upper[c])
    return found


@njit(PROBE, **ENTRY)
def probe(
    end, hashes, keys, usable, bands, oldest, newest, columns, constants,
    heads, records, first_row, work, out_probe, out_row, over, status,
):  # fmt: skip
    """Find the pairs of probing rows with stored rows from the probe's `oldest` to its `newest`.

    Stops when the output is full, to go on later: the probes are then sorted again, to the same order.
    """
    block_keys, numbers = heads.view(np.float64), work.view(np.float64)
    hits, order, lower, upper = work[0], work[1, BATCH + 1 :], numbers[1], numbers[2]
    found, unsure = status[FOUND], status[UNSURE]
    for begin in range(status[AT], end, BATCH):
        n = sort_probes(begin, min(begin + BATCH, end), keys, usable, bands, oldest, newest, order, lower, upper)
        first, last = blocks_of(order, n, oldest, newest)
        for block in range(max(first, status[AT_BLOCK]), last + 1, 2):
            a, b = block_at(block, heads), block_at(min(block + 1, last), heads)
            if n < FEW or block_keys[a] == -np.inf or block_keys[b] == -np.inf:
                of_a = bisect(a, n, block_keys, lower, upper, hits, 0)
                of_b = bisect(b, n, block_keys, lower, upper, hits, n + 1) - (n + 1)
            else:
                of_a, of_b = merge(a, b, n, block_keys, lower, upper, hits)
            for k in range(status[AT_HIT], of_a + of_b * int64(b != a)):
                if found + BASIC_BLOCK >= len(out_probe):
                    status[AT], status[AT_BLOCK], status[AT_HIT] = begin, block, k
                    status[FOUND], status[UNSURE], status[WAITING] = found, unsure, BASIC_BLOCK
                    return
                hit, anywhere = (hits[k], a) if k < of_a else (hits[n + 1 + k - of_a], b)
                at, c = hit >> HIT_BITS, hit & (BATCH - 1)
                p = order[c]
                values, base, span = probe_values(columns, p), oldest[p], newest[p] - oldest[p]
                limits = limits_of(keys, bands, p)
                while block_keys[anywhere] == -np.inf:
                    found, unsure = check_records(
                        anywhere, anywhere + 1, p, values, limits, base, span, records, constants,
                        out_probe, out_row, found, unsure,
                    )  # fmt: skip
                    anywhere += 1
                after = at
                while block_keys[after] <= upper[c]:
                    after += 1
                found, unsure = check_records(
                    at, after, p, values, limits, base, span, records, constants,
                    out_probe, out_row, found, unsure,
                )  # fmt: skip
            status[AT_HIT] = 0
        status[AT_BLOCK] = 0
    status[AT], status[FOUND], status[LEFT_OVER], status[UNSURE], status[WAITING] = end, found, 0, unsure, 0
