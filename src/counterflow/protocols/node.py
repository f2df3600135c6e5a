"""What all protocols do at a node: store tuples in a segment of a window, forget them, search for a tuple's partners.

A tuple has a number, its place among the tuples of its side that can match at all, and two stamps of the driver: `low`,
the oldest opposite tuple in the window when it arrives, and `high`, the newest that came before it. A pair is in the
window if the earlier tuple's number is at least the later one's `low`. Duration, row and mixed windows differ in
nothing else, and no clock is looked at.
"""

from __future__ import annotations

from typing import Any

from numba import types

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import load_acquire, store_release
from counterflow.lockfree.shared_words import Words
from counterflow.protocols.words import (
    CAPACITY,
    COMPARISONS,
    FIRST,
    FIRST_NODE,
    GATE_OUT,
    IN_WINDOW,
    NEED,
    NEED_AT,
    NEED_OUTBOX,
    NEED_OUTPUT,
    NEED_POOL,
    NEED_ROOM,
    NEED_SCAN,
    NODE_WORDS,
    NODES,
    OFFSET,
    OUT_AT,
    OUTBOX,
    OUTBOX_DATA,
    OUTBOX_SEEN,
    OUTBOX_SENT,
    OUTBOX_SIZE,
    OUTBOX_TAKEN,
    PAIRS,
    PROBE,
    QUIET,
    RESULT_WORDS,
    SCAN,
    SEARCH,
    SELF,
    SHARE_STEP,
    SHARERS,
    SIDE,
    STAMP_HIGH,
    STAMP_LOW,
    STAMP_MASK,
    STAMP_OFFSET,
    STAMP_STRIDE,
    STAMP_WORDS,
    STAMPS,
    STORE,
    STORED_STAMPS,
    STRIDE,
)
from counterflow.windows.compiled.block import (
    CHOSEN_COUNT,
    COPIES,
    FIRST_ROW,
    FOUND,
    GO_ON,
    LEFT_OVER,
    NEWEST,
    NEXT_ROW,
    OLDEST,
    OUT_PROBE,
    OUT_ROW,
    RESTART_ALL,
    RESTART_CHOSEN,
    UNSURE,
)
from counterflow.windows.compiled.intrinsics import call_entry, viewer

words_at = viewer(types.int64)
ALL_FRESH = 1 << 60  # of `fresh_below`: no stored tuple is left out
BEGIN, IN_INDEX, CHOOSE, IN_SCAN, FINISH = 0, 1, 2, 3, 4  # of SEARCH


@inlined
def node_at(m: Words, k: int) -> int:
    return m[FIRST_NODE] + k * NODE_WORDS


@inlined
def stamp_arrays(descriptor: int) -> Any:
    """`low` and `high` by slot, and the mask that makes a slot of a place."""
    d = words_at(descriptor, STAMP_WORDS)
    size = d[STAMP_MASK] + 1
    return words_at(d[STAMP_LOW], size), words_at(d[STAMP_HIGH], size), d[STAMP_MASK]


@inlined
def numbering(descriptor: int) -> Any:
    d = words_at(descriptor, STAMP_WORDS)
    return d[STAMP_STRIDE], d[STAMP_OFFSET]


@inlined
def row_from(m: Words, segment: int, number: int) -> int:
    """The first row of the segment whose tuple has at least this number."""
    stride = m[segment + STRIDE]
    return (number - m[segment + OFFSET] + stride - 1) // stride


@inlined
def room_to_wrap(m: Words, node: int, side: int, first: int) -> int:
    """How many tuples from this place on lie side by side; a message has no others."""
    mask = words_at(m[node + STAMPS + side], STAMP_WORDS)[STAMP_MASK]
    return mask + 1 - (first & mask)


@inlined
def fits(m: Words, node: int, side: int, count: int) -> bool:
    return count <= room_to_wrap(m, node, side, m[node + FIRST + 2 * side])


# --- the window's part


