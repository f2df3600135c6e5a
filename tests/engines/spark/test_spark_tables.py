"""A stream beside a static table without a time, on Spark: `time=("ts", None)`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import counterflow as cf
from counterflow.engines.spark.cell.table_window import table_window
from counterflow.engines.spark.query import table_files, table_join
from inputs import PREDICATES, SCHEMA, table_of
from oracle import expected
from oracle import results as results_of
from sentinels import unique_times
from streams import read_stream, results, run_available, write_batches


def random_table(seed: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return table_of(
        [
            (int(s), [None, 0, 1, 2][k], int(x), float(f), ["", "a", "ab", None][t])
            for s, k, x, f, t in zip(
                rng.integers(0, 9, rows),
                rng.integers(0, 4, rows),
                rng.integers(-5, 6, rows),
                rng.uniform(-3, 3, rows),
                rng.integers(0, 4, rows),
                strict=True,
            )
        ]
    )


def joined_in_batches(spark, folder, stream, table, side, **options):
    """The results of a stream in three micro-batches, one of them late by the watermark of the others."""
    parts = [stream.slice(20, 20), stream.slice(40), stream.slice(0, 20)]
    write_batches(folder / "stream", parts)
    streaming = read_stream(spark, folder / "stream", SCHEMA.empty_table(), "1 second")
    inputs = (streaming, spark.createDataFrame(table)) if side == "right" else (spark.createDataFrame(table), streaming)
    joined = cf.window_join(*inputs, **options)
    run_available(joined, folder)
    return results_of(results(spark, joined, folder), options["how"])


@pytest.mark.parametrize(
    ("side", "how", "predicate"),
    [("right", "left", "distance on a sphere"), ("left", "right", "float band"), ("right", "anti", "filters")],
)
def test_a_stream_beside_a_table(spark, tmp_path, side, how, predicate):
    """Oracle test: no row is late, and every row has its results in its own batch."""
    stream, table = random_table(1, 60), random_table(2, 30)
    options = dict(where=PREDICATES[predicate], time=("ts", None) if side == "right" else (None, "ts"), how=how)
    found = joined_in_batches(spark, tmp_path, stream, table, side, **options)
    inputs = (stream, table) if side == "right" else (table, stream)
    want = expected(*inputs, **options)
    assert len(want) > 20 and Counter(found) == Counter(want)


def test_haversine_beside_a_table_equals_the_finite_join(spark, tmp_path):
    """Differential test: the stream's results are those of the join of two tables in process."""
    rng = np.random.default_rng(3)

    def places(rows, **columns):
        latitude = pa.array(np.degrees(np.arcsin(rng.uniform(-1, 1, rows))))
        return pa.table({"id": range(rows), "lat": latitude, "lon": pa.array(rng.uniform(-180, 180, rows)), **columns})

    ports = places(60_000)  # more than numpy searches: the workers compile an index
    ts = pa.array(np.arange(300) * 1_000_000, pa.timestamp("us", "UTC"))
    ships = places(300, ts=ts)
    options = dict(where="haversine(l.lat, l.lon, r.lat, r.lon) <= 100000", time=("ts", None), how="semi")
    write_batches(tmp_path / "stream", [ships.slice(0, 100), ships.slice(100)])
    streaming = read_stream(spark, tmp_path / "stream", ships)
    joined = cf.window_join(streaming, spark.createDataFrame(ports), **options)
    run_available(joined, tmp_path)
    found = sorted(results_of(results(spark, joined, tmp_path), "semi"))
    assert len(found) > 50
    assert found == sorted(results_of(cf.window_join(ships, ports, **options), "semi"))
    assert list(Path(table_files.spark_files()).glob("*.index"))  # built once, for all workers


def test_two_static_inputs(spark):
    """Oracle test: the static join knows tables without a time, too, and puts results in order."""
    stream, table = unique_times(6, 30), random_table(7, 20)
    options = dict(where="l.x = r.x", time=(None, "ts"), how="right", ordered=True)
    inputs = (table, stream)
    joined = cf.window_join(*map(spark.createDataFrame, inputs), engine=cf.Spark(layout="1x2"), **options)
    found = results_of(joined.toArrow(), "right")
    assert Counter(found) == Counter(expected(*inputs, **options))
    assert [time for _, _, time in found] == [time for _, _, time in expected(*inputs, **options)]


