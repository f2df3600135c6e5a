"""The contract on Spark: the same pairs as `reference`, for every predicate kind, static and streaming."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.query.layout import choose_layout, spark_hash
from counterflow.engines.spark.query.routing import pack
from counterflow.engines.spark.state.blobs import from_blob
from counterflow.lab.simulator.window_forms import FORMS, ROWS, draw_window
from counterflow.spec.join_spec import build_spec
from effort import THOROUGH
from inputs import BENCHMARK, IMPLYING, PREDICATES, SCHEMA, WINDOWS, benchmark_inputs, table_of, window_of
from oracle import HOWS, expected
from oracle import results as results_of
from sentinels import SENTINELS, unique_times, without_sentinels
from streams import read_stream, results, run_available, write_batches

OFTEN = 18  # kinds of predicates that are tried in every run
STATIC_WINDOWS = [name for name in WINDOWS if "rows" not in name and name != "mixed"]  # those need different times


def random_table(seed: int, rows: int) -> pa.Table:
    rng = random.Random(seed)
    floats = [0.0, -0.0, 1.0, 1.5, 2.5, float("nan"), float("inf"), -float("inf"), None]
    return table_of(
        [
            (
                rng.randint(0, 8),
                rng.choice([None, -1, 0, 1, 2, 3]),
                rng.choice([None, *range(-5, 6)]),
                rng.choice(floats),
                rng.choice([None, "", "a", "ab", "b"]),
            )
            for _ in range(rows)
        ]
    )


def pairs_of(table: pa.Table) -> Counter:
    times = table["pair_time"].cast("int64").to_pylist()
    return Counter(zip(table["id"].to_pylist(), table["id_right"].to_pylist(), times, strict=True))


@pytest.mark.parametrize("predicate", PREDICATES if THOROUGH else [*list(PREDICATES)[:OFTEN], *IMPLYING])
def test_static_every_predicate(spark, predicate):
    left, right = random_table(1, 40), random_table(2, 40)
    options = dict(where=PREDICATES[predicate], time="ts", window="3 seconds")
    frames = spark.createDataFrame(left), spark.createDataFrame(right)
    layout = "band:3" if "band" in predicate and "OR" not in predicate else "2x2"
    joined = cf.window_join(*frames, engine=cf.Spark(layout=layout), **options)
    assert pairs_of(joined.toArrow()) == Counter(expected(left, right, **options))


@pytest.mark.parametrize("window", STATIC_WINDOWS)
def test_static_every_window(spark, window):
    check_static(spark, random_table(3, 40), random_table(4, 30), window_of(window))


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_static_every_form_of_window(spark, form):
    """Rows at equal times are ordered by what Spark delivers first, so windows of rows have none."""
    make = unique_times if set(form.kinds) & set(ROWS) else random_table
    check_static(spark, make(3, 40), make(4, 30), draw_window(form, random.Random(5), "seconds"))


def check_static(spark, left, right, window):
    options = dict(where="l.k = r.k OR l.x > 3", time="ts", window=window)
    frames = spark.createDataFrame(left), spark.createDataFrame(right)
    joined = cf.window_join(*frames, engine=cf.Spark(layout="1x2"), **options)
    assert pairs_of(joined.toArrow()) == Counter(expected(left, right, **options))


@pytest.mark.parametrize(
    ("window", "predicate", "layout"),
    [
        ("duration", "two bands", "2x2"),
        ("before only", "time in the predicate", "2x1"),
    ]
    + [
        ("duration", "distance on a sphere", "2x2"),
        ("asymmetric", "radius by row", "3x1"),
        ("duration", "OR of two equalities", "1x2"),
        ("asymmetric", "function with a band", "2x1"),
        ("duration", "prefix", "2x2"),
        ("open", "ratio", "2x1"),
        ("open", "distance on a sphere", "band:3"),
        ("duration", "point in interval", "home:3"),
        ("asymmetric", "residual", "3x1"),
        ("zero", "everything", "1x2"),
        ("open", "null-safe equality", "1x1"),
        ("zero and open", "everything", "1x1"),
        ("before only, open", "band", "2x2"),
        ("after only, open", "everything", "2x1"),
    ]
    * THOROUGH,
)
def test_streams_out_of_order(spark, tmp_path, window, predicate, layout):
    """Rows in any order inside the delay, uneven batches, one side ahead of the other, empty files."""
    left, right = random_table(5, 60), random_table(6, 50)
    write_batches(tmp_path / "left", [left.slice(0, 1), left.slice(1, 40), left.slice(41)])
    write_batches(tmp_path / "right", [right.slice(0, 0), right.slice(0, 35), right.slice(35, 14), right.slice(49)])
    streams = (read_stream(spark, tmp_path / side, SCHEMA.empty_table()) for side in ("left", "right"))
    options = dict(where=PREDICATES[predicate], time="ts", window=window_of(window))
    joined = cf.window_join(*streams, engine=cf.Spark(layout=layout), **options)
    run_available(joined, tmp_path)
    assert pairs_of(results(spark, joined, tmp_path)) == Counter(expected(left, right, **options))


# --- every `how`, row windows, order: what depends on the watermark


def stream_out(spark, folder, tables, cuts, options, engine):
    """What a streaming query emits, in the order in which it does; results of sentinels are left out."""
    for side, table in tables.items():
        borders = [0, *cuts, len(table) - len(SENTINELS), len(table)]
        parts = [table.slice(a, b - a) for a, b in itertools.pairwise(borders)]
        write_batches(folder / side, parts)
    left, right = (read_stream(spark, folder / s, SCHEMA.empty_table(), "9 minutes") for s in ("left", "right"))
    joined = cf.window_join(left, right, engine=engine, **options)
    found: list = []
    query = (
        joined.writeStream.foreachBatch(lambda frame, _: found.append(frame.toArrow()))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return without_sentinels(results_of(pa.concat_tables(found), options["how"])), query


@pytest.mark.parametrize(
    ("window", "where", "layout", "how", "ordered"),
    [
        ("asymmetric", "l.x BETWEEN r.x - 1 AND r.x + 1", "home:3", "left", False),
        ("duration", "l.s = r.s AND l.x > 0 AND r.x > 2", "hash:3", "full", True),
        ("rows", "abs(l.x - r.x) <= 1", "2x2", "anti", True),
        ("duration", "l.x BETWEEN r.x - 1 AND r.x + 1", "band:3", "full", True),
    ]
    + [
        ("asymmetric", "abs(l.x - r.x) <= 1", "band:3", "semi", False),
        ("open", "greatest(abs(l.x - r.x), abs(l.f - r.f)) <= 2", "band:3", "inner", False),
        ("duration", "l.x BETWEEN r.x - 2 AND r.x + 2", "home:3", "inner", False),
        ("asymmetric", "l.x BETWEEN r.x - 1 AND r.x + 1", "2x2", "left", False),
        ("duration", "l.x < r.x AND l.x > 3", "auto", "full", False),
        ("asymmetric", "l.k = r.k", "hash", "inner", False),
        ("open", "l.x = r.x", "1x2", "semi", False),
        ("asymmetric", "abs(l.x - r.x) <= 1", "auto", "right", True),
        ("mixed", "l.x < r.x", "auto", "full", False),
        ("rows, then zero and open", "l.x < r.x", "auto", "left", True),
    ]
    * THOROUGH,
)
def test_streams_that_wait_for_the_watermark(spark, tmp_path, window, where, layout, how, ordered):
    left, right = unique_times(11, 40), unique_times(12, 30)
    options = dict(where=where, time="ts", window=window_of(window), how=how, ordered=ordered)
    engine = cf.Spark(layout=layout)
    found, _ = stream_out(spark, tmp_path, {"left": left, "right": right}, [3, 17], options, engine)
    want = without_sentinels(expected(left, right, **options))
    assert len(want) > 5
    if ordered:
        assert found == want
    assert (Counter(want) - Counter(found), Counter(found) - Counter(want)) == (Counter(), Counter())  # lost, doubled


def test_the_same_sequence_for_every_layout_and_batch_size(spark, tmp_path):
    left, right = unique_times(13, 60), unique_times(14, 60)
    options = dict(where="l.x < r.x AND l.s = r.s", time="ts", window="9 seconds", how="inner", ordered=True)
    want = without_sentinels(expected(left, right, **options))
    runs = [("1x1", [1, 2]), ("2x2", [30])]
    more = [("hash", [7]), ("3x1", []), ("home", [20, 40])]
    for number, (layout, cuts) in enumerate(runs + more if THOROUGH else runs):
        tables = {"left": left, "right": right}
        found, _ = stream_out(spark, tmp_path / str(number), tables, cuts, options, cf.Spark(layout=layout))
        assert found == want, layout


@pytest.mark.parametrize("layout", ["1x1", "2x2", "3x1", "home", "hash", "band:4"] if THOROUGH else ["home"])
def test_micro_batches_of_one_row_to_100_000(spark, tmp_path, layout):
    """Rows out of order inside the delay; the large batch is searched by compiled kernels, by two threads a cell."""
    rng = random.Random(5)
    inputs = benchmark_inputs(rows=101_001, seconds=3600, domain=3000)
    for name, table in zip(("left", "right"), inputs, strict=True):
        shuffled = table.take(pa.array(sorted(range(len(table)), key=lambda i: i + rng.randint(0, 1500))))
        write_batches(tmp_path / name, [shuffled[:1], shuffled[1:1001], shuffled[1001:]])
    streams = [read_stream(spark, tmp_path / n, t) for n, t in zip(("left", "right"), inputs, strict=True)]
    where = "l.x = r.a AND abs(l.y - r.b) <= 99" if layout == "hash" else BENCHMARK
    options = dict(where=where, time="ts", window=("5 minutes", "3 minutes"))
    joined = cf.window_join(*streams, engine=cf.Spark(layout=layout, threads=2), **options)
    run_available(joined, tmp_path)
    want, found = cf.window_join(*inputs, **options), results(spark, joined, tmp_path)
    assert len(want) > 20_000

    def pairs(table):
        return sorted(zip(table["z"].to_pylist(), table["c"].to_pylist(), strict=True))

    assert pairs(found) == pairs(want)


def test_several_streams_a_side(spark, tmp_path):
    """Two physical streams on the left, in two folders; equal times are ordered by the number of the stream."""
    first, second = unique_times(15, 20), unique_times(15, 20, first_id=100)
    right = unique_times(16, 30)
    for folder, table in (("a", first), ("b", second), ("right", right)):
        write_batches(tmp_path / folder, [table.slice(0, 11), table.slice(11)])
    streams = [read_stream(spark, tmp_path / f, SCHEMA.empty_table(), "9 minutes") for f in ("a", "b", "right")]
    options = dict(where="l.x < r.x", time="ts", window="5 seconds", how="left", ordered=True)
    joined = cf.window_join(streams[:2], streams[2], **options)
    found: list = []
    joined.writeStream.foreachBatch(lambda frame, _: found.append(frame.toArrow())).option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    ).trigger(availableNow=True).start().awaitTermination()
    # One table after the other: at equal times the first one's rows come first.
    want = without_sentinels(expected(pa.concat_tables([first, second]), right, **options))
    assert len(want) > 10 and {le >= 100 for le, _, _ in want} == {True, False}
    assert without_sentinels(results_of(pa.concat_tables(found), "left")) == want
    with pytest.raises(cf.InputError, match="the left streams differ"):
        cf.window_join([streams[0], streams[1].drop("s")], streams[2], **options)


def test_late_rows_are_readable(spark, tmp_path):
    """A row behind the watermark of the batch before is dropped from the join and written beside it, once."""
    early, late = table_of([(100, 1, 1, 1.0, "a")]), table_of([(1, 2, 2, 2.0, "b"), (300, 3, 3, 3.0, "c")])
    for side in ("left", "right"):
        write_batches(tmp_path / side, [early, early, late])
    left, right = (read_stream(spark, tmp_path / s, SCHEMA.empty_table(), "10 seconds") for s in ("left", "right"))
    engine = cf.Spark(layout="2x2", late_rows=str(tmp_path / "late"))
    joined = cf.window_join(left, right, where="l.x = r.x", time="ts", window="5 seconds", how="inner", engine=engine)
    query = run_available(joined, tmp_path)
    metrics = cf.query_metrics(query)
    assert (metrics["late_left"], metrics["late_right"]) == (1, 1)
    for side in ("left", "right"):
        assert spark.read.parquet(str(tmp_path / "late" / side)).toArrow()["k"].to_pylist() == [2]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("window", "layout"), [("asymmetric", "2x2"), ("rows", "auto"), ("unbounded", "hash:3")])
def test_static_every_how(spark, how, window, layout):
    left, right = unique_times(17, 30), unique_times(18, 30)
    options = dict(where="l.k = r.k AND l.x > r.x", time="ts", window=window_of(window), how=how, ordered=True)
    frames = spark.createDataFrame(left), spark.createDataFrame(right)
    joined = cf.window_join(*frames, engine=cf.Spark(layout=layout), **options)
    assert results_of(joined.toArrow(), how) == expected(left, right, **options)


def test_explain_says_what_the_layouts_copy(spark):
    left, right = (spark.createDataFrame(table) for table in benchmark_inputs(rows=100, seconds=60))
    options = dict(where=BENCHMARK, time="ts", window="1 minute", show=False)
    found = cf.explain(left, right, engine=cf.Spark(layout="band:16"), **options).details
    assert found["layout"].startswith("band 16 on l.x by 160 and l.y by 160.0, right rows copied (16 cells; a left row")
    assert found["copies"] == "of a left and a right row, by layout: band 16: 1 and 1.27; 4x4: 4 and 4"
    found = cf.explain(left, right, engine=cf.Spark(layout="band:16", sample=(left, right)), **options).details
    assert "as sampled" in found["layout"]


# --- routing


def test_every_cell_has_a_partition_of_its_own(spark):
    """Spark's hash is ours, and as many partitions as cells (or a multiple) keep the cells apart."""
    ours = [spark_hash(number) for number in range(200)]
    assert [row.h for row in spark.range(200).selectExpr("hash(CAST(id AS INT)) AS h").collect()] == ours
    spec = build_spec(SCHEMA, SCHEMA, where="l.x < r.x", time="ts", window="1 minute")
    for name in ("1x2", "2x2", "2x3", "5x5", "home:7"):
        layout = choose_layout(spec, Spark(layout=name), 1)
        for partitions in (layout.cells, 3 * layout.cells):
            assert len({spark_hash(key) % partitions for key in layout.keys}) == layout.cells
        assert [layout.cell(key) for key in layout.keys] == list(range(layout.cells))


def test_lanes_are_even_and_do_not_depend_on_the_order_of_rows():
    left, right = benchmark_inputs(rows=4000, seconds=60)
    spec = build_spec(left.schema, right.schema, where=BENCHMARK, time="ts", window="1 minute")
    layout = choose_layout(spec, Spark(layout="4x2"), 1)

    def sent(table):
        """Which rows each cell gets."""
        cells = {key: set() for key in layout.keys}
        for message in pack(spec, layout, "left")(iter(table.to_batches(max_chunksize=700))):
            for key, payload in zip(message["cell"].to_pylist(), message["payload"].to_pylist(), strict=True):
                cells[key] |= set(from_blob(payload)["z"].to_pylist()) if payload else set()
        return [cells[key] for key in layout.keys]

    once, again = sent(left), sent(left.take(list(reversed(range(len(left))))))
    assert once == again
    assert all(abs(len(rows) - 1000) < 150 for rows in once)
    assert once[0] == once[1] and not once[0] & once[2]  # both columns of a layout row, no other row