@compiled
def store(m: Words, node: int, segment: int, first: int, count: int) -> bool:
    """Store those of the tuples at places `first` and following that belong here; False if it needs room first."""
    stamps = m[node + STAMPS + m[segment + SIDE]]
    every, begin = numbering(stamps)
    row = row_from(m, segment, first * every + begin)
    rows = row_from(m, segment, (first + count) * every + begin) - row
    next_row = m[segment + NEXT_ROW]
    if rows == 0:
        return True
    if next_row + rows - oldest_row(m, segment) > m[segment + CAPACITY]:
        m[node + NEED], m[node + NEED_AT] = NEED_ROOM, segment
        return False
    start, stride = (row * m[segment + STRIDE] + m[segment + OFFSET] - begin) // every, m[segment + STRIDE] // every
    if m[segment + STORED_STAMPS] != 0 and m[segment + COPIES] != 0:
        low, high, mask = stamp_arrays(stamps)
        stored_low, stored_high, ring = stamp_arrays(m[segment + STORED_STAMPS])
        for i in range(rows):
            slot, place = (start + i * stride) & mask, (next_row + i) & ring
            stored_low[place], stored_high[place] = low[slot], high[slot]
    if call_entry(m[segment + STORE], m[SELF] + 8 * segment, start, stride, rows) < rows:
        m[node + NEED], m[node + NEED_AT] = NEED_POOL, segment
        return False
    m[segment + NEXT_ROW] = next_row + rows
    return True


@inlined
def oldest_row(m: Words, segment: int) -> int:
    """Of all nodes that share the segment's ring: the slowest of them decides what may be overwritten."""
    oldest = m[segment + FIRST_ROW]
    for i in range(1, m[segment + SHARERS]):
        oldest = min(oldest, load_acquire(m, segment + i * m[segment + SHARE_STEP] + FIRST_ROW))
    return oldest


@inlined
def expire(m: Words, segment: int, before: int) -> None:
    """Forget the tuples before this number."""
    row = min(row_from(m, segment, before), m[segment + NEXT_ROW])
    store_release(m, segment + FIRST_ROW, max(m[segment + FIRST_ROW], row))


# --- searching


