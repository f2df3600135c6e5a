"""The cores that this process may use, which of them a thread runs on, and threads that the system may refuse."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

from counterflow.errors import UnsupportedError

SYSTEM = Path("/sys/devices/system")
HERE, AWAY = 10, 20  # distances where the system tells none, as it would


def usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def pin_thread(k: int) -> None:
    """Keep this thread on the k-th core in line (beyond the last, the first again), where the system allows it."""
    try:
        line = _line(tuple(usable_cores()))
        os.sched_setaffinity(0, {line[k % len(line)]})
    except (AttributeError, OSError):
        pass


def start_thread(thread: threading.Thread, needs_it: str, advice: str = "use fewer threads") -> None:
    """Start a thread, or raise an error that says who needs it and what to do."""
    try:
        thread.start()
    except RuntimeError as error:
        raise no_more_threads(needs_it, error, advice) from error


def no_more_threads(needs_it: str, error: RuntimeError, advice: str = "use fewer threads") -> UnsupportedError:
    """Return the error of a thread that could not be started: who needs it, and what to do."""
    return UnsupportedError(
        f"the {needs_it} needs another thread, and the system starts no more ({error}): {advice}, or raise its "
        "limit (ulimit -u)"
    )


# --- which cores are near each other


@dataclass(frozen=True)
class Topology:
    """What lies together: the cores of each memory region, how far regions are apart, and who shares a real core."""

    regions: Sequence[Collection[int]]
    distances: Sequence[Sequence[int]]
    siblings: dict[int, int] = field(default_factory=dict)  # the first of the logical cores on the same real core


def in_line(cores: Sequence[int], topology: Topology) -> list[int]:
    """Return the cores so that those next to each other are near: handshake join's row along the sockets (Section 5.1).

    Region by region, on a short way through them, one logical core of each real one; then the second logical cores on
    the way back, and so on. So a row of nodes crosses from one socket to the next as rarely as can be.
    """
    known = {core for region in topology.regions for core in region}
    parts = [sorted(set(cores) & set(topology.regions[i])) for i in _short_way(topology.distances)]
    parts.append([core for core in cores if core not in known])
    rounds: list[list[int]] = []
    seen: dict[int, int] = {}
    for core in (core for part in parts for core in part):
        real = topology.siblings.get(core, core)
        seen[real] = turn = seen.get(real, -1) + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(core)
    return [core for turn, found in enumerate(rounds) for core in (reversed(found) if turn % 2 else found)]


def _short_way(distances: Sequence[Sequence[int]]) -> list[int]:
    """Return the regions, each followed by the nearest one that is left; from the start that makes the way shortest."""

    def way(start: int) -> list[int]:
        found, left = [start], set(range(len(distances))) - {start}
        while left:
            found.append(min(left, key=lambda i: (distances[found[-1]][i], i)))
            left.remove(found[-1])
        return found

    def length(found: list[int]) -> int:
        return sum(distances[a][b] for a, b in pairwise(found))

    return min((way(start) for start in range(len(distances))), key=length, default=[])


def read_topology(cores: Sequence[int], system: Path = SYSTEM) -> Topology:
    """Return what the system says of these cores: as one region of real cores, where it says nothing."""
    siblings = {core: _listed(system / f"cpu/cpu{core}/topology/thread_siblings_list") for core in cores}
    real = {core: min(others, default=core) for core, others in siblings.items()}
    nodes = sorted(system.glob("node/node[0-9]*"), key=lambda path: int(path.name[4:]))
    regions = [_listed(node / "cpulist") for node in nodes]
    distances = [_numbers(node / "distance") for node in nodes]
    if any(regions) and all(len(row) == len(nodes) for row in distances):
        inhabited = [i for i, region in enumerate(regions) if region]  # others are memory alone
        apart = [[distances[a][b] for b in inhabited] for a in inhabited]
        return Topology([regions[i] for i in inhabited], apart, real)
    sockets: dict[int, list[int]] = {}
    for core in cores:
        package = _numbers(system / f"cpu/cpu{core}/topology/physical_package_id")
        sockets.setdefault(package[0] if package else 0, []).append(core)
    apart = [[HERE if a == b else AWAY for b in sockets] for a in sockets]
    return Topology(list(sockets.values()), apart, real)


@cache
def _line(cores: tuple[int, ...]) -> list[int]:
    return in_line(cores, read_topology(cores))


def _numbers(path: Path) -> list[int]:
    """Return the numbers in a file; none if there is no such file, or something else is in it."""
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []


def _listed(path: Path) -> list[int]:
    """Return the numbers that a file lists in the form '0-3,8'."""
    try:
        ends = [part.partition("-") for part in path.read_text().strip().split(",") if part]
        return [n for first, _, last in ends for n in range(int(first), int(last or first) + 1)]
    except (OSError, ValueError):
        return []
