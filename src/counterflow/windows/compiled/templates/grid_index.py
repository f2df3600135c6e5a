"""Template: the grid index, of rows by band keys, alone or after equality keys.

A probe looks at several cells with several rows each. So a bucket keeps its rows' records (the predicate's columns
and the row's number) side by side in one block, and a probe reads them in sequence. A full block drops the records
that have expired; if they are few it moves to a block of twice the size. A hand goes round the buckets, a few for
every batch, and gives back the memory of those whose rows have expired.
"""

from numba import int32, int64, njit, uint32

from counterflow.windows.compiled.intrinsics import prefetch
from counterflow.windows.compiled.templates.buckets import *
from counterflow.windows.compiled.templates.check_records import *
from counterflow.windows.compiled.templates.holes import *

# ---- holes: what stands here is only the meaning; `build` writes them, and those of `holes`

LINE = 5  # records in a cache line


# ---- the text from here on is used as it stands

UNIT = 4  # records in the smallest block; a block of class k has UNIT << (k - 1)
COUNT_BITS, CLASS_BITS = 27, 5  # a bucket is one word: start of its block (in units), class, number of records
START_SHIFT = COUNT_BITS + CLASS_BITS
COUNT_MASK, CLASS_MASK = (1 << COUNT_BITS) - 1, (1 << CLASS_BITS) - 1
TIDY_MAX = 32  # records of a bucket that is tidied whenever a row comes; a larger one only when it is full
HAND = 32  # in `pool`, after the first free unit and the free blocks of each class
ROWS_PER_SWEEP = 8  # the rows for which the hand moves on by one bucket
NEAR, FAR, SLOTS = 6, 16, 32  # how many rows ahead records and buckets are on their way, and places to note them
VISITS_MAX = CELLS_MAX + 1
FEW = 1024  # candidates of a probe that are always looked at one by one


@njit(**OPTIONS)
def allocate(pool, size_class, records):
    """Return the start of a free block, in units, or -1 if there is none: then the pool must grow."""
    start = pool[size_class]
    if start >= 0:
        pool[size_class] = int64(records[start * UNIT].row) - 1
        return start
    start = pool[0]
    units = 1 << (size_class - 1)
    if (start + units) * UNIT > len(records):
        return int64(-1)
    pool[0] = start + units
    return start


@njit(**OPTIONS)
def release(pool, size_class, records, start):
    """Put a block before the free ones of its class: the first record of each says where the next one starts."""
    records[start * UNIT].row = uint32(pool[size_class] + 1)
    pool[size_class] = start


@njit(**OPTIONS)
def expired(record, first_row):
    """Return whether a record's row is before `first_row`; their numbers are compared in 32 bits."""
    return int32(record.row - uint32(first_row)) < 0


@njit(**OPTIONS)
def drop_expired(word, records, first_row):
    """Drop the bucket's records before `first_row`, and return its new word."""
    begin, count = (word >> START_SHIFT) * UNIT, word & COUNT_MASK
    kept = 0
    for e in range(begin, begin + count):
        alive = not expired(records[e], first_row)
        records[begin + kept] = records[e]
        kept += int64(alive)
    return word - count + kept


@njit(**OPTIONS)
def move(word, size_class, start, pool, records):
    """Move the bucket's records to another block, and return its new word."""
    old_start, old_class, count = word >> START_SHIFT, (word >> COUNT_BITS) & CLASS_MASK, word & COUNT_MASK
    for k in range(count):
        records[start * UNIT + k] = records[old_start * UNIT + k]
    if old_class > 0:
        release(pool, old_class, records, old_start)
    return (start << START_SHIFT) | (size_class << COUNT_BITS) | count


@njit(**OPTIONS)
def make_room(number, heads, pool, records, first_row):
    """Make room in a bucket whose block is full; return its new word, or -1 if the pool must grow first."""
    word = heads[number]
    size_class = (word >> COUNT_BITS) & CLASS_MASK
    if size_class > 0:
        capacity = UNIT << (size_class - 1)
        word = drop_expired(word, records, first_row)
        heads[number] = word
        if (word & COUNT_MASK) * 4 <= capacity * 3:
            return word
    start = allocate(pool, size_class + 1, records)
    return int64(-1) if start < 0 else move(word, size_class + 1, start, pool, records)


@njit(**OPTIONS)
def sweep(begin, end, heads, records, pool, first_row):
    """Give back the blocks of buckets whose rows have expired."""
    for number in range(begin, end):
        size_class = (heads[number] >> COUNT_BITS) & CLASS_MASK
        if size_class == 0:
            continue
        word = drop_expired(heads[number], records, first_row)
        count = word & COUNT_MASK
        if count == 0:
            release(pool, size_class, records, word >> START_SHIFT)
            word = int64(0)
        elif size_class > 1 and count * 4 <= UNIT << (size_class - 1):
            start = allocate(pool, size_class - 1, records)
            if start >= 0:
                word = move(word, size_class - 1, start, pool, records)
        heads[number] = word