def test_the_pair_time_is_an_event_time(spark, tmp_path):
    stream, table = random_table(4, 60), random_table(5, 30)
    write_batches(tmp_path / "stream", [stream.slice(0, 30), stream.slice(30)])
    streaming = read_stream(spark, tmp_path / "stream", SCHEMA.empty_table())
    joined = cf.window_join(streaming, spark.createDataFrame(table), where="l.k = r.k", time=("ts", None), how="left")
    query = (
        joined.groupBy(F.window("pair_time", "4 seconds"))
        .count()
        .writeStream.format("memory")
        .queryName("beside_table")
        .trigger(availableNow=True)
        .outputMode("append")
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None


def test_a_table_that_is_read_again(spark, tmp_path, monkeypatch):
    """A batch sees the newest file that counts by its own time.

    file     from the beginning: port 1      from a later time on: ports 1, 2
    batches  ship, at once: 1 pair           ship, after that time: 2 pairs
    """
    kept = []
    monkeypatch.setattr(table_join, "keep_fresh", lambda files, seconds: kept.append((files, seconds)))
    ports = [spark.createDataFrame(pa.table({"port": list(range(n)), "k": [7] * n})) for n in (1, 2)]
    ship = table_of([(1, 7, 0, 0.0, "a")])
    write_batches(tmp_path / "stream", [ship])
    streaming = read_stream(spark, tmp_path / "stream", SCHEMA.empty_table())
    options = dict(where="l.k = r.k", time=("ts", None), engine=cf.Spark(refresh="10 minutes"))
    joined = cf.window_join(streaming, ports[0], **options)
    run_available(joined, tmp_path)
    assert len(results(spark, joined, tmp_path)) == 1
    ((files, seconds),) = kept
    assert seconds == 600
    monkeypatch.setattr(table_files, "LAG_S", -60.0)  # what is read now counts at once
    monkeypatch.setattr(table_files, "LAG_TIMES", -60.0)
    files.frame = ports[1]
    files.read_again()
    write_batches(tmp_path / "stream", [ship], first=1)
    run_available(joined, tmp_path)
    assert len(results(spark, joined, tmp_path)) == 3
    for _ in range(2):
        files.read_again()
    assert sum(path.stat().st_size > 0 for path in files.folder.iterdir()) == 2


def test_null_times_are_dropped_if_asked(spark, tmp_path):
    ships = table_of([(1, 7, 0, 0.0, "a"), (2, 7, 0, 0.0, "a")])
    ships = ships.set_column(1, "ts", pa.array([ships["ts"][0], None]))
    write_batches(tmp_path / "stream", [ships])
    streaming, ports = read_stream(spark, tmp_path / "stream", ships), spark.createDataFrame(pa.table({"port": [7]}))
    options = dict(where="l.k = r.port", time=("ts", None))
    joined = cf.window_join(streaming, ports, engine=cf.Spark(null_times="drop"), **options)
    run_available(joined, tmp_path)
    assert results(spark, joined, tmp_path)["id"].to_pylist() == [0]
    with pytest.raises(StreamingQueryException, match="time column 'ts' of the left input is null"):
        run_available(cf.window_join(streaming, ports, **options), tmp_path / "again")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(how="right"), "how='right' keeps rows of the right side, which is a table"),
        (dict(how="full"), "never final while the stream goes on"),
        (dict(ordered=True), "ordered=True of a stream beside a table"),
        (dict(time=("ts", "ts"), window="1 second"), r"or all static .*time=\('ts', None\)"),
        (dict(time=(None, "ts")), "time= is missing for the left stream"),
    ],
)
def test_what_is_refused(spark, tmp_path, options, said):
    streaming = read_stream(spark, tmp_path, SCHEMA.empty_table())
    table = spark.createDataFrame(random_table(1, 3))
    with pytest.raises(cf.CounterflowError, match=said):
        cf.window_join(streaming, table, **{**dict(where="l.k = r.k", time=("ts", None)), **options})


def test_a_table_that_is_not_there_is_an_error_that_says_so(tmp_path):
    with pytest.raises(cf.CounterflowError, match="the table beside the stream is not on this executor"):
        table_window(None, str(tmp_path), "counterflow-table-0", 5)
