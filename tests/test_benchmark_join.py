"""The field's benchmark join gives the same pairs everywhere: in process, on Spark in every layout, after a
restart in the middle, on static DataFrames, and in DuckDB. (Differential test.)"""

from __future__ import annotations

import duckdb
import pytest

import counterflow as cf
from effort import THOROUGH
from inputs import BENCHMARK, benchmark_inputs
from streams import cut, read_stream, results, run_available, write_batches

OPTIONS = dict(where=BENCHMARK, time="ts", window="15 minutes")


@pytest.fixture(scope="module")
def inputs():
    return benchmark_inputs(rows=2000, seconds=3600)


@pytest.fixture(scope="module")
def pairs(inputs):
    return keys(cf.window_join(*inputs, **OPTIONS))


def keys(table):
    """z and c tell the rows apart."""
    times = table["pair_time"].cast("int64").to_pylist()
    return sorted(zip(table["z"].to_pylist(), table["c"].to_pylist(), times, strict=True))


def test_duckdb_finds_the_same_pairs(inputs, pairs):
    left, right = inputs
    connection = duckdb.connect()
    connection.register("r_in", left)
    connection.register("s_in", right)
    found = connection.execute(
        """
        SELECT l.z, r.c, epoch_us(greatest(l.ts, r.ts)) FROM r_in l JOIN s_in r
        ON l.x BETWEEN r.a - 10 AND r.a + 10
        AND CAST(l.y AS DOUBLE) BETWEEN CAST(r.b AS DOUBLE) - 10 AND CAST(r.b AS DOUBLE) + 10
        AND r.ts BETWEEN l.ts - INTERVAL 15 MINUTES AND l.ts + INTERVAL 15 MINUTES
        """
    ).fetchall()
    assert len(pairs) > 1000
    assert sorted(found) == pairs


def test_static_dataframes(spark, inputs, pairs):
    left, right = (spark.createDataFrame(t) for t in inputs)
    joined = cf.window_join(left, right, engine=cf.Spark(layout="2x3"), **OPTIONS)
    assert keys(joined.toArrow()) == pairs


@pytest.mark.parametrize("layout", ["1x1", "2x2", "1x3"] if THOROUGH else ["2x2"])
def test_streams(spark, tmp_path, inputs, pairs, layout):
    left, right = inputs
    write_batches(tmp_path / "left", cut(left, 4))
    write_batches(tmp_path / "right", cut(right, 4))
    joined = stream_join(spark, tmp_path, inputs, layout)
    run_available(joined, tmp_path)
    assert keys(results(spark, joined, tmp_path)) == pairs


def test_restart_in_the_middle(spark, tmp_path, inputs, pairs):
    """Half of the files, stop, the other half: the state comes back from the checkpoint."""
    halves = [cut(table, 4) for table in inputs]
    for first, last in ((0, 2), (2, 4)):
        for name, batches in zip(("left", "right"), halves, strict=True):
            write_batches(tmp_path / name, batches[first:last], first)
        joined = stream_join(spark, tmp_path, inputs, "2x2")
        run_available(joined, tmp_path)
    assert keys(results(spark, joined, tmp_path)) == pairs


def stream_join(spark, folder, inputs, layout):
    left = read_stream(spark, folder / "left", inputs[0])
    right = read_stream(spark, folder / "right", inputs[1])
    return cf.window_join(left, right, engine=cf.Spark(layout=layout), **OPTIONS)


def test_compiled_windows_on_spark(spark, tmp_path):
    """Enough rows that every cell compiles the predicate: the same pairs as numpy finds in process."""
    left, right = benchmark_inputs(rows=60_000, seconds=3600, domain=10_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUNTERFLOW_COMPILE", "never")
        want = keys(cf.window_join(left, right, **OPTIONS))
    assert keys(cf.window_join(left, right, **OPTIONS)) == want and len(want) > 1000
    write_batches(tmp_path / "left", cut(left, 3))
    write_batches(tmp_path / "right", cut(right, 3))
    joined = stream_join(spark, tmp_path, (left, right), "1x1")
    run_available(joined, tmp_path)
    assert keys(results(spark, joined, tmp_path)) == want
