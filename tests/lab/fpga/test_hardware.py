"""The hardware model: pairs of `reference`, a naive twin with lists that really shift, fair mergers, exact counts.

Oracle tests compare pairs with `reference` on rows whose time is the cycle in which they entered their window.
The differential test compares every cycle of every result with the twin below.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.errors import InputError, OptionError
from counterflow.lab.fpga import Circuit, simulate, steady
from counterflow.lab.fpga import paper_rows as figures
from counterflow.lab.fpga.chip import RESULT_FIFOS, TABLE_1, fifo_share, weighted_by_area
from counterflow.lab.fpga.merging_network import NOTHING, arbitrate, merge, network_of, push
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec

OVERLOADS = ("wait", "discard_input", "drop_results")


@st.composite
def circuits(draw, overloads=("wait",), admissions=("both", "either")):
    cores = draw(st.integers(1, 8))
    sizes = dict(left_window=draw(st.integers(cores, 20)), right_window=draw(st.integers(cores, 20)))
    admission = draw(st.sampled_from(admissions))
    reserve = Circuit(cores, **sizes, admission=admission).reserve
    return Circuit(
        cores,
        **sizes,
        admission=admission,
        overload=draw(st.sampled_from(overloads)),
        evaluators=draw(st.sampled_from([1, 1, 2, 3])),
        fifo_slots=reserve + draw(st.integers(0, 6)),
        fan_in=draw(st.integers(2, 8)),
        merge_clock_hz=draw(st.sampled_from([50_000_000, 83_000_000, 150_000_000, 400_000_000])),
    )


@st.composite
def streams(draw, values=6, tuples=40):
    """Keys and arrival cycles of one stream: bursts, gaps, and several tuples in one cycle."""
    keys = draw(st.lists(st.integers(0, values), max_size=tuples))
    gaps = draw(st.lists(st.sampled_from([0, 0, 1, 2, 7, 60]), min_size=len(keys), max_size=len(keys)))
    return np.array(keys, np.int64), np.cumsum(np.array(gaps, np.int64))


def oracle(circuit, left_keys, right_keys, left_times, right_times, band) -> Counter:
    """The pairs of `reference`, without tuples that have no time."""
    tables, numbers = [], []
    for keys, times in ((left_keys, left_times), (right_keys, right_times)):
        numbers.append(np.flatnonzero(times >= 0))
        tables.append(pa.table({"t": pa.array(times[times >= 0]), "k": pa.array(keys[times >= 0])}))
    spec = build_spec(
        tables[0].schema,
        tables[1].schema,
        where=f"abs(l.k - r.k) <= {band}",
        time="t",
        window=(cf.rows(circuit.left_window), cf.rows(circuit.right_window)),
    )
    found = reference_pairs(spec, *tables)
    return Counter((int(numbers[0][left]), int(numbers[1][right])) for left, right, _ in found)


# --- pairs


@settings(max_examples=120, deadline=None)
@given(circuit=circuits(), left=streams(), right=streams(), band=st.integers(0, 2))
def test_pairs_are_those_of_the_windows(circuit, left, right, band):
    out = simulate(circuit, left[0], right[0], left[1], right[1], band=band)
    assert out.discarded == (0, 0) and out.dropped_results == 0
    expected = oracle(circuit, left[0], right[0], out.left_admitted, out.right_admitted, band)
    assert Counter(out.pairs()) == expected
    if circuit.admission == "either":  # one at a time: in the order of arrival, left first
        assert expected == oracle(circuit, left[0], right[0], left[1], right[1], band)


@settings(max_examples=30, deadline=None)
@given(circuit=circuits(admissions=("both",)), left=streams(), right=streams())
def test_a_circuit_that_keeps_up_sees_arrivals_as_they_are(circuit, left, right):
    """No tuple comes during a scan: then `both` has nothing to reorder, ties in one cycle are left first."""
    slow = [arrivals * circuit.cycles_per_tuple + np.arange(len(arrivals)) * 1000 for _, arrivals in (left, right)]
    slow = [s - s % 1000 for s in slow]
    out = simulate(circuit, left[0], right[0], *slow)
    assert (out.left_admitted == slow[0]).all() and (out.right_admitted == slow[1]).all()
    assert Counter(out.pairs()) == oracle(circuit, left[0], right[0], *slow, 0)


# --- the twin: what a reader of the papers would write down, cycle by cycle


class Twin:
    def __init__(self, circuit, keys, arrivals, band):
        self.circuit, self.keys, self.arrivals, self.band = circuit, keys, arrivals, band
        self.segments = [[[None] * (b - a) for a, b in pairwise(borders)] for borders in circuit.segments()]
        self.fifos = [deque() for _ in range(circuit.fifos)]
        self.tokens = [0] * circuit.fifos
        self.inputs = dict(self.tree())
        self.next, self.admitted = [0, 0], [[-1] * len(k) for k in keys]
        self.found, self.delivered, self.credit = [], {}, 0

    def tree(self):
        below, fifo = 0, self.circuit.cores
        for width, mergers in pairwise(self.circuit.levels):
            for k in range(mergers):
                yield fifo, range(below + k * width // mergers, below + (k + 1) * width // mergers)
                fifo += 1
            below += width

    def merge(self, cycle):
        if self.fifos[-1]:
            self.delivered[self.fifos[-1].popleft()] = cycle
        for fifo in reversed(self.inputs):
            inputs = self.inputs[fifo]
            turns = [(self.tokens[fifo] + i) % len(inputs) for i in range(len(inputs))]
            ready = [i for i in turns if self.fifos[inputs[i]]]
            if ready and len(self.fifos[fifo]) < self.circuit.fifo_slots:
                self.fifos[fifo].append(self.fifos[inputs[ready[0]]].popleft())
                self.tokens[fifo] = (ready[0] + 1) % len(inputs)

    def shift(self, side, tuple_):
        for segment in self.segments[side]:
            segment.insert(0, tuple_)
            tuple_ = segment.pop()

    def comparisons(self, side):
        """For each core, its new tuple of this side with each of the opposite segment, in order."""
        opposite = self.segments[1 - side][::-1]
        return [[(s[0], other) for other in o] for s, o in zip(self.segments[side], opposite, strict=True)]

    def admit(self, cycle):
        """The sides that get a tuple now, or "flush"; nothing if there is none, or no room for its results."""
        c = self.circuit
        due = [s for s in (0, 1) if self.next[s] < len(self.keys[s]) and self.arrivals[s][self.next[s]] <= cycle]
        ended = all(self.next[s] == len(self.keys[s]) for s in (0, 1))
        if not due and not (ended and self.flushes < c.left_window):
            return []
        if c.admission == "either":
            due = sorted(due, key=lambda s: self.arrivals[s][self.next[s]])[:1]
        short = [f for f in self.fifos[: c.cores] if c.fifo_slots - len(f) < c.reserve]
        if short and c.overload == "drop_results":
            for fifo in short:
                while c.fifo_slots - len(fifo) < c.reserve:
                    fifo.popleft()
        elif short:
            if c.overload == "discard_input":
                for side in due:
                    self.next[side] += 1
            return []
        return due or ["flush"]

    def scans(self, sides, cycle):
        """Shift one after the other, and what to compare after each shift."""
        work = []
        for side in sides:
            if side == "flush":
                self.flushes += 1
                self.shift(0, None)
                work.append((0, self.comparisons(0)))
            else:
                self.shift(side, self.next[side])
                self.admitted[side][self.next[side]] = cycle
                self.next[side] += 1
                work.append((side, self.comparisons(side)))
        return work

    def run(self):
        c, cycle, work, step, self.flushes = self.circuit, 0, [], 0, 0
        while True:
            self.credit += c.merge_clock_hz
            while self.credit >= c.clock_hz:
                self.credit -= c.clock_hz
                self.merge(cycle)
            work = work or self.scans(self.admit(cycle), cycle)
            for side, cores in work:
                for k, compared in enumerate(cores):
                    core = k if side == 0 else c.cores - 1 - k
                    for pair in compared[step * c.evaluators : (step + 1) * c.evaluators]:
                        self.compare(pair if side == 0 else pair[::-1], core, cycle)
            idle = not work
            step += 1
            if idle or step == c.cycles_per_tuple:
                work, step = [], 0
            cycle += 1
            at_end = self.flushes == c.left_window and not any(self.fifos)
            if idle and at_end and all(self.next[s] == len(self.keys[s]) for s in (0, 1)):
                return self

    def compare(self, pair, core, cycle):
        if None not in pair and abs(self.keys[0][pair[0]] - self.keys[1][pair[1]]) <= self.band:
            self.fifos[core].append(len(self.found))
            assert len(self.fifos[core]) <= self.circuit.fifo_slots
            self.found.append((*pair, core, cycle))


@settings(max_examples=80, deadline=None)
@given(circuit=circuits(OVERLOADS), left=streams(2, 25), right=streams(2, 25), band=st.integers(0, 1))
def test_every_cycle_is_the_twins(circuit, left, right, band):
    out = simulate(circuit, left[0], right[0], left[1], right[1], band=band)
    twin = Twin(circuit, [left[0].tolist(), right[0].tolist()], [left[1], right[1]], band).run()
    assert out.left_admitted.tolist() == twin.admitted[0] and out.right_admitted.tolist() == twin.admitted[1]
    columns = (out.left, out.right, out.core, out.found_cycle, out.delivered_cycle)
    results = sorted(zip(*(column.tolist() for column in columns), strict=True))
    assert results == sorted((*found, twin.delivered.get(i, -1)) for i, found in enumerate(twin.found))


# --- overload


@settings(max_examples=80, deadline=None)
@given(circuit=circuits(OVERLOADS), left=streams(1), right=streams(1))
def test_what_is_lost_is_counted(circuit, left, right):
    out = simulate(circuit, left[0], right[0], left[1], right[1])
    admitted = [(a >= 0).sum() for a in (out.left_admitted, out.right_admitted)]
    assert [a + d for a, d in zip(admitted, out.discarded, strict=True)] == [len(left[0]), len(right[0])]
    assert len(set(out.delivered.tolist())) == len(out.delivered) == (out.delivered_cycle >= 0).sum()
    if circuit.overload != "discard_input":
        assert out.discarded == (0, 0)
    if circuit.overload != "drop_results":
        assert out.dropped_results == 0
    all_pairs = oracle(circuit, left[0], right[0], out.left_admitted, out.right_admitted, 0)
    assert Counter(zip(out.left.tolist(), out.right.tolist(), strict=True)) == all_pairs
    assert len(out.delivered) + out.dropped_results == all_pairs.total()


def test_each_policy_acts_when_all_match():
    """Every pair matches: far more results than the output can take."""
    found = {}
    for overload in OVERLOADS:
        circuit = Circuit(4, 16, 16, overload=overload, fifo_slots=16)
        out = found[overload] = simulate(circuit, np.zeros(300, np.int64), np.zeros(300, np.int64))
        assert out.throttled_cycles > 0
        assert out.fifo_rows_max.max() <= 16
    assert found["wait"].cycles > found["drop_results"].cycles > found["discard_input"].cycles
    assert len(found["wait"].delivered) == len(found["wait"].left)
    assert sum(found["discard_input"].discarded) > 0
    assert found["drop_results"].dropped_results > 0
    assert found["wait"].circuit.tuples_per_s > 2 * found["wait"].tuples_per_s
    # Where nothing holds the input up, it is as fast as the formula says.
    assert found["drop_results"].tuples_per_s == circuit.tuples_per_s


def test_throttling_begins_where_the_output_is_too_slow():
    for domain, throttles in ((8, True), (32, False)):
        circuit = Circuit(10, 100, 100, fifo_slots=64)
        assert (1 / domain > circuit.selectivity_max) == throttles
        keys = np.random.default_rng(1).integers(0, domain, (2, 3000))
        out = simulate(circuit, keys[0], keys[1])
        assert (out.tuples_per_s < 0.99 * circuit.tuples_per_s) == throttles


# --- throughput


@settings(max_examples=40, deadline=None)
@given(circuit=circuits(), tuples=st.integers(1, 60))
def test_the_throughput_formula(circuit, tuples):
    """Tuples that wait are taken as fast as the formula says, if results do not hold them up."""
    out = simulate(circuit, np.zeros(tuples, np.int64), np.ones(tuples, np.int64))
    assert out.tuples_per_s == pytest.approx(circuit.tuples_per_s, rel=1e-12)


def test_the_papers_configurations():
    for cores, clock_hz in ((1, 50), (2, 25), (5, 10), (10, 5)):  # SIGMOD, Table 1
        assert Circuit(cores, 100, 100, clock_hz=clock_hz * 1_000_000).tuples_per_s == 500_000
    assert Circuit(100, 1000, 1000).cycles_per_tuple == 10  # A.5
    assert Circuit(100, 1000, 1000, evaluators=5).cycles_per_tuple == 2
    assert Circuit(3, 10, 20).cycles_per_tuple == 7


def test_a_steady_rate_below_the_throughput_never_waits():
    circuit = Circuit(10, 100, 100)
    arrivals = steady(500, 0.8 * circuit.tuples_per_s, circuit)
    out = simulate(circuit, np.arange(500), np.arange(500), arrivals, arrivals)
    assert (out.left_admitted - arrivals).max() <= circuit.cycles_per_tuple
    assert out.pairs() == sorted(out.pairs()) and len(out.pairs()) == 500


def test_cores_share_the_comparisons():
    keys = np.random.default_rng(2).integers(0, 1000, (2, 4000))
    out = simulate(Circuit(8, 64, 64), keys[0], keys[1])
    assert out.compared.min() > 0.97 * out.compared.max()


# --- merging network


@settings(max_examples=60, deadline=None)
@given(
    cores=st.integers(1, 30),
    fan_in=st.integers(2, 8),
    slots=st.integers(1, 4),
    bursts=st.lists(st.integers(0, 2**30 - 1), max_size=20),
)
def test_the_network_keeps_every_result_in_its_cores_order(cores, fan_in, slots, bursts):
    network = network_of(Circuit(cores, cores, cores, fan_in=fan_in).levels, slots)
    pushed: list[int] = []
    out = []
    for burst in [*bursts, *([0] * (30 * slots * 3))]:  # each bit: this core has a result in this cycle
        out.append(merge(network))
        for core in range(cores):
            if burst >> core & 1 and push(network, core, core * 1000 + len(pushed)):
                pushed.append(core * 1000 + len(pushed))
    out = [entry for entry in out if entry != NOTHING]
    assert sorted(out) == sorted(pushed)
    for core in range(cores):
        assert [e for e in out if e // 1000 == core] == [e for e in pushed if e // 1000 == core]


@pytest.mark.parametrize("fan_in", [2, 3, 8])
def test_a_result_rises_one_level_per_clock(fan_in):
    circuit = Circuit(20, 20, 20, fan_in=fan_in)
    out = simulate(circuit, [5], [5])
    assert out.delivered_cycle[0] - out.found_cycle[0] == len(circuit.levels)


def test_the_arbiter_is_fair():
    """Inputs that always have something are read in turn; one that has nothing costs the others no turn."""
    network = network_of([4, 1], 100)
    for core in (0, 1, 3):
        for entry in range(30):
            push(network, core, entry)
    chosen = [arbitrate(network, 4) for _ in range(9)]
    assert chosen == [0, 1, 3] * 3


def test_no_core_starves():
    circuit = Circuit(9, 18, 18, fan_in=3, fifo_slots=8)
    network = network_of(circuit.levels, circuit.fifo_slots)
    out = Counter()
    for _ in range(920):
        for core in range(9):
            push(network, core, core)  # as soon as there is room
        out[merge(network)] += 1
    assert max(out[core] for core in range(9)) - min(out[core] for core in range(9)) <= 1


# --- the papers' figures and tables


def test_figure_18_has_the_same_load_for_every_core():
    rows = figures.figure_18((1, 50, 200))
    assert [row["window_rows"] for row in rows] == [8, 400, 1600]
    assert all(row["simulated_cycles_per_tuple"] == row["cycles_per_tuple"] == 8 for row in rows)
    assert rows[-1]["paper_chip_share_above"] < rows[-1]["fifo_share"] <= 1


def test_figure_13_is_the_formula():
    rows = figures.figure_13((1, 100, 150))
    assert all(row["simulated_cycles_per_tuple"] == row["cycles_per_tuple"] for row in rows)
    assert [row["cycles_per_tuple"] for row in rows] == [1000, 10, 7]
    # Fewer tuples with 150 cores than with 100, as the report says, is a clock of less than 0.7 of theirs.
    assert rows[-1]["clock_as_good_as_100_cores"] == 0.7


def test_tables_1_and_2():
    for row in figures.table_1():
        assert row["clock_mhz"] == row["paper_clock_mhz"]
        assert row["simulated_tuples_per_s"] == row["tuples_per_s"] == row["paper_tuples_per_s"]
    for row in figures.table_2():  # the paper rounds down where it should not, once
        assert abs(row["static_mw"] - row["paper_static_mw"]) < 1 > abs(row["total_mw"] - row["paper_total_mw"])
    best = min(TABLE_1, key=lambda synthesis: weighted_by_area(synthesis).total_mw)
    assert best.cores == 2  # "the most power-efficient"


def cores_max(fan_in: int) -> int:
    """Return the most cores whose FIFOs, with those of their mergers, fit on the chip."""
    return next(n for n in range(RESULT_FIFOS, 0, -1) if fifo_share(Circuit(n, n, n, fan_in=fan_in)) <= 1)


def test_result_fifos_limit_the_cores():
    assert [cores_max(fan_in) for fan_in in (2, 8)] == [120, 208]
    assert fifo_share(Circuit(200, 1600, 1600, fan_in=6)) > 1 >= fifo_share(Circuit(200, 1600, 1600, fan_in=7))


def test_throttling_costs_what_the_policy_says():
    for row in figures.throttling((100, 10), tuples=600):
        too_many = row["selectivity"] > row["selectivity_max"]
        assert (row["throttled_cycles"] > 0) == too_many
        assert (row["discarded_tuples"] > 0) == (too_many and row["overload"] == "discard_input")
        assert (row["dropped_results"] > 0) == (too_many and row["overload"] == "drop_results")


# --- refusals


@pytest.mark.parametrize(
    "options",
    [
        dict(cores=0, left_window=1, right_window=1),
        dict(cores=4, left_window=3, right_window=8),
        dict(cores=2, left_window=8, right_window=8, fan_in=1),
        dict(cores=2, left_window=8, right_window=8, fifo_slots=7),
        dict(cores=2, left_window=8, right_window=8, overload="shed"),
        dict(cores=2, left_window=8, right_window=8, admission="all"),
    ],
)
def test_circuits_that_cannot_be_built(options):
    with pytest.raises(OptionError):
        Circuit(**options)


@pytest.mark.parametrize("keys", [[2**31], [0.5], [[1]]])
def test_keys_that_the_circuit_has_no_lines_for(keys):
    with pytest.raises(InputError):
        simulate(Circuit(1, 1, 1), keys, [1])


@pytest.mark.parametrize("arrivals", [[1], [2, 1], [-1, 0]])
def test_arrivals_in_disorder(arrivals):
    with pytest.raises(InputError):
        simulate(Circuit(1, 1, 1), [1, 2], [], arrivals)
