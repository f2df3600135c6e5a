"""Template: the hash index, of rows by equality keys.

The live rows lie in a ring of records: the predicate's columns, and how far back the previous record of the same
bucket is. A bucket knows its newest record, so its records form a chain from new to old, and a walk ends at the
first that is too old: **expiry costs nothing**, nothing is ever rehashed for it, and memory is the ring.

Following a chain means waiting for memory at every step. So the chains of many probes are followed side by side,
one step each at a time, while the records of the next step are on their way.
"""

from numba import int64, njit

from counterflow.windows.compiled.intrinsics import prefetch
from counterflow.windows.compiled.templates.buckets import *
from counterflow.windows.compiled.templates.holes import *

# ---- the text from here on is used as it stands

PROBES_AT_ONCE = 64
LINK_MAX = 1 << 31
AHEAD = 12  # rows ahead whose buckets are on their way while others are appended


@njit(APPEND, **ENTRY)
def append(begin, end, hashes, keys, usable, bands, columns, heads, records, pool, numbers, first_row, next_row):
    """Put rows into the ring, which has room for them, and at the head of their buckets' chains."""
    ring, mask = len(records) - 1, len(heads) - 2
    for i in range(begin, end):
        if i + AHEAD < end:
            prefetch(heads, row_bucket(hashes[i + AHEAD], keys, usable, bands, mask, i + AHEAD))
        row = next_row + i
        record = records[row & ring]
        record.back = 0
        fill(record, columns, i)
        if usable[i]:
            number = row_bucket(hashes[i], keys, usable, bands, mask, i)
            back = row - heads[number]
            if back < LINK_MAX:
                record.back = back
            heads[number] = row
    return end


@njit(PROBE, **ENTRY)
def probe(
    end, hashes, keys, usable, bands, oldest, newest, columns, constants,
    heads, records, first_row, work, out_probe, out_row, over, status,
):  # fmt: skip
    """Find the pairs of probing rows with stored rows from the probe's `oldest` to its `newest`.

    `work` holds, for each chain that is followed, the probe and the row it has come to: so the call can stop
    when the output is full and go on later. Probes that would visit too many buckets go to `over`.
    """
    ring, mask = len(records) - 1, len(heads) - 2
    wild = heads[mask + 1] >= first_row
    numbers, owners, rows = work[0], work[1], work[2]
    found, left_over, unsure, waiting = status[FOUND], status[LEFT_OVER], status[UNSURE], status[WAITING]
    p, candidates = status[AT], status[CANDIDATES]
    while p < end or waiting > 0:
        if waiting == 0:
            stop = min(p + PROBES_AT_ONCE, end)
            for i in range(p, stop):
                visits = probe_buckets(hashes[i], keys, usable, bands, mask, wild, i, numbers, waiting)
                if visits < 0:
                    over[left_over] = i
                    left_over += 1
                for v in range(waiting, waiting + visits):
                    owners[v] = i
                    prefetch(heads, numbers[v])
                waiting += max(visits, 0)
            started, p = waiting, stop
            waiting = 0
            for v in range(started):
                row = heads[numbers[v]]
                owners[waiting], rows[waiting] = owners[v], row
                prefetch(records, row & ring)
                waiting += int64(row >= oldest[owners[v]])
        while waiting > 0:
            if found + waiting >= len(out_probe):
                status[AT], status[FOUND], status[LEFT_OVER], status[UNSURE] = p, found, left_over, unsure
                status[WAITING], status[CANDIDATES] = waiting, candidates
                return
            candidates += waiting
            still = 0
            for v in range(waiting):
                i, row = owners[v], rows[v]
                record = records[row & ring]
                verdict = accept(probe_values(columns, i), record_values(record), constants)
                holds = int64(verdict != 0) & int64(row <= newest[i])
                out_probe[found] = i  # always written, kept only if it holds: no branch to mispredict
                out_row[found] = row
                found += holds
                unsure |= holds & int64(verdict >> 1)
                before = row - record.back
                owners[still], rows[still] = i, before
                prefetch(records, before & ring)
                still += int64(record.back > 0) & int64(before >= oldest[i])
            waiting = still
    status[AT], status[FOUND], status[LEFT_OVER], status[UNSURE] = end, found, left_over, unsure
    status[WAITING], status[CANDIDATES] = 0, candidates
