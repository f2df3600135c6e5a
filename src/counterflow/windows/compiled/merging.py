"""Sorted pieces of rows merged, compiled: their times two and two, then each column gathered once.

A row's *key* is one word: its time beside the earliest one, below that its piece, below that its row in the piece. So
keys are all different, their order is that of the result, and who has a key knows where the row lies.
Importing this module compiles it, or loads it from the cache.
"""

from __future__ import annotations

from numba import types

from counterflow.jit import OPTIONS, compiled, njit
from counterflow.windows.compiled import intrinsics
from counterflow.windows.vectors import Array

KEY_BITS = 62  # so that the difference of two keys has a sign
view_i8, view_i4 = intrinsics.viewer(types.int64), intrinsics.viewer(types.int32)
view_i2, view_i1 = intrinsics.viewer(types.int16), intrinsics.viewer(types.int8)


@compiled
def _merge_two(keys: Array, begin: int, middle: int, end: int, into: Array) -> None:
    """Merge two runs that lie side by side, from both ends at once.

    Which of two keys is less is computed: a processor that has to guess is wrong half of the time.
    """
    i, j, low = begin, middle, begin  # the first keys that are left
    p, q, high = middle - 1, end - 1, end - 1  # the last ones
    steps = min(p - i + 1, q - j + 1) // 2
    while steps > 0:  # as many as neither run can be used up by
        for _ in range(steps):
            a, b = keys[i], keys[j]
            less = (b - a) >> 63  # -1 if the second run's is less, otherwise 0
            into[low] = a ^ ((a ^ b) & less)
            low, i, j = low + 1, i + 1 + less, j - less
            a, b = keys[p], keys[q]
            less = (b - a) >> 63
            into[high] = b ^ ((a ^ b) & less)
            high, p, q = high - 1, p + less, q - 1 - less
        steps = min(p - i + 1, q - j + 1) // 2
    while i <= p and j <= q:
        second = keys[j] < keys[i]
        into[low] = keys[j] if second else keys[i]
        low, i, j = low + 1, i + 1 - second, j + second
    for k in range(i, p + 1):
        into[low + k - i] = keys[k]
    for k in range(j, q + 1):
        into[low + k - j] = keys[k]


@njit("int64(int64[:, ::1], int64, int64, int64, int64[::1], int64[:, ::1], int64[::1])", **OPTIONS)
def merge_times(
    pieces: Array, least: int, row_bits: int, piece_bits: int, ends: Array, keys: Array, times: Array
) -> int:
    """Merge the times of sorted pieces, each given by address and number; at equal ones the first piece's lead.

    No time is before `least`. `keys` has two rows of memory, and the returned one has the keys in order; `ends` is
    memory, a word for each piece.
    """
    runs, n = 0, 0
    for k in range(len(pieces)):
        given = view_i8(pieces[k, 0], pieces[k, 1])
        for i in range(len(given)):
            keys[0, n + i] = ((given[i] - least) << piece_bits | k) << row_bits | i
        if n == 0 or keys[0, n] < keys[0, n - 1]:  # otherwise the run goes on
            runs += 1
        n += len(given)
        ends[runs - 1] = n
    lies = 0
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
    for i in range(n):
        times[i] = (keys[lies, i] >> (row_bits + piece_bits)) + least
    return lies


@njit("void(int64[::1], int64, int64, int64[:, ::1])", **OPTIONS)
def gather(keys: Array, row_bits: int, piece_bits: int, columns: Array) -> None:
    """Gather columns' values by key. A column has its values' size in bytes, a target, its address in each piece."""
    n, rows, piece = len(keys), 1 << row_bits, (1 << piece_bits) - 1
    for c in range(len(columns)):
        size, target, at = columns[c, 0], columns[c, 1], columns[c, 2:]
        if size == 8:
            to8 = view_i8(target, n)
            for i in range(n):
                to8[i] = view_i8(at[keys[i] >> row_bits & piece], rows)[keys[i] & (rows - 1)]
        elif size == 4:
            to4 = view_i4(target, n)
            for i in range(n):
                to4[i] = view_i4(at[keys[i] >> row_bits & piece], rows)[keys[i] & (rows - 1)]
        elif size == 2:
            to2 = view_i2(target, n)
            for i in range(n):
                to2[i] = view_i2(at[keys[i] >> row_bits & piece], rows)[keys[i] & (rows - 1)]
        elif size == 1:
            to1 = view_i1(target, n)
            for i in range(n):
                to1[i] = view_i1(at[keys[i] >> row_bits & piece], rows)[keys[i] & (rows - 1)]
        else:
            words = size // 8
            to8 = view_i8(target, n * words)
            for i in range(n):
                from8 = view_i8(at[keys[i] >> row_bits & piece], rows * words)
                for k in range(words):
                    to8[i * words + k] = from8[(keys[i] & (rows - 1)) * words + k]
