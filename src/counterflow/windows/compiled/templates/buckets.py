"""Template: where a row belongs in an index, and where a probe has to look. Part of the indexes.

A row's bucket is given by the hash of its equality keys and by the grid cells of at most three keys. Cells are
numbered by a function that never decreases, so a row whose key lies between a probe's bounds is in a cell between
the bounds' cells. Different cells may share a bucket: that costs candidates, never pairs.

Where a row has an interval instead of a key, its cell is that of the interval's start, in a grid of its own for each
class of length: in class c intervals are at most 2^c cells of the first grid long, and so wide are the cells. So one
that overlaps a probe's interval starts at most one cell before it, and a probe looks into each class that has rows.

`append` and `probe` of every index have the same arguments:

| argument                | meaning                                                                           |
| ----------------------- | --------------------------------------------------------------------------------- |
| `begin`, `end`          | which rows of the following arrays are meant (a probe begins at `status[AT]`)     |
| `hashes`                | each row's hash of its equality keys                                              |
| `keys`                  | `keys[key_row(k), i]` of row i for band k; start, and in the next row end, of an   |
|                         | interval                                                                          |
| `usable`                | each row's NOWHERE, BY_KEY or ANYWHERE                                            |
| `bands`                 | a row for each dimension, with the columns LOW to CLASSES                         |
| `columns`, `constants`  | the predicate's columns, and its numbers                                          |
| `heads`                 | a word for each bucket, the last for rows that may match anything; sorted blocks: |
|                         | the keys of the records                                                           |
| `records`               | the stored rows: the predicate's columns, and what the index needs to find them   |
| `pool`                  | the grid index's free memory in `records`, and its HAND                           |
| `numbers`               | room for the buckets of the rows that are appended next                           |
| `first_row`, `next_row` | the number of the oldest live row, and of row 0 of those that are appended        |
| `oldest`, `newest`      | the first and the last row that each probe may meet                               |
| `work`                  | room for a search; the hash index goes on from what is there                      |
| `out_probe`, `out_row`  | the pairs: which probe, and the stored row's number                               |
| `over`                  | the probes that the index does not help: they are to be scanned                   |
| `status`                | where a search goes on, and what it found: the words AT to CHECKSUM               |
"""

import numpy as np
from numba import float64, int64, njit, uint64

from counterflow.windows.compiled.templates.holes import *

# ---- the text from here on is used as it stands

# buckets that a probe may visit; more, and it scans the window instead
CELLS_MAX = 96 if PLAIN < DIMENSIONS else 27 if DIMENSIONS > 2 else 16
CLASS_MAX = 40  # of intervals, by length; longer ones are where all probes look
CELL_LIMIT = 1e18  # beyond it, and for NaN (which Spark orders last), there is one cell
RUN_BITS = 4  # neighbouring cells on the first band key are neighbouring buckets, in runs of 16

# `usable`: a row with a NULL key matches nothing; one whose key has no value, as after a division by zero, may match
NOWHERE, BY_KEY, ANYWHERE = 0, 1, 2

# the columns of `bands`: the least and the greatest difference, what rounding is relative to, and what NaN does; the
# classes of length that there are, a bit for each (all intervals of a row have the class of the longest one)
LOW, HIGH, MAGNITUDE, SLACK, PER_UNIT, NAN_PROBE_MEETS_ALL, NAN_ROW_MEETS_ALL, CLASSES = 0, 1, 2, 3, 4, 5, 6, 7

# `status` of a probe: where to go on, and what was found
AT, FOUND, LEFT_OVER, UNSURE, WAITING, CANDIDATES, TOTAL, CHECKSUM = 0, 1, 2, 3, 4, 5, 6, 7


@njit(**OPTIONS)
def mix(x):
    """Apply splitmix64's finaliser: every bit of the input moves every bit of the output."""
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


@njit(**OPTIONS)
def cell(value, per_unit):
    """Return the number of the grid cell that a key is in."""
    scaled = np.floor(value * per_unit)
    if not scaled < CELL_LIMIT:
        return int64(CELL_LIMIT)
    return int64(max(scaled, -CELL_LIMIT))


@njit(**OPTIONS)
def key_row(k):
    """Return where the keys of a dimension begin."""
    return k if k < PLAIN else 2 * k - PLAIN


@njit(**OPTIONS)
def run_of(hashed, run, y, z, size_class):
    """Return where the buckets of a run begin: of cells that follow each other in the first dimension."""
    if DIMENSIONS > 2:
        hashed = hashed ^ mix(uint64(z) ^ uint64(0x9E6C63D0676A9A99))
    if PLAIN < DIMENSIONS:
        hashed = hashed ^ mix(~uint64(size_class))
    return mix(hashed ^ uint64(y) * uint64(0x9E3779B97F4A7C15) ^ uint64(run))


@njit(**OPTIONS)
def bucket(base, x, mask):
    """Return the bucket of cell x in its run."""
    return int64((base + uint64(x & ((1 << RUN_BITS) - 1))) & uint64(mask))


@njit(**OPTIONS)
def class_of(start, end, bands, k):
    """Return an interval's class of length; CLASS_MAX if it is longer than any, or not finite."""
    size = abs(start) + abs(end)
    if not size < np.inf:
        return int64(CLASS_MAX)
    cells, size_class = (end - start + (size + bands[k, MAGNITUDE]) * bands[k, SLACK]) * bands[k, PER_UNIT], int64(0)
    while cells > 1.0 and size_class < CLASS_MAX:
        cells, size_class = cells * 0.5, size_class + 1
    return size_class


@njit(**OPTIONS)
def unit_of(bands, k, size_class):
    """Return how many cells there are in a unit of a dimension's keys."""
    return bands[k, PER_UNIT] if k < PLAIN else bands[k, PER_UNIT] / float64(int64(1) << size_class)


