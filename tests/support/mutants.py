"""Protocols that are broken on purpose, each by one change of its source, to see that the simulator finds out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from counterflow.code_sources import module_from_text
from counterflow.engines.local import arrivals
from counterflow.lab.replay import feeding
from counterflow.lab.simulator.cases import Case, random_case
from counterflow.lab.simulator.run_words import TOO_MUCH
from counterflow.lab.simulator.schedules import KINDS
from counterflow.lab.simulator.simulation import Outcome, Schedule, Simulation
from counterflow.protocols import words
from counterflow.spec.window_sizes import Window
from counterflow.windows.times import horizon_of

PACKAGE = Path(words.__file__).parents[1]
MODULES = {
    "kang": "protocols.kang",
    "celljoin": "protocols.celljoin",
    "handshake": "protocols.handshake",
    "llhj": "protocols.low_latency",
    "dpjoin": "protocols.dp_join",
    "scalejoin": "protocols.scale_join",
}


@dataclass(frozen=True)
class Mutant:
    """`old` is replaced by `new` in the last of `through`, modules that import each other, or in the algorithm's.

    `failure` is what the simulator has to say, where only one of its checks can find it.
    """

    algorithm: str
    name: str
    old: str
    new: str
    through: tuple[str, ...] = ()
    failure: int | None = None

    def __str__(self) -> str:
        return f"{self.algorithm}: {self.name}"

    def step(self) -> Any:
        """Compiled from copies of the modules: the changed one, and those between it and the algorithm."""
        chain = [MODULES[self.algorithm], *self.through]
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:16]
        renamed: dict[str, str] = {}
        for name in reversed(chain):
            path = PACKAGE / (name.replace(".", "/") + ".py")
            text = path.read_text()
            if name == chain[-1]:
                assert text.count(self.old) == 1, f"{self}: its text occurs {text.count(self.old)} times in {path}"
                text = text.replace(self.old, self.new)
            for before, after in renamed.items():
                text = text.replace(f"from counterflow.{before} import", f"from {after} import")
            renamed[name] = f"counterflow_mutant_{digest}_{path.stem}"
            values = {word: vars(words)[word] for word in vars(words) if word.isupper()}
            module = module_from_text(renamed[name], text, **values)
        return module.step


Found: TypeAlias = tuple[Case, Schedule, Outcome, Simulation]


def hunt(mutant: Mutant, cases: int = 200, seeds: int = 2) -> Found | None:
    """Return the first case and schedule under which the mutant fails."""
    return first_failure(mutant.algorithm, mutant.step(), cases, seeds)


def first_failure(algorithm: str, step: Any = None, cases: int = 200, seeds: int = 2) -> Found | None:
    """Return the first case and schedule under which an algorithm fails, with its own `step` or another one."""
    for number in range(cases):
        case = random_case(number, (algorithm,))
        simulation = Simulation(case, step)
        for seed, kind in product(range(seeds), KINDS):
            outcome = simulation.run(schedule := Schedule(kind, seed))
            if not outcome.ok:
                return case, schedule, outcome, simulation
    return None


@contextmanager
def horizons_beyond_what_has_arrived(noticed: bool = False) -> Iterator[None]:
    """Stamp tuples as it was done once: where a window is zero and open, with horizons behind ties still to come.

    A driver takes a horizon for a bound of what has expired. It looks at them first, unless they go by unnoticed.
    """

    def far(window: Window, times: Any, arrived: Any, first_from: Callable[[Any], Any]) -> Any:
        if window.reach is None or window.reach >= 0:
            return horizon_of(window, times, arrived, first_from)
        return first_from(times + 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrivals, "horizon_of", far)
        if not noticed:
            patch.setattr(feeding, "check_horizons", lambda *batches: None)
        yield


MUTANTS = [
    # --- Kang's procedure
    Mutant(
        "kang",
        "invalidates before it scans",
        "    state = store_and_scan(m, node)\n",
        "    expire(m, m[node + SEGMENT], m[node + EXPIRED])\n"
        "    expire(m, m[node + SEGMENT + 1], m[node + EXPIRED + 1])\n"
        "    state = store_and_scan(m, node)\n",
    ),
    Mutant(
        "kang",
        "forgets one tuple too soon",
        "expire(m, m[node + SEGMENT], m[node + EXPIRED])",
        "expire(m, m[node + SEGMENT], m[node + EXPIRED] + 1)",
    ),
    # --- CellJoin
    Mutant(
        "celljoin",
        "the coordinator does not wait",
        "    for k in range(1, nodes):\n        if load_acquire(m, node_at(m, k) + DONE) < lefts",
        "    for k in range(1, 1):\n        if load_acquire(m, node_at(m, k) + DONE) < lefts",
    ),
    Mutant(
        "celljoin", "parts overlap", "first + size * (k + 1) // nodes", "min(first + size * (k + 1) // nodes + 1, end)"
    ),
    # --- handshake join
    Mutant(
        "handshake",
        "right tuples are not kept until they are acknowledged",
        "            forwarded += count\n",
        "            forwarded += count\n            expire(m, right, forwarded)\n",
    ),
    Mutant(
        "handshake",
        "acknowledges one tuple too many",
        "try_send(m, m[node + TO_RIGHT], ACKNOWLEDGEMENT, first + count, 0, 0)",
        "try_send(m, m[node + TO_RIGHT], ACKNOWLEDGEMENT, first + count + 1, 0, 0)",
    ),
    Mutant(
        "handshake",
        "left tuples are taken out before the end",
        "    first, end = m[left + FIRST_ROW], m[left + NEXT_ROW]\n",
        "    expire(m, left, m[node_at(m, m[NODES] - 1) + EXPIRED + LEFT])\n"
        "    first, end = m[left + FIRST_ROW], m[left + NEXT_ROW]\n",
    ),
    Mutant(
        "handshake",
        "forgets one tuple too soon",
        "expire(m, left, m[node + EXPIRED + LEFT])",
        "expire(m, left, m[node + EXPIRED + LEFT] + 1)",
    ),
    Mutant(
        "handshake",
        "hands the newest tuples on first",
        "try_send(m, m[node + TO_RIGHT], ARRIVAL, first, count, 0)",
        "try_send(m, m[node + TO_RIGHT], ARRIVAL, end - count, count, 0)",
    ),
    Mutant(
        "handshake",
        "says that a right tuple is done with when it is handed on",
        "store_release(m, node + DONE + RIGHT, m[right + FIRST_ROW])",
        "store_release(m, node + DONE + RIGHT, forwarded)",
    ),
    Mutant(
        "handshake",
        "takes left tuples out when the input has ended",
        "        if m[node + EXPIRED + LEFT] > first and end > first:\n",
        "        if load_acquire(m, FINISHED) != 0 and m[node + EXPIRED + LEFT] > first and end > first:\n",
        failure=TOO_MUCH,
    ),
    Mutant(
        "handshake",
        "takes right tuples out when the input has ended",
        "        if m[node + EXPIRED + RIGHT] > m[right + FIRST_ROW] and end > m[right + FIRST_ROW]:\n",
        "        done = load_acquire(m, FINISHED) != 0\n"
        "        if done and m[node + EXPIRED + RIGHT] > m[right + FIRST_ROW] and end > m[right + FIRST_ROW]:\n",
        failure=TOO_MUCH,
    ),
    # --- low-latency handshake join
    Mutant(
        "llhj",
        "right tuples are not kept until they are acknowledged",
        "        m[node + PHASE] = KEEP\n    if not store(m, node, m[node + SEGMENT + RIGHT], first, count):",
        "        expire(m, m[node + TRANSIT], first + count)\n"
        "        m[node + PHASE] = KEEP\n    if not store(m, node, m[node + SEGMENT + RIGHT], first, count):",
    ),
    Mutant(
        "llhj",
        "acknowledges one tuple too many",
        "try_send(m, m[node + TO_RIGHT], ACKNOWLEDGEMENT, first + count, 0, 0)",
        "try_send(m, m[node + TO_RIGHT], ACKNOWLEDGEMENT, first + count + 1, 0, 0)",
    ),
    Mutant(
        "llhj",
        "no expedition flag",
        "first, count, m[node + EXPEDITED], ALL_FRESH)",
        "first, count, EVERYTHING, ALL_FRESH)",
    ),
    Mutant(
        "llhj",
        "meets all tuples in transit, not only fresh ones",
        "first, count, EVERYTHING, k):",
        "first, count, EVERYTHING, ALL_FRESH):",
    ),
    Mutant(
        "llhj",
        "forgets one tuple too soon",
        "    expire(m, m[node + SEGMENT + RIGHT], first)\n",
        "    expire(m, m[node + SEGMENT + RIGHT], first + 1)\n",
    ),
    Mutant(
        "llhj",
        "the high-water mark rises when a tuple is handed on",
        "    m[node + EXPIRED_AFTER + side] = expired\n",
        "    m[node + EXPIRED_AFTER + side] = expired\n    store_release(m, node + DONE + side, first + count)\n",
    ),
    # --- DP-Join
    Mutant(
        "dpjoin",
        "the fastest reader decides what is overwritten",
        "    for i in range(1, m[segment + SHARERS]):\n",
        "    for i in range(1, 1):\n",
        ("protocols.node",),
    ),
    Mutant(
        "dpjoin",
        "notifies the next worker before the tuple is written",
        "        m[node + PHASE] = MATCH\n"
        "    if not search(m, node, m[node + SEGMENT + 1 - side], first, count, EVERYTHING, ALL_FRESH):\n"
        "        return outcome(m, node)\n",
        "        m[node + PHASE] = MATCH\n"
        "    if m[node + PHASE] == MATCH:\n"
        "        if not search(m, node, m[node + SEGMENT + 1 - side], first, count, EVERYTHING, ALL_FRESH):\n"
        "            return outcome(m, node)\n"
        "        m[node + PHASE] = MATCH + 1\n"
        "    if not store(m, node, m[node + SEGMENT + side], first, count):\n"
        "        return outcome(m, node)\n",
    ),
    Mutant(
        "dpjoin",
        "is done with a tuple when it has handed it on",
        "        m[node + PHASE] = MATCH\n",
        "        m[node + PHASE] = MATCH\n"
        "        stride, offset = numbering(m[node + STAMPS + side])\n"
        "        store_release(m, node + DONE + side, (first + count) * stride + offset)\n",
    ),
    # --- ScaleJoin
    Mutant(
        "scalejoin",
        "a result is ready one tuple too soon",
        "m[node + COUNT_RIGHT] - 1)",
        "m[node + COUNT_RIGHT])",
        ("protocols.output_gate",),
    ),
    Mutant(
        "scalejoin",
        "all threads store the same tuples",
        "        take_expiries(m, node)\n",
        "        take_expiries(m, node)\n        m[m[node + SEGMENT] + OFFSET] = 0\n",
    ),
    Mutant("scalejoin", "results are not sorted", "        sort_results(m, node)\n", ""),
    Mutant(
        "scalejoin",
        "a thread that has found nothing promises nothing",
        "    advance(m, gate, k, m[node",
        "    if m[box + OUTBOX_ROWS] < 0:\n        advance(m, gate, k, m[node",
        ("protocols.output_gate",),
    ),
    Mutant(
        "scalejoin",
        "forgets tuples before those that meet them have come",
        " and front(m, ring, 3) <= m[node + DONE] + m[node + DONE + 1]:",
        ":",
    ),
]
