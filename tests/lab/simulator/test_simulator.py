"""The simulator: schedules, all interleavings, replay, shrinking, and its command."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import counterflow as cf
from counterflow.cli import main
from counterflow.lab.simulator.campaign import run_many
from counterflow.lab.simulator.cases import random_case
from counterflow.lab.simulator.exhaustive import ALGORITHMS as SEARCHED
from counterflow.lab.simulator.exhaustive import WINDOWS, explore, small_case, sources_of
from counterflow.lab.simulator.run_words import MISSED
from counterflow.lab.simulator.schedules import KINDS
from counterflow.lab.simulator.shrink import shrink
from counterflow.lab.simulator.simulation import Schedule, Simulation
from counterflow.lab.simulator.window_forms import FORMS
from counterflow.protocols import low_latency
from counterflow.protocols.registry import NAMES, protocol
from effort import THOROUGH
from inputs import form_of, table_of
from mutants import MUTANTS, horizons_beyond_what_has_arrived, hunt


@pytest.fixture
def simulate(monkeypatch, capfd):
    """The command, in this process."""

    def run(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["counterflow", "simulate", *map(str, args)])
        with pytest.raises(SystemExit) as exited:
            main()
        return int(exited.value.code or 0), *capfd.readouterr()

    return run


@pytest.fixture(scope="module")
def broken():
    """A protocol that finds pairs twice."""
    mutant = next(m for m in MUTANTS if str(m) == "llhj: no expedition flag")
    found = hunt(mutant)
    assert found is not None
    return mutant.parts(), found[0], found[2]


@pytest.mark.slow
def test_all_algorithms_under_many_schedules():
    report = run_many(NAMES, 25_200 if THOROUGH else 2_520)
    assert not report["failures"], [failure.command for failure in report["failures"]]
    assert set(report["algorithms"]) == set(NAMES)
    assert report["schedules"] == sum(report["algorithms"].values()) == (25_200 if THOROUGH else 2_520)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("algorithm, batch_rows", [*((name, 1) for name in SEARCHED), ("llhj", 2)])
def test_all_interleavings(algorithm, batch_rows, window):
    case = small_case(algorithm, tuples=3 if THOROUGH else 2, window=window)
    found = explore(replace(case, batch_rows=batch_rows))
    assert found.ok, found.detail
    assert found.states > found.ends > 0


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("sources", sources_of("scalejoin")[1:])
def test_all_interleavings_of_sources(sources, window):
    """Sources get, add and promise one tuple at a time, and share nothing but the gate."""
    found = explore(small_case("scalejoin", tuples=3, window=window, sources=sources))
    assert found.ok, found.detail
    assert found.states > found.ends > 0


@pytest.mark.parametrize("name", ["a source's tuples are ready too soon", "a source is forgotten", "tuples of two sou"])
def test_the_search_finds_broken_sources(name):
    mutant = next(m for m in MUTANTS if m.name.startswith(name))
    case = small_case("scalejoin", sources=(2, 1))
    found = explore(case, mutant.parts())
    assert not found.ok
    assert Simulation(case, mutant.parts()).replay(found.trace).failure == found.failure


def test_a_failure_of_sources_is_made_small():
    mutant = next(m for m in MUTANTS if m.name.startswith("tuples of two sources that are tied"))
    case, _, outcome, _ = hunt(mutant)
    small = shrink(case, outcome, mutant.parts())
    assert small.outcome.failure == outcome.failure and small.moves[-1] == small.outcome.detail
    assert sum(small.case.sources) <= sum(case.sources)
    assert any(line.startswith("source 0 adds 1 tuple of time") for line in small.moves)
    assert any(line == "source 0 promises what follows from them" for line in small.moves)


def test_half_of_the_cases_with_a_gate_have_sources():
    cases = [random_case(seed) for seed in range(1200)]
    assert not any(any(case.sources) for case in cases if case.algorithm != "scalejoin")
    gated = [case.sources for case in cases if case.algorithm == "scalejoin"]
    assert 0.4 < sum(map(any, gated)) / len(gated) < 0.6
    assert {side for sources in gated if any(sources) for side in sources} == {1, 2, 3, 5}


@pytest.mark.parametrize("algorithm, number", [("llhj", 2), ("scalejoin", 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_is_the_run(kind, algorithm, number):
    """One of them has a driver, the other one sources."""
    simulation = Simulation(random_case(number, (algorithm,)))
    assert any(simulation.case.sources) == (algorithm == "scalejoin")
    outcome = simulation.run(Schedule(kind, 7))
    again = simulation.replay(outcome.trace)
    assert outcome.ok and again.ok
    assert (again.choices, again.pairs) == (outcome.choices, outcome.pairs)
    assert (again.trace == outcome.trace).all()
    assert not np.array_equal(simulation.run(Schedule(kind, 8)).trace, outcome.trace) or kind == "in turn"


def test_a_failure_is_made_small(broken):
    parts, case, outcome = broken
    small = shrink(case, outcome, parts)
    assert small.outcome.failure == outcome.failure
    assert len(small.trace) < len(outcome.trace) and small.outcome.choices < outcome.choices
    assert small.case.left_rows + small.case.right_rows < case.left_rows + case.right_rows
    assert small.moves[-1] == small.outcome.detail
    assert any(line.startswith("node 0 steps") for line in small.moves)
    assert any("delivers ARRIVAL of left" in line for line in small.moves)


def test_the_search_finds_it_too(broken):
    case = small_case("llhj")
    found = explore(case, broken[0])
    assert not found.ok
    assert Simulation(case, broken[0]).replay(found.trace).failure == found.failure


@pytest.mark.parametrize("algorithm", ["handshake", "llhj", "dpjoin"])
def test_the_search_finds_a_horizon_beyond_what_has_arrived(algorithm):
    with horizons_beyond_what_has_arrived():
        found = explore(small_case(algorithm, tuples=2, window="zero and open for right tuples"))
    assert found.failure == MISSED


def test_cases_have_every_form_of_window():
    """Any window that a call can ask for is drawn, often enough that a short campaign has it."""
    drawn = Counter(form_of(random_case(seed).window) for seed in range(1500))
    assert set(drawn) == set(FORMS)


def test_command(simulate):
    code, out, _ = simulate("--schedules", 70, "--algorithm", "dpjoin", "--nodes", 4, "--processes", 1, "--json")
    report = json.loads(out)
    assert code == 0 and report["schedules"] == 70 and report["failures"] == []
    code, out, _ = simulate("--algorithm", "kang", "--case", 3, "--schedule", "slow collector:5")
    assert code == 0 and "every pair once" in out
    assert "a pair was found twice" in simulate("--list-checks")[1]


@pytest.fixture
def broken_llhj(broken, monkeypatch):
    """The algorithm by its name is the broken one."""
    monkeypatch.setattr(low_latency, "PROTOCOL", replace(low_latency.PROTOCOL, step=broken[0].step))
    protocol.cache_clear()
    yield
    protocol.cache_clear()


def test_a_failure_says_how_to_see_it_again(simulate, broken_llhj):
    code, out, notes = simulate("--schedules", 350, "--algorithm", "llhj", "--processes", 1)
    assert code == 1 and "failures" in out
    command = next(line for line in notes.splitlines() if "counterflow simulate" in line)
    code, out, _ = simulate(*shlex.split(command)[2:])
    assert code == 1 and "a pair was found twice" in out and "driver releases" in out


@pytest.mark.parametrize(
    "options",
    [
        ["--algorithm", "lljh"],
        ["--case", 3],
        ["--algorithm", "llhj", "--case", 3, "--schedule", "often:1"],
        ["--exhaustive", "--algorithm", "kang"],
    ],
)
def test_options_that_make_no_sense(simulate, options):
    code, _, notes = simulate(*options)
    assert code == 2 and "OptionError" in notes


def test_the_engine(capsys):
    left, right = table_of([(0, 1, 1, 0.0, "a")]), table_of([(1, 1, 1, 0.0, "b")])
    options = dict(where="l.k = r.k", time="ts", window="2 seconds")
    assert len(cf.window_join(left, right, engine=cf.Simulated("scalejoin", nodes=3), **options)) == 1
    cf.explain(left, right, engine=cf.Simulated("dpjoin", seed=3), **options)
    assert "simulated, algorithm dpjoin, layout 2x2, seed 3" in capsys.readouterr().out
    with pytest.raises(cf.UnsupportedError, match="joins tables"):
        cf.window_join(cf.stream([left], schema=left.schema), right, engine=cf.Simulated(), **options)
    for wrong in (dict(algorithm="auto"), dict(nodes=0), dict(seed=-1), dict(algorithm="kang", nodes=2)):
        with pytest.raises(cf.OptionError):
            cf.Simulated(**wrong)
