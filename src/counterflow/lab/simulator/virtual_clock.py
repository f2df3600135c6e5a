"""The protocols under a virtual clock: every step takes as long as its comparisons, tuples, results and messages cost.

Each node has a time up to which it is busy. Whoever can move earliest moves next: a node that has work, a queue whose
oldest message arrives, the driver that has a tuple due. So any number of nodes runs side by side, on one core. The
nodes' memory is one; a message, though, arrives when it has been sent and carried.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from counterflow.jit import compiled, inlined
from counterflow.lab.replay.feeding import TO_LANES, release, tell_expired
from counterflow.lab.replay.watching import complete_rank
from counterflow.lockfree.atomics import store_release
from counterflow.lockfree.message_ring import CAPACITY, HEAD, SLOTS, TAIL, WIDTH, front, pop, room, try_send
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.node import node_at, words_at
from counterflow.protocols.threads import progress
from counterflow.windows.compiled.block import NEXT_ROW
from counterflow.windows.vectors import Array

# --- costs in picoseconds: a comparison takes a fraction of a nanosecond
STEP, TUPLE, COMPARISON, RESULT, MESSAGE, HOP = 0, 1, 2, 3, 4, 5
EARLY = 6  # not a cost: whether tuples are handed on before they are looked for partners of
PASSING = 7  # nor this: whether a node handles tuples that it does not store
COST_WORDS = 8

# --- a run: words of `plan`
NEXT_RANK, LAST, AHEAD, BATCH, WAY, BOTH, WHOLE_BATCHES, NOW, RESULTS, MARKS, TOLD, BACKLOG, NEEDY = range(13)
PLAN_WORDS = 16

NEVER = 1 << 62
DUE_SLOTS = 1 << 12  # messages under way in a queue, at most
DONE, NEEDS = 0, 1  # what `run` says
SENT, RECEIVED, SENDER, RECEIVER = 0, 1, 2, 3  # a row of `wires`


@inlined
def handled(m: Words, node: int, passing: int) -> int:
    """Tuples that a node has had to do with."""
    if passing != 0:
        return m[node + w.DONE] + m[node + w.DONE + 1]
    return m[m[node + w.SEGMENT] + NEXT_ROW] + m[m[node + w.SEGMENT + 1] + NEXT_ROW]


@inlined
def wake(at: Words, free: Words, k: int, now: int) -> None:
    at[k] = min(at[k], max(now, free[k]))


@compiled
def note_messages(
    m: Words, wires: Array, due: Array, seen: Words, at: Words, first_wire: int, i: int, early: int, late: int
) -> int:
    """Messages that have been put into queue i: when they arrive. Returns how many.

    What is handed on goes early, and with it what was handed on before it in the same step.
    """
    ring = wires[i, SENT]
    sent, answers = m[ring + TAIL] - seen[i], m[ring + TAIL]  # where those begin that come after a search
    while answers > seen[i]:
        kind = m[ring + SLOTS + ((answers - 1) & (m[ring + CAPACITY] - 1)) * WIDTH]
        if kind == w.ARRIVAL or kind == w.EXPIRY:
            break
        answers -= 1
    for number in range(seen[i], m[ring + TAIL]):
        time = early if number < answers else late
        if number > m[ring + HEAD]:
            time = max(time, due[i, (number - 1) & (DUE_SLOTS - 1)])  # no message overtakes another
        due[i, number & (DUE_SLOTS - 1)] = time
        if number == m[ring + HEAD]:
            at[first_wire + i] = time
    seen[i] = m[ring + TAIL]
    return sent


@compiled
def take_results(m: Words, node: int, time: int, plan: Words, result_time: Words, result_rank: Words) -> None:
    """All that a node has found, at this time."""
    box = m[node + w.OUTBOX]
    first, end, size = m[box + w.OUTBOX_TAKEN], m[box + w.OUTBOX_SENT], m[box + w.OUTBOX_SIZE]
    results = words_at(m[box + w.OUTBOX_DATA], size * w.RESULT_WORDS)
    for i in range(first, end):
        if plan[RESULTS] < len(result_time):
            result_time[plan[RESULTS]] = time
            result_rank[plan[RESULTS]] = results[(i & (size - 1)) * w.RESULT_WORDS] >> 1
            plan[RESULTS] += 1
    store_release(m, box + w.OUTBOX_TAKEN, end)


@compiled
def move_driver(
    m: Words,
    plan: Words,
    heads: Array,
    lanes: Words,
    sent: Words,
    ends: Array,
    totals: Words,
    due: Words,
    mark_time: Words,
    mark_rank: Words,
) -> int:
    """Release the tuples that are due; returns when to look again, NEVER if the nodes have to move first."""
    now, rank = plan[NOW], plan[NEXT_RANK]
    if plan[MARKS] < len(mark_time):
        mark_time[plan[MARKS]], mark_rank[plan[MARKS]] = now, complete_rank(m, plan[BOTH] != 0, totals)
        plan[MARKS] += 1
    if plan[TOLD] < rank:
        if not tell_expired(m, plan[WAY], heads, lanes, sent, ends, rank):
            return NEVER
        plan[TOLD] = rank
    if rank == plan[LAST]:
        return NEVER
    to = min(rank + plan[BATCH], plan[LAST])
    if plan[WHOLE_BATCHES] != 0 and due[to - 1] > now:
        return due[to - 1]
    while to > rank and due[to - 1] > now:
        to -= 1
    if to == rank:
        return due[rank]
    behind = 0
    for i in range(len(heads)):
        behind = max(behind, m[heads[i, 0] + CAPACITY] - room(m, heads[i, 0]))
    if to > progress(m, 0) + progress(m, 1) + plan[AHEAD] or behind > plan[BACKLOG]:
        return NEVER
    if not release(m, plan[WAY], heads, lanes, sent, ends[to, 0], ends[to, 1]):
        return NEVER
    plan[NEXT_RANK] = to
    return now


@compiled
def charge(
    m: Words,
    costs: Words,
    wires: Array,
    wire_due: Array,
    seen: Words,
    at: Words,
    outgoing: Array,
    k: int,
    now: int,
    tuples: int,
    compared: int,
    results: int,
) -> int:
    """What a step has cost; its messages arrive accordingly."""
    taken = costs[STEP] + costs[TUPLE] * tuples
    cost = taken + costs[COMPARISON] * compared + costs[RESULT] * results
    early = now + (taken if costs[EARLY] != 0 else cost) + costs[HOP]
    carried = 0
    for o in range(outgoing.shape[1]):
        if outgoing[k, o] >= 0:
            late = now + cost + costs[HOP]
            carried += note_messages(m, wires, wire_due, seen, at, m[w.NODES], outgoing[k, o], early, late)
    return cost + costs[MESSAGE] * carried


@compiled
def wake_others(
    m: Words, wires: Array, seen: Words, at: Words, free: Words, incoming: Array, around: Array, k: int, now: int
) -> None:
    """Those who may wait for what node k has done: the driver, nodes, and queues that found no room."""
    nodes, driver = m[w.NODES], m[w.NODES] + len(wires)
    at[driver] = min(at[driver], now)
    for o in range(around.shape[1]):
        if around[k, o] >= 0:
            wake(at, free, around[k, o], now)
    for o in range(incoming.shape[1]):
        i = incoming[k, o]
        if i >= 0 and at[nodes + i] >= NEVER and m[wires[i, SENT] + HEAD] < seen[i]:
            at[nodes + i] = now


@compiled
def deliver(m: Words, wires: Array, wire_due: Array, seen: Words, at: Words, free: Words, i: int, now: int) -> int:
    """The oldest message of queue i arrives; returns when the next one does, NEVER if the receiver has no room."""
    ring, target = wires[i, SENT], wires[i, RECEIVED]
    if room(m, target) == 0:
        return NEVER
    try_send(m, target, front(m, ring, 0), front(m, ring, 1), front(m, ring, 2), front(m, ring, 3))
    pop(m, ring)
    wake(at, free, wires[i, RECEIVER], now)
    return max(now, wire_due[i, m[ring + HEAD] & (DUE_SLOTS - 1)]) if m[ring + HEAD] < seen[i] else NEVER


@cache
def timer(step: Any) -> Any:
    """Of a protocol: run under the clock until nobody can move."""

    @compiled
    def run(
        m: Words,
        plan: Words,
        costs: Words,
        heads: Array,
        lanes: Words,
        sent: Words,
        ends: Array,
        totals: Words,
        due: Words,
        wires: Array,
        wire_due: Array,
        seen: Words,
        at: Words,
        free: Words,
        busy: Words,
        outgoing: Array,
        incoming: Array,
        around: Array,
        result_time: Words,
        result_rank: Words,
        mark_time: Words,
        mark_rank: Words,
    ) -> int:
        """`at`: when each actor moves next (nodes, queues, the driver). `free`: until when nodes are busy.

        `outgoing`, `incoming`, `around`: a node's queues, and the nodes that may wait for it.
        """
        nodes = m[w.NODES]
        driver = nodes + len(wires)
        while True:
            actor, now = 0, at[0]
            for i in range(1, driver + 1):
                if at[i] < now:
                    actor, now = i, at[i]
            if now >= NEVER:
                return DONE
            plan[NOW] = now
            if actor < nodes:
                node = node_at(m, actor)
                compared, before = m[node + w.IN_WINDOW], handled(m, node, costs[PASSING])
                phase = m[node + w.PHASE]
                state = step(m, actor)
                if state == w.NEEDS:
                    plan[NEEDY] = actor
                    return NEEDS
                tuples = handled(m, node, costs[PASSING]) - before
                results = m[m[node + w.OUTBOX] + w.OUTBOX_SENT] - m[m[node + w.OUTBOX] + w.OUTBOX_TAKEN]
                cost = charge(m, costs, wires, wire_due, seen, at, outgoing, actor, now, tuples,
                              m[node + w.IN_WINDOW] - compared, results)  # fmt: skip
                take_results(m, node, now + cost, plan, result_time, result_rank)
                if state == w.IDLE and results == 0 and m[node + w.PHASE] == phase:
                    at[actor] = NEVER
                    continue
                at[actor] = free[actor] = now + cost
                busy[actor] += cost
                wake_others(m, wires, seen, at, free, incoming, around, actor, now + cost)
            elif actor < driver:
                at[actor] = deliver(m, wires, wire_due, seen, at, free, actor - nodes, now)
            else:
                at[driver] = move_driver(m, plan, heads, lanes, sent, ends, totals, due, mark_time, mark_rank)
                for i in range(len(wires)):
                    if wires[i, SENDER] < 0:
                        note_messages(m, wires, wire_due, seen, at, nodes, i, now + costs[HOP], now + costs[HOP])
                if plan[WAY] != TO_LANES:
                    for k in range(nodes):
                        wake(at, free, k, now)

    return run
