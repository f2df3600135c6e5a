"""One actor moves at a time, the one that the schedule says: nodes, queues, the driver or sources, the collector.

The nodes are those of the local engine, and so are the feed and the collector: the same compiled code over the same
memory. A queue between two nodes has two halves here, and delivers a message when it is chosen. After each move the
checks look at what has changed.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from counterflow.jit import compiled, inlined
from counterflow.lab.simulator.checks import (
    check_all_found,
    check_forgotten,
    check_memory,
    check_result,
    check_turn,
)
from counterflow.lab.simulator.run_words import (
    CHOICES,
    CLOSED,
    FAILED_AT,
    FAILED_WITH,
    FAILURE,
    FINISHED,
    NOTHING,
    PAIRS,
    PUNCTUATION,
    REPLAYED,
    RESTING,
    STUCK,
    TOO_LONG,
)
from counterflow.lab.simulator.schedules import chance, choose
from counterflow.lockfree.message_ring import front, pop, room, try_send, waiting
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.collect import collect, complete_rank
from counterflow.protocols.feed import feed, finish, is_dry
from counterflow.protocols.node import words_at
from counterflow.protocols.sources import source_at, step_source
from counterflow.windows.vectors import Array

# --- what does not change during a run: words of `rules`
FORGETS, ORDERED, MOST, TOTAL, RIGHTS, KIND, AMOUNT, LIMIT = 0, 1, 2, 4, 5, 6, 7, 8
TIDY = 9  # whether nodes that are at rest hold nothing that has expired
DRIVERS = 10  # 1, or how many sources there are
RULES = 16
RUNNING, ENDED, NEEDS, FAILED = 0, 1, 2, 3  # how far a run is
SENT, RECEIVED = 0, 1  # a row of `wires`
LEFTS, RIGHTS_BEFORE, LEFT_BOUND, RIGHT_BOUND = 0, 1, 2, 3  # a row of `ends`


class Stage(NamedTuple):
    """What a move looks at, and what it changes."""

    m: Words  # the machine's memory
    state: Words  # what has happened so far: `run_words`
    rules: Words
    ends: Array  # by rank: the left and right tuples before it, and those of them that no tuple from it on meets
    totals: Words  # how many left and right tuples there are
    lows: Array  # their horizons, by side and number
    source_totals: Words  # how many tuples each source has
    wires: Array
    carried: Words  # by wire: the next tuple that it should carry
    out: Words
    expected: Words  # by pair: whether it is a result
    counts: Words  # by pair: how often it was found


@cache
def driver_mover(feed: Any) -> Any:
    """Return the driver's move: some tuples come, and the feed sends what it may; at the end, say that it is the end.

    Tuples lie ready in memory, as a user's do when a source has delivered them; here chance decides how many at a time.
    """

    @compiled
    def move_driver(s: Stage, amount: int) -> bool:
        m, f = s.m, s.m[w.HEADER_FEED]
        if is_dry(m):
            rank = m[f + w.FEED_OFFERED] + m[f + w.FEED_OFFERED + 1]
            if rank == s.rules[TOTAL]:
                if s.state[FINISHED] != 0:
                    return False
                finish(m)
                s.state[FINISHED] = 1
                return True
            offer(s, f, min(rank + amount, s.rules[TOTAL]))
            feed(m, amount)
            return True
        return feed(m, amount) == w.WORKED

    return move_driver


@inlined
def offer(s: Stage, f: int, rank: int) -> None:
    """Let the tuples before this rank lie ready, and say what those after them do not meet."""
    for side in range(2):
        s.m[f + w.FEED_OFFERED + side] = s.ends[rank, side]
        s.m[f + w.FEED_BOUND + side] = s.ends[rank, LEFT_BOUND + side]


@cache
def source_mover(step_source: Any) -> Any:
    """Return a source's move: some of its tuples come, or it adds them to the gate, or it promises; at last it ends.

    Sources know nothing of each other. Where an even number of tuples comes, the next one's time is known already: then
    the source promises all before it.
    """

    @compiled
    def move_source(s: Stage, k: int, amount: int) -> bool:
        m, source = s.m, source_at(s.m, k)
        written, total = m[source + w.SOURCE_WRITTEN], s.source_totals[k]
        if step_source(m, k, amount) == w.WORKED:
            return True
        if m[source + w.SOURCE_ADDED] < written or m[source + w.SOURCE_ENDED] != 0:
            return False  # no room, or it has ended
        written = min(written + amount, total)
        if m[source + w.SOURCE_WRITTEN] == total:
            m[source + w.SOURCE_ENDED], m[source + w.SOURCE_OWES] = 1, 1
            s.state[CLOSED] += 1
            s.state[FINISHED] = s.state[CLOSED] == s.rules[DRIVERS]
        elif amount % 2 == 0 and written < total:
            m[source + w.SOURCE_FRONTIER] = words_at(m[source + w.SOURCE_TIMES], total)[written]
        m[source + w.SOURCE_WRITTEN] = written
        return True

    return move_source


@compiled
def move_wire(s: Stage, wire: int) -> bool:
    """Deliver the oldest message of a queue, if the receiver's half has room."""
    m, ring, target = s.m, s.wires[wire, SENT], s.wires[wire, RECEIVED]
    if waiting(m, ring) == 0 or room(m, target) == 0:
        return False
    s.state[FAILURE] = check_turn(m, ring, s.carried, wire)
    try_send(m, target, front(m, ring, 0), front(m, ring, 1), front(m, ring, 2), front(m, ring, 3))
    pop(m, ring)
    return True


