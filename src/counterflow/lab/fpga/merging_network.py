"""Result FIFOs and the merging network: a tree of mergers that each move one result per clock (A.4).

              output
                |
             [merger]          a FIFO, and control logic that reads from the FIFOs below it
             /      \\
        [merger]  [merger]     full: what is below waits
         / | \\     / | \\
        =  =  =   =  =  =      the cores' FIFOs

FIFOs are numbered from the cores' own, level by level, to the one at the top. Which of its inputs a merger reads is
decided by a round-robin token-passing arbiter: the first that has something, beginning with the holder of the token,
which then goes to the one after it. So nobody waits for more than one turn of each of its neighbours.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from counterflow.jit import compiled, inlined

Words = np.ndarray[Any, np.dtype[np.int64]]
NOTHING = -1


class Network(NamedTuple):
    """All FIFOs, and for each merger the FIFOs it reads from."""

    entries: Words  # [fifo, slot]
    head: Words  # the slot of the oldest entry
    held: Words  # entries
    held_max: Words  # the most that there have been
    first_input: Words
    inputs: Words  # none for the FIFO of a core
    token: Words  # the input that is asked first


def network_of(levels: list[int], fifo_slots: int) -> Network:
    """Return an empty network with these FIFOs on each level; a level's mergers differ by at most one input."""
    fifos = sum(levels)
    network = Network(np.zeros((fifos, fifo_slots), np.int64), *(np.zeros(fifos, np.int64) for _ in range(6)))
    below, merger = 0, levels[0]
    for width, mergers in pairwise(levels):
        for k in range(mergers):
            first, end = k * width // mergers, (k + 1) * width // mergers
            network.first_input[merger], network.inputs[merger] = below + first, end - first
            merger += 1
        below += width
    return network


@inlined
def push(network: Network, fifo: int, entry: int) -> bool:
    """Append an entry; return False where there is no room."""
    slots = network.entries.shape[1]
    if network.held[fifo] == slots:
        return False
    network.entries[fifo, (network.head[fifo] + network.held[fifo]) % slots] = entry
    network.held[fifo] += 1
    network.held_max[fifo] = max(network.held_max[fifo], network.held[fifo])
    return True


@inlined
def pop(network: Network, fifo: int) -> int:
    """Remove and return the oldest entry, or return NOTHING."""
    if network.held[fifo] == 0:
        return NOTHING
    entry: int = network.entries[fifo, network.head[fifo]]
    network.head[fifo] = (network.head[fifo] + 1) % network.entries.shape[1]
    network.held[fifo] -= 1
    return entry


@compiled
def arbitrate(network: Network, merger: int) -> int:
    """Return the input whose turn it is, or NOTHING where none has an entry."""
    inputs, first = network.inputs[merger], network.token[merger]
    for turn in range(inputs):
        chosen = (first + turn) % inputs
        fifo: int = network.first_input[merger] + chosen
        if network.held[fifo] > 0:
            network.token[merger] = (chosen + 1) % inputs
            return fifo
    return NOTHING


@compiled
def merge(network: Network) -> int:
    """Run one clock of the whole network, and return what comes out at the top, or NOTHING.

    From the top down, so that all mergers see what was there when the clock ticked: an entry rises one level, and a
    full FIFO that delivers also accepts.
    """
    fifos, slots = network.entries.shape
    delivered = pop(network, fifos - 1)
    for fifo in range(fifos - 1, -1, -1):
        if network.inputs[fifo] == 0:  # from here on the FIFOs of cores
            break
        if network.held[fifo] < slots:
            chosen = arbitrate(network, fifo)
            if chosen != NOTHING:
                push(network, fifo, pop(network, chosen))
    return delivered
