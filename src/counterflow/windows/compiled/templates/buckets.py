"""Template: where a row belongs in an index, and where a probe has to look. Part of the indexes.

A row's bucket is given by the hash of its equality keys and by the grid cells of at most two band keys. Cells are
numbered by a function that never decreases, so a row whose key lies between a probe's bounds is in a cell between
the bounds' cells. Different cells may share a bucket: that costs candidates, never pairs.

`append` and `probe` of every index have the same arguments:

| argument                | meaning                                                                           |
| ----------------------- | --------------------------------------------------------------------------------- |
| `begin`, `end`          | which rows of the following arrays are meant (a probe begins at `status[AT]`)     |
| `hashes`                | each row's hash of its equality keys                                              |
| `keys`                  | the band keys, `keys[k, i]` for band k of row i                                   |
| `usable`                | each row's NOWHERE, BY_KEY or ANYWHERE                                            |
| `bands`                 | a row for each band, with the columns LOW to NAN_ROW_MEETS_ALL                    |
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
from numba import int64, njit, uint64

from counterflow.windows.compiled.templates.holes import *

# ---- the text from here on is used as it stands

CELLS_MAX = 16  # buckets that a probe may visit; more, and it scans the window instead
CELL_LIMIT = 1e18  # beyond it, and for NaN (which Spark orders last), there is one cell
RUN_BITS = 4  # neighbouring cells on the first band key are neighbouring buckets, in runs of 16

# `usable`: a row with a NULL key matches nothing; one whose key has no value, as after a division by zero, may match
NOWHERE, BY_KEY, ANYWHERE = 0, 1, 2

# the columns of `bands`: the least and the greatest difference, what rounding is relative to, and what NaN does
LOW, HIGH, MAGNITUDE, SLACK, PER_UNIT, NAN_PROBE_MEETS_ALL, NAN_ROW_MEETS_ALL = 0, 1, 2, 3, 4, 5, 6

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
def run_of(hashed, run, y):
    """Return where the buckets of a run begin: of cells that follow each other on the first band key."""
    return mix(hashed ^ uint64(y) * uint64(0x9E3779B97F4A7C15) ^ uint64(run))


@njit(**OPTIONS)
def bucket(base, x, mask):
    """Return the bucket of cell x in its run."""
    return int64((base + uint64(x & ((1 << RUN_BITS) - 1))) & uint64(mask))


@njit(**OPTIONS)
def row_bucket(hashed, keys, usable, bands, mask, i):
    """Return a row's bucket; the last, which all probes visit, if it has no key or a NaN that may match anything."""
    x, y = int64(0), int64(0)
    if usable[i] == ANYWHERE:
        return mask + 1
    for k in range(DIMENSIONS):
        if bands[k, NAN_ROW_MEETS_ALL] != 0 and np.isnan(keys[k, i]):
            return mask + 1
    if DIMENSIONS > 0:
        x = cell(keys[0, i], bands[0, PER_UNIT])
    if DIMENSIONS > 1:
        y = cell(keys[1, i], bands[1, PER_UNIT])
    return bucket(run_of(hashed, x >> RUN_BITS, y), x, mask)


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
def cell_range(value, bands, k):
    """Return the first and the last cell in which such a key lies."""
    least, most = key_range(value, bands, k)
    return cell(least, bands[k, PER_UNIT]), cell(most, bands[k, PER_UNIT])


@njit(**OPTIONS)
def probe_buckets(hashed, keys, usable, bands, mask, wild, i, numbers, first):
    """Write the buckets that a probe visits, none of them twice, and return how many; -1 if they are too many."""
    if usable[i] != BY_KEY:
        return 0 if usable[i] == NOWHERE else -1
    x0, x1, y0, y1 = int64(0), int64(0), int64(0), int64(0)
    if DIMENSIONS > 0:
        x0, x1 = cell_range(keys[0, i], bands, 0)
    if DIMENSIONS > 1:
        y0, y1 = cell_range(keys[1, i], bands, 1)
    if x1 - x0 >= CELLS_MAX or y1 - y0 >= CELLS_MAX or (x1 - x0 + 1) * (y1 - y0 + 1) > CELLS_MAX:
        return -1
    found = 0
    if wild:
        numbers[first] = mask + 1
        found = 1
    for y in range(y0, y1 + 1):
        run, base = x0 >> RUN_BITS, run_of(hashed, x0 >> RUN_BITS, y)
        for x in range(x0, x1 + 1):
            if x >> RUN_BITS != run:
                run, base = x >> RUN_BITS, run_of(hashed, x >> RUN_BITS, y)
            number = bucket(base, x, mask)
            fresh = True
            for v in range(first, first + found):
                fresh &= numbers[v] != number
            numbers[first + found] = number
            found += int64(fresh)
    return found
