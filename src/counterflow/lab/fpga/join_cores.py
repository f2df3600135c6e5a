"""The join cores in lock step: two shift registers in opposite directions, and a scan of every segment at once.

        left  ->  [ core 0 ] -> [ core 1 ] -> ... -> [ core n-1 ] ->  expired
     expired  <-  [        ] <- [        ] <- ... <- [          ] <-  right

A tuple that is admitted shifts its whole register by one row. So every core has a new row in its segment, handed on by
its neighbour, and compares it with its segment of the opposite window, one row per cycle (A.2). Two tuples meet in the
core in which they are first side by side: once, if the earlier was still in its window when the later came.

If a tuple of each stream is admitted at once, the left one is first. Its register shifts when the scans begin, the
right one when they end; until then each right tuple on its way is compared from the line between two cores. That is
what shifting and scanning one after the other would find, in half the time.

When both streams have ended, rows that are not valid push the left tuples by all they have not met.

A shift register is kept as the list of all that was ever shifted in: row `p` is the p-th before its end.
"""

from __future__ import annotations

from typing import NamedTuple

from counterflow.jit import compiled, inlined
from counterflow.lab.fpga.merging_network import NOTHING, Network, Words, merge, pop, push

LEFT, RIGHT = 0, 1
NOT_VALID = -1  # in a register: a row without a tuple
LOST = -1  # instead of a cycle: never admitted, never delivered

# --- words of `state`
CYCLE = 0
SCANNED = 1  # cycles of the current scan that are over
SCANNING = 2  # two: whether a tuple of this side was shifted in for the current scan
TAKEN = 4  # two: tuples of this side that were admitted or discarded
SHIFTED = 6  # two: rows that were shifted into this side's register
FLUSHED = 8
THROTTLED = 9  # cycles in which a tuple was due, and a core throttled
FOUND, DELIVERED, DROPPED = 10, 11, 12
MERGE_PHASE = 13
OVERFLOWN = 14  # results for which a FIFO had no room: the throttle is there to keep this at zero
STATE_WORDS = 15

# --- columns of `results`
RESULT_LEFT, RESULT_RIGHT, RESULT_CORE, FOUND_CYCLE, DELIVERED_CYCLE = 0, 1, 2, 3, 4
RESULT_WORDS = 5

BOTH, EITHER = 0, 1  # admission
WAIT, DISCARD_INPUT, DROP_RESULTS = 0, 1, 2  # overload


class Settings(NamedTuple):
    """What a circuit is built with."""

    cores: int
    cycles_per_tuple: int
    evaluators: int
    reserve: int
    flush: int  # rows that push out the left window
    admission: int
    overload: int
    low: int  # a pair matches if low <= left key - right key <= high
    high: int
    merge_ticks: int  # of the merging network in every `merge_cycles`
    merge_cycles: int


class Chip(NamedTuple):
    """The state of a circuit at work; arrays of two rows are for left and right."""

    state: Words
    first: Words  # [side, core]: the first row of the core's segment
    end: Words
    keys: Words  # [side, tuple]
    arrivals: Words  # [side, tuple]: the cycle from which on it waits before the chip
    tuples: Words  # [side]
    admitted: Words  # [side, tuple]: the cycle in which it entered its window, or LOST
    register: Words  # [side, shift]: the tuple that was shifted in, or NOT_VALID
    compared: Words  # [core]: pairs of valid tuples
    results: Words


@inlined
def due(chip: Chip, side: int) -> bool:
    """Say whether a tuple waits before the chip."""
    taken = chip.state[TAKEN + side]
    return bool(taken < chip.tuples[side] and chip.arrivals[side, taken] <= chip.state[CYCLE])


@inlined
def shift_in(chip: Chip, side: int, tuple_: int) -> None:
    chip.register[side, chip.state[SHIFTED + side]] = tuple_
    chip.state[SHIFTED + side] += 1
    chip.state[SCANNING + side] = 1


@inlined
def take(chip: Chip, side: int, discard: bool) -> None:
    """Take the oldest tuple that waits into its window, or discard it."""
    taken = chip.state[TAKEN + side]
    if not discard:
        shift_in(chip, side, taken)
        chip.admitted[side, taken] = chip.state[CYCLE]
    chip.state[TAKEN + side] = taken + 1


@compiled
def make_room(settings: Settings, chip: Chip, network: Network, drop: bool) -> bool:
    """Say whether some core throttles. With `drop`, none does afterwards: its oldest results are gone."""
    throttle = False
    held_max = network.entries.shape[1] - settings.reserve
    for core in range(settings.cores):
        while network.held[core] > held_max:
            throttle = True
            if not drop:
                return True
            pop(network, core)
            chip.state[DROPPED] += 1
    return throttle


