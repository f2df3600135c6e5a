"""Pairs of a step in the order of results, compiled: a counting sort by the later tuple, then its earlier ones.

Importing this module compiles it, or loads it from the cache.
"""

from __future__ import annotations

from counterflow.jit import OPTIONS, compiled, njit
from counterflow.windows.vectors import Array

FEW = 24  # tuples that are sorted by insertion


@compiled
def _sift(values: Array, begin: int, k: int, n: int) -> None:
    """Let the value of a heap's node k sink to its place among n."""
    value = values[begin + k]
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        if child + 1 < n and values[begin + child + 1] > values[begin + child]:
            child += 1
        if values[begin + child] <= value:
            break
        values[begin + k] = values[begin + child]
        k = child
    values[begin + k] = value


@compiled
def _heap_sort(values: Array, begin: int, end: int) -> None:
    n = end - begin
    for k in range(n // 2 - 1, -1, -1):
        _sift(values, begin, k, n)
    for k in range(n - 1, 0, -1):
        values[begin], values[begin + k] = values[begin + k], values[begin]
        _sift(values, begin, 0, k)


@compiled
def sort_part(values: Array, begin: int, end: int) -> None:
    """Sort values[begin:end], which is often in the opposite order: a chain of the hash index runs from new to old."""
    if end - begin < 2:
        return
    falls = True
    for i in range(begin + 1, end):
        if values[i] > values[i - 1]:
            falls = False
            break
    if falls:
        i, j = begin, end - 1
        while i < j:
            values[i], values[j] = values[j], values[i]
            i, j = i + 1, j - 1
    elif end - begin <= FEW:
        for i in range(begin + 1, end):
            value, j = values[i], i
            while j > begin and values[j - 1] > value:
                values[j] = values[j - 1]
                j -= 1
            values[j] = value
    else:
        _heap_sort(values, begin, end)


@njit("void(int64[::1], int64[::1], int64, int64, int64, int64[:, ::1], int64[::1], int64[:, ::1])", **OPTIONS)
def order_pairs(
    left_high: Array,
    right_high: Array,
    left_first: int,
    right_first: int,
    by_left: int,
    pairs: Array,
    ends: Array,
    ordered: Array,
) -> None:
    """Put a step's pairs in the order of their later tuples, and those of one tuple in the order of the earlier ones.

    The step has the tuples from the numbers `left_first` and `right_first` on; `left_high` and `right_high` are the
    numbers of the last opposite tuples before each. `pairs` and `ordered` have left numbers in one row and right ones
    in the other; the later tuple of the first `by_left` pairs is the left one. `ends` is memory: a word for each tuple
    and two more.
    """
    left, right = pairs[0], pairs[1]
    before = left_first + right_first - 1  # a tuple has number + high - before others of the step before it
    ends[:] = 0
    for i in range(by_left):
        ends[left[i] + left_high[left[i] - left_first] - before + 2] += 1
    for i in range(by_left, pairs.shape[1]):
        ends[right[i] + right_high[right[i] - right_first] - before + 2] += 1
    for k in range(2, len(ends)):
        ends[k] += ends[k - 1]
    for i in range(by_left):
        place = left[i] + left_high[left[i] - left_first] - before + 1
        ordered[0, ends[place]], ordered[1, ends[place]] = left[i], right[i]
        ends[place] += 1
    for i in range(by_left, pairs.shape[1]):
        place = right[i] + right_high[right[i] - right_first] - before + 1
        ordered[0, ends[place]], ordered[1, ends[place]] = left[i], right[i]
        ends[place] += 1
    # The pairs of the k-th tuple are now from ends[k] to ends[k + 1].
    for k in range(len(left_high)):
        place = k + left_high[k] + 1 - right_first
        sort_part(ordered[1], ends[place], ends[place + 1])
    for k in range(len(right_high)):
        place = k + right_high[k] + 1 - left_first
        sort_part(ordered[0], ends[place], ends[place + 1])
