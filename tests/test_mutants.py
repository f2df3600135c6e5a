"""The simulator finds every protocol that is broken on purpose, and says under which case and seed."""

from __future__ import annotations

import pytest

from counterflow.engines.simulated.simulation import Simulation
from mutants import MUTANTS, hunt
from streams import THOROUGH

# Each one is compiled, which takes seconds: of most algorithms the one that hurts most, unless there is time.
ORDINARY = (
    "handshake: right tuples are not kept until they are acknowledged",
    "llhj: no expedition flag",
    "dpjoin: the fastest reader decides what is overwritten",
    "scalejoin: results are not sorted",
)


def test_the_ordinary_ones_exist():
    assert set(ORDINARY) <= set(map(str, MUTANTS))


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if THOROUGH or str(m) in ORDINARY], ids=str)
def test_is_found(mutant):
    found = hunt(mutant)
    assert found is not None, f"nothing is wrong under any schedule: {mutant}"
    case, schedule, outcome, simulation = found
    again = simulation.run(schedule)
    assert (again.failure, again.choices) == (outcome.failure, outcome.choices), "the seed decides"
    replayed = simulation.replay(outcome.trace)
    assert (replayed.failure, replayed.choices) == (outcome.failure, outcome.choices), "so does the trace"
    assert Simulation(case).run(schedule).ok, "without the change nothing is wrong"
