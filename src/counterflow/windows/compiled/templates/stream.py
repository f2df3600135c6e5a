"""Template: rows in, rows against them, in small batches without leaving compiled code.

A call from Python costs some microseconds, as much as a hundred rows; whoever wants batches of a few rows at full
speed has to stay here. Part of a module with `hash_index` or `grid_index`.
"""

from numba import njit

from counterflow.windows.compiled.templates.hash_index import *

# ---- holes: what stands here is only the meaning; `build` writes them, and those of `holes`

STREAM = None  # a signature


# ---- the text from here on is used as it stands

FIRST = 1


@njit(STREAM, **OPTIONS)
def stream(
    begin, end, batch, window, hashes, keys, usable, columns,
    probe_hashes, probe_keys, probe_usable, probe_columns, bands, oldest, newest, constants,
    heads, records, pool, numbers, work, out_probe, out_row, over, status,
):  # fmt: skip
    """Append each batch of rows from `begin` to `end`, expire the rows before the window, and probe with as many.

    Row i is numbered i; probe i looks at the rows from oldest[i] to newest[i]. The pairs are added to status[TOTAL];
    the buffer keeps the last of them. Return `end`, or less if the pool or the buffer was too small: then start anew.
    """
    for first in range(begin, end, batch):
        stop = min(first + batch, end)
        live = max(stop - window, 0)
        for i in range(first, min(stop, first + FIRST)):  # what the batch begins with is fetched all at once
            probe_buckets(probe_hashes[i], probe_keys, probe_usable, bands, len(heads) - 2, False, i, numbers, 0)
            prefetch(heads, numbers[0])
        if append(first, stop, hashes, keys, usable, bands, columns, heads, records, pool, numbers, live, 0) < stop:
            return first
        status[AT], status[WAITING], status[LEFT_OVER] = first, 0, 0
        status[FOUND] = 0
        while status[AT] < stop or status[WAITING] > 0:
            before = status[AT]
            probe(
                stop, probe_hashes, probe_keys, probe_usable, bands, oldest, newest, probe_columns, constants,
                heads, records, live, work, out_probe, out_row, over, status,
            )  # fmt: skip
            if status[AT] == before and status[FOUND] == 0 and status[AT] < stop:
                return first
            status[TOTAL] += status[FOUND]
            for k in range(status[FOUND]):
                status[CHECKSUM] += (out_probe[k] * 31 + out_row[k] * 17) & 0xFFFFFF
            status[FOUND] = 0
    return end