@compiled
def admit(settings: Settings, chip: Chip, network: Network) -> None:
    """Admit tuples for the next scan: the admission controller (A.3)."""
    state = chip.state
    left, right = due(chip, LEFT), due(chip, RIGHT)
    ended = state[TAKEN] == chip.tuples[LEFT] and state[TAKEN + 1] == chip.tuples[RIGHT]
    flush = ended and state[FLUSHED] < settings.flush
    if not left and not right and not flush:
        return
    if settings.admission == EITHER and left and right:  # in the order in which they came
        left = chip.arrivals[LEFT, state[TAKEN]] <= chip.arrivals[RIGHT, state[TAKEN + 1]]
        right = not left
    discard = False
    if make_room(settings, chip, network, settings.overload == DROP_RESULTS):
        state[THROTTLED] += 1
        if settings.overload == WAIT or (settings.overload == DISCARD_INPUT and flush):
            return
        discard = settings.overload == DISCARD_INPUT
    if left:
        take(chip, LEFT, discard)
    if right:
        take(chip, RIGHT, discard)
    if flush:
        shift_in(chip, LEFT, NOT_VALID)
        state[FLUSHED] += 1


@inlined
def row(chip: Chip, side: int, position: int, before: int) -> int:
    """Return the tuple that was in this row of a register `before` shifts ago."""
    index = chip.state[SHIFTED + side] - before - 1 - position
    return chip.register[side, index] if index >= 0 else NOT_VALID


@inlined
def emit(chip: Chip, network: Network, core: int, left: int, right: int) -> None:
    state, number = chip.state, chip.state[FOUND]
    result = chip.results[number]
    result[RESULT_LEFT], result[RESULT_RIGHT], result[RESULT_CORE] = left, right, core
    result[FOUND_CYCLE], result[DELIVERED_CYCLE] = state[CYCLE], LOST
    state[FOUND] += 1
    if not push(network, core, number):
        state[OVERFLOWN] += 1


@inlined
def compare(settings: Settings, chip: Chip, network: Network, core: int, side: int) -> None:
    """Compare, for one cycle of one core, the row that is new on `side` with the next rows of the opposite segment."""
    new = row(chip, side, chip.first[side, core], 0)
    if new == NOT_VALID:
        return
    opposite = 1 - side
    before = chip.state[SCANNING + RIGHT] if side == LEFT else 0  # the right register shifts after the scan
    begin = chip.first[opposite, core] + chip.state[SCANNED] * settings.evaluators
    for position in range(begin, min(begin + settings.evaluators, chip.end[opposite, core])):
        other = row(chip, opposite, position, before)
        if other != NOT_VALID:
            chip.compared[core] += 1
            left, right = (new, other) if side == LEFT else (other, new)
            if settings.low <= chip.keys[LEFT, left] - chip.keys[RIGHT, right] <= settings.high:
                emit(chip, network, core, left, right)


@compiled
def scan(settings: Settings, chip: Chip, network: Network) -> None:
    """Run one cycle of all cores."""
    state = chip.state
    for side in range(2):
        if state[SCANNING + side] == 1:
            for core in range(settings.cores):
                compare(settings, chip, network, core, side)
    state[SCANNED] += 1
    if state[SCANNED] == settings.cycles_per_tuple:
        state[SCANNED] = state[SCANNING] = state[SCANNING + 1] = 0


@inlined
def collect(settings: Settings, chip: Chip, network: Network, delivered: Words) -> None:
    """Run the merging network as often as its clock ticks in this cycle of the cores."""
    state = chip.state
    state[MERGE_PHASE] += settings.merge_ticks
    while state[MERGE_PHASE] >= settings.merge_cycles:
        state[MERGE_PHASE] -= settings.merge_cycles
        number = merge(network)
        if number != NOTHING:
            chip.results[number, DELIVERED_CYCLE] = state[CYCLE]
            delivered[state[DELIVERED]] = number
            state[DELIVERED] += 1


@inlined
def next_arrival(chip: Chip) -> int:
    cycle = -1
    for side in range(2):
        taken = chip.state[TAKEN + side]
        if taken < chip.tuples[side] and (cycle < 0 or chip.arrivals[side, taken] < cycle):
            cycle = chip.arrivals[side, taken]
    return cycle


@compiled
def run(settings: Settings, chip: Chip, network: Network, delivered: Words) -> bool:
    """Run until all is delivered; return False if the arrays may be too short for the next cycle's results.

    FIFOs are read before they are written: a result that is found in this cycle rises from the next one on.
    """
    state = chip.state
    room = len(delivered) - 2 * settings.cores * settings.evaluators
    while state[FOUND] <= room:
        collect(settings, chip, network, delivered)
        idle = state[SCANNING] + state[SCANNING + 1] == 0
        if idle:
            admit(settings, chip, network)
            idle = state[SCANNING] + state[SCANNING + 1] == 0
        if not idle:
            scan(settings, chip, network)
        state[CYCLE] += 1
        if idle and state[FOUND] == state[DELIVERED] + state[DROPPED] + state[OVERFLOWN]:
            arrival = next_arrival(chip)
            if arrival > state[CYCLE]:  # nothing happens until then
                skipped = arrival - state[CYCLE]
                state[CYCLE] = arrival
                state[MERGE_PHASE] = (state[MERGE_PHASE] + skipped * settings.merge_ticks) % settings.merge_cycles
            elif arrival < 0 and state[FLUSHED] == settings.flush:
                return True
    return False
