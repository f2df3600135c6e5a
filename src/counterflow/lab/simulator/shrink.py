"""A run that fails, made small: fewer tuples, fewer nodes, fewer moves, and still the same kind of failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from counterflow.lab.simulator import run_words as s
from counterflow.lab.simulator import stepping
from counterflow.lab.simulator.cases import Case
from counterflow.lab.simulator.schedules import KINDS
from counterflow.lab.simulator.simulation import Outcome, Schedule, Simulation
from counterflow.lockfree.message_ring import front, waiting
from counterflow.protocols import words as w
from counterflow.protocols.registry import protocol
from counterflow.windows.vectors import Array

SEEDS = 3  # of each kind of schedule, for a case that is smaller
NAMES = {
    w.ARRIVAL: "ARRIVAL",
    w.EXPIRY: "EXPIRY",
    w.ACKNOWLEDGEMENT: "ACKNOWLEDGEMENT",
    w.EXPEDITION_END: "EXPEDITION_END",
    w.BATCH: "BATCH",
    w.TASK: "TASK",
}


@dataclass(frozen=True)
class Shrunk:
    """`trace`: the moves that matter, after which everybody moves in turn; `moves`: all that did something, to read."""

    case: Case
    trace: Array
    outcome: Outcome
    moves: list[str]


def shrink(case: Case, outcome: Outcome, parts: stepping.Parts | None = None) -> Shrunk:
    """Make a run of this case that has failed small."""
    simulation = Simulation(case, parts)
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(case):
            tried = Simulation(candidate, parts)
            found = _fails(tried, outcome.failure)
            if found is not None:
                case, simulation, outcome, smaller = candidate, tried, found, True
                break
    trace = _shorter(simulation, outcome)
    outcome = simulation.replay(trace)
    return Shrunk(case, trace, outcome, describe(simulation, outcome))


def _smaller(case: Case) -> Iterator[Case]:
    """Yield simpler cases, the smallest first."""
    for nodes in sorted({1, 2, case.nodes // 2, case.nodes - 1}):
        if 0 < nodes < case.nodes:
            layout = (1, nodes) if case.layout[0] == 1 else (nodes, 1)
            yield replace(case, nodes=nodes, layout=layout if protocol(case.algorithm).matrix else (1, 1))
    for sources in sorted({(min(a, case.sources[0]), min(b, case.sources[1])) for a in (1, 2) for b in (1, 2)}):
        if 0 < sum(sources) < sum(case.sources):
            yield replace(case, sources=sources)
    for option in ("left_rows", "right_rows"):
        count = getattr(case, option)
        for rows in sorted({1, count // 2, count * 3 // 4, count - 1}):
            if 0 < rows < count:
                yield replace(case, **{option: rows})
    for simple in (replace(case, batch_rows=1), replace(case, access="scan"), replace(case, in_flight=4)):
        if simple != case:
            yield simple


def _fails(simulation: Simulation, failure: int) -> Outcome | None:
    for seed, kind in product(range(SEEDS), KINDS):
        outcome = simulation.run(Schedule(kind, seed))
        if outcome.failure == failure:
            return outcome
    return None


def _shorter(simulation: Simulation, outcome: Outcome) -> Array:
    """Leave out as many moves as possible: halves, quarters, ... single ones (delta debugging)."""
    trace, size = outcome.trace, max(len(outcome.trace), 1)
    while size > 0:
        at, before = 0, len(trace)
        while at < len(trace):
            rest = np.delete(trace, slice(at, at + size))
            if simulation.replay(rest).failure == outcome.failure:
                trace = rest
            else:
                at += size
        size = size // 2 if size > 1 or len(trace) == before else 1
    return trace


def describe(simulation: Simulation, outcome: Outcome) -> list[str]:
    """Return a line for each move of the run that did something, and one for how it ended."""
    simulation.state[:] = 0
    simulation.begin()
    move, lines = stepping.mover(simulation.parts), []
    for choice in outcome.trace.tolist():
        actor, line = choice & 0xFFFF, _line(simulation, choice & 0xFFFF)
        before = simulation.state.copy(), _found(simulation), _sent(simulation)
        moved = move(simulation.stage, actor, choice >> 16)
        if moved == w.NEEDS:
            simulation.attend(actor)
        if moved == w.WORKED:
            lines.append(line + _result(simulation, actor, *before))
    return [*lines, outcome.detail or "the join has ended"]


def _line(simulation: Simulation, actor: int) -> str:
    """Say what an actor is about to do."""
    nodes, wires, m = simulation.case.nodes, simulation.machine.wires, simulation.m
    if actor < nodes:
        return f"node {actor} steps"
    if actor < nodes + len(wires):
        wire = wires[actor - nodes]
        names = "driver" if wire.sender < 0 else wire.sender, wire.receiver
        if waiting(m, wire.sent) == 0:
            return ""
        kind, first, second = (front(m, wire.sent, field) for field in range(3))
        side = "left" if wire.rightwards else "right"
        text = {
            w.ARRIVAL: f" of {side} {first}" + (f" to {first + second - 1}" if second > 1 else ""),
            w.BATCH: f" up to left {first}, right {second}",
        }.get(kind, f" before {first}")
        return f"queue {names[0]} -> {names[1]} delivers {NAMES[kind]}{text}"
    if actor == len(simulation.directions) - 1:
        return "collector"
    return f"source {actor - nodes - len(wires)}" if any(simulation.case.sources) else "driver"


def _found(simulation: Simulation) -> int:
    return sum(int(simulation.m[node + w.NODE_PAIRS]) for node in simulation.machine.nodes)


def _sent(simulation: Simulation) -> int:
    """Return how many tuples nodes were sent, or sources have added."""
    m, machine = simulation.m, simulation.machine
    return sum(int(m[source + w.SOURCE_ADDED]) for source in machine.sources) or int(m[machine.feed + w.FEED_AT])


def _result(simulation: Simulation, actor: int, state: Array, found: int, sent: int) -> str:
    """Say what it has done."""
    after, actors = simulation.state, len(simulation.directions)
    if actor == actors - 1:
        taken = int(after[s.PAIRS] - state[s.PAIRS])
        pairs = simulation.out[: taken * w.RESULT_WORDS].reshape(-1, w.RESULT_WORDS)[:, 1:3].tolist()
        text = f" takes {', '.join(f'left {le} and right {ri}' for le, ri in pairs)}" if taken else ""
        rises = after[s.PUNCTUATION] > state[s.PUNCTUATION]
        return text + (
            f"{',' if taken else ''} says that all is complete before rank {after[s.PUNCTUATION]}" if rises else ""
        )
    if actor >= actors - 1 - simulation.drivers and any(simulation.case.sources):
        return _of_source(simulation, actor - (actors - 1 - simulation.drivers), _sent(simulation) - sent)
    if actor == actors - 2:
        if _sent(simulation) > sent:
            return f" releases tuples up to rank {_sent(simulation)}"
        return " says that nothing more comes" if after[s.FINISHED] > state[s.FINISHED] else " says what has expired"
    new = _found(simulation) - found
    return f", finds {new} pair{'s' if new > 1 else ''}" if actor < simulation.case.nodes and new else ""


def _of_source(simulation: Simulation, k: int, added: int) -> str:
    """Say what a source has done that has added some tuples, or none."""
    m, source = simulation.m, simulation.machine.sources[k]
    first = int(m[source + w.SOURCE_ADDED]) - added
    if added:
        times = simulation.machine.source_rings[k].times[first : first + added].tolist()
        return f" adds {added} tuple{'s' if added > 1 else ''} of time {', '.join(map(str, times))}"
    waiting = int(m[source + w.SOURCE_WRITTEN]) - first
    if waiting:
        return f" has {waiting} more to add"
    return " ends" if m[source + w.SOURCE_OWES] else " promises what follows from them"
