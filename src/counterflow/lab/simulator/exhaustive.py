"""All interleavings of a small case: a depth-first search over what can be, each state once.

A state is what decides everything to come: of the memory, the words that nodes, driver and collector look at. Left out
are who waits for whom, statistics, each side's copy of a queue's other end (looked at only where it says no, and then
again), and messages that were taken or are done with. So two ways to the same state are followed once.

The collector moves after every other move. The outboxes hold all that can be found, so nobody waits for it; and
whatever it would see later, it sees so. Windows hold all tuples, so a row, once written, stays what it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from counterflow.jit import compiled, inlined
from counterflow.lab.simulator import run_words as s
from counterflow.lab.simulator.cases import Case
from counterflow.lab.simulator.run_words import FAILURE, NOTHING, STUCK
from counterflow.lab.simulator.simulation import Simulation
from counterflow.lab.simulator.stepping import DRIVERS, NEEDS, RUNNING, Parts, Stage, check_end, collector_mover, mover
from counterflow.lockfree.message_ring import CAPACITY, HEAD, SLOTS, TAIL, WIDTH
from counterflow.lockfree.scale_gate import BLOCKS, HOLD, HOLDS_SEEN, SOURCE_SIZE, gate_size
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.machine import gates_of
from counterflow.protocols.node import node_at
from counterflow.protocols.registry import protocol
from counterflow.spec.window_sizes import rows, window
from counterflow.windows.vectors import Array

ALGORITHMS = ("handshake", "llhj", "dpjoin", "scalejoin")
DEPTH_MAX = 400
STATES_MAX = 1 << 22
MESSAGE_WORDS = (
    w.NODE_KIND,
    w.NODE_FIRST,
    w.NODE_COUNT,
    w.NODE_FIRST_RIGHT,
    w.NODE_COUNT_RIGHT,
    w.NODE_SEARCH,
    w.NODE_OUT_AT,
)
NODE_WORDS = (
    w.NODE_PHASE,
    w.NODE_DONE,
    w.NODE_DONE + 1,
    w.NODE_SIZE,
    w.NODE_SIZE + 1,
    w.NODE_LATEST,
    *range(w.NODE_EXPIRED, w.NODE_MARK + 4),
)
STATE_WORDS = (s.PUNCTUATION, s.FINISHED, s.CLOSED, s.LAST_RANK, s.LAST_EARLIER)
STATES, ENDS, MOVES, DEPTH, DEEPEST, FULL = 0, 1, 2, 3, 4, 5  # what a search says: words of `found`
NEXT, MOVED, DIGEST = 0, 1, 2  # of a level: who moves next, whether anybody could, and the number of its state
ONCE = 1 << 16  # of a trace: a driver releases one tuple


# Windows that tuples leave, or in which there is nothing at all; in a case half of the tuples are at the same time.
WINDOWS = {
    "rows": (rows(1), rows(2)),
    "zero": 0,
    "zero and open": window(0, closed=False),
    "zero and open for right tuples": window(after=2, closed=False),
    "zero and open for left tuples": window(before=2, closed=False),
}


def sources_of(algorithm: str) -> tuple[tuple[int, int], ...]:
    """Return the numbers of sources to search an algorithm with; (0, 0) is a driver."""
    return ((0, 0), (2, 1), (2, 2)) if protocol(algorithm).way == w.TO_GATE else ((0, 0),)


def small_case(algorithm: str, tuples: int = 3, window: str = "rows", sources: tuple[int, int] = (0, 0)) -> Case:
    """Return a case of two nodes and some tuples of each side; all match that are in one of WINDOWS, and some leave it.

    The driver is two tuples ahead, or four where there are not too many states; each of several sources is one ahead.
    """
    ahead = 2 if algorithm in ("llhj", "scalejoin") else 4
    return Case(
        algorithm,
        2,
        layout=(1, 2) if protocol(algorithm).matrix else (1, 1),
        in_flight=1 if any(sources) else ahead,
        predicate="everything",
        window=WINDOWS[window],
        left_rows=tuples,
        right_rows=tuples,
        seed=1,
        sources=sources,
    )


@dataclass(frozen=True)
class Exploration:
    """What a search has found. `trace`: the way to the failure, if there is one."""

    case: Case
    states: int
    ends: int
    moves: int
    depth: int
    failure: int
    trace: Array

    @property
    def ok(self) -> bool:
        return self.failure == NOTHING

    @property
    def detail(self) -> str:
        return s.MEANINGS.get(self.failure, "")


def explore(case: Case, parts: Parts | None = None) -> Exploration:
    """Follow every way in which the case can go on, as far as the first failure."""
    simulation = Simulation(replace(case, access="scan", outbox_rows=64), parts)
    tuples = max(case.left_rows, case.right_rows)
    if any(segment.capacity < tuples for segment in simulation.machine.segments.values() if segment.shares is None):
        raise ValueError(f"windows are too small for {tuples} tuples")
    simulation.begin()
    arrays = simulation.m, simulation.state, simulation.carried, simulation.counts
    stack = np.zeros((DEPTH_MAX, sum(map(len, arrays))), np.int64)
    visited, levels = np.zeros(2 * STATES_MAX, np.int64), np.zeros((DEPTH_MAX, 3), np.int64)
    found = np.zeros(8, np.int64)
    ended = searcher(simulation.parts)(simulation.stage, _looked_at(simulation), stack, levels, visited, found)
    if ended == NEEDS or found[FULL]:
        raise ValueError(f"this case is too large to be searched: {found[STATES]:,} states so far")
    collector = len(simulation.directions) - 1
    moves = levels[: found[DEPTH], NEXT] - 1
    trace = np.stack([moves, np.full_like(moves, collector)], axis=1).reshape(-1) | ONCE
    states, ends, moves_in_all, deepest = (int(found[word]) for word in (STATES, ENDS, MOVES, DEEPEST))
    return Exploration(case, states, ends, moves_in_all, deepest, int(simulation.state[FAILURE]), trace)


def _looked_at(simulation: Simulation) -> Array:
    """Return the words of the memory that decide what happens, but for queues."""
    machine, m = simulation.machine, simulation.m
    places = [w.HEADER_FINISHED]
    places += [machine.feed + word for word in range(w.FEED_OFFERED, w.FEED_CLAIMED)]
    places += [machine.collector + word for word in range(w.COLLECT_BOTH)]
    for k, node in enumerate(machine.nodes):
        places += [node + word for word in NODE_WORDS]
        places += [
            segment + word for segment in machine.segments_of(k) for word in (w.SEGMENT_FIRST_ROW, w.SEGMENT_NEXT_ROW)
        ]
    for word, sizes in gates_of(machine.design):
        gate = int(m[word])
        places += sorted({*range(gate, gate + gate_size(*sizes))} - _of_insertions(m, gate, sizes[0]))
    for source in machine.sources:
        places += range(source + w.SOURCE_WRITTEN, source + w.SOURCE_WORDS)
    for past in machine.pasts:
        places += range(past + w.PAST_FIRST, past + w.PAST_WORDS)
    return np.array(places, np.int64)


def _of_insertions(m: Words, gate: int, sources: int) -> set[int]:
    """Return the words of a gate that count insertions: between two moves none is under way, so they decide nothing."""
    blocks = [gate + BLOCKS + source * int(m[gate + SOURCE_SIZE]) for source in range(sources)]
    return {own + word for own in blocks for word in (HOLD, *range(HOLDS_SEEN, HOLDS_SEEN + sources))}


@inlined
def mixed(digest: int, word: int) -> int:
    digest = (digest ^ word) * 0x2545F4914F6CDD1D
    return digest ^ ((digest >> 29) & 0x7FFFFFFFF)


@compiled
def digest_of(stage: Stage, looked_at: Words) -> int:
    """Return a number for a state; two states have the same one only by a chance of one in 10^19."""
    m, wires = stage.m, stage.wires
    digest = 88172645463325252
    for i in range(len(looked_at)):
        digest = mixed(digest, m[looked_at[i]])
    for k in range(m[w.HEADER_NODES]):
        node = node_at(m, k)
        if m[node + w.NODE_PHASE] != 0:
            for i in range(len(MESSAGE_WORDS)):
                digest = mixed(digest, m[node + MESSAGE_WORDS[i]])
    for wire in range(len(wires)):
        for half in range(2):
            ring = wires[wire, half]
            digest = mixed(digest, m[ring + TAIL] - m[ring + HEAD])
            for message in range(m[ring + HEAD], m[ring + TAIL]):
                slot = ring + SLOTS + (message & (m[ring + CAPACITY] - 1)) * WIDTH
                for word in range(WIDTH):
                    digest = mixed(digest, m[slot + word])
    for i in range(len(STATE_WORDS)):
        digest = mixed(digest, stage.state[STATE_WORDS[i]])
    for words in (stage.carried, stage.counts):
        for i in range(len(words)):
            digest = mixed(digest, words[i])
    return digest | 1  # 0 is an empty place


@inlined
def is_new(visited: Words, digest: int) -> bool:
    """Say whether a state is seen for the first time."""
    place = (digest >> 7) & (len(visited) - 1)
    while visited[place] != 0:
        if visited[place] == digest:
            return False
        place = (place + 1) & (len(visited) - 1)
    visited[place] = digest
    return True


@compiled
def exchange(saved: Words, stage: Stage, back: bool) -> None:
    """Save all that changes, or take it `back`."""
    at = 0
    for words in (stage.m, stage.state, stage.carried, stage.counts):
        for i in range(len(words)):
            if back:
                words[i] = saved[at + i]
            else:
                saved[at + i] = words[i]
        at += len(words)


@cache
def searcher(parts: Parts) -> Any:
    """Return the search through all states that these parts can bring about."""
    move, move_collector = mover(parts), collector_mover(parts.collect)

    @compiled
    def search(stage: Stage, looked_at: Words, stack: Array, levels: Array, visited: Words, found: Words) -> int:
        """Try, level by level, all who may move from the state that is saved there."""
        state = stage.state
        # The last ones are the driver, or the sources.
        actors, level = stage.m[w.HEADER_NODES] + len(stage.wires) + stage.rules[DRIVERS], 0
        levels[0, DIGEST] = digest_of(stage, looked_at)
        is_new(visited, levels[0, DIGEST])
        exchange(stack[0], stage, False)
        found[STATES] = 1
        while level >= 0:
            actor = levels[level, NEXT]
            if actor == actors:
                if levels[level, MOVED] == 0:
                    state[FAILURE], found[DEPTH] = STUCK, level
                    return RUNNING
                level -= 1
                continue
            levels[level, NEXT] += 1
            exchange(stack[level], stage, True)
            said = move(stage, actor, 1)
            if said == w.NEEDS:
                return NEEDS
            found[MOVES] += 1
            if state[FAILURE] == NOTHING:
                move_collector(stage)
            ended = state[FAILURE] == NOTHING and check_end(stage)
            if state[FAILURE] != NOTHING:
                found[DEPTH] = level + 1
                return RUNNING
            digest = digest_of(stage, looked_at)
            levels[level, MOVED] |= digest != levels[level, DIGEST]
            if not is_new(visited, digest):
                continue
            found[STATES] += 1
            if ended:
                found[ENDS] += 1
                continue
            if level + 1 == len(levels) or found[STATES] == STATES_MAX:
                found[FULL] = 1
                return RUNNING
            level += 1
            found[DEEPEST] = max(found[DEEPEST], level)
            exchange(stack[level], stage, False)
            levels[level, NEXT], levels[level, MOVED], levels[level, DIGEST] = 0, 0, digest
        return RUNNING

    return search