@cache
def collector_mover(collect: Any) -> Any:
    """Return the collector's move: take what nodes have found. What is complete then is a punctuation after it."""

    @compiled
    def move_collector(s: Stage) -> bool:
        m, state, rules = s.m, s.state, s.rules
        taken = collect(m, s.out, len(s.out) // w.RESULT_WORDS)
        for i in range(taken):
            result = s.out[i * w.RESULT_WORDS : (i + 1) * w.RESULT_WORDS]
            failure = check_result(m, result, state, s.expected, s.counts, rules[RIGHTS], rules[ORDERED] != 0)
            if failure != NOTHING and state[FAILURE] == NOTHING:
                state[FAILURE], state[FAILED_WITH] = failure, result[1] * rules[RIGHTS] + result[2]
        state[PAIRS] += taken
        complete = complete_rank(m)
        news = taken > 0 or complete > state[PUNCTUATION]
        state[PUNCTUATION] = max(complete, state[PUNCTUATION])
        return news

    return move_collector


@inlined
def most_held(s: Stage, side: int) -> int:
    """Return how many tuples of a side the windows may hold now.

    When all nodes know what has expired, and none of them can do anything more, that is what has not expired.
    """
    m, f, nodes = s.m, s.m[w.HEADER_FEED], s.m[w.HEADER_NODES]
    if s.rules[TIDY] != 0 and s.state[RESTING] == (1 << nodes) - 1 and is_dry(m):
        return m[f + w.FEED_SENT + side] - m[f + w.FEED_BOUND + side]
    return s.rules[MOST + side]


@compiled
def check_end(s: Stage) -> bool:
    """Say whether the join has ended; then everything must have been found."""
    if s.state[FINISHED] == 0 or s.state[PUNCTUATION] < s.rules[TOTAL]:
        return False
    s.state[FAILURE] = check_all_found(s.expected, s.counts)
    return True


@compiled
def copy_arrays(table: Array) -> None:
    """Copy words; a row of `table` says from where, to where, and how many."""
    for i in range(len(table)):
        source, target = words_at(table[i, 0], table[i, 2]), words_at(table[i, 1], table[i, 2])
        for word in range(table[i, 2]):
            target[word] = source[word]


class Parts(NamedTuple):
    """The code under test: a protocol's step, the feed, the collector, a source's step; or a mutant of one of them."""

    step: Any
    feed: Any = feed
    collect: Any = collect
    step_source: Any = step_source


@cache
def mover(parts: Parts) -> Any:
    """Return a function that lets one actor move: 0 if it could do nothing, or what a node's step says."""
    step, move_driver, move_collector = parts.step, driver_mover(parts.feed), collector_mover(parts.collect)
    move_source = source_mover(parts.step_source)

    @compiled
    def move(s: Stage, actor: int, amount: int) -> int:
        m, state, nodes, wires = s.m, s.state, s.m[w.HEADER_NODES], len(s.wires)
        if actor < nodes:
            moved = step(m, actor)
            if moved == w.WORKED:
                state[FAILURE] = check_forgotten(m, actor, s.rules[FORGETS], s.totals, s.lows)
        elif actor < nodes + wires:
            moved = w.WORKED if move_wire(s, actor - nodes) else w.IDLE
        elif actor < nodes + wires + s.rules[DRIVERS]:
            for side in range(2):
                state[FAILURE] = max(state[FAILURE], check_memory(m, s.wires, side, most_held(s, side)))
            if m[w.HEADER_SOURCES] != 0:
                moved = w.WORKED if move_source(s, actor - nodes - wires, amount) else w.IDLE
            else:
                moved = w.WORKED if move_driver(s, amount) else w.IDLE
        else:
            moved = w.WORKED if move_collector(s) else w.IDLE
        if moved != w.IDLE:
            state[RESTING] = 0
        elif actor < nodes:
            state[RESTING] |= 1 << actor
        return moved

    return move


@cache
def scheduler(parts: Parts) -> Any:
    """Return a function that lets actors move until the join ends, something is wrong, or a node needs something."""
    move = mover(parts)

    @compiled
    def run(s: Stage, weights: Array, lengths: Words, trace: Words, replayed: int) -> int:
        """`trace` is filled with the choices; the first `replayed` of them are taken from it instead."""
        state, rules = s.state, s.rules
        actors, idle, sweeping = weights.shape[1], 0, 0
        while state[CHOICES] < rules[LIMIT]:
            at = state[CHOICES]
            if sweeping > 0:  # nothing has moved for long: look at all of them
                sweeping -= 1
                actor, amount = sweeping % actors, 1
                state[REPLAYED] = min(state[REPLAYED] + 1, replayed)  # these are in a trace, too
            elif state[REPLAYED] < replayed:
                actor, amount = trace[at] & 0xFFFF, trace[at] >> 16
                state[REPLAYED] += 1
            elif replayed > 0:
                actor, amount = at % actors, 1
            else:
                actor = choose(rules[KIND], state, weights, lengths)
                amount = 1 + chance(state, rules[AMOUNT])
            if at < len(trace):
                trace[at] = actor | amount << 16
            moved = move(s, actor, amount)
            if state[FAILURE] != NOTHING:
                state[FAILED_AT] = actor
                return FAILED
            if moved == w.NEEDS:
                state[FAILED_AT] = actor
                return NEEDS
            state[CHOICES] += 1
            if moved == w.WORKED:
                idle = sweeping = 0
                if check_end(s):
                    return FAILED if state[FAILURE] != NOTHING else ENDED
                continue
            idle += 1
            if idle == 40 * actors:
                sweeping = 4 * actors  # a node that waits, for room or for another one, may have done something before
            elif idle > 40 * actors and sweeping == 0 and state[REPLAYED] >= replayed:
                state[FAILURE] = STUCK
                state[CHOICES] -= 1  # the last one has failed, as where a move does
                return FAILED
        state[FAILURE] = TOO_LONG
        return FAILED

    return run
