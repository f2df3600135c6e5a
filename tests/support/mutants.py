"""Protocols that are broken on purpose, each by one change of its source, to see that the simulator finds out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import pytest

from counterflow.code_sources import module_from_text
from counterflow.engines.local import stamps
from counterflow.lab.replay import loaded
from counterflow.lab.simulator.cases import Case, random_case
from counterflow.lab.simulator.run_words import TOO_MUCH
from counterflow.lab.simulator.schedules import KINDS
from counterflow.lab.simulator.simulation import Outcome, Schedule, Simulation
from counterflow.lab.simulator.stepping import Parts
from counterflow.protocols import words
from counterflow.protocols.registry import MODULES, protocol
from counterflow.spec.window_sizes import Window
from counterflow.windows.times import horizon_of

PACKAGE = Path(words.__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    """`old` is replaced by `new` in the last of `through`, modules that import each other, or in the algorithm's.

    The feed and the collector are the same for all algorithms: `through` then names one of them, and the algorithm is
    one that cannot do with what has changed. So it is with the sources that add tuples to a gate themselves. `failure`
    is what the simulator has to say, where only one of its checks can find it.
    """

    algorithm: str
    name: str
    old: str
    new: str
    through: tuple[str, ...] = ()
    failure: int | None = None

    def __str__(self) -> str:
        return f"{self.algorithm}: {self.name}"

    def parts(self) -> Parts:
        """Return what is simulated: the algorithm's step, the feed and the collector, one of them changed."""
        if self.through[:1] == ("protocols.feed",):
            return Parts(protocol(self.algorithm).step, feed=self._compiled(list(self.through)).feed)
        if self.through[:1] == ("protocols.sources",):
            step_source = self._compiled(list(self.through)).step_source
            return Parts(protocol(self.algorithm).step, step_source=step_source)
        if self.through[:1] == ("protocols.collect",):
            return Parts(protocol(self.algorithm).step, collect=self._compiled(list(self.through)).collect)
        return Parts(self._compiled([f"protocols.{MODULES[self.algorithm]}", *self.through]).step)

    def _compiled(self, chain: list[str]) -> ModuleType:
        """Compile copies of the modules: the changed one, and those between it and the first."""
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
            module = module_from_text(renamed[name], text)
        return module


Found: TypeAlias = tuple[Case, Schedule, Outcome, Simulation]


def hunt(mutant: Mutant, cases: int = 200, seeds: int = 2) -> Found | None:
    """Return the first case and schedule under which the mutant fails."""
    return first_failure(mutant.algorithm, mutant.parts(), cases, seeds)


def first_failure(algorithm: str, parts: Parts | None = None, cases: int = 200, seeds: int = 2) -> Found | None:
    """Return the first case and schedule under which an algorithm fails, with its own parts or others."""
    for number in range(cases):
        case = random_case(number, (algorithm,))
        simulation = Simulation(case, parts)
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
        patch.setattr(stamps, "horizon_of", far)
        if not noticed:
            patch.setattr(loaded, "check_horizons", lambda *batches: None)
        yield


