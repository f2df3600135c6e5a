"""Many cases under many schedules, in several processes; and all interleavings of small ones."""

from __future__ import annotations

import multiprocessing
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

from counterflow.lab.simulator import exhaustive
from counterflow.lab.simulator.cases import Case, random_case
from counterflow.lab.simulator.schedules import KINDS
from counterflow.lab.simulator.simulation import Schedule, Simulation

SEEDS = 5  # of each kind of schedule, for a case: it takes as long to set one up
PER_CASE = SEEDS * len(KINDS)
CASES_AT_ONCE = 12
FIRST_CASE = 1_000_000  # of a seed


@dataclass(frozen=True)
class Failure:
    case: Case
    schedule: Schedule
    nodes: int | None  # that were asked for
    detail: str

    @property
    def command(self) -> str:
        """Return the command that runs it again."""
        asked = [] if self.nodes is None else ["--nodes", str(self.nodes)]
        where = ["--algorithm", self.case.algorithm, *asked, "--case", str(self.case.seed)]
        return shlex.join(["counterflow", "simulate", *where, "--schedule", str(self.schedule)])


@dataclass(frozen=True)
class Part:
    """Some cases, for one process."""

    first: int
    cases: int
    algorithm: str  # one: a process has to load, or to compile, what it needs
    nodes: int | None
    schedules: int


def run_part(part: Part) -> tuple[Counter[str], int, list[Failure]]:
    """How many schedules of each algorithm, how many moves, and what went wrong."""
    done, moves, failures = Counter[str](), 0, list[Failure]()
    for number in range(part.first, part.first + part.cases):
        case = random_case(number, (part.algorithm,), part.nodes)
        simulation = Simulation(case)
        for seed, kind in product(range(number * SEEDS, (number + 1) * SEEDS), KINDS):
            if done.total() == part.schedules:
                break
            outcome = simulation.run(schedule := Schedule(kind, seed))
            done[case.algorithm] += 1
            moves += outcome.choices
            if not outcome.ok:
                failures.append(Failure(case, schedule, part.nodes, outcome.detail))
                break  # of one case, one is enough
    return done, moves, failures


def parts_of(algorithms: tuple[str, ...], schedules: int, nodes: int | None, seed: int) -> Iterator[Part]:
    at, number, index = 0, seed * FIRST_CASE, 0
    while at < schedules:
        count = min(CASES_AT_ONCE * PER_CASE, schedules - at)
        cases = -(-count // PER_CASE)
        yield Part(number, cases, algorithms[index % len(algorithms)], nodes, count)
        at, number, index = at + count, number + cases, index + 1


def run_many(
    algorithms: tuple[str, ...],
    schedules: int,
    nodes: int | None = None,
    seed: int = 0,
    processes: int = 1,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Return a report; its failures are `Failure`s."""
    parts, started = list(parts_of(algorithms, schedules, nodes, seed)), time.perf_counter()
    done, moves, failures = Counter[str](), 0, list[Failure]()
    for counted, moved, failed in _mapped(parts, min(processes, len(parts))):
        done += counted
        moves += moved
        failures += failed
        note(f"{done.total():,} of {schedules:,} schedules, {len(failures)} failures")
    return {
        "schedules": done.total(),
        "cases": sum(part.cases for part in parts),
        "moves": moves,
        "seconds": round(time.perf_counter() - started, 2),
        "algorithms": dict(sorted(done.items())),
        "failures": failures,
    }


def _mapped(parts: list[Part], processes: int) -> Iterator[tuple[Counter[str], int, list[Failure]]]:
    if processes <= 1:
        yield from map(run_part, parts)
        return
    # Not fork: this process may have threads.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(run_part, parts)


def explore_all(algorithms: tuple[str, ...], note: Callable[[str], None]) -> list[dict[str, Any]]:
    """Search all interleavings of small cases of each algorithm, one for each window and number of sources."""
    rows, searched = [], [(name, sources) for name in algorithms for sources in exhaustive.sources_of(name)]
    for (algorithm, sources), window in product(searched, exhaustive.WINDOWS):
        started, case = time.perf_counter(), exhaustive.small_case(algorithm, window=window, sources=sources)
        tuples = f"{case.left_rows} + {case.right_rows} tuples on {case.nodes} nodes"
        tuples += f" of {sources[0]} + {sources[1]} sources" if any(sources) else ""
        note(f"{algorithm}: all interleavings of {tuples}, window {window}")
        found = exhaustive.explore(case)
        rows.append(
            {
                "algorithm": algorithm,
                "window": window,
                "nodes": case.nodes,
                "tuples": [case.left_rows, case.right_rows],
                "sources": list(sources),
                "states": found.states,
                "ends": found.ends,
                "moves": found.moves,
                "moves_longest": found.depth,
                "seconds": round(time.perf_counter() - started, 2),
                "failure": found.detail,
                "verified": found.ok,
            }
        )
    return rows
