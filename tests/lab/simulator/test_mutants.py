"""The simulator finds every protocol that is broken on purpose, and says under which case and seed."""

from __future__ import annotations

import pytest

from counterflow.lab.simulator.exhaustive import small_case
from counterflow.lab.simulator.run_words import MISSED
from counterflow.lab.simulator.simulation import Simulation
from effort import THOROUGH
from mutants import MUTANTS, first_failure, horizons_beyond_what_has_arrived, hunt

# Each one is compiled, which takes seconds: of most algorithms the one that hurts most, unless there is time.
ORDINARY = (
    "handshake: right tuples are not kept until they are acknowledged",
    "handshake: takes right tuples out when the input has ended",
    "llhj: no expedition flag",
    "dpjoin: the fastest reader decides what is overwritten",
    "scalejoin: results are not sorted",
    "scalejoin: a source's tuples are ready too soon: more of the same time may follow",
    "scalejoin: a source is forgotten when it is asked what is ready",
    "scalejoin: tuples of two sources that are tied come as they were added",
    "kang: a left tuple is fed before the right one that comes before it",
    "llhj: what has expired is told by the last tuple of a batch, not by the first",
    "llhj: a rank is complete when one side is done with it",
)


def test_the_ordinary_ones_exist():
    assert set(ORDINARY) <= set(map(str, MUTANTS))


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if THOROUGH or str(m) in ORDINARY], ids=str)
def test_is_found(mutant):
    found = hunt(mutant)
    assert found is not None, f"nothing is wrong under any schedule: {mutant}"
    case, schedule, outcome, simulation = found
    assert mutant.failure in (None, outcome.failure), outcome.detail
    again = simulation.run(schedule)
    assert (again.failure, again.choices) == (outcome.failure, outcome.choices), "the seed decides"
    replayed = simulation.replay(outcome.trace)
    assert (replayed.failure, replayed.choices) == (outcome.failure, outcome.choices), "so does the trace"
    assert Simulation(case).run(schedule).ok, "without the change nothing is wrong"


@pytest.mark.parametrize("algorithm", ["handshake", "llhj", "dpjoin"])
def test_a_horizon_beyond_what_has_arrived_is_found(algorithm):
    """It makes nodes forget tuples that are still to be met: they expire by horizons."""
    with horizons_beyond_what_has_arrived():
        found = first_failure(algorithm)
    assert found is not None and found[2].failure == MISSED
    case, schedule, *_ = found
    assert Simulation(case).run(schedule).ok, "with horizons as they are nothing is wrong"


def test_a_driver_notices_a_horizon_beyond_what_has_arrived():
    with horizons_beyond_what_has_arrived(noticed=True), pytest.raises(AssertionError, match="beyond what has arrived"):
        Simulation(small_case("llhj", window="zero and open for right tuples"))
