"""Two streams through a circuit, cycle by cycle: `simulate`."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from counterflow.errors import InputError
from counterflow.lab.fpga import join_cores as c
from counterflow.lab.fpga.circuit import Circuit
from counterflow.lab.fpga.join_cores import Chip, Settings, run
from counterflow.lab.fpga.merging_network import Network, Words, network_of

FIRST_RESULTS = 1024  # room for results at first; doubled when they are more


@dataclass(frozen=True)
class CircuitOutcome:
    """What became of all tuples and results. Cycles are those of the cores' clock; -1 is never."""

    circuit: Circuit
    cycles: int  # until the last result was out
    throttled_cycles: int  # in which a tuple was due, and a core throttled
    left_admitted: Words  # for each tuple the cycle in which it entered its window; discarded: -1
    right_admitted: Words
    left: Words  # for each result the number of its left tuple; results in the order in which they were found
    right: Words
    core: Words
    found_cycle: Words
    delivered_cycle: Words  # dropped: -1
    delivered: Words  # numbers of results, in the order in which they left the chip
    compared: Words  # pairs that each core compared
    fifo_rows_max: Words  # the most results that waited in each FIFO: the cores', then the mergers'

    @property
    def discarded(self) -> tuple[int, int]:
        """Tuples of each stream that were not let in."""
        return int((self.left_admitted < 0).sum()), int((self.right_admitted < 0).sum())

    @property
    def dropped_results(self) -> int:
        return len(self.left) - len(self.delivered)

    @property
    def input_cycles(self) -> int:
        """The cycles until the last admitted tuple's scan was over."""
        last = max(self.left_admitted.max(initial=-1), self.right_admitted.max(initial=-1))
        return 0 if last < 0 else int(last) + self.circuit.cycles_per_tuple

    @property
    def tuples_per_s(self) -> float:
        """The admitted tuples: each stream's if both are admitted at once, otherwise both's (as in the formula)."""
        admitted = [int((cycles >= 0).sum()) for cycles in (self.left_admitted, self.right_admitted)]
        tuples = max(admitted) if self.circuit.admission == "both" else sum(admitted)
        return tuples * self.circuit.clock_hz / self.input_cycles if tuples else 0.0

    def pairs(self) -> list[tuple[int, int]]:
        """Return the numbers of left and right tuples, as their pairs left the chip."""
        return list(zip(self.left[self.delivered].tolist(), self.right[self.delivered].tolist(), strict=True))


def steady(tuples: int, tuples_per_s: float, circuit: Circuit) -> Words:
    """Return the arrival cycles of a stream with this rate."""
    return (np.arange(tuples) * (circuit.clock_hz / tuples_per_s)).astype(np.int64)


def simulate(
    circuit: Circuit,
    left_keys: ArrayLike,
    right_keys: ArrayLike,
    left_arrivals: ArrayLike | None = None,
    right_arrivals: ArrayLike | None = None,
    *,
    band: int | tuple[int, int] = 0,
) -> CircuitOutcome:
    """Send all tuples through the circuit, then push those left in the windows past the ones they have not met.

    Keys are 32-bit integers (A.2). A pair matches if its keys differ by at most `band`, or if left minus right is in
    the range `band`; 0 is the papers' equi-join. Arrivals are cycles in ascending order; without them all tuples wait
    before the chip from the start.
    """
    keys = [_keys(left_keys, "left"), _keys(right_keys, "right")]
    arrivals = [_arrivals(left_arrivals, len(keys[0]), "left"), _arrivals(right_arrivals, len(keys[1]), "right")]
    settings, chip = _settings(circuit, band), _chip(circuit, keys, arrivals)
    network, delivered = network_of(circuit.levels, circuit.fifo_slots), np.zeros(0, np.int64)
    done = False
    while not done:
        rows = max(2 * len(delivered), FIRST_RESULTS + 2 * circuit.cores * circuit.evaluators)
        chip, delivered = chip._replace(results=_longer(chip.results, rows)), _longer(delivered, rows)
        done = run(settings, chip, network, delivered)
    assert chip.state[c.OVERFLOWN] == 0, "a FIFO had no room for a result"
    assert chip.state[c.FOUND] == chip.state[c.DELIVERED] + chip.state[c.DROPPED], "a result was lost"
    return _outcome(circuit, chip, network, delivered)


