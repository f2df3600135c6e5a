"""Who holds a ScaleGate back: what sources and readers ask before they wake each other.

A promise makes something ready only if no other source has promised less. So a source wakes the readers only then, and
a reader that finds nothing ready wakes only the source that all others wait for.
"""

from __future__ import annotations

from counterflow.jit import inlined
from counterflow.lockfree.atomics import load, load_acquire
from counterflow.lockfree.scale_gate import (
    BLOCKS,
    FRONTIER,
    FRONTIER_TIE,
    LAST_TIME,
    NO_TIE,
    SOURCE_SIZE,
    SOURCES,
    ready_until,
)
from counterflow.lockfree.shared_words import Words


@inlined
def promised(words: Words, gate: int, source: int) -> tuple[int, int]:
    """Return a source's own frontier: a time, and a tie within the time after it."""
    own = gate + BLOCKS + source * load(words, gate + SOURCE_SIZE)
    return load_acquire(words, own + FRONTIER), load_acquire(words, own + FRONTIER_TIE)


@inlined
def holds_back(words: Words, gate: int, time: int, tie: int) -> bool:
    """Whether some source's frontier is before this one: then a promise from here on makes nothing ready."""
    until, until_tie = ready_until(words, gate)
    return until < time or (until == time and until_tie < tie)


@inlined
def last_source(words: Words, gate: int) -> int:
    """Return a source with the smallest frontier: nothing more is ready before it promises more."""
    last, least, least_tie = 0, LAST_TIME, NO_TIE
    for source in range(load(words, gate + SOURCES)):
        time, tie = promised(words, gate, source)
        if source == 0 or time < least or (time == least and tie < least_tie):
            last, least, least_tie = source, time, tie
    return last
