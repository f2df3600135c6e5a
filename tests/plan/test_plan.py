"""The planner: DP-Join's expressions against the paper's own numbers, what must grow with what, and the command."""

from __future__ import annotations

import json
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from counterflow.cli.main import app
from counterflow.errors import OptionError, WindowError
from counterflow.plan.calibration import VERSION, Calibration, Point, calibration_path, read_calibration
from counterflow.plan.model import (
    Load,
    layouts,
    least_copies,
    least_latency,
    offered_results,
    queued_latency_s,
    scan_latency_s,
    utilisation,
)
from counterflow.plan.planner import BUSY_MAX, Question, make_plan

HIT_RATE = 3.6e-6  # DP-Join, Section IV-A
COMPARISON_S = 9 * HIT_RATE / 14_047  # Table I
MACHINE = Calibration(
    "a machine", 4, (Point(1 << 15, 1e9, 4e9), Point(1 << 20, 8e8, 3e9)),
    (Point(1 << 15, 2e6, 4e6), Point(1 << 20, 1e6, 2e6)), 1e-7,
)  # fmt: skip


def load(rate, window_s=300.0, right_rate=None, right_window_s=None):
    return Load(rate, right_rate or rate, window_s, right_window_s or window_s, HIT_RATE)


# --- the paper's own numbers


def test_expression_3():
    assert load(2100).results_per_s == pytest.approx(9526, abs=1)


def test_scalejoins_example():
    """Section II: windows of 10 minutes and 500 tuples/s are 300 million comparisons/s."""
    assert load(500, 600).comparisons_per_s == 300e6


def test_expression_4():
    assert offered_results(6, COMPARISON_S, HIT_RATE) == pytest.approx(9301, rel=0.01)
    assert offered_results(16, COMPARISON_S, HIT_RATE) == pytest.approx(21_740, rel=0.16)  # two share their cores


def test_least_workers_of_figure_4():
    assert next(n for n in range(1, 20) if utilisation(load(2100), n, COMPARISON_S) < 1) == 7


def symmetric_latency_s(rate, window_s, layout, comparison_s):
    """Return the latency by Expression 7, without its p: see `scan_latency_s`."""
    rows, columns = layout
    return rate * comparison_s * window_s * (rows + columns) / (4 * rows * columns)


@pytest.mark.parametrize("layout", layouts(16))
def test_expression_7_is_expression_6_for_equal_streams(layout):
    expected = symmetric_latency_s(2500, 300, layout, COMPARISON_S)
    assert scan_latency_s(load(2500), layout, COMPARISON_S) == pytest.approx(expected)


def test_layouts_of_figures_6_and_7():
    assert least_latency(16, load(2500)) == (4, 4)
    assert least_latency(16, load(1000, right_rate=3000)) == (2, 8)
    assert least_latency(16, load(1000, 150, right_window_s=300)) == (2, 8)
    unequal = load(1000, right_rate=3000)
    assert scan_latency_s(unequal, (3, 5), 1.0) < scan_latency_s(unequal, (4, 4), 1.0)


def test_queues_against_simulation():
    """Simulated: waiting along a row is more than the model has; the order of layouts is the same."""
    from counterflow.lab.reproduce.timed_streams import simulate_streams, steady
    from counterflow.lab.simulator.timed_join import Costs

    streams, found = steady((2500.0, 2500.0), (300.0, 300.0), 4000), {}
    for layout in ((4, 4), (2, 8), (1, 16)):
        run = simulate_streams("dpjoin", 16, streams, Costs(comparison=COMPARISON_S * 1e9), layout=layout)
        found[layout] = float(run.latency.mean())
        assert found[layout] / 2 < queued_latency_s(load(2500), layout, COMPARISON_S) < found[layout] * 2
    assert sorted(found, key=lambda layout: found[layout]) == [(4, 4), (2, 8), (1, 16)]


# --- what must hold

RATES = st.floats(1, 1e6)
WINDOWS = st.floats(0.01, 1e4)
LOADS = st.builds(Load, RATES, RATES, WINDOWS, WINDOWS)


@given(LOADS, st.integers(1, 64))
def test_the_chosen_layout_is_the_best(load, cells):
    best = least_latency(cells, load)
    assert all(scan_latency_s(load, best, 1e-9) <= scan_latency_s(load, x, 1e-9) * (1 + 1e-9) for x in layouts(cells))


