"""What a Spark engineer relies on: late rows, event time downstream, schemas, state that is cleaned, restarts."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

import counterflow as cf
from inputs import table_of
from streams import read_stream, results, run_available, write_batches

BASE = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def rows(*seconds_and_keys: tuple[int, int], first: int = 0) -> pa.Table:
    """A table with a time (seconds from BASE), a key, and ids counted from `first`."""
    table = table_of([(s, k, k, 0.0, "a") for s, k in seconds_and_keys])
    return table.set_column(0, "id", pa.array(range(first, first + len(table)), pa.int64()))


# Four micro-batches. With a delay of 10 s the watermark is 10 s in the second, 25 s in the third and 30 s in the
# fourth; a row is late if it is not after the watermark of the batch before: in the third batch at 10 s or before
# (left 3 s), in the fourth at 25 s or before (left 25 s, right 24 s), but not 26 s.
LEFT = [
    rows((5, 1), (20, 2)),
    rows((35, 3), (12, 1), first=2),
    rows((40, 4), (26, 3), (3, 1), first=4),
    rows((41, 4), (25, 3), (26, 2), first=7),
]
RIGHT = [
    rows((6, 1), (22, 2)),
    rows((36, 3), (9, 2), first=2),
    rows((41, 4), (27, 2), first=4),
    rows((42, 4), (24, 3), (26, 3), first=6),
]


@pytest.fixture
def late_streams(spark, tmp_path):
    write_batches(tmp_path / "left", LEFT)
    write_batches(tmp_path / "right", RIGHT)
    return [read_stream(spark, tmp_path / side, LEFT[0], delay="10 seconds") for side in ("left", "right")]


def on_time_pairs() -> pa.Table:
    """What the streams' join should give: in process, without the three late rows."""
    left, right = pa.concat_tables(LEFT), pa.concat_tables(RIGHT)
    left = left.filter(pc.invert(pc.is_in(pc.second(left["ts"]), pa.array([3, 25]))))
    right = right.filter(pc.not_equal(pc.second(right["ts"]), 24))
    return cf.window_join(left, right, where="l.k = r.k", time="ts", window="30 seconds")


def test_late_rows_are_those_that_sparks_own_join_drops(spark, tmp_path, late_streams):
    left, right = late_streams
    own = left.alias("l").join(
        right.alias("r"),
        F.expr("l.k = r.k AND r.ts BETWEEN l.ts - INTERVAL 30 SECONDS AND l.ts + INTERVAL 30 SECONDS"),
    )
    own = own.select("l.id", F.col("r.id").alias("id_right"))
    own_query = run_available(own, tmp_path / "own")
    own_late = sum(p["stateOperators"][0]["numRowsDroppedByWatermark"] for p in own_query.recentProgress)
    ours = cf.window_join(left, right, where="l.k = r.k", time="ts", window="30 seconds", engine=cf.Spark(layout="2x2"))
    query = run_available(ours, tmp_path / "ours")

    def ids(frame, folder):
        return sorted(
            map(tuple, results(spark, frame, folder).select(["id", "id_right"]).to_pandas().to_numpy().tolist())
        )

    assert ids(ours, tmp_path / "ours") == ids(own, tmp_path / "own")
    metrics = cf.query_metrics(query)
    assert (metrics["rows_left"], metrics["rows_right"]) == (10, 9)
    assert (metrics["late_left"], metrics["late_right"]) == (2, 1)
    assert own_late == 3
    assert metrics["pairs"] == len(ids(ours, tmp_path / "ours"))


