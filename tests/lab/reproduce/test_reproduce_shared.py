"""DP-Join's and ScaleJoin's figures at their smallest; and that streams under the clock are counted as they should."""

from __future__ import annotations

import json

import numpy as np
import pytest

from counterflow.lab.bench.benchmark_inputs import band_inputs
from counterflow.lab.reproduce import dp_join_figures as dp_join
from counterflow.lab.reproduce import scale_join_figures as scale_join
from counterflow.lab.reproduce.timed_streams import Streams, simulate_streams, steady
from counterflow.lab.simulator.timed_join import Costs

FIGURES = {**dp_join.FIGURES, **scale_join.FIGURES}


@pytest.mark.parametrize("name", FIGURES)
def test_figure(name, tmp_path):
    figure = FIGURES[name](True, lambda _: None)
    assert figure.name == name and figure.verdict and (figure.curves or figure.rows)
    assert all(len(curve.x) == len(curve.y) > 0 for curve in figure.curves)
    figure.write(tmp_path)
    assert json.loads((tmp_path / f"{name}.json").read_text())["paper"] in ("DP-Join", "ScaleJoin")


@pytest.mark.parametrize("case", scale_join.CASES)
def test_comparisons_of_each_node(case):
    """Against a count of its own: a node has every n-th row of each side."""
    nodes, left, right, _ = scale_join.CASES[case]
    streams = Streams(scale_join.arrivals(left, 6.0), scale_join.arrivals(right, 6.0), (20.0, 30.0))
    run = simulate_streams("scalejoin", nodes, streams, Costs(comparison=100.0), stops_s=[3.0])
    batches = streams.stamped(band_inputs(max(len(streams.left), len(streams.right))))
    expected = np.zeros((2, nodes))
    for batch, times in zip(batches, (streams.left, streams.right), strict=True):
        for k in range(nodes):
            rows = (batch.high - k) // nodes - (batch.low - 1 - k) // nodes
            expected[0, k] += rows[(times >= 0) & (times < 3)].sum()
            expected[1, k] += rows[times >= 3].sum()
    assert np.array_equal(run.stages, expected)
    sizes = [batch.high - batch.low for batch in batches]
    assert all(len(np.unique(size[len(size) // 2 :])) > 1 for size in sizes), "windows that never change show nothing"


@pytest.mark.parametrize("layout", [(2, 2), (1, 4), (4, 1)])
def test_layouts_make_the_same_comparisons(layout):
    streams = steady((500.0, 1500.0), (1.0, 2.0), 400)
    run = simulate_streams("dpjoin", 4, streams, Costs(), layout=layout)
    left, right = streams.stamped(band_inputs(max(len(streams.left), len(streams.right))))
    measured = [(batch.high - batch.low + 1)[times >= 0].sum()
                for batch, times in ((left, streams.left), (right, streams.right))]  # fmt: skip
    assert run.comparisons.sum() == sum(measured)
