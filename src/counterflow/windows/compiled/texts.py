"""Texts on candidates: their letters side by side in one array, and a distance that stops when it is too large.

The edit distance is computed row by row of its table, as far from the diagonal as the limit goes (Ukkonen's band).
Importing this module compiles it, or loads it from the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from counterflow.jit import OPTIONS, njit

Array = np.ndarray[Any, Any]


@njit("void(uint32[::1], int64[::1], uint32[::1], int64[::1], boolean[::1], int64, int64[::1], int64[::1])", **OPTIONS)
def distances(
    a: Array, a_begins: Array, b: Array, b_begins: Array, valid: Array, limit: int, row: Array, out: Array
) -> None:
    """Write the edit distance of each pair of texts; `limit + 1` where it is more than that.

    `row` has room for one row of the table.
    """
    for i in range(len(out)):
        out[i] = limit + 1
        if not valid[i]:
            continue
        a_from, b_from = a_begins[i], b_begins[i]
        m, n = a_begins[i + 1] - a_from, b_begins[i + 1] - b_from
        if abs(m - n) > limit:
            continue
        for j in range(min(n, limit) + 1):
            row[j] = j
        if n > limit:
            row[limit + 1] = limit + 1
        for x in range(1, m + 1):
            low, high = max(1, x - limit), min(n, x + limit)
            diagonal = row[low - 1]
            row[low - 1] = x if low == 1 else limit + 1
            least = row[low - 1]
            for y in range(low, high + 1):
                above = row[y] if y < x + limit else limit + 1
                cost = diagonal + (a[a_from + x - 1] != b[b_from + y - 1])
                diagonal = row[y]
                row[y] = min(cost, min(above, row[y - 1]) + 1)
                least = min(least, row[y])
            if least > limit:
                break
        else:
            out[i] = min(row[n], limit + 1)


def letters(texts: Array) -> tuple[Array, Array]:
    """Return all letters of some texts, and where each text begins."""
    begins = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=begins[1:])
    data = "".join(texts).encode("utf-32-le", "surrogatepass")
    return np.array(np.frombuffer(data, np.uint32)), begins  # numba tells apart what may not be written to


def levenshtein(a: Array, b: Array, valid: Array, limit: int) -> Array:
    """Return the edit distances of pairs of texts up to a limit, and one more where they are beyond it."""
    (x, x_begins), (y, y_begins) = letters(a), letters(b)
    longest = int(np.diff(y_begins).max(initial=0))
    out = np.empty(len(a), np.int64)
    limit = min(limit, max(longest, int(np.diff(x_begins).max(initial=0))))
    distances(x, x_begins, y, y_begins, valid, limit, np.empty(longest + 2, np.int64), out)
    return out
