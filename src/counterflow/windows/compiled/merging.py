"""Sorted pieces of rows merged, compiled: block by block, so that all but the columns stays in the nearest cache.

    pieces   |--share--|....|     cut at the first of the shares' last rows, so that nothing that follows comes before
             |-share-|......|     ──► keys of a block, merged two and two ──► its times, and each column gathered

A row's *key* is one word: its time beside the earliest one, below that its piece, below that its row in the piece. So
keys are all different, their order is that of the result, and who has a key knows where the row lies.
Importing this module compiles it, or loads it from the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from counterflow.jit import OPTIONS, compiled, inlined, njit
from counterflow.windows.compiled import intrinsics
from counterflow.windows.vectors import Array

KEY_BITS = 62  # so that the difference of two keys has a sign
# Of keys and of their places while they are merged: numba looks whether a signed place is negative.
ZERO, ONE, SIGN = np.uint64(0), np.uint64(1), np.uint64(63)
BLOCK = 1 << 12  # keys that are merged at once
ADDRESS, ROWS, NEXT = 0, 1, 2  # of a piece: where its times lie, how many, and the first one that is not yet merged
view_i8, view_i4 = intrinsics.viewer(types.int64), intrinsics.viewer(types.int32)
view_i2, view_i1 = intrinsics.viewer(types.int16), intrinsics.viewer(types.int8)


# --- two runs


@inlined
def _middle(keys: Array, begin: int, middle: int, end: int) -> int:
    """Return how far the first half of two merged runs goes into the first run."""
    half = (end - begin) >> 1
    least, most = max(begin, middle + half - (end - begin)), min(middle, begin + half)
    while least < most:
        i = (least + most) >> 1
        if keys[i] < keys[middle + begin + half - i - 1]:
            least = i + 1
        else:
            most = i
    return least


@inlined
def _put_lesser(keys: Array, i: Any, j: Any, into: Array, low: Any) -> Any:
    """Write the lesser of two keys; return 1 if it is the second one, otherwise 0."""
    a, b = keys[i], keys[j]
    second = (b - a) >> SIGN
    into[low] = a ^ ((a ^ b) & (ZERO - second))
    return second


@inlined
def _put_greater(keys: Array, p: Any, q: Any, into: Array, high: Any) -> Any:
    """Write the greater of two keys; return 1 if it is the first one, otherwise 0."""
    a, b = keys[p], keys[q]
    first = (b - a) >> SIGN
    into[high] = b ^ ((a ^ b) & (ZERO - first))
    return first


@compiled
def _merge_rest(keys: Array, i: int, p: int, j: int, q: int, into: Array, low: int) -> None:
    """Merge what is left of two runs, up to the keys at `p` and `q`."""
    while i <= p and j <= q:
        second = keys[j] < keys[i]
        into[low] = keys[j] if second else keys[i]
        low, i, j = low + 1, i + 1 - second, j + second
    for k in range(i, p + 1):
        into[low + k - i] = keys[k]
    for k in range(j, q + 1):
        into[low + k - j] = keys[k]


@compiled
def _merge_two(keys: Array, begin: int, middle: int, end: int, into: Array) -> None:
    """Merge two runs that lie side by side: both halves of the result, each from both ends, at once.

    Which of two keys is less is computed: a processor that has to guess is wrong half of the time. As each such step
    waits for the one before, it has four that do not wait for each other.
    """
    half, cut = (end - begin) >> 1, _middle(keys, begin, middle, end)
    other = middle + half - (cut - begin)  # where the second half begins in the second run
    i, j, low = np.uint64(begin), np.uint64(middle), np.uint64(begin)  # the first keys that are left of the first half
    p, q, high = np.uint64(cut) - ONE, np.uint64(other) - ONE, np.uint64(begin + half) - ONE  # the last ones
    i2, j2, low2 = np.uint64(cut), np.uint64(other), np.uint64(begin + half)  # of the second half
    p2, q2, high2 = np.uint64(middle) - ONE, np.uint64(end) - ONE, np.uint64(end) - ONE
    steps = min(min(cut - begin, other - middle), min(middle - cut, end - other)) >> 1
    while steps > 0:  # as many as no part can be used up by
        for _ in range(steps):
            moved = _put_lesser(keys, i, j, into, low)
            low, i, j = low + ONE, i + (ONE - moved), j + moved
            moved = _put_greater(keys, p, q, into, high)
            high, p, q = high - ONE, p - moved, q - (ONE - moved)
            moved = _put_lesser(keys, i2, j2, into, low2)
            low2, i2, j2 = low2 + ONE, i2 + (ONE - moved), j2 + moved
            moved = _put_greater(keys, p2, q2, into, high2)
            high2, p2, q2 = high2 - ONE, p2 - moved, q2 - (ONE - moved)
        steps = (min(min(np.int64(p - i), np.int64(q - j)), min(np.int64(p2 - i2), np.int64(q2 - j2))) + 1) >> 1
    _merge_rest(keys, np.int64(i), np.int64(p), np.int64(j), np.int64(q), into, np.int64(low))
    _merge_rest(keys, np.int64(i2), np.int64(p2), np.int64(j2), np.int64(q2), into, np.int64(low2))


# --- a block


@compiled
def _merge_runs(keys: Array, ends: Array, runs: int) -> int:
    """Merge the runs that end at `ends`, and return which of the two rows of `keys` has the result."""
    lies, n = 0, ends[runs - 1]
    while runs > 1:
        begin, merged, to = 0, 0, keys[1 - lies]
        for k in range(0, runs - 1, 2):
            _merge_two(keys[lies], begin, ends[k], ends[k + 1], to)
            begin = ends[k + 1]
            ends[merged] = begin
            merged += 1
        if runs % 2 == 1:
            for i in range(begin, n):
                to[i] = keys[lies, i]
            ends[merged] = n
            merged += 1
        runs, lies = merged, 1 - lies
    return lies


@inlined
def _cut(pieces: Array, share: int) -> int:
    """Return the piece whose next rows, `share` of them, end first; -1 if all is merged."""
    cut, until = -1, 0
    for k in range(len(pieces)):
        if pieces[k, NEXT] < pieces[k, ROWS]:
            last = view_i8(pieces[k, ADDRESS], pieces[k, ROWS])[min(pieces[k, NEXT] + share, pieces[k, ROWS]) - 1]
            if cut < 0 or last < until:
                cut, until = k, last
    return cut


@inlined
def _end(times: Array, begin: int, end: int, until: int, inclusive: bool) -> int:
    """Return the end of the rows in order that are before `until`, or at that time."""
    while begin < end:
        middle = (begin + end) >> 1
        if times[middle] < until or (inclusive and times[middle] == until):
            begin = middle + 1
        else:
            end = middle
    return begin


@compiled
def _next_block(pieces: Array, share: int, least: int, row_bits: int, piece_bits: int, ends: Array, keys: Array) -> int:
    """Write the keys of the next rows, at most `share` of a piece, as runs; return how many there are."""
    runs, n, cut = 0, 0, _cut(pieces, share)
    if cut < 0:
        return 0
    of_cut = view_i8(pieces[cut, ADDRESS], pieces[cut, ROWS])
    until = of_cut[min(pieces[cut, NEXT] + share, pieces[cut, ROWS]) - 1]
    for k in range(len(pieces)):
        times, begin = view_i8(pieces[k, ADDRESS], pieces[k, ROWS]), pieces[k, NEXT]
        end = min(begin + share, len(times))
        if k != cut:  # whose share ends there, and more rows of that time may follow it
            end = _end(times, begin, end, until, k < cut)
        if begin == end:
            continue
        shared, into = times[begin:end], keys[0, n : n + end - begin]
        for i in range(len(shared)):
            into[i] = ((shared[i] - least) << piece_bits | k) << row_bits | (begin + i)
        if n == 0 or keys[0, n] < keys[0, n - 1]:  # otherwise the run goes on
            runs += 1
        n += end - begin
        ends[runs - 1], pieces[k, NEXT] = n, end
    return runs


@compiled
def _place(keys: Array, row_bits: int, piece_bits: int, pieces: Array, places: Array) -> None:
    """Write where rows lie if all pieces were one after the other."""
    for i in range(len(keys)):
        key = np.int64(keys[i])
        places[i] = key & ((1 << row_bits) - 1)
        for k in range(key >> row_bits & ((1 << piece_bits) - 1)):
            places[i] += pieces[k, ROWS]


@compiled
def _gather(keys: Array, row_bits: int, piece_bits: int, columns: Array, begin: int) -> None:
    """Gather columns' values by key, to their places from `begin` on."""
    n, rows, piece = len(keys), 1 << row_bits, (1 << piece_bits) - 1
    for c in range(len(columns)):
        size, target, at = columns[c, 0], columns[c, 1] + begin * columns[c, 0], columns[c, 2:]
        if size == 8:
            to8 = view_i8(target, n)
            for i in range(n):
                to8[i] = view_i8(at[np.int64(keys[i]) >> row_bits & piece], rows)[np.int64(keys[i]) & (rows - 1)]
        elif size == 4:
            to4 = view_i4(target, n)
            for i in range(n):
                to4[i] = view_i4(at[np.int64(keys[i]) >> row_bits & piece], rows)[np.int64(keys[i]) & (rows - 1)]
        elif size == 2:
            to2 = view_i2(target, n)
            for i in range(n):
                to2[i] = view_i2(at[np.int64(keys[i]) >> row_bits & piece], rows)[np.int64(keys[i]) & (rows - 1)]
        elif size == 1:
            to1 = view_i1(target, n)
            for i in range(n):
                to1[i] = view_i1(at[np.int64(keys[i]) >> row_bits & piece], rows)[np.int64(keys[i]) & (rows - 1)]
        else:
            words = size // 8
            to8 = view_i8(target, n * words)
            for i in range(n):
                from8 = view_i8(at[np.int64(keys[i]) >> row_bits & piece], rows * words)
                for k in range(words):
                    to8[i * words + k] = from8[(np.int64(keys[i]) & (rows - 1)) * words + k]


