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
from counterflow.lockfree.message_ring import WAITER as RING_WAITER
from counterflow.lockfree.message_ring import try_send
from counterflow.lockfree.shared_words import Words
from counterflow.lockfree.waiting import notify
from counterflow.protocols import words as w
from counterflow.windows.compiled.block import GO_ON, RESTART_ALL, RESTART_CHOSEN
from counterflow.windows.compiled.intrinsics import call_entry, viewer

words_at = viewer(types.int64)
ALL_FRESH = 1 << 60  # of `fresh_below`: no stored tuple is left out
BEGIN, IN_INDEX, CHOOSE, IN_SCAN, FINISH = 0, 1, 2, 3, 4  # of SEARCH


@inlined
def node_at(m: Words, k: int) -> int:
    return m[w.HEADER_FIRST_NODE] + k * w.NODE_WORDS


@inlined
def stamp_arrays(descriptor: int) -> Any:
    """Return `low` and `high` by slot, and the mask that makes a slot of a place."""
    d = words_at(descriptor, w.STAMP_WORDS)
    size = d[w.STAMP_MASK] + 1
    return words_at(d[w.STAMP_LOW], size), words_at(d[w.STAMP_HIGH], size), d[w.STAMP_MASK]


@inlined
def numbering(descriptor: int) -> Any:
    d = words_at(descriptor, w.STAMP_WORDS)
    return d[w.STAMP_STRIDE], d[w.STAMP_OFFSET]


@inlined
def row_from(m: Words, segment: int, number: int) -> int:
    """Return the first row of the segment whose tuple has at least this number."""
    stride = m[segment + w.SEGMENT_STRIDE]
    return (number - m[segment + w.SEGMENT_OFFSET] + stride - 1) // stride


@inlined
def room_to_wrap(m: Words, node: int, side: int, first: int) -> int:
    """Return how many tuples from this place on lie side by side; a message has no others."""
    mask = words_at(m[node + w.NODE_STAMPS + side], w.STAMP_WORDS)[w.STAMP_MASK]
    return mask + 1 - (first & mask)


@inlined
def fits(m: Words, node: int, side: int, count: int) -> bool:
    return count <= room_to_wrap(m, node, side, m[node + w.NODE_FIRST + 2 * side])


# --- the message that is being handled


@inlined
def take_message(m: Words, node: int, side: int, first: int, count: int, phase: int) -> None:
    """Remember the arrival of tuples of a side, and where handling it begins."""
    m[node + w.NODE_KIND], m[node + w.NODE_FIRST], m[node + w.NODE_COUNT] = side, first, count
    m[node + w.NODE_PHASE] = phase


@inlined
def hand_on(m: Words, ring: int, kind: int, a: int, b: int) -> bool:
    """Send a message to another node, if there is one, and wake that at once; False where there is no room.

    The sender may begin a long search now, and the receiver need not sleep until the end of it.
    """
    if ring == 0:
        return True
    if not try_send(m, ring, kind, a, b, 0):
        return False
    notify(m, m[ring + RING_WAITER])
    return True


@inlined
def batch_ends(m: Words, node: int) -> Any:
    """Return the numbers before which a batch's left and right tuples end."""
    return (
        m[node + w.NODE_FIRST] + m[node + w.NODE_COUNT],
        m[node + w.NODE_FIRST_RIGHT] + m[node + w.NODE_COUNT_RIGHT],
    )


# --- the window's part


@compiled
def store(m: Words, node: int, segment: int, first: int, count: int) -> bool:
    """Store those of the tuples at places `first` and following that belong here; False if it needs room first."""
    stamps = m[node + w.NODE_STAMPS + m[segment + w.SEGMENT_SIDE]]
    every, begin = numbering(stamps)
    row = row_from(m, segment, first * every + begin)
    rows = row_from(m, segment, (first + count) * every + begin) - row
    next_row = m[segment + w.SEGMENT_NEXT_ROW]
    if rows == 0:
        return True
    if next_row + rows - oldest_row(m, segment) > m[segment + w.SEGMENT_CAPACITY]:
        m[node + w.NODE_NEED], m[node + w.NODE_NEED_AT] = w.NEED_ROOM, segment
        return False
    start, stride = (
        (row * m[segment + w.SEGMENT_STRIDE] + m[segment + w.SEGMENT_OFFSET] - begin) // every,
        m[segment + w.SEGMENT_STRIDE] // every,
    )
    if m[segment + w.SEGMENT_STORED_STAMPS] != 0 and m[segment + w.SEGMENT_COPIES] != 0:
        low, high, mask = stamp_arrays(stamps)
        stored_low, stored_high, ring = stamp_arrays(m[segment + w.SEGMENT_STORED_STAMPS])
        for i in range(rows):
            slot, place = (start + i * stride) & mask, (next_row + i) & ring
            stored_low[place], stored_high[place] = low[slot], high[slot]
    if call_entry(m[segment + w.SEGMENT_STORE], m[w.HEADER_SELF] + 8 * segment, start, stride, rows) < rows:
        m[node + w.NODE_NEED], m[node + w.NODE_NEED_AT] = w.NEED_POOL, segment
        return False
    m[segment + w.SEGMENT_NEXT_ROW] = next_row + rows
    return True