MUTANTS = [
    # --- Kang's procedure
    Mutant(
        "kang",
        "invalidates before it scans",
        "    state = store_and_scan(m, node)\n",
        "    expire(m, m[node + w.NODE_SEGMENT], m[node + w.NODE_EXPIRED])\n"
        "    expire(m, m[node + w.NODE_SEGMENT + 1], m[node + w.NODE_EXPIRED + 1])\n"
        "    state = store_and_scan(m, node)\n",
    ),
    Mutant(
        "kang",
        "forgets one tuple too soon",
        "expire(m, m[node + w.NODE_SEGMENT], m[node + w.NODE_EXPIRED])",
        "expire(m, m[node + w.NODE_SEGMENT], m[node + w.NODE_EXPIRED] + 1)",
    ),
    # --- CellJoin
    Mutant(
        "celljoin",
        "the coordinator does not wait",
        "        if not all_done(m, node_at(m, k), lefts, rights):\n",
        "        if nodes < 0 and not all_done(m, node_at(m, k), lefts, rights):\n",
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
        "hand_on(m, m[node + w.NODE_TO_RIGHT], w.ACKNOWLEDGEMENT, first + count, 0)",
        "hand_on(m, m[node + w.NODE_TO_RIGHT], w.ACKNOWLEDGEMENT, first + count + 1, 0)",
    ),
    Mutant(
        "handshake",
        "left tuples are taken out before the end",
        "    first, end = m[left + w.SEGMENT_FIRST_ROW], m[left + w.SEGMENT_NEXT_ROW]\n",
        "    expire(m, left, m[node_at(m, m[w.HEADER_NODES] - 1) + w.NODE_EXPIRED + w.LEFT])\n"
        "    first, end = m[left + w.SEGMENT_FIRST_ROW], m[left + w.SEGMENT_NEXT_ROW]\n",
    ),
    Mutant(
        "handshake",
        "forgets one tuple too soon",
        "expire(m, left, m[node + w.NODE_EXPIRED + w.LEFT])",
        "expire(m, left, m[node + w.NODE_EXPIRED + w.LEFT] + 1)",
    ),
    Mutant(
        "handshake",
        "hands the newest tuples on first",
        "hand_on(m, m[node + w.NODE_TO_RIGHT], w.ARRIVAL, first, count)",
        "hand_on(m, m[node + w.NODE_TO_RIGHT], w.ARRIVAL, end - count, count)",
    ),
    Mutant(
        "handshake",
        "says that a right tuple is done with when it is handed on",
        "store_release(m, node + w.NODE_DONE + w.RIGHT, m[right + w.SEGMENT_FIRST_ROW])",
        "store_release(m, node + w.NODE_DONE + w.RIGHT, forwarded)",
    ),
    Mutant(
        "handshake",
        "takes left tuples out when the input has ended",
        "        if m[node + w.NODE_EXPIRED + w.LEFT] > first and end > first:\n",
        "        done = load_acquire(m, w.HEADER_FINISHED) != 0\n"
        "        if done and m[node + w.NODE_EXPIRED + w.LEFT] > first and end > first:\n",
        failure=TOO_MUCH,
    ),
    Mutant(
        "handshake",
        "takes right tuples out when the input has ended",
        "        if m[node + w.NODE_EXPIRED + w.RIGHT] > oldest and end > oldest:\n",
        "        done = load_acquire(m, w.HEADER_FINISHED) != 0\n"
        "        if done and m[node + w.NODE_EXPIRED + w.RIGHT] > oldest and end > oldest:\n",
        failure=TOO_MUCH,
    ),
    # --- low-latency handshake join
    Mutant(
        "llhj",
        "right tuples are not kept until they are acknowledged",
        "        m[node + w.NODE_PHASE] = KEEP\n"
        "    if not store(m, node, m[node + w.NODE_SEGMENT + w.RIGHT], first, count):",
        "        expire(m, m[node + w.NODE_TRANSIT], first + count)\n"
        "        m[node + w.NODE_PHASE] = KEEP\n"
        "    if not store(m, node, m[node + w.NODE_SEGMENT + w.RIGHT], first, count):",
    ),
    Mutant(
        "llhj",
        "acknowledges one tuple too many",
        "hand_on(m, m[node + w.NODE_TO_RIGHT], w.ACKNOWLEDGEMENT, first + count, 0)",
        "hand_on(m, m[node + w.NODE_TO_RIGHT], w.ACKNOWLEDGEMENT, first + count + 1, 0)",
    ),
    Mutant(
        "llhj",
        "no expedition flag",
        "first, count, m[node + NODE_EXPEDITED], ALL_FRESH)",
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
        "    expire(m, m[node + w.NODE_SEGMENT + w.RIGHT], first)\n",
        "    expire(m, m[node + w.NODE_SEGMENT + w.RIGHT], first + 1)\n",
    ),
    Mutant(
        "llhj",
        "the high-water mark rises when a tuple is handed on",
        "    m[node + NODE_EXPIRED_AFTER + side] = expired\n",
        "    m[node + NODE_EXPIRED_AFTER + side] = expired\n"
        "    store_release(m, node + w.NODE_DONE + side, first + count)\n",
    ),
    # --- DP-Join
    Mutant(
        "dpjoin",
        "the fastest reader decides what is overwritten",
        "    for i in range(1, m[segment + w.SEGMENT_SHARERS]):\n",
        "    for i in range(1, 1):\n",
        ("protocols.node",),
    ),
    Mutant(
        "dpjoin",
        "notifies the next worker before the tuple is written",
        "        m[node + w.NODE_PHASE] = MATCH\n"
        "    if not search(m, node, m[node + w.NODE_SEGMENT + 1 - side], first, count, EVERYTHING, ALL_FRESH):\n"
        "        return outcome(m, node)\n",
        "        m[node + w.NODE_PHASE] = MATCH\n"
        "    if m[node + w.NODE_PHASE] == MATCH:\n"
        "        if not search(m, node, m[node + w.NODE_SEGMENT + 1 - side], first, count, EVERYTHING, ALL_FRESH):\n"
        "            return outcome(m, node)\n"
        "        m[node + w.NODE_PHASE] = MATCH + 1\n"
        "    if not store(m, node, m[node + w.NODE_SEGMENT + side], first, count):\n"
        "        return outcome(m, node)\n",
    ),
    Mutant(
        "dpjoin",
        "is done with a tuple when it has handed it on",
        "        m[node + w.NODE_PHASE] = MATCH\n",
        "        m[node + w.NODE_PHASE] = MATCH\n"
        "        stride, offset = numbering(m[node + w.NODE_STAMPS + side])\n"
        "        store_release(m, node + w.NODE_DONE + side, (first + count) * stride + offset)\n",
    ),
    # --- ScaleJoin
    Mutant(
        "scalejoin",
        "a result is ready one tuple too soon",
        "    advance(m, gate, k, left + right - 1)\n",
        "    advance(m, gate, k, left + right)\n",
        ("protocols.output_gate",),
    ),
    Mutant(
        "scalejoin",
        "all threads store the same tuples",
        "        take_expiries(m, node)\n",
        "        take_expiries(m, node)\n        m[m[node + w.NODE_SEGMENT] + w.SEGMENT_OFFSET] = 0\n",
    ),
    Mutant("scalejoin", "results are not sorted", "        sort_results(m, node)\n", ""),
    Mutant(
        "scalejoin",
        "a thread that has found nothing promises nothing",
        "    advance(m, gate, k, left",
        "    if m[box + w.OUTBOX_ROWS] < 0:\n        advance(m, gate, k, left",
        ("protocols.output_gate",),
    ),
    Mutant(
        "scalejoin",
        "forgets tuples before those that meet them have come",
        " and front(m, ring, 3) <= m[node + w.NODE_DONE] + m[node + w.NODE_DONE + 1]:",
        ":",
    ),
    # --- physical sources, and nodes that stamp their tuples
    Mutant(
        "scalejoin",
        "a source's tuples are ready too soon: more of the same time may follow",
        "reach(m, k, last, added)",
        "reach(m, k, last + 1, added)",
        ("protocols.sources",),
    ),
    Mutant(
        "scalejoin",
        "a source promises its frontier before all tuples are added",
        "    if added == m[source + w.SOURCE_WRITTEN]:\n",
        "    if added <= m[source + w.SOURCE_WRITTEN]:\n",
        ("protocols.sources",),
    ),
    Mutant(
        "scalejoin",
        "a source is forgotten when it is asked what is ready",
        "    for source in range(load(words, gate + SOURCES)):\n        time = load_acquire",
        "    for source in range(load(words, gate + SOURCES) - 1):\n        time = load_acquire",
        ("protocols.own_stamps", "lockfree.scale_gate"),
    ),
    Mutant(
        "scalejoin",
        "tuples of two sources that are tied come as they were added",
        "(node_time == time and load(words, node + TIE) < tie)",
        "node_time == time",
        ("protocols.sources", "lockfree.scale_gate"),
    ),
    Mutant(
        "scalejoin",
        "a node's horizon is behind a tuple at the window's edge",
        "times[first & (slots - 1)] < oldest:",
        "times[first & (slots - 1)] <= oldest:",
        ("protocols.own_stamps", "protocols.past"),
    ),
    Mutant(
        "scalejoin",
        "a node forgets what a tuple of the same time still meets",
        "    left, right = horizon(m, past_at(m, node, w.LEFT), time), horizon(m, past_at(m, node, w.RIGHT), time)\n",
        "    left, right = horizon(m, past_at(m, node, w.LEFT), time), horizon(m, past_at(m, node, w.RIGHT), time)\n"
        "    left = horizon(m, past_at(m, node, w.LEFT), time + 1)\n",
        ("protocols.own_stamps",),
    ),
    Mutant(
        "scalejoin",
        "a node takes a tuple again and again",
        "        m[node + NODE_STANDS_ON] = 0\n        taken += 1\n",
        "        taken += 1\n",
        ("protocols.own_stamps",),
    ),
    # --- the feed, which all of them share
    Mutant(
        "llhj",
        "what has expired is told by the last tuple of a batch, not by the first",
        "    before = low_of(m, f, side, first)\n",
        "    before = low_of(m, f, side, end - 1)\n",
        ("protocols.feed",),
    ),
    Mutant(
        "kang",
        "what expires after all that is offered is told before it is sent",
        "    if opposite == m[f + w.FEED_OFFERED + 1 - side]:\n",
        "    if opposite <= m[f + w.FEED_OFFERED + 1 - side]:\n",
        ("protocols.feed",),
    ),
    Mutant(
        "dpjoin",
        "a message is sent twice",
        "            try_send(m, m[head + w.HEAD_RING], w.ARRIVAL, place, stop - place, 0)\n",
        "            try_send(m, m[head + w.HEAD_RING], w.ARRIVAL, place, stop - place, 0)\n"
        "            try_send(m, m[head + w.HEAD_RING], w.ARRIVAL, place, stop - place, 0)\n",
        ("protocols.feed",),
    ),
    Mutant(
        "kang",
        "a left tuple is fed before the right one that comes before it",
        "        if middle + newest + 1 < rank:\n",
        "        if middle + newest + 1 <= rank:\n",
        ("protocols.feed",),
    ),
    Mutant(
        "celljoin",
        "tuples are sent again",
        "    note_sent(m, f, left, right)\n    return True\n",
        "    note_sent(m, f, left, m[f + w.FEED_SENT + 1])\n    return True\n",
        ("protocols.feed",),
    ),
    Mutant(
        "scalejoin",
        "the gate gets a left tuple before the right one that comes before it",
        "left_high[left & mask] < right)",
        "left_high[left & mask] <= right)",
        ("protocols.feed",),
    ),
    # --- the collector
    Mutant(
        "llhj",
        "a rank is complete when one side is done with it",
        "sooner == (m[c + w.COLLECT_BOTH] == 0)",
        "sooner == (m[c + w.COLLECT_BOTH] != 0)",
        ("protocols.collect",),
    ),
    Mutant(
        "handshake",
        "a rank is complete when its tuple has left, though one before it has not",
        "        return left, right\n    opposite",
        "        return left, right\n    number += 1\n    opposite",
        ("protocols.collect",),
    ),
    Mutant(
        "dpjoin",
        "only the first node is asked how far it is",
        "        m[c + w.COLLECT_DONE + side] = progress(m, side)\n",
        "        m[c + w.COLLECT_DONE + side] = load_acquire(m, node_at(m, 0) + w.NODE_DONE + side)\n",
        ("protocols.collect",),
    ),
]
