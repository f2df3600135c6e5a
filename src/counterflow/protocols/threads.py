"""What runs around the nodes: a node's thread, the driver that waits for room, the collector of results."""

from __future__ import annotations

from functools import cache
from typing import Any

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import clock_ns, load_acquire, store_release, yield_thread
from counterflow.lockfree.message_ring import try_send
from counterflow.lockfree.shared_words import Words
from counterflow.lockfree.waiting import busy, idle, notify
from counterflow.protocols.node import node_at, words_at
from counterflow.protocols.output_gate import take_ready_results
from counterflow.protocols.words import (
    COLLECTOR,
    CROWDED,
    DONE,
    DRIVER,
    FINISHED,
    GATE_OUT,
    IDLE,
    NEEDS,
    NODES,
    NOTIFIED,
    NOTIFIED_MAX,
    OUTBOX,
    OUTBOX_DATA,
    OUTBOX_SENT,
    OUTBOX_SIZE,
    OUTBOX_TAKEN,
    RESULT_WORDS,
    STOP,
    STRATEGY,
    WAITER,
    WAKE,
    WORKED,
)

TURN_NS = 20_000  # how long a thread keeps a core that others wait for


@inlined
def tell(m: Words, node: int) -> None:
    """Wake those who may wait for what the node has just done."""
    for i in range(NOTIFIED_MAX):
        waiter = m[node + NOTIFIED + i]
        if waiter == 0:
            break
        notify(m, waiter)


@inlined
def let_others_run(m: Words, since: int) -> int:
    """Where threads share cores: offer the core now and then, as the system would let others wait for milliseconds.

    Returns when that was done last.
    """
    if m[CROWDED] == 0:
        return since
    now = clock_ns()
    if now - since < TURN_NS:
        return since
    yield_thread()
    return clock_ns()


@cache
def runner(step: Any) -> Any:
    """The loop of a node's thread: step until the join is stopped, or the node needs something of its owner."""

    @compiled
    def run(m: Words, k: int) -> int:
        node, turn, since = node_at(m, k), 0, clock_ns()
        while load_acquire(m, STOP) == 0:
            state = step(m, k)
            if state == WORKED:
                tell(m, node)
                busy(m, m[node + WAITER])
                turn = 0
                since = let_others_run(m, since)
            elif state == NEEDS:
                return NEEDS
            else:
                idle(m, m[node + WAITER], turn + m[CROWDED], m[STRATEGY])
                turn += 1
        return IDLE

    return run


@compiled
def progress(m: Words, side: int) -> int:
    """Up to which tuple all nodes are done with a side."""
    least = load_acquire(m, node_at(m, 0) + DONE + side)
    for k in range(1, m[NODES]):
        least = min(least, load_acquire(m, node_at(m, k) + DONE + side))
    return least


@compiled
def take_results(m: Words, out: Words, capacity: int) -> int:
    """Move results to `out`, from the gate where there is one, or from the nodes' queues; returns how many."""
    if m[GATE_OUT] != 0:
        return take_ready_results(m, out, capacity)
    taken = 0
    for k in range(m[NODES]):
        node = node_at(m, k)
        box = m[node + OUTBOX]
        sent, at = load_acquire(m, box + OUTBOX_SENT), m[box + OUTBOX_TAKEN]
        size = m[box + OUTBOX_SIZE]
        results = words_at(m[box + OUTBOX_DATA], size * RESULT_WORDS)
        moved = min(sent - at, capacity - taken)
        for i in range(moved):
            place = ((at + i) & (size - 1)) * RESULT_WORDS
            for word in range(RESULT_WORDS):
                out[(taken + i) * RESULT_WORDS + word] = results[place + word]
        if moved > 0:
            store_release(m, box + OUTBOX_TAKEN, at + moved)
            notify(m, m[node + WAITER])
        taken += moved
    return taken


@compiled
def collect(m: Words, out: Words, capacity: int, marks: Words, timeout_ns: int) -> int:
    """Results, and how far each node had come before they were taken; waits until there is something new.

    `marks` are the left and right tuples that each node is done with; the caller's last ones tell what is new.
    """
    started, turn = clock_ns(), 0
    while True:
        news = False
        for k in range(m[NODES]):  # before the results: so these are all up to the marks
            for side in range(2):
                mark = load_acquire(m, node_at(m, k) + DONE + side)
                news |= mark != marks[2 * k + side]
                marks[2 * k + side] = mark
        taken = take_results(m, out, capacity)
        if (
            taken > 0
            or news
            or load_acquire(m, WAKE) != 0
            or load_acquire(m, STOP) != 0
            or clock_ns() - started > timeout_ns
        ):
            busy(m, m[COLLECTOR])
            return taken
        idle(m, m[COLLECTOR], turn + m[CROWDED], m[STRATEGY])
        turn += 1


# --- called from Python


@compiled
def pause_driver(m: Words, turn: int) -> None:
    idle(m, m[DRIVER], turn + m[CROWDED], m[STRATEGY])


@compiled
def wake_collector(m: Words) -> None:
    store_release(m, WAKE, 1)
    notify(m, m[COLLECTOR])


@compiled
def take_wake(m: Words) -> bool:
    """Whether the collector was woken, once."""
    woken = load_acquire(m, WAKE) != 0
    store_release(m, WAKE, 0)
    return woken


@compiled
def stop(m: Words) -> None:
    """End all threads."""
    store_release(m, STOP, 1)
    notify(m, m[DRIVER])
    notify(m, m[COLLECTOR])
    for k in range(m[NODES]):
        notify(m, m[node_at(m, k) + WAITER])


@compiled
def send_messages(m: Words, messages: Words, begin: int) -> int:
    """Send messages, and wake their receivers; returns at which there was no room."""
    for i in range(begin, len(messages)):
        if not try_send(m, messages[i, 0], messages[i, 2], messages[i, 3], messages[i, 4], messages[i, 5]):
            return i
        notify(m, messages[i, 1])
    return len(messages)


@compiled
def finish(m: Words) -> None:
    """Tell the nodes that nothing more comes."""
    store_release(m, FINISHED, 1)
    for k in range(m[NODES]):
        notify(m, m[node_at(m, k) + WAITER])