def test_pair_time_is_the_event_time_of_later_operators(spark, tmp_path, late_streams):
    pairs = cf.window_join(*late_streams, where="l.k = r.k", time="ts", window="30 seconds")
    counts = pairs.groupBy(F.window("pair_time", "10 seconds")).agg(F.count("*").alias("n"))
    counted = counts.select(F.col("window.start").alias("start"), "n")
    run_available(counted, tmp_path)
    found = results(spark, counted, tmp_path).to_pylist()
    want = Counter(t.second // 10 * 10 for t in on_time_pairs()["pair_time"].to_pylist())
    assert {r["start"].second: r["n"] for r in found} == {s: n for s, n in want.items() if s < 30}  # closed by then


def test_a_chain_of_joins(spark, tmp_path, late_streams):
    """The second join uses the first one's `pair_time`; the left side of a chain is itself a stream of pairs."""
    third = rows((6, 1), (23, 2), (37, 3))
    write_batches(tmp_path / "third", [third])
    pairs = cf.window_join(*late_streams, where="l.k = r.k", time="ts", window="30 seconds")
    other = read_stream(spark, tmp_path / "third", third, delay="10 seconds").withColumnRenamed("id", "third")
    chained = cf.window_join(
        pairs, other.select("third", "ts", "k"), where="l.k = r.k", time=(None, "ts"), window="2 seconds", suffix="_3"
    )
    assert chained.columns[-1] == "pair_time" and chained.columns.count("pair_time") == 1
    run_available(chained, tmp_path)
    found = results(spark, chained, tmp_path)
    renamed = third.rename_columns({"id": "third"}).select(["third", "ts", "k"])
    in_process = cf.window_join(
        on_time_pairs(), renamed, where="l.k = r.k", time=(None, "ts"), window="2 seconds", suffix="_3"
    )
    names = ["id", "id_right", "third", "pair_time"]
    assert len(in_process) == 5
    assert sorted(map(str, found.select(names).to_pylist())) == sorted(map(str, in_process.select(names).to_pylist()))


def test_spark_itself_refuses_the_band_join(spark, tmp_path, late_streams):
    left, right = (frame.alias(side) for frame, side in zip(late_streams, ("l", "r"), strict=True))
    band = left.join(right, F.expr("l.x BETWEEN r.x - 1 AND r.x + 1 AND l.ts <= r.ts + INTERVAL 30 SECONDS"))
    with pytest.raises((AnalysisException, StreamingQueryException), match="without equality predicate"):
        run_available(band.select("l.id"), tmp_path / "own")
    ours = cf.window_join(*late_streams, where="l.x BETWEEN r.x - 1 AND r.x + 1", time="ts", window="30 seconds")
    run_available(ours, tmp_path / "ours")
    assert len(results(spark, ours, tmp_path / "ours")) > 5


def test_schema_is_that_of_sparks_own_join(spark):
    left = spark.createDataFrame(
        [], "id LONG NOT NULL, ts TIMESTAMP NOT NULL, d DECIMAL(10,2), a ARRAY<INT>, n TIMESTAMP_NTZ"
    )
    right = spark.createDataFrame([], "ts TIMESTAMP, s STRUCT<x: INT, y: STRING> NOT NULL, b BINARY")
    ours = cf.window_join(left, right, where="true", time="ts", window="1 minute")
    renamed = right.withColumnRenamed("ts", "ts_right")
    own = left.join(renamed, left.ts == renamed.ts_right)
    assert ours.schema.fields[:-1] == own.schema.fields
    assert ours.schema["pair_time"].dataType.simpleString() == "timestamp" and not ours.schema["pair_time"].nullable
    assert ours.collect() == []


def test_payload_of_any_type_in_another_time_zone(spark):
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        left = spark.sql(
            "SELECT 1 AS id, TIMESTAMP '2024-01-01 23:30:00' AS ts, CAST(1.25 AS DECIMAL(10,2)) AS d, "
            "array(1, NULL) AS a, TIMESTAMP_NTZ '2024-01-01 00:00:00' AS n, map('k', 1.5D) AS m, "
            "DATE '2024-02-29' AS day"
        )
        right = spark.sql(
            "SELECT TIMESTAMP '2024-01-01 23:30:01' AS ts, named_struct('x', 1, 'y', 'z') AS s, "
            "X'00FF' AS b, INTERVAL 5 SECONDS AS i"
        )
        joined = cf.window_join(
            left, right, where="hour(l.ts) = 23 AND date(r.ts) = '2024-01-01'", time="ts", window="1 minute"
        )
        row = joined.collect()[0]
        expected = left.crossJoin(right.withColumnRenamed("ts", "ts_right")).collect()[0]
        assert row[:-1] == tuple(expected) and row.pair_time == expected.ts_right
        assert row.d == Decimal("1.25") and row.a == [1, None] and row.b == bytearray(b"\x00\xff")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_state_is_cleaned(spark, tmp_path):
    """A window of 5 s and a delay of 1 s over 200 s: what is held stays small."""
    batches = [rows(*((20 * b + i, i) for i in range(20)), first=20 * b) for b in range(5)]
    for side in ("left", "right"):
        write_batches(tmp_path / side, batches)
    streams = [read_stream(spark, tmp_path / side, batches[0], delay="1 second") for side in ("left", "right")]
    joined = cf.window_join(*streams, where="l.k = r.k", time="ts", window="5 seconds", engine=cf.Spark(layout="1x2"))
    metrics = cf.query_metrics(run_available(joined, tmp_path))
    assert metrics["pairs"] == 100
    assert metrics["state_rows_left"] <= 2 * 20 and metrics["state_rows_right"] <= 20  # the last batch; left rows twice


def test_another_layout_is_refused_on_restart(spark, tmp_path, late_streams):
    first = cf.window_join(
        *late_streams, where="l.k = r.k", time="ts", window="30 seconds", engine=cf.Spark(layout="1x2")
    )
    run_available(first, tmp_path)
    write_batches(tmp_path / "left", [rows((50, 1))], first=9)
    second = cf.window_join(
        *late_streams, where="l.k = r.k", time="ts", window="30 seconds", engine=cf.Spark(layout="2x1")
    )
    with pytest.raises(StreamingQueryException, match="layout was '1x2'") as refused:
        run_available(second, tmp_path)
    check_readable(refused.value, "StateError: the checkpoint belongs to another join", "is '2x1' now")


def test_another_predicate_is_refused_on_restart(spark, tmp_path, late_streams):
    options = dict(time="ts", window="30 seconds", engine=cf.Spark(layout="1x2"))
    run_available(cf.window_join(*late_streams, where="l.k = r.k", **options), tmp_path)
    write_batches(tmp_path / "left", [rows((50, 1))], first=9)
    with pytest.raises(StreamingQueryException) as refused:
        run_available(cf.window_join(*late_streams, where="l.k < r.k", **options), tmp_path)
    check_readable(refused.value, "StateError: the checkpoint belongs to another join", "l.k = r.k", "l.k < r.k")


def test_threads_may_change_at_a_restart(spark, tmp_path, late_streams):
    """Two threads a cell for what is there at first, one (as a task has cores) for what comes then."""
    options = dict(where="l.k = r.k", time="ts", window="30 seconds")
    for threads, said in ((2, "2 in each cell"), (None, "1 in each cell (spark.task.cpus)")):
        engine = cf.Spark(layout="2x1", threads=threads)
        assert cf.explain(*late_streams, engine=engine, show=False, **options).details["threads"] == said
        joined = cf.window_join(*late_streams, engine=engine, **options)
        metrics = cf.query_metrics(run_available(joined, tmp_path))
        if threads:
            assert metrics["pairs"] == len(on_time_pairs())
            write_batches(tmp_path / "left", [rows((43, 4))], first=len(LEFT))
    assert metrics["pairs"] == len(on_time_pairs()) + 2  # with the right rows at 41 s and 42 s


def check_readable(error: Exception, *parts: str) -> None:
    """What is wrong and what to do is in the first lines, without a traceback before it."""
    first = "\n".join(str(error).splitlines()[:5])
    assert all(part in first for part in (*parts, "start with a new checkpointLocation")), first
    assert "Traceback" not in first


def test_a_null_time_ends_the_query_with_one_clear_error(spark, tmp_path):
    good, bad = rows((1, 1), (2, 2)), rows((3, 3), (4, 4))
    bad = bad.set_column(1, "ts", pa.array([None, BASE], bad.schema.field("ts").type))
    write_batches(tmp_path / "left", [good, bad])
    write_batches(tmp_path / "right", [good])
    streams = [read_stream(spark, tmp_path / side, good) for side in ("left", "right")]
    joined = cf.window_join(*streams, where="l.k = r.k", time="ts", window="30 seconds")
    with pytest.raises(StreamingQueryException) as ended:
        run_available(joined, tmp_path)
    assert "TimeError: time column 'ts' of the left input is null in row 0" in str(ended.value).splitlines()[0]
    assert len(results(spark, joined, tmp_path)) == 2  # what was committed stays


def test_null_times_are_dropped_if_asked(spark, tmp_path):
    """The others are joined; how many were dropped is counted on each side, over restarts."""
    good = rows((1, 1), (2, 2), (3, 3))
    bad = good.set_column(1, "ts", pa.array([None, BASE, None], good.schema.field("ts").type))
    write_batches(tmp_path / "left", [bad, good])
    write_batches(tmp_path / "right", [good])
    engine, options = cf.Spark(layout="1x2", null_times="drop"), dict(where="l.k = r.k", time="ts", window="30 seconds")
    streams = [read_stream(spark, tmp_path / side, good) for side in ("left", "right")]
    joined = cf.window_join(*streams, engine=engine, **options)
    run_available(joined, tmp_path)
    write_batches(tmp_path / "right", [bad], first=9)
    metrics = cf.query_metrics(run_available(joined, tmp_path))
    kept = [pa.concat_tables([table, bad.slice(1, 1)]) for table in (good, good)]
    assert len(results(spark, joined, tmp_path)) == len(cf.window_join(*kept, **options)) == 6
    assert (metrics["null_times_left"], metrics["null_times_right"]) == (2, 2)
    assert (metrics["rows_left"], metrics["rows_right"]) == (4, 4)
    static = cf.window_join(spark.createDataFrame(bad), spark.createDataFrame(good), engine=engine, **options)
    assert static.count() == 1


def test_a_warm_batch_reads_nothing_back(spark, tmp_path):
    """Whichever worker Spark gives a cell to, its windows are found hot, in that worker's memory or in another's."""
    batches = [rows(*((b, k) for k in range(10)), first=10 * b) for b in range(8)]
    for side in ("left", "right"):
        write_batches(tmp_path / side, batches)
    streams = [read_stream(spark, tmp_path / side, batches[0]) for side in ("left", "right")]
    joined = cf.window_join(*streams, where="l.k = r.k", time="ts", window="1 hour", engine=cf.Spark(layout="2x2"))
    query = run_available(joined, tmp_path)
    observed = [row.asDict() for p in query.recentProgress for row in p["observedMetrics"].values()]
    totals = {name: sum(o[name] or 0 for o in observed) for name in ("hot_hits", "rebuilds", "chunks_read")}
    assert totals["hot_hits"] >= 0.8 * 4 * 7 and totals["chunks_read"] == 0
    cells = cf.query_metrics(query)["cells"]
    assert [cell["cell"] for cell in cells] == [0, 1, 2, 3]
    assert sum(cell["state_rows_left"] for cell in cells) == 2 * 80


def test_a_batch_with_two_actions_stays_hot(spark, tmp_path):
    """`if df.isEmpty()` before the write runs each batch twice, the first time only in part: the answer is the same."""
    batches = [rows(*((b, k) for k in range(10)), first=10 * b) for b in range(6)]
    for side in ("left", "right"):
        write_batches(tmp_path / side, batches)
    streams = [read_stream(spark, tmp_path / side, batches[0]) for side in ("left", "right")]
    joined = cf.window_join(*streams, where="l.k = r.k", time="ts", window="1 hour", engine=cf.Spark(layout="2x2"))
    found = Counter()

    def write(frame, batch):
        if not frame.isEmpty():
            found.update((row.id, row.id_right) for row in frame.collect())

    sink = joined.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    want = cf.window_join(*[pa.concat_tables(batches)] * 2, where="l.k = r.k", time="ts", window="1 hour")
    assert found == Counter(zip(want["id"].to_pylist(), want["id_right"].to_pylist(), strict=True))
    observed = [row.asDict() for p in query.recentProgress for row in p["observedMetrics"].values()]
    totals = {name: sum(o[name] or 0 for o in observed) for name in ("hot_hits", "rebuilds", "chunks_read")}
    assert totals["rebuilds"] == 0 and totals["chunks_read"] == 0 and totals["hot_hits"] >= 4 * 5