@njit(APPEND, **ENTRY)
def append(begin, end, hashes, keys, usable, bands, columns, heads, records, pool, numbers, first_row, next_row):
    """Put rows into their buckets, and return where it stopped: before `end` if the pool must grow."""
    mask, placed = len(heads) - 2, begin
    for i in range(begin, end):
        while placed < min(i + FAR + 1, end):
            numbers[placed % SLOTS] = row_bucket(hashes[placed], keys, usable, bands, mask, placed)
            prefetch(heads, numbers[placed % SLOTS])
            placed += 1
        if i + NEAR < end:
            ahead = heads[numbers[(i + NEAR) % SLOTS]]
            prefetch(records, (ahead >> START_SHIFT) * UNIT)
        if not usable[i]:
            continue
        number = numbers[i % SLOTS]
        word = heads[number]
        if 0 < word & COUNT_MASK <= TIDY_MAX and expired(records[(word >> START_SHIFT) * UNIT], first_row):
            word = drop_expired(word, records, first_row)
            heads[number] = word
        size_class, count = (word >> COUNT_BITS) & CLASS_MASK, word & COUNT_MASK
        if size_class == 0 or count == UNIT << (size_class - 1):
            word = make_room(number, heads, pool, records, first_row)
            if word < 0:
                return i
        record = records[(word >> START_SHIFT) * UNIT + (word & COUNT_MASK)]
        record.row = uint32(next_row + i)
        fill(record, columns, i)
        keep(record, keys, usable, i)
        heads[number] = word + 1
    hand = pool[HAND]
    stop = min(hand + (end - begin) // ROWS_PER_SWEEP + 1, len(heads))
    sweep(hand, stop, heads, records, pool, first_row)
    pool[HAND] = 0 if stop == len(heads) else stop
    return end


@njit(PROBE, **ENTRY)
def probe(
    end, hashes, keys, usable, bands, oldest, newest, columns, constants,
    heads, records, first_row, work, out_probe, out_row, over, status,
):  # fmt: skip
    """Find the pairs of probing rows with stored rows from the probe's `oldest` to its `newest`.

    Stops when the output is full, to go on later. Probes that would visit too many buckets, or find there more than
    an eighth of what a scan looks at, go to `over`.
    """
    mask = len(heads) - 2
    wild = heads[mask + 1] != 0
    numbers, visits = work[0], work[1]
    found, left_over, unsure = status[FOUND], status[LEFT_OVER], status[UNSURE]
    candidates = status[CANDIDATES]
    placed = fetched = status[AT]
    for p in range(status[AT], end):
        while placed < min(p + FAR + 1, end):  # the buckets of the probes ahead
            slot = placed % SLOTS
            count = probe_buckets(hashes[placed], keys, usable, bands, mask, wild, placed, numbers, slot * VISITS_MAX)
            for v in range(slot * VISITS_MAX, slot * VISITS_MAX + count):
                prefetch(heads, numbers[v])
            visits[slot] = count
            placed += 1
        while fetched < min(p + NEAR + 1, end):  # their records
            first = fetched % SLOTS * VISITS_MAX
            for v in range(first, first + visits[fetched % SLOTS]):
                word = heads[numbers[v]]
                begin = (word >> START_SHIFT) * UNIT
                prefetch(records, begin)
                prefetch(records, begin + LINE)
                for e in range(begin + 2 * LINE, begin + (word & COUNT_MASK), LINE):
                    prefetch(records, e)
            fetched += 1
        first, inside = p % SLOTS * VISITS_MAX, 0
        for v in range(first, first + visits[p % SLOTS]):
            inside += heads[numbers[v]] & COUNT_MASK
        if visits[p % SLOTS] < 0 or (inside > FEW and 8 * inside > newest[p] - oldest[p]):
            over[left_over] = p
            left_over += 1
            continue
        if found + inside >= len(out_probe):
            status[AT], status[FOUND], status[LEFT_OVER], status[UNSURE] = p, found, left_over, unsure
            status[WAITING], status[CANDIDATES] = inside, candidates
            return
        candidates += inside
        values, base, span = probe_values(columns, p), oldest[p], newest[p] - oldest[p]
        limits = limits_of(keys, bands, p)
        for v in range(first, first + visits[p % SLOTS]):
            word = heads[numbers[v]]
            begin = (word >> START_SHIFT) * UNIT
            found, unsure = check_records(
                begin, begin + (word & COUNT_MASK), p, values, limits, base, span, records, constants,
                out_probe, out_row, found, unsure,
            )  # fmt: skip
    status[AT], status[FOUND], status[LEFT_OVER], status[UNSURE] = end, found, left_over, unsure
    status[WAITING], status[CANDIDATES] = 0, candidates
