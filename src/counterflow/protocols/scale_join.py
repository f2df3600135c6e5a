"""ScaleJoin (Gulisano, Nikolakopoulos, Papatriantafilou and Tsigas, IEEE Big Data 2015).

The tuples of all streams go into a ScaleGate, and each processing thread (a node) gets all ready tuples out of it, in
the one order (Algorithm 1). It compares each with its part of the opposite window, and stores every n-th itself; so
each comparison is made by exactly one thread, whatever the rates of the streams are. Where the output is to be ordered,
results go through a second gate (`output_gate`).

Difference from the paper: it counts the tuples of both streams together to decide who stores one. Where the streams
alternate, each thread would then store tuples of one side only; here each side is counted for itself.
"""

from __future__ import annotations

from counterflow.jit import compiled, inlined
from counterflow.lockfree.message_ring import front, pop, waiting
from counterflow.lockfree.scale_gate import NONE, VALUE, advance, next_ready, try_insert
from counterflow.lockfree.shared_words import Words
from counterflow.lockfree.waiting import notify
from counterflow.protocols.kang import (
    INVALIDATE,
    RECEIVE,
    STORE_LEFT,
    invalidate,
    store_and_scan,
    three_steps,
)
from counterflow.protocols.node import node_at, room_to_wrap, stamp_arrays
from counterflow.protocols.output_gate import add_results, sort_results
from counterflow.protocols.words import (
    BATCH_ROWS,
    COUNT,
    DONE,
    EXPIRED,
    FIRST,
    FIRST_RIGHT,
    FROM_LEFT,
    GATE_IN,
    GATE_OUT,
    IDLE,
    MARK,
    NODES,
    OUTBOX,
    OUTBOX_ROWS,
    OUTBOX_SENT,
    PHASE,
    STAMPS,
    WAITER,
    WORKED,
)

ADD = INVALIDATE + 1  # a phase: the batch's results go to the second gate
HELD = MARK  # a tuple that was taken out of the gate and begins the next batch, plus 1; 0: none
HALVED = MARK + 1  # how often the size of batches is halved


@compiled
def step(m: Words, k: int) -> int:
    node = node_at(m, k)
    if m[node + PHASE] == RECEIVE:
        take_expiries(m, node)
        if not take_ready_tuples(m, k, node):
            return IDLE
        m[node + PHASE] = STORE_LEFT
    if m[GATE_OUT] == 0:
        return three_steps(m, node)
    if m[node + PHASE] != ADD:
        state = store_and_scan(m, node)
        if state != WORKED:
            return state
        sort_results(m, node)
        choose_batch(m, node)
        m[node + PHASE] = ADD
    if not add_results(m, k, node):
        return IDLE
    invalidate(m, node)
    return WORKED


@compiled
def take_ready_tuples(m: Words, k: int, node: int) -> bool:
    """getNextReadyTuple (line 9), until there is none or the batch is full."""
    gate, taken = m[GATE_IN], 0
    m[node + FIRST], m[node + FIRST_RIGHT] = m[node + DONE], m[node + DONE + 1]
    m[node + COUNT], m[node + COUNT + 2] = 0, 0
    while taken < batch_rows(m, node):
        held = m[node + HELD]
        if held == 0:
            ready = next_ready(m, gate, k)
            if ready == NONE:
                break
            held = m[ready + VALUE] + 1
        side = (held - 1) & 1
        count = m[node + COUNT + 2 * side]
        if count == room_to_wrap(m, node, side, m[node + FIRST + 2 * side]):
            m[node + HELD] = held  # it does not lie beside those before it
            break
        m[node + HELD] = 0
        m[node + COUNT + 2 * side] = count + 1
        taken += 1
    return taken > 0


@inlined
def batch_rows(m: Words, node: int) -> int:
    return max(m[BATCH_ROWS] >> m[node + HALVED], 1)


@inlined
def choose_batch(m: Words, node: int) -> None:
    """The results of a batch wait for all of it: where they are too many, the next one is smaller."""
    box = m[node + OUTBOX]
    if m[box + OUTBOX_SENT] > m[box + OUTBOX_ROWS]:
        m[node + HALVED] += batch_rows(m, node) > 1
    elif m[box + OUTBOX_SENT] < m[box + OUTBOX_ROWS] // 4:
        m[node + HALVED] = max(m[node + HALVED] - 1, 0)


@compiled
def take_expiries(m: Words, node: int) -> None:
    """What the driver has declared expired after so many tuples of both streams: not before these are done with."""
    ring = m[node + FROM_LEFT]
    while waiting(m, ring) > 0 and front(m, ring, 3) <= m[node + DONE] + m[node + DONE + 1]:
        m[node + EXPIRED], m[node + EXPIRED + 1] = front(m, ring, 1), front(m, ring, 2)
        pop(m, ring)


@compiled
def add_tuples(m: Words, added: Words) -> bool:
    """The driver's side: add tuples up to added[2] and added[3]; False if the gate is full meanwhile.

    `added` has the next left and right tuple. Their place in the total order is the time by which the gate sorts them.
    """
    gate, first = m[GATE_IN], node_at(m, 0)
    _, left_high, left_mask = stamp_arrays(m[first + STAMPS])
    full = False
    while added[0] < added[2] or added[1] < added[3]:
        side = 0
        if added[0] == added[2]:
            side = 1
        elif added[1] < added[3]:  # a left tuple that came after the right one has it among its earlier ones
            side = 1 if left_high[added[0] & left_mask] >= added[1] else 0
        rank = added[0] + added[1]
        if not try_insert(m, gate, side, rank, 0, added[side] * 2 + side):
            full = True
            break
        added[side] += 1
    # What was added comes before all that follows, on both sides; so readers can go on even if the gate is full.
    advance(m, gate, 0, added[0] + added[1] - 1)
    advance(m, gate, 1, added[0] + added[1] - 1)
    for k in range(m[NODES]):
        notify(m, m[node_at(m, k) + WAITER])
    return not full