@compiled
def _read_times(keys: Array, bits: int, least: int, times: Array) -> None:
    for i in range(len(keys)):
        times[i] = (np.int64(keys[i]) >> bits) + least


@njit(
    "void(int64[:, ::1], int64, int64, int64, int64[::1], uint64[:, ::1], int64[::1], int64[:, ::1], int64[::1])",
    **OPTIONS,
)
def merge(
    pieces: Array, least: int, row_bits: int, piece_bits: int,
    ends: Array, keys: Array, times: Array, columns: Array, places: Array,
) -> None:  # fmt: skip
    """Merge sorted pieces, each given by the address and number of its times; at equal ones the first piece's lead.

    No time is before `least`. `ends` is memory, a word for each piece, and so is `keys`, two rows of at least BLOCK
    words and one for each piece. A column has its values' size in bytes, a target, its address in each piece. `places`
    gets where the rows lie if all pieces were one after the other, unless it is empty.
    """
    done, share = 0, max(BLOCK // len(pieces), 1)
    runs = _next_block(pieces, share, least, row_bits, piece_bits, ends, keys)
    while runs > 0:
        n = ends[runs - 1]
        merged = keys[_merge_runs(keys, ends, runs)][:n]
        _read_times(merged, row_bits + piece_bits, least, times[done : done + n])
        _gather(merged, row_bits, piece_bits, columns, done)
        if len(places) > 0:
            _place(merged, row_bits, piece_bits, pieces, places[done : done + n])
        done += n
        runs = _next_block(pieces, share, least, row_bits, piece_bits, ends, keys)
