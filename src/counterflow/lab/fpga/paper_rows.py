"""Rows for the papers' FPGA figures and tables: what the model gives, beside what the papers say.

A column that begins with `paper_` is the papers'; one that begins with `given_` is a constant of theirs that the model
takes as it is (no model of cycles can tell how fast a chip may be clocked, or how warm it gets); all others are
computed. `simulated_` ones were counted in a simulation, the rest follow from formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from counterflow.lab.fpga.chip import TABLE_1, fifo_share, weighted_by_area
from counterflow.lab.fpga.circuit import Circuit, Overload
from counterflow.lab.fpga.clocked_circuit import CircuitOutcome, simulate, steady

Row = dict[str, Any]

SEED = 18
PAPER_CLOCK_MHZ = (150, 170)  # SIGMOD, 6.4: the range of Figure 18's clocks; no single values in the text
PAPER_MERGE_CLOCK_HZ = 83_000_000  # A.5
PAPER_THROUGHPUT = 500_000  # SIGMOD, 6.5
PAPER_TABLE_1_TOTAL_MW = {1: 4498, 2: 4459, 5: 4447, 10: 4464}
PAPER_TABLE_2_MW = {1: (100, 68, 168), 2: (64, 69, 133), 5: (62, 88, 150), 10: (68, 120, 188)}
PAPER_FIGURE_13 = {100: "the highest clock frequency", 150: "a lower throughput than with 100 cores"}  # A.5


def saturated(circuit: Circuit, tuples: int, values: int) -> CircuitOutcome:
    """Simulate tuples that all wait before the chip, with keys uniform over `values` values."""
    keys = np.random.default_rng(SEED).integers(0, values, (2, tuples))
    return simulate(circuit, keys[0], keys[1])


def figure_18(cores: Sequence[int] = (1, 25, 50, 75, 100, 125, 150, 175, 200), fan_in: int = 7) -> list[Row]:
    """Return rows for segments of 8 rows a core and window (SIGMOD; Figure 10 of the first report).

    A core's load stays the same. The papers plot the clock; the model says what it is good for, and how much of the
    chip the result FIFOs take. With fan-ins from 2 to 8, as in the papers, 200 cores fit with 7 and 8 only, and only 7
    takes more than 96 % of the FIFOs for them.
    """
    rows = []
    for n in cores:
        low, high = (Circuit(n, 8 * n, 8 * n, fan_in=fan_in, clock_hz=mhz * 1_000_000) for mhz in PAPER_CLOCK_MHZ)
        rows.append(
            {
                "cores": n,
                "window_rows": low.left_window,
                "cycles_per_tuple": low.cycles_per_tuple,
                "simulated_cycles_per_tuple": _cycles_per_tuple(low),
                "given_clock_mhz_min": PAPER_CLOCK_MHZ[0],
                "given_clock_mhz_max": PAPER_CLOCK_MHZ[1],
                "tuples_per_s_min": low.tuples_per_s,
                "tuples_per_s_max": high.tuples_per_s,
                "result_fifos": low.fifos,
                "fifo_share": fifo_share(low),
                "paper_chip_share_above": 0.96 if n == 200 else None,
            }
        )
    return rows


def figure_13(cores: Sequence[int] = (1, 2, 5, 10, 20, 50, 100, 150, 200), clock_hz: int = 150_000_000) -> list[Row]:
    """Return rows for windows of 1,000 rows on more and more cores (first report, A.5).

    The clocks are in the figure alone, so throughput is at one clock, an assumption, for all numbers of cores;
    `clock_as_good_as_100_cores` is the part of the 100 cores' clock that gives the 100 cores' throughput.
    """
    rows = []
    hundred = Circuit(100, 1000, 1000).cycles_per_tuple
    for n in cores:
        circuit = Circuit(n, 1000, 1000, clock_hz=clock_hz, merge_clock_hz=PAPER_MERGE_CLOCK_HZ, fifo_slots=2048)
        rows.append(
            {
                "cores": n,
                "segment_rows": max(circuit.segment_rows),
                "cycles_per_tuple": circuit.cycles_per_tuple,
                "simulated_cycles_per_tuple": _cycles_per_tuple(circuit),
                "assumed_clock_mhz": clock_hz / 1e6,
                "tuples_per_s": circuit.tuples_per_s,
                "clock_as_good_as_100_cores": circuit.cycles_per_tuple / hundred,
                "given_merge_clock_mhz": PAPER_MERGE_CLOCK_HZ / 1e6,
                "selectivity_max": circuit.selectivity_max,
                "paper_says": PAPER_FIGURE_13.get(n),
            }
        )
    return rows


def table_1() -> list[Row]:
    """Return the clock that windows of 100 rows need at 500 ktuples/s, and the measured power (SIGMOD, 6.5)."""
    rows = []
    for given in TABLE_1:
        circuit = Circuit(given.cores, 100, 100, clock_hz=given.clock_hz, merge_clock_hz=given.clock_hz)
        rows.append(
            {
                "cores": given.cores,
                "clock_mhz": PAPER_THROUGHPUT * circuit.cycles_per_tuple / 1e6,
                "paper_clock_mhz": given.clock_hz / 1e6,
                "tuples_per_s": circuit.tuples_per_s,
                "simulated_tuples_per_s": saturated(circuit, 300, 100_000).tuples_per_s,
                "paper_tuples_per_s": PAPER_THROUGHPUT,
                "given_dynamic_mw": given.dynamic_mw,
                "given_static_mw": given.static_mw,
                "given_lut_share": given.lut_share,
                "total_mw": given.dynamic_mw + given.static_mw,
                "paper_total_mw": PAPER_TABLE_1_TOTAL_MW[given.cores],
            }
        )
    return rows


def table_2() -> list[Row]:
    """Return the power weighted by area: what a chip without unused parts would take (SIGMOD, 6.5)."""
    rows = []
    for given in TABLE_1:
        power = weighted_by_area(given)
        _, paper_static, paper_total = PAPER_TABLE_2_MW[given.cores]
        rows.append(
            {
                "cores": given.cores,
                "given_clock_mhz": given.clock_hz / 1e6,
                "given_dynamic_mw": power.dynamic_mw,
                "static_mw": power.static_mw,
                "total_mw": power.total_mw,
                "paper_static_mw": paper_static,
                "paper_total_mw": paper_total,
            }
        )
    return rows


def throttling(values: Sequence[int] = (100, 60, 50, 40, 30, 20, 10, 5), tuples: int = 2000) -> list[Row]:
    """Return what each answer to the throttle signal costs with more and more hits (A.3, A.4; no figure there).

    20 cores, windows of 200 rows, tuples at the rate of the formula; FIFOs are short, so that it is soon about rates
    and not about buffers.
    """
    rows = []
    policies: tuple[Overload, ...] = ("wait", "discard_input", "drop_results")
    for count in values:
        for overload in policies:
            circuit = Circuit(20, 200, 200, overload=overload, fifo_slots=64)
            keys = np.random.default_rng(SEED).integers(0, count, (2, tuples))
            arrivals = steady(tuples, circuit.tuples_per_s, circuit)
            out = simulate(circuit, keys[0], keys[1], arrivals, arrivals)
            rows.append(
                {
                    "overload": overload,
                    "selectivity": 1 / count,
                    "selectivity_max": circuit.selectivity_max,
                    "simulated_tuples_per_s": out.tuples_per_s,
                    "tuples_per_s": circuit.tuples_per_s,
                    "simulated_results_per_s": len(out.delivered) * circuit.clock_hz / out.cycles,
                    "discarded_tuples": sum(out.discarded),
                    "found_results": len(out.left),
                    "dropped_results": out.dropped_results,
                    "throttled_cycles": out.throttled_cycles,
                }
            )
    return rows


def _cycles_per_tuple(circuit: Circuit) -> float:
    """Return the counted cycles for a tuple of each stream, with few hits."""
    tuples = 50
    return saturated(circuit, tuples, 1_000_000).input_cycles / tuples
