"""Handshake join on an FPGA: SIGMOD's Figure 18 and Tables 1 and 2, the first report's Figure 13."""

from __future__ import annotations

from collections.abc import Callable

from counterflow.lab.bench.report import Note
from counterflow.lab.fpga import paper_rows as figures
from counterflow.lab.reproduce.figure import Curve, Deviation, Figure, judged
from counterflow.lab.reproduce.handshake_figures import FIRST_REPORT, PAPER


def column(rows: list[figures.Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def figure_18(smoke: bool, note: Note) -> Figure:
    note("the circuit, clock by clock")
    rows = figures.figure_18((1, 25) if smoke else (1, 25, 50, 75, 100, 125, 150, 175, 200))
    x, cycles = column(rows, "cores"), column(rows, "simulated_cycles_per_tuple")
    clocks = figures.PAPER_CLOCK_MHZ
    checks = {
        "a tuple takes as many cycles with every number of cores, within 2 %": max(cycles) < 1.02 * min(cycles),
        "200 cores' result queues take more than 96 % of the chip's": smoke or rows[-1]["fifo_share"] > 0.96,
    }
    return Figure(
        "fpga-18", PAPER, "Figure 18: FPGA, 8 tuples of each window a core",
        judged(checks, f"a tuple takes {cycles[0]:.1f} to {cycles[-1]:.1f} cycles, counted, whatever the number of "
        f"cores, so throughput is the clock's; result queues take {rows[-1]['fifo_share']:.0%} of those there are "
        f"with {x[-1]:.0f} cores. The clock itself (150 to 170 MHz) is the paper's: no model of cycles can tell it."),
        "cores", "million tuples/s of each stream",
        [
            Curve(f"cycles counted, at {clocks[0]} MHz", "simulated", x, [clocks[0] / c for c in cycles]),
            Curve(f"cycles counted, at {clocks[1]} MHz", "simulated", x, [clocks[1] / c for c in cycles]),
            Curve(f"formula, at {clocks[0]} MHz", "model", x, [y / 1e6 for y in column(rows, "tuples_per_s_min")]),
            Curve(f"formula, at {clocks[1]} MHz", "model", x, [y / 1e6 for y in column(rows, "tuples_per_s_max")]),
        ],
        rows=rows,
        deviations=[] if smoke else [
            Deviation("share of the chip with 200 cores (paper: more than 0.96; ours: of result queues)", 0.96,
                      rows[-1]["fifo_share"])],
        checks=checks,
    )  # fmt: skip


def figure_13(smoke: bool, note: Note) -> Figure:
    note("the circuit, clock by clock")
    rows = figures.figure_13((1, 100, 150) if smoke else (1, 2, 5, 10, 20, 50, 100, 150, 200))
    x, clock = column(rows, "cores"), rows[0]["assumed_clock_mhz"]
    by_cores = {row["cores"]: row for row in rows}
    counted = {n: row["simulated_cycles_per_tuple"] for n, row in by_cores.items()}
    needed = by_cores[150]["clock_as_good_as_100_cores"]
    checks = {"the formula's cycles are those that are counted, within 2 %": all(
        abs(row["cycles_per_tuple"] / counted[n] - 1) < 0.02 for n, row in by_cores.items())}  # fmt: skip
    return Figure(
        "first-report-13", FIRST_REPORT, "First report, Figure 13: FPGA, windows of 1,000 tuples",
        judged(checks, f"throughput is the clock over the tuples of a core's segment. With 100 cores the paper has "
        f"its highest clock, with 150 less throughput; so 150 cores' clock must be below {needed:.0%} of 100 cores'. "
        f"The clocks are in the paper's picture alone, so ours is {clock:.0f} MHz throughout, and the paper's drop "
        f"is not seen."),
        "cores", "million tuples/s of each stream",
        [
            Curve(f"cycles counted, at {clock:.0f} MHz", "simulated", x, [clock / counted[int(n)] for n in x]),
            Curve(f"formula, at {clock:.0f} MHz", "model", x, [y / 1e6 for y in column(rows, "tuples_per_s")]),
        ],
        x_log=True, y_log=True, rows=rows,
        deviations=[Deviation("tuples of each window a core, with 100 cores", 10, by_cores[100]["segment_rows"])],
        checks=checks,
    )  # fmt: skip


def table_1(smoke: bool, note: Note) -> Figure:
    note("the circuit, clock by clock")
    rows = figures.table_1()
    checks = {"the circuit carries 500,000 tuples/s, within 2 %": all(
        abs(row["simulated_tuples_per_s"] / row["paper_tuples_per_s"] - 1) < 0.02 for row in rows)}  # fmt: skip
    ours = ", ".join(f"{row['clock_mhz']:g}" for row in rows)
    off = [row["cores"] for row in rows if abs(row["total_mw"] - row["paper_total_mw"]) > 2]
    with_off = " and ".join(map(str, off))
    also = f" The paper's totals are not the sums of its columns with {with_off} cores." if off else ""
    return Figure(
        "fpga-table-1", PAPER, "Table 1: the clock that 500,000 tuples/s need, windows of 100 tuples",
        judged(checks, f"the model needs {ours} MHz, as the paper does, and the simulated circuit carries the load. "
        f"Dynamic and static power are the paper's measurements, taken as they are.{also}"),
        "cores", "clock (MHz)",
        [
            Curve("clock needed", "model", column(rows, "cores"), column(rows, "clock_mhz")),
            Curve("clock", "paper", column(rows, "cores"), column(rows, "paper_clock_mhz")),
        ],
        rows=rows,
        deviations=[
            *(Deviation(f"clock, {r['cores']} cores (MHz)", r["paper_clock_mhz"], r["clock_mhz"]) for r in rows),
            *(Deviation(f"total power, {r['cores']} cores (mW)", r["paper_total_mw"], r["total_mw"]) for r in rows),
        ],
        checks=checks,
    )  # fmt: skip


def table_2(smoke: bool, note: Note) -> Figure:
    rows = figures.table_2()
    best = min(rows, key=lambda row: float(row["total_mw"]))["cores"]
    checks = {"two cores take the least power": best == 2}
    return Figure(
        "fpga-table-2", PAPER, "Table 2: power weighted by area",
        judged(checks, f"with static power weighted by the chip's used part, {best} cores take the least, as in the "
        f"paper. Dynamic power and the used part are the paper's; differences come from its rounded percentages."),
        "cores", "power (mW)",
        [
            Curve("total", "model", column(rows, "cores"), column(rows, "total_mw")),
            Curve("static", "model", column(rows, "cores"), column(rows, "static_mw")),
            Curve("total", "paper", column(rows, "cores"), column(rows, "paper_total_mw")),
            Curve("static", "paper", column(rows, "cores"), column(rows, "paper_static_mw")),
        ],
        rows=rows,
        deviations=[Deviation(f"total, {r['cores']} cores (mW)", r["paper_total_mw"], r["total_mw"]) for r in rows],
        checks=checks,
    )  # fmt: skip


FIGURES: dict[str, Callable[[bool, Note], Figure]] = {
    "fpga-18": figure_18,
    "fpga-table-1": table_1,
    "fpga-table-2": table_2,
    "first-report-13": figure_13,
}
