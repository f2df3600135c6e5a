"""The benchmarks at their smallest: they run, check their output, and report what they should."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from counterflow.cli.main import app
from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.query.layout import choose_layout
from counterflow.errors import OptionError
from counterflow.lab.bench import layouts
from counterflow.lab.bench.scan_limit import Limit, load_limit

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
    from counterflow.lab.bench.finite_join import measure_finite
    from counterflow.lab.bench.report import SMOKE, Report

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


# --- spark


def bench_spark(folder, *options, name="spark", **more):
    """A process of its own: it starts a session with its own settings, and temporary files go to `folder`."""
    code = "from counterflow.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "bench", name, "--smoke", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder)}, **more,
    )  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[pytest.param(None, marks=[pytest.mark.thorough, pytest.mark.spark])],
)
def spark_report(tmp_path_factory):
    process = bench_spark(tmp_path_factory.mktemp("bench"), "--json")
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out)


def test_spark_output_was_checked(spark_report):
    assert all(row["verified"] is True for row in spark_report["results"]) and spark_report["ratios"]["verified"]
    assert {(row["case"], row["through"]) for row in spark_report["results"]} == {
        ("band", "counterflow"), ("band", "identity"), ("band", "spark_bucket_explode"), ("band", "spark_grid"),
        ("equi", "counterflow"), ("equi", "spark_native"), ("memory", "counterflow"),
    }  # fmt: skip


def test_spark_rows_say_what_they_measured(spark_report):
    assert spark_report["benchmark"] == "spark" and spark_report["smoke"] and "pyspark" in spark_report["versions"]
    shape = {"window_rows", "batch_rows", "domain", "partitions", "state_store", "batches", "batch_ms_p50"}
    measured = {"runs", "batch_ms_p90", "delay_ms_p50", "tuples_per_s", "add_batch_ms", "query_planning_ms",
                "latest_offset_ms", "wal_commit_ms", "commit_offsets_ms", "state_commit_ms"}  # fmt: skip
    ours = {"layout", "unpack_us", "join_us", "host_us", "state_us", "hot_hits", "rebuilds", "state_bytes"}
    for row in spark_report["results"]:
        assert set(row) >= shape, row
        assert row["case"] == "memory" or set(row) >= measured, row
        assert row["case"] == "memory" or row["through"] != "counterflow" or set(row) >= ours, row
        assert row["through"] == "identity" or (row["pairs"] > 0 and row["matches_per_row"] > 0.1), row


def test_spark_ratios(spark_report):
    from counterflow.lab.bench.spark_joins import ASKED

    assert set(spark_report["ratios"]) == {*ASKED, "verified"}
    assert all(spark_report["ratios"][name] > 0 for name in ("band_to_identity", "equi_to_native"))


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is measured on Linux")
def test_spark_memory(spark_report):
    (row,) = (row for row in spark_report["results"] if row["case"] == "memory")
    assert row["batches"] == 5 and row["workers_first"] > 0 and row["worker_bytes_first"] > 1 << 20
    assert row["growth_bytes"] == row["worker_bytes_last"] - row["worker_bytes_first"]
    assert spark_report["ratios"]["memory_growth_bytes"] == row["growth_bytes"]


@pytest.mark.slow
@pytest.mark.spark
def test_spark_can_be_interrupted(tmp_path):
    process = bench_spark(tmp_path)
    for line in process.stderr:
        if " through " in line:  # a query runs, or is about to
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and "Traceback" not in err, err
    assert not list(tmp_path.glob("counterflow-bench-*"))


def test_spark_readable(spark_report, capsys):
    from counterflow.cli.bench import show_spark

    show_spark(spark_report)
    printed = capsys.readouterr().out
    assert "band_to_identity: asked at least 0.7, seen" in printed and "memory of the workers over 5 batches" in printed


# --- layouts


@pytest.fixture(scope="module")
def routed_layouts():
    return list(layouts.routed_rows(layouts.SMOKE, lambda text: None))


def test_layouts_are_counted_and_checked(routed_layouts):
    """By DP-Join's Expression: a matrix of n x n cells is sent n times the rows; `home` all to all; `hash` once."""
    assert all(row["verified"] is True and row["pairs"] > 10 for row in routed_layouts)
    sent = {(r["layout"], r["values"]): (r["rows_sent_per_row"], r["evenness"]) for r in routed_layouts}
    assert (
        sent["4x4", "uniform"][0] == 4 and sent["home:16", "uniform"] == (16, 1) and sent["hash:16", "uniform"][0] == 1
    )
    for values, evenness_min in (("uniform", 0.8), ("crowd in one column", 0.6), (layouts.VALUES[-1], 0.6)):
        rows_sent, evenness = sent["band:16", values]
        assert rows_sent < 1.4 and evenness > evenness_min


