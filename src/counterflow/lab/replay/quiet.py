"""Windows that fill quickly: while they do, tuples are stored and handed on, and find nothing.

A node calls a predicate's `probe` and `scan` by address (`windows.compiled.block`). Here these addresses are those of
functions that leave out every pair of two tuples that only fill the windows, and then call the real ones. So nodes do
what they always do, and know nothing of it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from counterflow.jit import cfunc, compiled
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.machine import Machine
from counterflow.protocols.node import numbering, row_from, words_at
from counterflow.windows.compiled.block import RESTART_ALL
from counterflow.windows.compiled.intrinsics import call_entry

ENTRY = "int64(int64, int64, int64, int64)"
PROBE_BEGINS = 1  # what `probe` is told when it begins
# --- words of a segment from SEGMENT_LABORATORY on
REAL_PROBE, REAL_SCAN, STRIDE, OFFSET, QUIET_PROBES, QUIET_ROWS = 0, 1, 2, 3, 4, 5
LABORATORY_WORDS = 8
ENTRIES = (w.SEGMENT_PROBE, w.SEGMENT_SCAN)


@compiled
def leave_out(block: int, first: int, count: int) -> bool:
    """Let quiet probes begin after the quiet rows; whether any row is left."""
    b = words_at(block, w.SEGMENT_WORDS)
    lab = words_at(block + 8 * w.SEGMENT_LABORATORY, LABORATORY_WORDS)
    oldest, newest = words_at(b[w.SEGMENT_OLDEST], count), words_at(b[w.SEGMENT_NEWEST], count)
    left = False
    for i in range(count):
        if (first + i) * lab[STRIDE] + lab[OFFSET] < lab[QUIET_PROBES]:
            oldest[i] = max(oldest[i], lab[QUIET_ROWS])
        left |= oldest[i] <= newest[i]
    return left


@cache
def entries() -> tuple[Any, Any]:
    """Compile what stands in place of `probe` and `scan`."""

    @cfunc(ENTRY, error_model="numpy", boundscheck=False, _nrt=False)
    def quiet_probe(block: int, first: int, count: int, begins: int) -> int:
        if begins == PROBE_BEGINS and not leave_out(block, first, count):
            return 1
        return call_entry(
            words_at(block + 8 * w.SEGMENT_LABORATORY, LABORATORY_WORDS)[REAL_PROBE], block, first, count, begins
        )

    @cfunc(ENTRY, error_model="numpy", boundscheck=False, _nrt=False)
    def quiet_scan(block: int, first: int, count: int, what: int) -> int:
        if what == RESTART_ALL and not leave_out(block, first, count):
            return 1
        return call_entry(
            words_at(block + 8 * w.SEGMENT_LABORATORY, LABORATORY_WORDS)[REAL_SCAN], block, first, count, what
        )

    return quiet_probe, quiet_scan


def quieten(machine: Machine, left: int, right: int) -> None:
    """Let left and right tuples before these numbers not find each other."""
    m, fills = machine.m, (left, right)
    quiet = [entry.address for entry in entries()]
    for k in range(machine.design.nodes):
        for segment in machine.segments_of(k):
            side, lab = int(m[segment + w.SEGMENT_SIDE]), segment + w.SEGMENT_LABORATORY
            m[lab + STRIDE], m[lab + OFFSET] = numbering_of(m, machine.nodes[k], 1 - side)
            m[lab + QUIET_PROBES], m[lab + QUIET_ROWS] = fills[1 - side], row_from(m, segment, fills[side])
            for real, entry, address in zip((REAL_PROBE, REAL_SCAN), ENTRIES, quiet, strict=True):
                if m[segment + entry] not in (0, address):  # 0: there is none, or not yet
                    m[lab + real] = m[segment + entry]
                    m[segment + entry] = address


def end_quiet(machine: Machine) -> None:
    """Let nodes call the predicate's own functions again."""
    m, quiet = machine.m, [entry.address for entry in entries()]
    for segment in machine.segments:
        for real, entry, address in zip((REAL_PROBE, REAL_SCAN), ENTRIES, quiet, strict=True):
            if m[segment + entry] == address:
                m[segment + entry] = m[segment + w.SEGMENT_LABORATORY + real]


@compiled
def numbering_of(m: Words, node: int, side: int) -> Any:
    return numbering(m[node + w.NODE_STAMPS + side])
