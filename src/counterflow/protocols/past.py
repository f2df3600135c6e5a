"""What a node remembers of a side where it stamps tuples itself: the times and numbers of those in the window.

Sources that add to the gate in parallel know no stamps: these follow from the gate's order. Every node sees all ready
tuples in that one order, so each counts them and finds their horizons for itself, and all come to the same stamps:

    ordinals of the right side   0  1  2  3  4  5  6        a left tuple of time 40 comes, the right window is 10 long:
    their times                 12 15 30 31 33 40 40        its horizon is ordinal 2, `high` the last one that has come
                                      └ FIRST       └ NEXT

A horizon never goes back, so it is found by walking on from the last one, and what lies before it is forgotten.
"""

from __future__ import annotations

import numpy as np

from counterflow.jit import compiled, inlined
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.incoming import address
from counterflow.protocols.node import words_at
from counterflow.spec.window_sizes import Window
from counterflow.windows.vectors import Array

SLOTS_MIN = 1 << 6
FIRST_OF_ALL = np.iinfo(np.int64).min


class Past:
    """The rings behind the words of a node's past of one side; they grow with the window."""

    def __init__(self, m: Array, at: int, window: Window, copied: Array) -> None:
        self.m, self.at, self.copied = m, at, copied
        kinds = {"rows": w.PAST_IS_ROWS, "duration": w.PAST_IS_DURATION, "unbounded": w.PAST_IS_UNBOUNDED}
        empty = window.reach is not None and window.reach < 0
        m[at + w.PAST_KIND] = w.PAST_IS_EMPTY if empty else kinds[window.kind]
        m[at + w.PAST_SIZE] = window.size if window.reach is None else window.reach
        m[at + w.PAST_COPIED] = address(copied)
        self.rings = np.zeros((2, 0), np.int64)
        self._make(SLOTS_MIN)

    def _make(self, slots: int) -> None:
        m, at, before = self.m, self.at, self.rings
        self.rings = np.zeros((2, slots), np.int64)
        if before.size:
            ordinals = np.arange(m[at + w.PAST_FIRST], m[at + w.PAST_NEXT])
            self.rings[:, ordinals & (slots - 1)] = before[:, ordinals & (before.shape[1] - 1)]
        m[at + w.PAST_TIMES], m[at + w.PAST_NUMBERS] = address(self.rings[0]), address(self.rings[1])
        m[at + w.PAST_MASK] = slots - 1

    def grow(self) -> None:
        """Make room for twice as many tuples."""
        self._make(2 * self.rings.shape[1])


@inlined
def past_at(m: Words, node: int, side: int) -> int:
    return m[node + w.NODE_PAST + side]


@inlined
def has_room(m: Words, past: int) -> bool:
    """Whether another tuple can be remembered. Where the window has no end or holds nothing, none is."""
    if m[past + w.PAST_KIND] >= w.PAST_IS_EMPTY:
        return True
    return m[past + w.PAST_NEXT] - m[past + w.PAST_FIRST] <= m[past + w.PAST_MASK]


@inlined
def remember(m: Words, past: int, time: int, passes: bool) -> None:
    """Take the side's next tuple; there must be room."""
    slots = m[past + w.PAST_MASK] + 1
    slot = m[past + w.PAST_NEXT] & (slots - 1)
    words_at(m[past + w.PAST_TIMES], slots)[slot] = time
    words_at(m[past + w.PAST_NUMBERS], slots)[slot] = m[past + w.PAST_NUMBER]
    m[past + w.PAST_NEXT] += 1
    m[past + w.PAST_NUMBER] += passes


@compiled
def horizon(m: Words, past: int, time: int) -> int:
    """Return the first number in the window for an opposite tuple of this time, or a later one, that comes next."""
    kind, size, following = m[past + w.PAST_KIND], m[past + w.PAST_SIZE], m[past + w.PAST_NEXT]
    first, slots = m[past + w.PAST_FIRST], m[past + w.PAST_MASK] + 1
    if kind == w.PAST_IS_UNBOUNDED:
        return 0
    if kind == w.PAST_IS_EMPTY:
        first = following
    elif kind == w.PAST_IS_ROWS:
        first = max(first, following - size)
    else:
        times = words_at(m[past + w.PAST_TIMES], slots)
        oldest = time - size if time >= FIRST_OF_ALL + size else FIRST_OF_ALL
        while first < following and times[first & (slots - 1)] < oldest:
            first += 1
    m[past + w.PAST_FIRST] = first
    if first == following:
        return m[past + w.PAST_NUMBER]
    return words_at(m[past + w.PAST_NUMBERS], slots)[first & (slots - 1)]