@compiled
def rows_in_window(m: Words, node: int, segment: int, first: int, count: int, limit: int) -> int:
    """Write each probe's range of rows; returns how many rows there are in all.

    Rows up to the probe's `high` came before it. Those after it came later (where they can be stored already), and the
    pair is in the window if the probe is in the stored tuple's. `limit` is a number at which stored tuples end.
    """
    stride, offset = m[segment + STRIDE], m[segment + OFFSET]
    first_row, end_row = m[segment + FIRST_ROW], min(m[segment + NEXT_ROW], row_from(m, segment, limit))
    stamps = m[node + STAMPS + 1 - m[segment + SIDE]]
    low, high, mask = stamp_arrays(stamps)
    every, begin_at = numbering(stamps)
    oldest, newest = words_at(m[segment + OLDEST], count), words_at(m[segment + NEWEST], count)
    later = m[segment + STORED_STAMPS] != 0
    stored_low, ring = low, mask
    if later:
        stored_low, _, ring = stamp_arrays(m[segment + STORED_STAMPS])
    quiet, quiet_row = m[QUIET + 1 - m[segment + SIDE]], row_from(m, segment, m[QUIET + m[segment + SIDE]])
    total = 0
    for i in range(count):
        slot = (first + i) & mask
        begin = max((low[slot] - offset + stride - 1) // stride, first_row)
        if (first + i) * every + begin_at < quiet:
            begin = max(begin, quiet_row)
        end = min((high[slot] - offset) // stride + 1, end_row)
        if later:
            beyond = end_row
            end = max(end, first_row)
            while end < beyond:  # the first row whose window the probe has left
                middle = (end + beyond) // 2
                if stored_low[middle & ring] <= (first + i) * every + begin_at:
                    end = middle + 1
                else:
                    beyond = middle
        oldest[i], newest[i] = begin, end - 1
        total += max(end - begin, 0)
    return total


@compiled
def search(m: Words, node: int, segment: int, first: int, count: int, limit: int, fresh_below: int) -> bool:
    """Tuples `first` and following of the other side against the segment; True when all pairs are out.

    False if the results are to be taken first, or if the node needs something: call it again with the same arguments.
    `limit`: stored tuples from this number on are not looked at. `fresh_below`: only stored tuples are partners whose
    number modulo the number of nodes is less.
    """
    block = m[SELF] + 8 * segment
    if m[node + SEARCH] == BEGIN:
        total = rows_in_window(m, node, segment, first, count, limit)
        if total == 0:
            return True
        m[node + IN_WINDOW] += total
        m[segment + FOUND], m[node + OUT_AT] = 0, 0
        if m[segment + PROBE] != 0:
            m[node + SEARCH] = IN_INDEX
            finished = call_entry(m[segment + PROBE], block, first, count, 1)
        else:
            m[node + COMPARISONS] += total
            m[node + SEARCH] = IN_SCAN
            finished = call_entry(m[segment + SCAN], block, first, count, RESTART_ALL)
        note_end(m, node, segment, finished)
    while True:
        if not emit(m, node, segment, first, fresh_below):
            return False
        state = m[node + SEARCH]
        if state == FINISH:
            m[node + SEARCH] = BEGIN
            return True
        if state == CHOOSE:
            if m[segment + SCAN] == 0:
                m[node + NEED], m[node + NEED_AT] = NEED_SCAN, segment
                return False
            m[node + SEARCH] = IN_SCAN
            m[segment + CHOSEN_COUNT] = m[segment + LEFT_OVER]
            m[node + COMPARISONS] += m[segment + LEFT_OVER] * (m[segment + NEXT_ROW] - m[segment + FIRST_ROW])
            finished = call_entry(m[segment + SCAN], block, first, count, RESTART_CHOSEN)
        elif state == IN_INDEX:
            finished = call_entry(m[segment + PROBE], block, first, count, 0)
        else:
            finished = call_entry(m[segment + SCAN], block, first, count, GO_ON)
        note_end(m, node, segment, finished)
        if finished == 0 and m[segment + FOUND] == 0:
            m[node + NEED], m[node + NEED_AT] = NEED_OUTPUT, segment
            return False


@inlined
def note_end(m: Words, node: int, segment: int, finished: int) -> None:
    """After a call: whether probes are left over that the index does not help."""
    if finished != 0:
        over = m[node + SEARCH] == IN_INDEX and m[segment + LEFT_OVER] > 0
        m[node + SEARCH] = CHOOSE if over else FINISH


@compiled
def emit(m: Words, node: int, segment: int, first: int, fresh_below: int) -> bool:
    """Hand the pairs of a search to the collector; False while its queue is full.

    Results for a gate wait in the queue until the batch is complete, so that it has to become larger.
    """
    found = m[segment + FOUND]
    if found == 0:
        return True
    box = m[node + OUTBOX]
    probes, rows = words_at(m[segment + OUT_PROBE], found), words_at(m[segment + OUT_ROW], found)
    stride, offset, side, unsure = m[segment + STRIDE], m[segment + OFFSET], m[segment + SIDE], m[segment + UNSURE]
    stamps = m[node + STAMPS + 1 - side]
    _, high, mask = stamp_arrays(stamps)
    every, begin_at = numbering(stamps)
    stored_high, ring = high, mask
    if m[segment + STORED_STAMPS] != 0:
        _, stored_high, ring = stamp_arrays(m[segment + STORED_STAMPS])
    size, sent, nodes = m[box + OUTBOX_SIZE], m[box + OUTBOX_SENT], m[NODES]
    results = words_at(m[box + OUTBOX_DATA], size * RESULT_WORDS)
    i = m[node + OUT_AT]
    while i < found:
        if sent - m[box + OUTBOX_SEEN] == size:
            m[box + OUTBOX_SEEN] = load_acquire(m, box + OUTBOX_TAKEN)
            if sent - m[box + OUTBOX_SEEN] == size:
                break
        slot = (first + probes[i]) & mask
        probe, stored = (first + probes[i]) * every + begin_at, rows[i] * stride + offset
        if fresh_below == ALL_FRESH or stored % nodes < fresh_below:
            place = (sent & (size - 1)) * RESULT_WORDS
            if stored <= high[slot]:  # the probe is the later one
                results[place] = (probe + high[slot] + 1) * 2 + (1 - side)
            else:
                results[place] = (stored + stored_high[rows[i] & ring] + 1) * 2 + side
            results[place + 1] = stored if side == 0 else probe
            results[place + 2] = probe if side == 0 else stored
            results[place + 3] = unsure
            sent += 1
        i += 1
    m[node + PAIRS] += sent - m[box + OUTBOX_SENT]
    store_release(m, box + OUTBOX_SENT, sent)
    m[node + OUT_AT] = i
    if i < found:
        if m[GATE_OUT] != 0:
            m[node + NEED], m[node + NEED_AT] = NEED_OUTBOX, segment
        return False
    m[segment + FOUND], m[segment + UNSURE], m[node + OUT_AT] = 0, 0, 0
    return True