@njit(**OPTIONS)
def row_bucket(hashed, keys, usable, bands, mask, i):
    """Return a row's bucket; the last, which all probes visit, if it has no key or a NaN that may match anything."""
    x, y, z, size_class = int64(0), int64(0), int64(0), int64(0)
    if usable[i] == ANYWHERE:
        return mask + 1
    for k in range(PLAIN):
        if bands[k, NAN_ROW_MEETS_ALL] != 0 and np.isnan(keys[k, i]):
            return mask + 1
    if PLAIN < DIMENSIONS:
        for k in range(PLAIN, DIMENSIONS):
            size_class = max(size_class, class_of(keys[key_row(k), i], keys[key_row(k) + 1, i], bands, k))
        if size_class == CLASS_MAX:
            return mask + 1
        bands[PLAIN, CLASSES] = float64(int64(bands[PLAIN, CLASSES]) | (int64(1) << size_class))
    if DIMENSIONS > 0:
        x = cell(keys[0, i], unit_of(bands, 0, size_class))
    if DIMENSIONS > 1:
        y = cell(keys[key_row(1), i], unit_of(bands, 1, size_class))
    if DIMENSIONS > 2:
        z = cell(keys[key_row(2), i], unit_of(bands, 2, size_class))
    return bucket(run_of(hashed, x >> RUN_BITS, y, z, size_class), x, mask)


@njit(**OPTIONS)
def key_range(value, bands, k):
    """Return the least and the greatest stored key with low <= key - value <= high, rounding included.

    NaN is last in Spark's order: as a lower bound it leaves NaN alone, as an upper bound everything.
    """
    spare = (abs(value) + bands[k, MAGNITUDE]) * bands[k, SLACK]
    least = value + bands[k, LOW] - spare
    if not np.isfinite(least):
        least = np.nan if np.isnan(value) and bands[k, NAN_PROBE_MEETS_ALL] == 0 else -np.inf
    most = value + bands[k, HIGH] + spare
    if not np.isfinite(most):
        most = np.nan
    return least, most


@njit(**OPTIONS)
def span_range(start, end, bands, k):
    """Return the least end and the greatest start of stored intervals that overlap a probe's, rounding included."""
    spare = 2 * (abs(start) + abs(end) + bands[k, MAGNITUDE]) * bands[k, SLACK]
    return start + bands[k, LOW] - spare, end + bands[k, HIGH] + spare


@njit(**OPTIONS)
def cell_range(value, bands, k):
    """Return the first and the last cell in which such a key lies."""
    least, most = key_range(value, bands, k)
    return cell(least, bands[k, PER_UNIT]), cell(most, bands[k, PER_UNIT])


@njit(**OPTIONS)
def cells_of(keys, bands, k, size_class, i):
    """Return the first and the last cell of a dimension in which a probe looks, among intervals of one class."""
    if k < PLAIN:
        return cell_range(keys[k, i], bands, k)
    start, end, per_unit = keys[key_row(k), i], keys[key_row(k) + 1, i], unit_of(bands, k, size_class)
    spare = (abs(start) + abs(end) + bands[k, MAGNITUDE]) * bands[k, SLACK]
    return cell(start + bands[k, LOW] - spare - 1.0 / per_unit, per_unit), cell(end + bands[k, HIGH] + spare, per_unit)


@njit(**OPTIONS)
def probe_buckets(hashed, keys, usable, bands, mask, wild, i, numbers, first):
    """Write the buckets that a probe visits, none of them twice, and return how many; -1 if they are too many."""
    if usable[i] != BY_KEY:
        return 0 if usable[i] == NOWHERE else -1
    found, cells, size_class, classes = int64(0), int64(0), int64(0), int64(1)
    if wild:
        numbers[first] = mask + 1
        found = 1
    if PLAIN < DIMENSIONS:
        classes = int64(bands[PLAIN, CLASSES])
        for k in range(PLAIN, DIMENSIONS):
            if not abs(keys[key_row(k), i]) + abs(keys[key_row(k) + 1, i]) < np.inf:
                return -1
    while classes >> size_class != 0:
        if (classes >> size_class) & 1 == 0:
            size_class += 1
            continue
        x0, x1, y0, y1, z0, z1 = int64(0), int64(0), int64(0), int64(0), int64(0), int64(0)
        if DIMENSIONS > 0:
            x0, x1 = cells_of(keys, bands, 0, size_class, i)
        if DIMENSIONS > 1:
            y0, y1 = cells_of(keys, bands, 1, size_class, i)
        if DIMENSIONS > 2:
            z0, z1 = cells_of(keys, bands, 2, size_class, i)
        if x1 - x0 >= CELLS_MAX or y1 - y0 >= CELLS_MAX or z1 - z0 >= CELLS_MAX:
            return -1
        cells += max(x1 - x0 + 1, 0) * max(y1 - y0 + 1, 0) * max(z1 - z0 + 1, 0)
        if cells > CELLS_MAX:
            return -1
        for z in range(z0, z1 + 1):
            for y in range(y0, y1 + 1):
                run, base = x0 >> RUN_BITS, run_of(hashed, x0 >> RUN_BITS, y, z, size_class)
                for x in range(x0, x1 + 1):
                    if x >> RUN_BITS != run:
                        run, base = x >> RUN_BITS, run_of(hashed, x >> RUN_BITS, y, z, size_class)
                    number = bucket(base, x, mask)
                    fresh = True
                    for v in range(first, first + found):
                        fresh &= numbers[v] != number
                    numbers[first + found] = number
                    found += int64(fresh)
        size_class += 1
    return found