def test_a_pair_that_meets_twice_or_never_is_noticed():
    """All rows of one side are sent one cell further."""
    tables = layouts._tables(2000, "uniform", 1)
    spec = layouts._spec(tables, "band")
    layout = choose_layout(spec, Spark(layout="band:4"), 1)
    found, once = layouts.routed(spec, layout, tables)
    pairs = layouts._pairs(spec, tables)
    assert once and (found.meetings(*pairs) == 1).all()
    found.at["left"][:] = (found.at["left"] + 1) % 4
    assert not (found.meetings(*pairs) == 1).all()


@pytest.mark.thorough
@pytest.mark.spark
def test_layouts_on_spark(tmp_path, capsys):
    from counterflow.cli.bench import show_layouts

    process = bench_spark(tmp_path, "--json", name="layouts")
    out, err = process.communicate()
    assert process.returncode == 0, err
    report = json.loads(out)
    rows = [row for row in report["results"] if row["case"] == "spark"]
    assert [row["layout"] for row in rows] == ["1x1", "1x2", "home:2", "hash:2", "band:2"]
    assert all(row["verified"] and row["batch_ms_p50"] > 0 and row["tuples_per_s"] > 0 for row in rows)
    show_layouts(report)
    assert "band:16" in capsys.readouterr().out


# --- local


@pytest.fixture(scope="module")
def local_report():
    from counterflow.lab.bench.local_algorithms import bench_local

    return bench_local(True, lambda text: None)


def test_local_output_was_checked(local_report):
    assert all(row["verified"] is True for row in local_report["results"])
    assert {row["algorithm"] for row in local_report["results"] if row["case"] == "scan"} == {
        "kang", "celljoin", "handshake", "llhj", "dpjoin", "scalejoin",
    }  # fmt: skip
    assert {(row["case"], row["path"]) for row in local_report["results"]} == {
        ("scan", "scan"), ("merge", "merge"), ("skew", "scan"), ("index", "hash"), ("index", "band"),
        ("latency", "hash"), ("latency", "band"),
    }  # fmt: skip


def test_local_readable(local_report, capsys):
    from counterflow.cli.bench import show_local

    show_local(local_report)
    assert "worst_latency_us_p50: asked below 200, seen" in capsys.readouterr().out


def test_local_of_one_configuration():
    from counterflow.lab.bench.local_configuration import Choice, bench_chosen

    choice = Choice(algorithms=("llhj", "handshake"), window_rows=1000, predicate="equi", share=0.25)
    llhj, handshake = bench_chosen(choice, True, lambda text: None)["results"]
    assert llhj["verified"] and handshake["verified"] and llhj["window_rows"] == 1000 and llhj["path"] == "hash"
    assert llhj["rate_tuples_per_s"] == pytest.approx(llhj["tuples_per_s"] / 4) and llhj["latency_us_p50"] > 0


def test_local_of_waiting_threads():
    from counterflow.lab.bench.local_configuration import Choice, bench_chosen

    choice = Choice(algorithms=("llhj", "handshake"), window_rows=1000, access="scan", waiting="park")
    (row,) = bench_chosen(choice, True, lambda text: None)["results"]  # handshake join has no such latency
    assert row["verified"] and row["waiting"] == "park" and row["case"] == "waiting"
    assert 0 < row["latency_us_p50"] <= row["latency_us_p99"]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"algorithms": ("lhj",)}, "did you mean 'llhj'"),
        ({"predicate": "bands"}, "did you mean 'band'"),
        ({"workers": 0}, "--workers 0: must be at least 1"),
        ({"share": 1.5}, "--share 1.5"),
        ({"predicate": "equi", "access": "merge"}, "--predicate band"),
        ({"waiting": "parking"}, "did you mean 'park'"),
        ({"waiting": "park", "share": 0.7}, "--waiting measures at a low rate"),
    ],
)
def test_local_refuses(options, said):
    from counterflow.lab.bench.local_configuration import Choice

    with pytest.raises(OptionError, match=said):
        Choice(**options)


