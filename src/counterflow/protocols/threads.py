"""What runs around the nodes: a node's thread, the driver that waits for room, the collector that waits for results."""

from __future__ import annotations

from functools import cache
from typing import Any

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import clock_ns, load_acquire, store_release, yield_thread
from counterflow.lockfree.shared_words import Words
from counterflow.lockfree.waiting import busy, idle, notify, notify_all
from counterflow.protocols import words as w
from counterflow.protocols.collect import collect
from counterflow.protocols.node import node_at
from counterflow.protocols.sources import source_at

TURN_NS = 20_000  # how long a thread keeps a core that others wait for


@inlined
def tell(m: Words, node: int) -> None:
    """Wake those who may wait for what the node has just done: for room in a queue, for results, for its marks.

    Who was sent a message knows already: `hand_on` does not wait for the end of a step.
    """
    notify_all(m, m[node + w.NODE_NOTIFIED], m[node + w.NODE_NOTIFIED_COUNT])


@inlined
def let_others_run(m: Words, since: int) -> int:
    """Offer the core now and then where threads share cores: the system would let others wait for milliseconds.

    Returns when that was done last.
    """
    if m[w.HEADER_CROWDED] == 0:
        return since
    now = clock_ns()
    if now - since < TURN_NS:
        return since
    yield_thread()
    return clock_ns()


@cache
def runner(step: Any) -> Any:
    """Return the loop of a node's thread: step until the join is stopped, or the node needs something of its owner."""

    @compiled
    def run(m: Words, k: int) -> int:
        node, turn, since = node_at(m, k), 0, clock_ns()
        while load_acquire(m, w.HEADER_STOP) == 0:
            state = step(m, k)
            if state == w.WORKED:
                tell(m, node)
                busy(m, m[node + w.NODE_WAITER])
                turn = 0
                since = let_others_run(m, since)
            elif state == w.NEEDS:
                return w.NEEDS
            else:
                idle(m, m[node + w.NODE_WAITER], turn + m[w.HEADER_CROWDED], m[w.HEADER_STRATEGY])
                turn += 1
        return w.IDLE

    return run


@compiled
def await_results(m: Words, out: Words, capacity: int, timeout_ns: int) -> int:
    """Collect; wait until there is something new: results, or nodes that are further, or a call of `wake_collector`."""
    started, turn, c = clock_ns(), 0, m[w.HEADER_COLLECT]
    while True:
        left, right = m[c + w.COLLECT_DONE], m[c + w.COLLECT_DONE + 1]
        taken = collect(m, out, capacity)
        if (
            taken > 0
            or left != m[c + w.COLLECT_DONE]
            or right != m[c + w.COLLECT_DONE + 1]
            or load_acquire(m, w.HEADER_WAKE) != 0
            or load_acquire(m, w.HEADER_STOP) != 0
            or clock_ns() - started > timeout_ns
        ):
            busy(m, m[w.HEADER_COLLECTOR])
            return taken
        idle(m, m[w.HEADER_COLLECTOR], turn + m[w.HEADER_CROWDED], m[w.HEADER_STRATEGY])
        turn += 1


# --- called from Python


@compiled
def pause_driver(m: Words, turn: int) -> None:
    idle(m, m[w.HEADER_DRIVER], turn + m[w.HEADER_CROWDED], m[w.HEADER_STRATEGY])


@compiled
def wake_collector(m: Words) -> None:
    store_release(m, w.HEADER_WAKE, 1)
    notify(m, m[w.HEADER_COLLECTOR])


@compiled
def take_wake(m: Words) -> bool:
    """Whether the collector was woken; once."""
    woken = load_acquire(m, w.HEADER_WAKE) != 0
    store_release(m, w.HEADER_WAKE, 0)
    return woken


@compiled
def stop(m: Words) -> None:
    """End all threads."""
    store_release(m, w.HEADER_STOP, 1)
    notify(m, m[w.HEADER_DRIVER])
    notify(m, m[w.HEADER_COLLECTOR])
    for k in range(m[w.HEADER_NODES]):
        notify(m, m[node_at(m, k) + w.NODE_WAITER])
    for k in range(m[w.HEADER_SOURCES]):
        notify(m, m[source_at(m, k) + w.SOURCE_WAITER])
