"""Records picked from anywhere in a window, compiled: the memory of the next ones is on its way meanwhile.

An array of records is given as 64-bit words, `width` of them to a record. Importing this module compiles it, or loads
it from the cache.
"""

from __future__ import annotations

from typing import Any

from counterflow.jit import OPTIONS, njit
from counterflow.windows.compiled import intrinsics
from counterflow.windows.vectors import Array

AHEAD = 24  # records
prefetch: Any = intrinsics.prefetch


@njit("void(int64[::1], int64, int64[::1], int64[::1])", **OPTIONS)
def pick_records(words: Array, width: int, places: Array, picked: Array) -> None:
    """Copy the records at these places, one after the other."""
    n = len(places)
    for i in range(n):
        if i + AHEAD < n:
            following = places[i + AHEAD] * width
            prefetch(words, following)
            prefetch(words, following + width - 1)
        begin = places[i] * width
        for k in range(width):
            picked[i * width + k] = words[begin + k]


@njit("void(int64[::1], int64, int64, int64[::1], int64[::1])", **OPTIONS)
def pick_words(words: Array, width: int, word: int, places: Array, picked: Array) -> None:
    """Copy one word of each record at these places."""
    n = len(places)
    for i in range(n):
        if i + AHEAD < n:
            prefetch(words, places[i + AHEAD] * width + word)
        picked[i] = words[places[i] * width + word]
