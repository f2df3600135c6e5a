"""`counterflow reproduce` at its smallest: every figure is made, and the page shows them all."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from counterflow.cli.main import app
from counterflow.errors import OptionError
from counterflow.lab.reproduce.all_figures import FIGURES, chosen
from counterflow.lab.reproduce.calibrate import OPTERON, comparison_ns, ideal_rate
from counterflow.lab.reproduce.figure import Curve, Figure, judged
from counterflow.lab.reproduce.figures_page import write_page
from counterflow.lab.reproduce.low_latency_figures import bound_s, buffered, each_interval
from counterflow.lab.reproduce.virtual_runs import nested_loop_rate, simulate
from counterflow.lab.simulator.timed_join import Timed
from effort import THOROUGH

ASKED = {
    "llhj-5", "llhj-17", "llhj-18", "llhj-19", "llhj-20", "llhj-21", "llhj-table-2",
    "handshake-15", "handshake-16", "first-report-9", "first-report-13",
    "fpga-18", "fpga-table-1", "fpga-table-2",
    "dpjoin-4", "dpjoin-5", "dpjoin-6", "dpjoin-7", "dpjoin-table-1",
    "scalejoin-5", "scalejoin-6", "scalejoin-7", "scalejoin-8",
}  # fmt: skip
# Without those that measure, each of which compiles much; DP-Join's and ScaleJoin's have a test of their own.
MADE = list(FIGURES) if THOROUGH else ["llhj-5", "fpga-18", "fpga-table-1", "dpjoin-table-1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduced")
    done = CliRunner().invoke(app, ["reproduce", "--smoke", "--json", "--output", str(folder), *MADE])
    assert done.exit_code == 0, (done.output, done.exception)
    return folder, json.loads(done.stdout)


@pytest.mark.slow
def test_every_figure_is_there(made):
    folder, report = made
    assert set(FIGURES) >= ASKED
    assert [figure["name"] for figure in report["figures"]] == MADE
    for name in MADE:
        figure = json.loads((folder / f"{name}.json").read_text())
        assert figure["curves"] or figure["rows"], "a figure or a table"
        if not figure["curves"]:
            continue
        assert (folder / f"{name}.png").stat().st_size > 5_000 and (folder / f"{name}.svg").stat().st_size > 5_000
        assert {"name", "paper", "title", "verdict", "curves", "deviations", "checks"} <= set(figure)
        assert all(len(curve["x"]) == len(curve["y"]) for curve in figure["curves"])
        assert any(curve["source"] != "paper" for curve in figure["curves"]), "ours is missing"
        assert all(np.isfinite(deviation["ours"]) for deviation in figure["deviations"])


def test_the_page_links_to_what_there_is(made):
    folder, report = made
    page = (folder / "index.html").read_text()
    links = set(re.findall(r'(?:href|src)="([^"#]+)"', page))
    assert len(links) >= 2 * len(MADE) and all((folder / link).exists() for link in links)
    assert set(re.findall(r'href="#([^"]+)"', page)) == set(re.findall(r'<h2 id="([^"]+)"', page)) == set(MADE)
    assert report["machine"]["cpu"] in page and "--smoke" in page


def test_unknown_figure():
    with pytest.raises(OptionError, match=r"no figure 'llhj-table-3'; did you mean 'llhj-table-2'\?"):
        chosen(["llhj-table-3"])
    assert chosen(["llhj-5", "llhj-5"]) == ["llhj-5"]


def test_list():
    done = CliRunner().invoke(app, ["reproduce", "--list"])
    assert done.stdout.split() == list(FIGURES)


def test_a_failed_check_is_said_and_ends_with_1(tmp_path, monkeypatch):
    checks = {"the sun is cold": False}
    figure = Figure("bad", "none", "Bad", judged(checks, "no."), curves=[Curve("a", "model", [1], [1])], checks=checks)
    monkeypatch.setitem(FIGURES, "bad", lambda smoke, note: figure)
    done = CliRunner().invoke(app, ["reproduce", "bad", "--output", str(tmp_path)])
    assert done.exit_code == 1
    assert "Does not agree (the sun is cold)" in (tmp_path / "index.html").read_text()


def test_page_escapes(tmp_path):
    figure = Figure("odd", "<b>", "a < b", "x & y")
    machine = {"cpu": "<cpu>", "cores": 1, "load_before": 0.0}
    page = write_page([figure], {"machine": machine, "date": "2026-11-16", "smoke": False}, tmp_path).read_text()
    assert "<b>" not in page and "a &lt; b" in page and "x &amp; y" in page and "&lt;cpu&gt;" in page


# --- what figures are made of


def test_ideal_rate_inverts_the_cost():
    assert ideal_rate(40, 900, OPTERON) == pytest.approx(3200)
    assert comparison_ns(8, 1400, 900) == pytest.approx(2.27, rel=0.01)


def test_bound():
    assert bound_s(200, 200) == 100
    assert bound_s(100, 200) == pytest.approx(66.67, rel=1e-3)


def timed(**given):
    none = np.empty(0)
    names = ("comparisons", "busy", "result_time", "result_rank", "mark_time", "mark_rank", "due", "stages")
    arrays = dict.fromkeys(names, none)
    return Timed(**{"seconds": 1.0, "tuples": 4, **arrays, **given})


def test_buffered_counts_what_is_found_and_not_yet_marked():
    # results of ranks   0 2 1 3     marks: at 2.5 all below rank 1, at 4.5 all
    run = timed(
        result_time=np.array([1.0, 2.0, 3.0, 4.0]),
        result_rank=np.array([0, 2, 1, 3]),
        mark_time=np.array([2.5, 4.2, 4.5]),
        mark_rank=np.array([1, 1, 4]),
        due=np.zeros(5),
    )
    assert buffered(run) == 3


def test_each_interval():
    run = timed(result_time=np.array([1.0, 2.0, 9.0]), result_rank=np.array([0, 1, 2]), due=np.array([0.0, 1.5, 8.0]))
    assert each_interval(run, 10, 2) == ([2.5, 7.5], [0.75, 1.0], [1.0, 1.0])


def test_the_wait_for_a_batch_counts_as_latency():
    """Tuples every ms, sixteen at once: with next to no work, half of that time on average."""
    run = simulate("llhj", 2, 400, 400, OPTERON, batch=16, rate=1000, together=16, domain=200)
    assert 0.006 < run.latency.mean() < 0.010 and run.latency.max() < 0.017


def test_rate_grows_with_the_square_root_of_the_nodes():
    few, many = (nested_loop_rate("llhj", n, 900, OPTERON, smoke=True) for n in (2, 8))
    assert many.tuples_per_s / few.tuples_per_s == pytest.approx(2, rel=0.1)
    assert many.comparisons_per_s / few.comparisons_per_s == pytest.approx(4, rel=0.2)