@inlined
def oldest_row(m: Words, segment: int) -> int:
    """Return the oldest row that some node still needs: the slowest of those that share the ring decides."""
    oldest = m[segment + w.SEGMENT_FIRST_ROW]
    for i in range(1, m[segment + w.SEGMENT_SHARERS]):
        oldest = min(oldest, load_acquire(m, segment + i * m[segment + w.SEGMENT_SHARE_STEP] + w.SEGMENT_FIRST_ROW))
    return oldest


@inlined
def expire(m: Words, segment: int, before: int) -> None:
    """Forget the tuples before this number."""
    row = min(row_from(m, segment, before), m[segment + w.SEGMENT_NEXT_ROW])
    store_release(m, segment + w.SEGMENT_FIRST_ROW, max(m[segment + w.SEGMENT_FIRST_ROW], row))


# --- searching


@compiled
def rows_in_window(m: Words, node: int, segment: int, first: int, count: int, limit: int) -> int:
    """Write each probe's range of rows; returns how many rows there are in all.

    Rows up to the probe's `high` came before it. Those after it came later (where they can be stored already), and the
    pair is in the window if the probe is in the stored tuple's. `limit` is a number at which stored tuples end. Of two
    tuples that fill windows again the pair is known.
    """
    stride, offset = m[segment + w.SEGMENT_STRIDE], m[segment + w.SEGMENT_OFFSET]
    first_row, end_row = (
        m[segment + w.SEGMENT_FIRST_ROW],
        min(m[segment + w.SEGMENT_NEXT_ROW], row_from(m, segment, limit)),
    )
    side, refilled = m[segment + w.SEGMENT_SIDE], m[w.HEADER_FEED] + w.FEED_REFILLED
    known, first_new_row = m[refilled + 1 - side], row_from(m, segment, m[refilled + side])
    stamps = m[node + w.NODE_STAMPS + 1 - side]
    low, high, mask = stamp_arrays(stamps)
    every, begin_at = numbering(stamps)
    oldest, newest = words_at(m[segment + w.SEGMENT_OLDEST], count), words_at(m[segment + w.SEGMENT_NEWEST], count)
    later = m[segment + w.SEGMENT_STORED_STAMPS] != 0
    stored_low, ring = low, mask
    if later:
        stored_low, _, ring = stamp_arrays(m[segment + w.SEGMENT_STORED_STAMPS])
    total = 0
    for i in range(count):
        slot = (first + i) & mask
        begin = max((low[slot] - offset + stride - 1) // stride, first_row)
        if (first + i) * every + begin_at < known:
            begin = max(begin, first_new_row)
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
    block = m[w.HEADER_SELF] + 8 * segment
    if m[node + w.NODE_SEARCH] == BEGIN:
        total = rows_in_window(m, node, segment, first, count, limit)
        if total == 0:
            return True
        m[node + w.NODE_IN_WINDOW] += total
        m[segment + w.SEGMENT_FOUND], m[node + w.NODE_OUT_AT] = 0, 0
        if m[segment + w.SEGMENT_PROBE] != 0:
            m[node + w.NODE_SEARCH] = IN_INDEX
            finished = call_entry(m[segment + w.SEGMENT_PROBE], block, first, count, 1)
        else:
            m[node + w.NODE_COMPARISONS] += total
            m[node + w.NODE_SEARCH] = IN_SCAN
            finished = call_entry(m[segment + w.SEGMENT_SCAN], block, first, count, RESTART_ALL)
        note_end(m, node, segment, finished)
    while True:
        if not emit(m, node, segment, first, fresh_below):
            return False
        state = m[node + w.NODE_SEARCH]
        if state == FINISH:
            m[node + w.NODE_SEARCH] = BEGIN
            return True
        if state == CHOOSE:
            if m[segment + w.SEGMENT_SCAN] == 0:
                m[node + w.NODE_NEED], m[node + w.NODE_NEED_AT] = w.NEED_SCAN, segment
                return False
            m[node + w.NODE_SEARCH] = IN_SCAN
            m[segment + w.SEGMENT_CHOSEN_COUNT] = m[segment + w.SEGMENT_LEFT_OVER]
            m[node + w.NODE_COMPARISONS] += m[segment + w.SEGMENT_LEFT_OVER] * (
                m[segment + w.SEGMENT_NEXT_ROW] - m[segment + w.SEGMENT_FIRST_ROW]
            )
            finished = call_entry(m[segment + w.SEGMENT_SCAN], block, first, count, RESTART_CHOSEN)
        elif state == IN_INDEX:
            finished = call_entry(m[segment + w.SEGMENT_PROBE], block, first, count, 0)
        else:
            finished = call_entry(m[segment + w.SEGMENT_SCAN], block, first, count, GO_ON)
        note_end(m, node, segment, finished)
        if finished == 0 and m[segment + w.SEGMENT_FOUND] == 0:
            m[node + w.NODE_NEED], m[node + w.NODE_NEED_AT] = w.NEED_OUTPUT, segment
            return False


@inlined
def note_end(m: Words, node: int, segment: int, finished: int) -> None:
    """Note after a call whether probes are left over that the index does not help."""
    if finished != 0:
        over = m[node + w.NODE_SEARCH] == IN_INDEX and m[segment + w.SEGMENT_LEFT_OVER] > 0
        m[node + w.NODE_SEARCH] = CHOOSE if over else FINISH


@compiled
def emit(m: Words, node: int, segment: int, first: int, fresh_below: int) -> bool:
    """Hand the pairs of a search to the collector; False while its queue is full.

    Results for a gate wait in the queue until the batch is complete, so that it has to become larger.
    """
    found = m[segment + w.SEGMENT_FOUND]
    if found == 0:
        return True
    box = m[node + w.NODE_OUTBOX]
    probes, rows = words_at(m[segment + w.SEGMENT_OUT_PROBE], found), words_at(m[segment + w.SEGMENT_OUT_ROW], found)
    stride, offset, side, unsure = (
        m[segment + w.SEGMENT_STRIDE],
        m[segment + w.SEGMENT_OFFSET],
        m[segment + w.SEGMENT_SIDE],
        m[segment + w.SEGMENT_UNSURE],
    )
    stamps = m[node + w.NODE_STAMPS + 1 - side]
    _, high, mask = stamp_arrays(stamps)
    every, begin_at = numbering(stamps)
    stored_high, ring = high, mask
    if m[segment + w.SEGMENT_STORED_STAMPS] != 0:
        _, stored_high, ring = stamp_arrays(m[segment + w.SEGMENT_STORED_STAMPS])
    size, sent, nodes = m[box + w.OUTBOX_SIZE], m[box + w.OUTBOX_SENT], m[w.HEADER_NODES]
    results = words_at(m[box + w.OUTBOX_DATA], size * w.RESULT_WORDS)
    i = m[node + w.NODE_OUT_AT]
    while i < found:
        if sent - m[box + w.OUTBOX_SEEN] == size:
            m[box + w.OUTBOX_SEEN] = load_acquire(m, box + w.OUTBOX_TAKEN)
            if sent - m[box + w.OUTBOX_SEEN] == size:
                break
        slot = (first + probes[i]) & mask
        probe, stored = (first + probes[i]) * every + begin_at, rows[i] * stride + offset
        if fresh_below == ALL_FRESH or stored % nodes < fresh_below:
            place = (sent & (size - 1)) * w.RESULT_WORDS
            if stored <= high[slot]:  # the probe is the later one
                results[place] = (probe + high[slot] + 1) * 2 + (1 - side)
            else:
                results[place] = (stored + stored_high[rows[i] & ring] + 1) * 2 + side
            results[place + 1] = stored if side == 0 else probe
            results[place + 2] = probe if side == 0 else stored
            results[place + 3] = unsure
            sent += 1
        i += 1
    m[node + w.NODE_PAIRS] += sent - m[box + w.OUTBOX_SENT]
    store_release(m, box + w.OUTBOX_SENT, sent)
    m[node + w.NODE_OUT_AT] = i
    if i < found:
        if m[w.HEADER_GATE_OUT] != 0:
            m[node + w.NODE_NEED], m[node + w.NODE_NEED_AT] = w.NEED_OUTBOX, segment
        else:
            notify(m, m[w.HEADER_COLLECTOR])  # the step ends without news, and then nobody else tells it
        return False
    m[segment + w.SEGMENT_FOUND], m[segment + w.SEGMENT_UNSURE], m[node + w.NODE_OUT_AT] = 0, 0, 0
    return True
