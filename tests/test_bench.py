"""The benchmarks at their smallest: they run, check their output, and report what they should."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from counterflow.bench.limit import Limit, load_limit
from counterflow.cli.main import app

SHAPE = {"path", "through", "window_rows", "threads", "verified"}


@pytest.fixture(scope="module")
def report():
    done = CliRunner().invoke(app, ["bench", "kernels", "--smoke", "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def rows_of(report, path):
    return [row for row in report["results"] if row["path"] == path]


def test_all_output_was_checked(report):
    assert report["results"] and all(row["verified"] is True for row in report["results"])


def test_every_row_says_what_it_measured(report):
    assert {"cpu", "cores", "memory_bytes"} <= set(report["machine"])
    assert {"python", "numpy", "numba", "pyarrow", "counterflow"} <= set(report["versions"])
    for row in report["results"]:
        assert set(row) >= SHAPE, row


@pytest.mark.parametrize("path", ["scan", "prefilter", "hash", "band"])
def test_paths(report, path):
    rows = rows_of(report, path)
    rate = "comparisons_per_s" if path in ("scan", "prefilter") else "tuples_per_s"
    for row in rows:
        assert row[rate] > 0 and row["bytes_per_row"] > 0 and row["compile_s"] >= 0 and row["matches_per_probe"] >= 0
    assert {row["threads"] for row in rows} == {1, 2} and {row["batch_rows"] for row in rows} >= {1, 64}
    throughs = {"store"} if path in ("scan", "prefilter") else {"stream", "store"}
    assert {row["through"] for row in rows} == throughs
    assert len({row["window_rows"] for row in rows}) > 1


def test_limit(report):
    limit = load_limit()
    if not isinstance(limit, Limit):
        assert any(limit in remark for remark in report["remarks"])
        pytest.skip(limit)
    assert {row["threads"] for row in rows_of(report, "limit_avx2")} == {1, 2}
    assert all("ratio_to_limit" in row for path in ("scan", "prefilter") for row in rows_of(report, path))


def test_finite_join(report):
    rows = {row["through"]: row for row in rows_of(report, "finite_join")}
    assert set(rows) == {"counterflow", "duckdb_grid", "duckdb_plain"}
    assert len({row["pairs"] for row in rows.values()}) == 1 and rows["counterflow"]["pairs"] > 50


def test_finite_join_without_duckdb(monkeypatch):
    from counterflow.bench.finite import measure_finite
    from counterflow.bench.report import SMOKE, Report

    monkeypatch.setitem(sys.modules, "duckdb", None)  # importing it fails
    report = Report(SMOKE, lambda _: None)
    measure_finite(report)
    assert [row["through"] for row in report.rows] == ["counterflow"] and report.rows[0]["verified"]
    assert "duckdb is not installed" in report.remarks[0]


def test_hard_cases(report):
    cases = {row["case"]: row for row in rows_of(report, "robust")}
    assert set(cases) == {
        "hot_key", "all_matching_band", "one_row", "empty_batches", "many_probes", "probe_cost_hash", "probe_cost_band",
    }  # fmt: skip
    assert {"resident_before_bytes", "resident_after_bytes"} <= set(cases["many_probes"])
    assert cases["all_matching_band"]["matches_per_probe"] == cases["all_matching_band"]["window_rows"]
    assert all("probe_cost_ratio" in cases[f"probe_cost_{kind}"] for kind in ("hash", "band"))


def test_readable(capsys):
    from counterflow.cli.bench import show

    row = dict(path="scan", through="store", window_rows=4096, batch_rows=64, threads=1, comparisons_per_s=2e9,
               ratio_to_limit=0.9, matches_per_probe=0.1, bytes_per_row=24.0, verified=True)  # fmt: skip
    machine = dict(cpu="a machine", cores=2, memory_bytes=1 << 34)
    show({"machine": machine, "versions": {"python": "3.11"}, "results": [row], "remarks": ["no limit"]})
    printed = capsys.readouterr().out
    assert "a machine, 2 cores, 16 GiB" in printed and "2 G comparisons/s" in printed and "no limit" in printed
