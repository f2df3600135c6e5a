"""The protocols under a virtual clock: every step takes as long as its comparisons, tuples, results and messages cost.

Each node has a time up to which it is busy. Whoever can move earliest moves next: a node that has work, a queue whose
oldest message arrives, the driver that has a tuple due. So any number of nodes runs side by side, on one core. The
nodes' memory is one; a message, though, arrives when it has been sent and carried.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import store_release
from counterflow.lockfree.message_ring import CAPACITY, HEAD, SLOTS, TAIL, WIDTH, front, pop, room, try_send
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.collect import complete_rank, note_complete
from counterflow.protocols.feed import backlog, feed, progress
from counterflow.protocols.node import node_at, words_at
from counterflow.windows.vectors import Array

# --- costs in picoseconds: a comparison takes a fraction of a nanosecond
STEP, TUPLE, COMPARISON, RESULT, MESSAGE, HOP = 0, 1, 2, 3, 4, 5
EARLY = 6  # not a cost: whether tuples are handed on before they are looked for partners of
PASSING = 7  # nor this: whether a node handles tuples that it does not store
COST_WORDS = 8

# --- a run: words of `plan`
WHOLE_BATCHES, NOW, RESULTS, MARKS, BACKLOG, NEEDY = range(6)
PLAN_WORDS = 8

NEVER = 1 << 62
DUE_SLOTS = 1 << 12  # messages under way in a queue, at most
DONE, NEEDS = 0, 1  # what `run` says
SENT, RECEIVED, SENDER, RECEIVER = 0, 1, 2, 3  # a row of `wires`


@inlined
def handled(m: Words, node: int, passing: int) -> int:
    """Return how many tuples a node has had to do with."""
    if passing != 0:
        return m[node + w.NODE_DONE] + m[node + w.NODE_DONE + 1]
    return m[m[node + w.NODE_SEGMENT] + w.SEGMENT_NEXT_ROW] + m[m[node + w.NODE_SEGMENT + 1] + w.SEGMENT_NEXT_ROW]


class Clockwork(NamedTuple):
    """What a run under the clock looks at, and what it changes. Actors are nodes, queues and the driver."""

    m: Words  # the machine's memory
    plan: Words
    costs: Words
    due: Words  # by rank: when a tuple comes
    wires: Array  # the queues: both halves, sender and receiver
    wire_due: Array  # by queue and message: when it arrives
    seen: Words  # by queue: messages whose arrival is known
    at: Words  # by actor: when it moves next
    free: Words  # by node: until when it is busy
    busy: Words  # by node: for how long it was
    outgoing: Array  # by node: the queues that it sends to
    incoming: Array  # by node: the queues that it receives from
    around: Array  # by node: the nodes that may wait for it
    result_time: Words
    result_rank: Words
    mark_time: Words  # when the driver looked how far the nodes were,
    mark_rank: Words  # and the rank before which all was found then


@inlined
def wake(c: Clockwork, k: int, now: int) -> None:
    c.at[k] = min(c.at[k], max(now, c.free[k]))


@compiled
def note_messages(c: Clockwork, i: int, early: int, late: int) -> int:
    """Note when the messages arrive that have been put into queue i; returns how many.

    What is handed on goes early, and with it what was handed on before it in the same step.
    """
    m, ring, due, seen = c.m, c.wires[i, SENT], c.wire_due, c.seen
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
            c.at[m[w.HEADER_NODES] + i] = time
    seen[i] = m[ring + TAIL]
    return sent


@compiled
def take_results(c: Clockwork, node: int, time: int) -> None:
    """Take all that a node has found, at this time."""
    m, plan, box = c.m, c.plan, c.m[node + w.NODE_OUTBOX]
    first, end, size = m[box + w.OUTBOX_TAKEN], m[box + w.OUTBOX_SENT], m[box + w.OUTBOX_SIZE]
    results = words_at(m[box + w.OUTBOX_DATA], size * w.RESULT_WORDS)
    for i in range(first, end):
        if plan[RESULTS] < len(c.result_time):
            c.result_time[plan[RESULTS]] = time
            c.result_rank[plan[RESULTS]] = results[(i & (size - 1)) * w.RESULT_WORDS] >> 1
            plan[RESULTS] += 1
    store_release(m, box + w.OUTBOX_TAKEN, end)


@compiled
def move_driver(c: Clockwork) -> int:
    """Feed the tuples that are due; returns when to look again, NEVER if the nodes have to move first."""
    m, plan, due, f = c.m, c.plan, c.due, c.m[w.HEADER_FEED]
    now, rank, last = plan[NOW], m[f + w.FEED_AT], m[f + w.FEED_OFFERED] + m[f + w.FEED_OFFERED + 1]
    note_complete_now(c, f)
    if rank == last:
        return now if feed(m, 1) == w.WORKED else NEVER  # what has expired
    to = min(rank + m[w.HEADER_BATCH_ROWS], last)
    if plan[WHOLE_BATCHES] != 0 and due[to - 1] > now:
        return due[to - 1]
    while to > rank and due[to - 1] > now:
        to -= 1
    if to == rank:
        return due[rank]
    if backlog(m) > plan[BACKLOG] or feed(m, to - rank) != w.WORKED:
        return NEVER
    return now


@inlined
def note_complete_now(c: Clockwork, f: int) -> None:
    """Note the rank before which all is found; results are taken as soon as nodes have them."""
    m, plan, collector = c.m, c.plan, c.m[w.HEADER_COLLECT]
    if plan[MARKS] < len(c.mark_time):
        for side in range(2):
            m[collector + w.COLLECT_DONE + side] = progress(m, side)
        note_complete(m, f, collector, m[f + w.FEED_SENT], m[f + w.FEED_SENT + 1])
        c.mark_time[plan[MARKS]], c.mark_rank[plan[MARKS]] = plan[NOW], complete_rank(m)
        plan[MARKS] += 1


@compiled
def charge(c: Clockwork, k: int, tuples: int, compared: int, results: int) -> int:
    """Return what a step has cost; its messages arrive accordingly."""
    costs, now = c.costs, c.plan[NOW]
    taken = costs[STEP] + costs[TUPLE] * tuples
    cost = taken + costs[COMPARISON] * compared + costs[RESULT] * results
    early, late = now + (taken if costs[EARLY] != 0 else cost) + costs[HOP], now + cost + costs[HOP]
    carried = 0
    for o in range(c.outgoing.shape[1]):
        if c.outgoing[k, o] >= 0:
            carried += note_messages(c, c.outgoing[k, o], early, late)
    return cost + costs[MESSAGE] * carried


@compiled
def wake_others(c: Clockwork, k: int, now: int) -> None:
    """Wake those who may wait for what node k has done: the driver, nodes, and queues that found no room."""
    m, at = c.m, c.at
    nodes, driver = m[w.HEADER_NODES], m[w.HEADER_NODES] + len(c.wires)
    at[driver] = min(at[driver], now)
    for o in range(c.around.shape[1]):
        if c.around[k, o] >= 0:
            wake(c, c.around[k, o], now)
    for o in range(c.incoming.shape[1]):
        i = c.incoming[k, o]
        if i >= 0 and at[nodes + i] >= NEVER and m[c.wires[i, SENT] + HEAD] < c.seen[i]:
            at[nodes + i] = now


@compiled
def deliver(c: Clockwork, i: int) -> int:
    """Let the oldest message of queue i arrive; returns when the next one does, NEVER if the receiver has no room."""
    m, now, ring, target = c.m, c.plan[NOW], c.wires[i, SENT], c.wires[i, RECEIVED]
    if room(m, target) == 0:
        return NEVER
    try_send(m, target, front(m, ring, 0), front(m, ring, 1), front(m, ring, 2), front(m, ring, 3))
    pop(m, ring)
    wake(c, c.wires[i, RECEIVER], now)
    return max(now, c.wire_due[i, m[ring + HEAD] & (DUE_SLOTS - 1)]) if m[ring + HEAD] < c.seen[i] else NEVER


@cache
def timer(step: Any) -> Any:
    """Return what runs a protocol under the clock until nobody can move."""

    @compiled
    def run(c: Clockwork) -> int:
        m, at, nodes, driver = c.m, c.at, c.m[w.HEADER_NODES], c.m[w.HEADER_NODES] + len(c.wires)
        while True:
            actor, now = 0, at[0]
            for i in range(1, driver + 1):
                if at[i] < now:
                    actor, now = i, at[i]
            if now >= NEVER:
                return DONE
            c.plan[NOW] = now
            if actor < nodes:
                node = node_at(m, actor)
                compared, before = m[node + w.NODE_IN_WINDOW], handled(m, node, c.costs[PASSING])
                phase = m[node + w.NODE_PHASE]
                state = step(m, actor)
                if state == w.NEEDS:
                    c.plan[NEEDY] = actor
                    return NEEDS
                tuples, box = handled(m, node, c.costs[PASSING]) - before, m[node + w.NODE_OUTBOX]
                results = m[box + w.OUTBOX_SENT] - m[box + w.OUTBOX_TAKEN]
                cost = charge(c, actor, tuples, m[node + w.NODE_IN_WINDOW] - compared, results)
                take_results(c, node, now + cost)
                if state == w.IDLE and results == 0 and m[node + w.NODE_PHASE] == phase:
                    at[actor] = NEVER
                    continue
                at[actor] = c.free[actor] = now + cost
                c.busy[actor] += cost
                wake_others(c, actor, now + cost)
            elif actor < driver:
                at[actor] = deliver(c, actor - nodes)
            else:
                at[driver] = move_driver(c)
                for i in range(len(c.wires)):
                    if c.wires[i, SENDER] < 0:
                        note_messages(c, i, now + c.costs[HOP], now + c.costs[HOP])
                if m[m[w.HEADER_FEED] + w.FEED_WAY] != w.TO_LANES:
                    for k in range(nodes):
                        wake(c, k, now)

    return run