def _outcome(circuit: Circuit, chip: Chip, network: Network, delivered: Words) -> CircuitOutcome:
    found = chip.results[: chip.state[c.FOUND]]
    return CircuitOutcome(
        circuit,
        cycles=int(chip.state[c.CYCLE]),
        throttled_cycles=int(chip.state[c.THROTTLED]),
        left_admitted=chip.admitted[c.LEFT, : chip.tuples[c.LEFT]],
        right_admitted=chip.admitted[c.RIGHT, : chip.tuples[c.RIGHT]],
        left=found[:, c.RESULT_LEFT],
        right=found[:, c.RESULT_RIGHT],
        core=found[:, c.RESULT_CORE],
        found_cycle=found[:, c.FOUND_CYCLE],
        delivered_cycle=found[:, c.DELIVERED_CYCLE],
        delivered=delivered[: chip.state[c.DELIVERED]],
        compared=chip.compared,
        fifo_rows_max=network.held_max,
    )


def _settings(circuit: Circuit, band: int | tuple[int, int]) -> Settings:
    low, high = band if isinstance(band, tuple) else (-band, band)
    common = gcd(circuit.clock_hz, circuit.merge_clock_hz)
    return Settings(
        cores=circuit.cores,
        cycles_per_tuple=circuit.cycles_per_tuple,
        evaluators=circuit.evaluators,
        reserve=circuit.reserve,
        flush=circuit.left_window,
        admission={"both": c.BOTH, "either": c.EITHER}[circuit.admission],
        overload={"wait": c.WAIT, "discard_input": c.DISCARD_INPUT, "drop_results": c.DROP_RESULTS}[circuit.overload],
        low=low,
        high=high,
        merge_ticks=circuit.merge_clock_hz // common,
        merge_cycles=circuit.clock_hz // common,
    )


def _chip(circuit: Circuit, keys: list[Words], arrivals: list[Words]) -> Chip:
    rows = max(len(side) for side in keys)
    left, right = circuit.segments()
    right = right[::-1]  # from the last core on
    return Chip(
        state=np.zeros(c.STATE_WORDS, np.int64),
        first=np.array([left[:-1], right[1:]], np.int64),
        end=np.array([left[1:], right[:-1]], np.int64),
        keys=_two_rows(keys, rows),
        arrivals=_two_rows(arrivals, rows),
        tuples=np.array([len(side) for side in keys], np.int64),
        admitted=np.full((2, rows), c.LOST, np.int64),
        register=np.full((2, rows + circuit.left_window), c.NOT_VALID, np.int64),
        compared=np.zeros(circuit.cores, np.int64),
        results=np.zeros((0, c.RESULT_WORDS), np.int64),
    )


def _two_rows(sides: list[Words], rows: int) -> Words:
    table = np.zeros((2, rows), np.int64)
    for side, values in enumerate(sides):
        table[side, : len(values)] = values
    return table


def _longer(array: Words, rows: int) -> Words:
    return np.concatenate([array, np.zeros((rows - len(array), *array.shape[1:]), np.int64)])


def _integers(values: ArrayLike, what: str) -> Any:
    array = np.asarray(values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise InputError(f"{what}: expected one column of integers, not {array.dtype} of shape {array.shape}")
    return array


def _keys(values: ArrayLike, side: str) -> Words:
    keys = _integers(values, f"{side} keys")
    if len(keys) and (keys.min() < -(2**31) or keys.max() >= 2**31):
        raise InputError(f"{side} keys: the circuit has 32-bit keys, and these go from {keys.min()} to {keys.max()}")
    return keys.astype(np.int64)


def _arrivals(values: ArrayLike | None, tuples: int, side: str) -> Words:
    if values is None:
        return np.zeros(tuples, np.int64)
    arrivals = _integers(values, f"{side} arrivals").astype(np.int64)
    if len(arrivals) != tuples:
        raise InputError(f"{side} arrivals: {len(arrivals)} for {tuples} tuples")
    if len(arrivals) and (arrivals[0] < 0 or (np.diff(arrivals) < 0).any()):
        raise InputError(f"{side} arrivals: cycles must be ascending, from 0 on")
    return arrivals