@given(RATES, RATES, WINDOWS, st.integers(1, 64))
def test_with_windows_of_one_length_least_copies_is_least_latency(left, right, window_s, cells):
    load = Load(left, right, window_s, window_s)
    copied = least_copies(cells, load.left_rows, load.right_rows)
    best = scan_latency_s(load, least_latency(cells, load), 1e-9)
    assert scan_latency_s(load, copied, 1e-9) == pytest.approx(best)


@settings(deadline=None, max_examples=40)
@given(LOADS, st.sampled_from(["scan", "index"]), st.sampled_from(["local", "spark"]), st.integers(1, 64))
def test_plans(load, access, engine, cores):
    plan = make_plan(Question(load, cores, access=access, engine=engine), MACHINE)
    assert plan.layout[0] * plan.layout[1] == plan.workers <= cores
    assert plan.sustained == (plan.utilisation <= BUSY_MAX)
    assert (plan.highest_share >= 1) >= plan.sustained
    assert plan.latency_s > 0 and plan.state_bytes > 0 and plan.shuffle_rows_per_s >= load.tuples_per_s


@settings(deadline=None, max_examples=40)
@given(LOADS, st.floats(1.01, 10))
def test_more_work_needs_no_fewer_workers(load, times):
    few, many = (make_plan(Question(x, 64), MACHINE) for x in (load, replace(load, left_rate=load.left_rate * times)))
    assert few.highest_share >= many.highest_share * (1 - 1e-4)
    if few.needed and many.needed:
        assert few.needed <= many.needed


@given(st.floats(1, 1e7), st.integers(1, 8))
def test_rates_fall_with_the_window(rows, workers):
    assert MACHINE.scanned_per_s(rows, workers) > MACHINE.scanned_per_s(2 * rows, workers)
    assert MACHINE.lookups_per_s(rows, workers) >= MACHINE.lookups_per_s(2 * rows, workers)
    assert MACHINE.scanned_per_s(rows, workers) <= MACHINE.scanned_per_s(rows, workers + 1)


@pytest.mark.parametrize("wrong", [{"left_rate": 0.0}, {"hit_rate": 2.0}, {"right_window_s": float("inf")}])
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(OptionError):
        Question(replace(load(1000), **wrong), 2)


def test_on_spark_more_cells_may_be_worse():
    """Seven cells can only stand in a line, and copy more than six do."""
    heavy = load(20_000, 0.01)
    seven, six = (make_plan(Question(heavy, cores, access="index", engine="spark"), MACHINE) for cores in (7, 6))
    assert seven.highest_share >= six.highest_share and seven.layout != (1, 7)


# --- calibration, command


def test_calibrations_are_kept(tmp_path):
    path = tmp_path / "calibration.json"
    assert read_calibration(path) is None
    MACHINE.write(path)
    assert read_calibration(path) == MACHINE
    path.write_text(path.read_text().replace(f'"version": {VERSION}', '"version": 0'))
    assert read_calibration(path) is None
    assert calibration_path("a", 2) != calibration_path("a", 4)


def test_command():
    done = CliRunner().invoke(
        app, ["plan", "--smoke", "--json", "--verify", "--left-rate", "2100", "--window", "1 minute,2 minutes"]
    )
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads(done.stdout)
    assert found["plan"]["window_rows"] == [126_000, 252_000]
    assert {(row["access"], row["window_rows"]) for row in found["verified"]} >= {("scan", 600), ("index", 1500)}
    assert all(row["measured_tuples_per_s"] > 0 for row in found["verified"])


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_command_for_people(engine):
    done = CliRunner().invoke(app, ["plan", "--smoke", "--engine", engine, "--left-rate", "1e6"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "do not sustain" in done.stdout and "layout" in done.stdout


@pytest.mark.parametrize(
    ("options", "kind", "named"),
    [
        (["--window", "soon"], WindowError, "'soon'"),
        (["--window", "1 s,2 s,3 s"], OptionError, "--window '1 s,2 s,3 s'"),
        (["--access", "magic"], OptionError, "'magic'"),
        (["--memory", "0"], OptionError, "memory"),
    ],
)
def test_wrong_options(options, kind, named):
    error = CliRunner().invoke(app, ["plan", "--smoke", *options]).exception
    assert type(error) is kind and named in str(error)
