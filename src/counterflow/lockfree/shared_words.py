"""The memory that threads share: one int64 array of "words".

A structure lies in the words from an offset on, a multiple of CACHE_LINE; `*_size` tells how many words it takes and
`*_init` makes it. So the compiled functions take one array, and any thread, or a simulator, can run them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int64]

CACHE_LINE = 8  # words
LINE = 2 * CACHE_LINE  # what is written by different threads lies this far apart: processors fetch lines in pairs


def shared_words(count: int) -> Words:
    """So many zeros, from the begin of a cache line on."""
    spare = np.zeros(count + LINE, np.int64)
    begin = -(spare.ctypes.data // spare.itemsize) % LINE
    return spare[begin : begin + count]


def whole_lines(words: int) -> int:
    """The next multiple of LINE."""
    return -(-words // LINE) * LINE


def check_place(words: Words, begin: int, size: int) -> None:
    """Compiled code checks no bounds, so they are checked here, once."""
    if words.dtype != np.int64 or words.ndim != 1 or not words.flags.c_contiguous or not words.flags.writeable:
        raise ValueError("words must be a writable, contiguous, one-dimensional int64 array")
    if begin < 0 or begin % CACHE_LINE or begin + size > len(words):
        raise ValueError(f"{size} words from {begin}: begin at a multiple of {CACHE_LINE} and stay below {len(words)}")
