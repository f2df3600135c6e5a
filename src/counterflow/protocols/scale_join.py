"""ScaleJoin (Gulisano, Nikolakopoulos, Papatriantafilou and Tsigas, IEEE Big Data 2015).

The tuples of all streams go into a ScaleGate, and each processing thread (a node) gets all ready tuples out of it, in
the one order (Algorithm 1). It compares each with its part of the opposite window, and stores every n-th itself; so
each comparison is made by exactly one thread, whatever the rates of the streams are. Where the output is to be ordered,
results go through a second gate (`output_gate`).

Tuples reach the first gate in one of two ways. Either a driver has put them in order and stamped them, and its feed
adds them; or each physical source adds its own (`sources`), in parallel as in the paper, and the nodes stamp them
(`own_stamps`).

Difference from the paper: it counts the tuples of both streams together to decide who stores one. Where the streams
alternate, each thread would then store tuples of one side only; here each side is counted for itself.
"""

from __future__ import annotations

from counterflow.jit import compiled, inlined
from counterflow.lockfree.message_ring import front, pop, waiting
from counterflow.lockfree.scale_gate import NONE, VALUE, next_ready
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.kang import (
    INVALIDATE,
    RECEIVE,
    STORE_LEFT,
    invalidate,
    store_and_scan,
    three_steps,
)
from counterflow.protocols.node import node_at, room_to_wrap
from counterflow.protocols.output_gate import add_results, sort_results
from counterflow.protocols.own_stamps import take_and_stamp
from counterflow.protocols.traits import Protocol, every_nth, from_driver_to_all

ADD = INVALIDATE + 1  # a phase: the batch's results go to the second gate
NODE_HELD = w.NODE_MARK  # a tuple that was taken out of the gate and begins the next batch, plus 1; 0: none
NODE_HALVED = w.NODE_MARK + 1  # how often the size of batches is halved


@compiled
def step(m: Words, k: int) -> int:
    node = node_at(m, k)
    if m[node + w.NODE_PHASE] == RECEIVE:
        state = (
            take_and_stamp(m, k, node, batch_rows(m, node)) if m[w.HEADER_SOURCES] != 0 else take_stamped(m, k, node)
        )
        if state != w.WORKED:
            return state
        m[node + w.NODE_PHASE] = STORE_LEFT
    if m[w.HEADER_GATE_OUT] == 0:
        return three_steps(m, node)
    if m[node + w.NODE_PHASE] != ADD:
        state = store_and_scan(m, node)
        if state != w.WORKED:
            return state
        sort_results(m, node)
        choose_batch(m, node)
        m[node + w.NODE_PHASE] = ADD
    if not add_results(m, k, node):
        return w.IDLE
    invalidate(m, node)
    return w.WORKED


@inlined
def take_stamped(m: Words, k: int, node: int) -> int:
    """Take tuples that the driver has stamped and added to the gate, and what it says of expiry."""
    take_expiries(m, node)
    return w.WORKED if take_ready_tuples(m, k, node) else w.IDLE


@compiled
def take_ready_tuples(m: Words, k: int, node: int) -> bool:
    """getNextReadyTuple (line 9), until there is none or the batch is full."""
    gate, taken = m[w.HEADER_GATE_IN], 0
    m[node + w.NODE_FIRST], m[node + w.NODE_FIRST_RIGHT] = m[node + w.NODE_DONE], m[node + w.NODE_DONE + 1]
    m[node + w.NODE_COUNT], m[node + w.NODE_COUNT + 2] = 0, 0
    while taken < batch_rows(m, node):
        held = m[node + NODE_HELD]
        if held == 0:
            ready = next_ready(m, gate, k)
            if ready == NONE:
                break
            held = m[ready + VALUE] + 1
        side = (held - 1) & 1
        count = m[node + w.NODE_COUNT + 2 * side]
        if count == room_to_wrap(m, node, side, m[node + w.NODE_FIRST + 2 * side]):
            m[node + NODE_HELD] = held  # it does not lie beside those before it
            break
        m[node + NODE_HELD] = 0
        m[node + w.NODE_COUNT + 2 * side] = count + 1
        taken += 1
    return taken > 0


@inlined
def batch_rows(m: Words, node: int) -> int:
    return max(m[w.HEADER_BATCH_ROWS] >> m[node + NODE_HALVED], 1)


@inlined
def choose_batch(m: Words, node: int) -> None:
    """The results of a batch wait for all of it: where they are too many, the next one is smaller."""
    box = m[node + w.NODE_OUTBOX]
    if m[box + w.OUTBOX_SENT] > m[box + w.OUTBOX_ROWS]:
        m[node + NODE_HALVED] += batch_rows(m, node) > 1
    elif m[box + w.OUTBOX_SENT] < m[box + w.OUTBOX_ROWS] // 4:
        m[node + NODE_HALVED] = max(m[node + NODE_HALVED] - 1, 0)


@compiled
def take_expiries(m: Words, node: int) -> None:
    """What the driver has declared expired after so many tuples of both streams: not before these are done with."""
    ring = m[node + w.NODE_FROM_LEFT]
    while waiting(m, ring) > 0 and front(m, ring, 3) <= m[node + w.NODE_DONE] + m[node + w.NODE_DONE + 1]:
        m[node + w.NODE_EXPIRED], m[node + w.NODE_EXPIRED + 1] = front(m, ring, 1), front(m, ring, 2)
        pop(m, ring)


PROTOCOL = Protocol(
    name="scalejoin",
    step=step,
    way=w.TO_GATE,
    links=from_driver_to_all,
    stores=every_nth,
    orders_results=True,
)
