"""The order of cores along the sockets, on made-up machines, and how it is read from the system's files."""

from __future__ import annotations

import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from counterflow import cores
from counterflow.cores import Topology, in_line, pin_thread, read_topology, usable_cores

# Made up, in the manner of Figure 14 of handshake join's paper: eight regions, 0 and 3 (and others) two hops apart.
LINKS = {(0, 1), (0, 2), (0, 4), (0, 6), (1, 3), (1, 5), (1, 7), (2, 3), (2, 4), (2, 6), (3, 5), (3, 7), (4, 5),
         (4, 6), (5, 7), (6, 7)}  # fmt: skip


def one_hop(a: int, b: int) -> bool:
    return (a, b) in LINKS or (b, a) in LINKS


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_sockets_that_take_turns():
    """Even cores on one socket, odd ones on the other: a row of nodes crosses once."""
    topology = Topology([range(0, 8, 2), range(1, 8, 2)], [[10, 21], [21, 10]])
    assert in_line(range(8), topology) == [0, 2, 4, 6, 1, 3, 5, 7]
    assert in_line([1, 2, 3, 6], topology) == [2, 6, 1, 3]  # a process that may use only some


def test_logical_cores_come_second_and_on_the_way_back():
    """
    real core     0  1 | 2  3
    logical       0  1 | 2  3
                  4  5 | 6  7        the fifth node is beside the fourth
    """
    siblings = {core: core % 4 for core in range(8)}
    topology = Topology([[0, 1, 4, 5], [2, 3, 6, 7]], [[10, 20], [20, 10]], siblings)
    assert in_line(range(8), topology) == [0, 1, 2, 3, 7, 6, 5, 4]
    assert in_line([0, 4, 5], topology) == [0, 5, 4]


def test_eight_regions_by_single_hops():
    distances = [[10 if a == b else 16 if one_hop(a, b) else 22 for b in range(8)] for a in range(8)]
    line = in_line(range(48), Topology([range(6 * i, 6 * i + 6) for i in range(8)], distances))
    way = [core // 6 for core in line[::6]]
    assert sorted(line) == list(range(48)) and sorted(way) == list(range(8))
    assert all(one_hop(a, b) for a, b in pairwise(way))


def test_what_no_region_has_comes_last():
    assert in_line([0, 1, 2, 3], Topology([[2, 3]], [[10]])) == [2, 3, 0, 1]
    assert in_line([0, 1], Topology([], [])) == [0, 1]


def test_the_system_tells_regions(tmp_path):
    files = {f"cpu/cpu{c}/topology/thread_siblings_list": f"{c % 4},{c % 4 + 4}" for c in range(8)}
    nodes = {
        "node/node0/cpulist": "0-1,4-5",
        "node/node0/distance": "10 17 32",
        "node/node1/cpulist": "",  # memory alone
        "node/node1/distance": "17 10 28",
        "node/node10/cpulist": "2,3,6,7",
        "node/node10/distance": "32 28 10",
    }
    found = read_topology(range(8), write(tmp_path, files | nodes))
    assert found.regions == [[0, 1, 4, 5], [2, 3, 6, 7]] and found.distances == [[10, 32], [32, 10]]
    assert in_line(range(8), found) == [0, 1, 2, 3, 7, 6, 5, 4]


def test_sockets_where_there_are_no_regions(tmp_path):
    files = {f"cpu/cpu{c}/topology/physical_package_id": str(c % 2) for c in range(4)}
    assert in_line(range(4), read_topology(range(4), write(tmp_path, files))) == [0, 2, 1, 3]


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"node/node0/cpulist": "nonsense", "node/node0/distance": "10"},
        {"node/node0/cpulist": "0-3", "node/node0/distance": "10 20"},  # of two regions, and there is one
        {"node/node0/cpulist": "0-3"},
        {"cpu/cpu0/topology/thread_siblings_list": "0-", "cpu/cpu1/topology/physical_package_id": "x"},
    ],
)
def test_what_cannot_be_read_is_done_without(tmp_path, files):
    assert in_line(range(4), read_topology(range(4), write(tmp_path, files))) == [0, 1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned here")
def test_threads_are_pinned_along_the_line(monkeypatch):
    line = list(reversed(usable_cores()))
    monkeypatch.setattr(cores, "_line", lambda _: line)
    found = []

    def run(k: int) -> None:
        pin_thread(k)
        found.append(os.sched_getaffinity(0))

    for k in range(len(line) + 1):
        thread = threading.Thread(target=run, args=(k,))
        thread.start()
        thread.join()
    assert found == [{core} for core in [*line, line[0]]]