def test_streams():
    from counterflow.lab.bench.public_streams import ALGORITHMS, SMOKE, bench_streams

    report = bench_streams(True, lambda text: None)
    rows = report["results"]
    assert all(row["verified"] for row in rows)
    cases = Counter((row["path"], row["case"]) for row in rows)
    for kind in ("hash", "band"):
        assert cases[kind, "rate"] == 2 * len(SMOKE.batches) * len(ALGORITHMS)
        assert cases[kind, "half the rate"] == cases[kind, "gentle rate"] == len(ALGORITHMS)
        assert cases[kind, "pushed"] == len(SMOKE.pushed_rates)
    sourced = [row for row in rows if row["case"] == "sources"]
    assert [(row["sources"], row["algorithm"], row["path"]) for row in sourced] == [
        (n, "scalejoin", "hash") for n in SMOKE.sources
    ]
    long = [row for row in rows if row["case"] == "memory"]
    assert [row["algorithm"] for row in long] == list(ALGORITHMS)
    assert all(0 < row["resident_bytes_settled"] <= row["resident_bytes_max"] for row in long)
    aged = [row for row in rows if row["case"] not in ("rate", "sources", "memory")]
    assert all(0 < row["latency_us_p50"] <= row["latency_us_p99"] for row in aged)
    assert all(row["share_of_bare"] > 0 for row in rows if row["case"] == "rate")
    assert 0 < report["ratios"]["least_auto_to_best"] <= 1
    assert report["ratios"]["sources_8_to_1"] == sourced[1]["tuples_per_s"] / sourced[0]["tuples_per_s"]


# --- gate


@pytest.fixture(scope="module")
def gate_report():
    done = CliRunner().invoke(app, ["bench", "gate", "--smoke", "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def test_gate(gate_report):
    from counterflow.lab.bench.gate import SMOKE

    assert gate_report["benchmark"] == "gate" and {"machine", "versions"} <= set(gate_report)
    rows = gate_report["results"]
    measured = {(row["sources"], row["readers"], row["promise_rows"]) for row in rows}
    assert measured == set(product(SMOKE.sources, SMOKE.readers, SMOKE.promise_rows)) and len(rows) == len(measured)
    for row in rows:
        assert row["verified"] is True and row["inserts_per_s"] > 0 and row["gets_per_s"] > 0, row
    assert all(ratio > 0 for ratio in gate_report["ratios"].values())


def test_gate_readable(gate_report, capsys):
    from counterflow.cli.bench import show_gate

    show_gate(gate_report)
    printed = capsys.readouterr().out
    assert "inserts/s" in printed and "most_sources_to_fewest: asked -, seen" in printed


@pytest.mark.parametrize("change", ["another value", "another order", "one less"])
def test_gate_notices_what_is_wrong(change):
    """A reader's checksum is that of the sorted union alone: no other tuples, and no other order of them."""
    from counterflow.lab.bench.gate import Streams, checksum_of, measure

    streams = Streams(2, 500)
    assert measure(streams, 2, 1, 16)["verified"]
    tuples = np.concatenate(streams.tuples)
    tuples = tuples[np.lexsort((tuples[:, 1], tuples[:, 0]))]
    assert checksum_of(tuples) == streams.checksum
    if change == "another value":
        tuples[100, 2] += 1
    elif change == "another order":
        tuples[[100, 101]] = tuples[[101, 100]]
    else:
        tuples, streams.count = tuples[:-1], 499
    streams.checksum = int(checksum_of(tuples))
    assert not measure(streams, 2, 1, 16)["verified"]


def test_a_hop():
    from counterflow.cores import usable_cores
    from counterflow.lab.bench.core_hops import hop_ns

    if len(usable_cores()) == 1:
        assert hop_ns() is None
    else:
        assert 0 < hop_ns(rounds=100) < 1e9


# --- latency


def test_latency_is_the_median_of_all_runs():
    """No run is left out, and no result: not of those that the host disturbed either."""
    from counterflow.lab.bench.latency import ages
    from counterflow.lab.bench.local_algorithms import latency_row
    from counterflow.lab.replay.watching import BINS, bin_of

    def run(late_ms, stolen):
        histogram = np.zeros(BINS, np.int64)
        histogram[bin_of(20_000)] = 970
        histogram[bin_of(late_ms * 10**6)] += 30
        return {"stolen": stolen, "seconds": 0.25, "verified": True, **ages(histogram)}, histogram

    row = latency_row([run(4, 0.0), run(1, 0.0), run(9, 0.3)])
    assert row["repeats"] == 3 and row["stolen"] == pytest.approx(0.1) and row["verified"]
    assert 4_000 <= row["latency_us_p99"] < 4_100 and 20 <= row["latency_us_p50"] < 21
    assert 4_000 <= row["latency_us_p99_of_all"] < 9_200 and 9_000 <= row["latency_us_max_of_all"] < 9_200
