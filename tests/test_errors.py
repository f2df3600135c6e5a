"""Bad input: one clear `CounterflowError`, before a row is read where that is possible, that says what to do."""

from __future__ import annotations

import datetime as dt

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import counterflow as cf

LEFT = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2], "name": ["a", "b"]})
RIGHT = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "a": [1, 2], "label": ["a", "b"]})
GOOD = dict(where="l.x = r.a", time="ts", window="15 minutes")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(where="l.y = r.a"), cf.ColumnError, r"no column 'y' in the left input.*there are: ts, x, name"),
        (dict(where="l.x = r.aa"), cf.ColumnError, r"no column 'aa' in the right input; did you mean 'a'\?"),
        (dict(where="l.x = = r.a"), cf.PredicateError, r"cannot parse where='l.x = = r.a': line 1"),
        (dict(where="l.x + r.a"), cf.PredicateError, r"must be a condition.*is BIGINT, not BOOLEAN"),
        (
            dict(where="l.x = r.label"),
            cf.PredicateError,
            r"cannot compare 'l.x' \(BIGINT\) = 'r.label' \(STRING\).*CAST",
        ),
        (dict(where=3), cf.PredicateError, "where= must be SQL text"),
        (dict(time="t"), cf.ColumnError, "no time column 't' in the left input"),
        (dict(time=None), cf.TimeError, "time= is missing for the left input"),
        (dict(time="x"), cf.ColumnError, "no time column 'x' in the right input"),
        (dict(time=("name", "ts")), cf.TimeError, "time column 'name' of the left input is string"),
        (dict(time=("x", "ts")), cf.TimeError, "differ in kind: left 'x' is int64, right 'ts' is timestamp"),
        (dict(window="-5 minutes"), cf.WindowError, "left window '-5 minutes' is negative"),
        (dict(window="15 parsecs"), cf.WindowError, "unknown unit 'parsecs'"),
        (dict(window="soon"), cf.WindowError, "cannot read the duration 'soon'"),
        (dict(window=15), cf.WindowError, r"window 15: the time column is a timestamp.*'15 seconds'"),
        (dict(window=("1 s", "2 s", "3 s")), cf.WindowError, "a pair is"),
        (dict(window=1.5), cf.WindowError, "expected a duration"),
        (dict(how="sideways"), cf.OptionError, r"unknown how='sideways'.*inner, left, right, full, semi, anti"),
        (dict(how="inne"), cf.OptionError, "did you mean 'inner'"),
        (dict(suffix=""), cf.OptionError, "suffix=''"),
        (dict(ordered="yes"), cf.OptionError, "ordered='yes'"),
        (dict(engine="spark"), cf.OptionError, "engine='spark'"),
        (dict(engine=cf.Spark()), cf.InputError, "spark.createDataFrame"),
    ],
)
def test_options(change, error, message):
    with pytest.raises(error, match=message) as raised:
        cf.window_join(LEFT, RIGHT, **{**GOOD, **change})
    assert isinstance(raised.value, cf.CounterflowError)


def test_clashing_columns():
    left = LEFT.append_column("ts_right", pa.array([1, 2]))
    with pytest.raises(cf.ColumnError, match=r"'ts' is in both inputs and becomes 'ts_right'.*choose another suffix"):
        cf.window_join(left, RIGHT, **GOOD)
    with pytest.raises(cf.ColumnError, match="a column 'pair_time', which clashes"):
        cf.window_join(LEFT.append_column("pair_time", pa.array([1, 2])), RIGHT, **GOOD)
    with pytest.raises(cf.ColumnError, match=r"two columns named 'X' \(case is ignored\)"):
        cf.window_join(LEFT.append_column("X", pa.array([1, 2])), RIGHT, **GOOD)
    assert cf.window_join(left, RIGHT, suffix="_s", **GOOD).column_names[-4:] == ["ts_s", "a", "label", "pair_time"]


def test_null_and_too_fine_times():
    nulls = LEFT.set_column(0, "ts", pa.array([1, None], pa.timestamp("us", "UTC")))
    with pytest.raises(cf.TimeError, match=r"'ts' of the left input is null in row 1 \(1 in all\)"):
        cf.window_join(nulls, RIGHT, **GOOD)
    fine = LEFT.set_column(0, "ts", pa.array([1, 1001], pa.timestamp("ns", "UTC")))
    with pytest.raises(cf.TimeError, match="whole microseconds"):
        cf.window_join(fine, RIGHT, **GOOD)


def test_inputs_of_other_kinds():
    with pytest.raises(cf.InputError, match="the left input is a dict"):
        cf.window_join({"ts": [1]}, RIGHT, **GOOD)
    for make in (pl.from_arrow, pa.Table.to_pandas, pa.Table.to_reader, lambda t: t.combine_chunks().to_batches()[0]):
        assert len(cf.window_join(make(LEFT), make(RIGHT), **GOOD)) == 2
    assert len(cf.window_join(pl.from_arrow(LEFT).lazy(), RIGHT, **GOOD)) == 2
    with pytest.raises(cf.TimeError, match="null in row 0"):
        cf.window_join(pd.DataFrame({"ts": [pd.NaT], "x": [1]}), pd.DataFrame({"ts": [pd.NaT], "a": [1]}), **GOOD)


def test_odd_inputs_are_converted_or_refused():
    views = LEFT.cast(pa.schema({"ts": LEFT.schema.field("ts").type, "x": pa.int64(), "name": pa.string_view()}))
    assert len(cf.window_join(views, RIGHT, **GOOD)) == 2
    for odd in (pd.Series([1]), pl.Series([1]), pd.DataFrame({"ts": [1, "a"]})):
        with pytest.raises(cf.InputError, match="the left input"):
            cf.window_join(odd, RIGHT, **GOOD)
    with pytest.raises(cf.WindowError, match="longer than 64-bit time"):
        cf.window_join(LEFT, RIGHT, **{**GOOD, "window": "999999999999 days"})
    with pytest.raises(cf.PredicateError, match="nested too deeply"):
        cf.window_join(LEFT, RIGHT, **{**GOOD, "where": "(" * 400 + "l.x = r.a" + ")" * 400})
    long = " OR ".join(f"l.x = {i}" for i in range(3000))
    assert len(cf.window_join(LEFT, RIGHT, **{**GOOD, "where": long})) == 4
    with pytest.raises(cf.InputError, match=r"engine=cf\.Spark"):
        cf.explain(LEFT, RIGHT, engine=cf.Spark(), **GOOD)


def test_two_time_zones_mean_the_same_as_one():
    """The wall clock is that of the columns the predicate uses: another column's zone changes nothing."""
    berlin = pa.timestamp("us", "Europe/Berlin")
    moments = [dt.datetime(2020, 1, 1, 22, 30) + dt.timedelta(hours=h) for h in range(8)]
    left = pa.table({"ts": [0] * 8, "k": pa.array(moments, berlin)})
    right = pa.table({"ts": [0], "q": [dt.date(2020, 1, 2)]})
    other = right.append_column("payload", pa.array([dt.datetime(2020, 1, 1)], pa.timestamp("us", "UTC")))
    where = "l.k BETWEEN r.q AND r.q + INTERVAL 5 HOURS"
    for table in (right, other):
        assert len(cf.window_join(left, table, where=where, time="ts", window=1)) == 5


def test_windows_that_contradict_themselves():
    with pytest.raises(cf.WindowError, match="either one size"):
        cf.window("1 s", before="2 s")
    with pytest.raises(cf.WindowError, match="for no bound at all use window=None"):
        cf.window()
    with pytest.raises(cf.WindowError, match="positive integer"):
        cf.rows(0)


def test_algorithms_are_named():
    with pytest.raises(cf.OptionError, match="did you mean 'kang'"):
        cf.Local(algorithm="kung")


@pytest.mark.parametrize("layout", ["2by3", "0x2", "home:0", "hash:x", "band:1.5", "99x99", "", None, 2])
def test_layouts(layout):
    with pytest.raises(cf.OptionError, match="use 'auto', rows x columns such as '2x3', 'home', 'hash' or 'band'"):
        cf.Spark(layout=layout)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(rates=(0, 1)), "rows a second"),
        (dict(rates=5), "rows a second"),
        (dict(late_rows=7), "a folder or URI"),
        (dict(late_rows=""), "a folder or URI"),
    ],
)
def test_spark_options(options, message):
    with pytest.raises(cf.OptionError, match=message):
        cf.Spark(**options)


# --- on Spark: all of it before a query starts


@pytest.fixture(scope="module")
def streams(spark):
    def stream(value: str):
        source = spark.readStream.format("rate").load().withColumnRenamed("timestamp", "ts")
        return source.withColumnRenamed("value", value)

    return stream("x").withWatermark("ts", "10 seconds"), stream("a").withWatermark("ts", "10 seconds"), stream("x")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(window=None), cf.WindowError, "the left window is missing or None.*a stream would be kept for ever"),
        (dict(window=("1 minute", None)), cf.WindowError, "the right window is missing"),
        (dict(window="-1 second"), cf.WindowError, "is negative"),
        (dict(how="sideways"), cf.OptionError, "unknown how"),
        (dict(where="l.x < r.a", engine=cf.Spark(layout="hash")), cf.OptionError, "layout='hash' needs an equality"),
        (
            dict(where="l.x < r.a", engine=cf.Spark(layout="band")),
            cf.OptionError,
            "layout='band' needs a band, such as",
        ),
        (dict(where="l.x = r.b"), cf.ColumnError, "no column 'b' in the right input"),
        (dict(where="l.x = 'a'"), cf.PredicateError, "CAST"),
        (dict(where="l.x = "), cf.PredicateError, "cannot parse"),
        (dict(time="x"), cf.ColumnError, "no time column 'x' in the right input"),
        (dict(engine=cf.Local()), cf.InputError, "toArrow"),
    ],
)
def test_streams(streams, change, error, message):
    left, right, _ = streams
    with pytest.raises(error, match=message):
        cf.window_join(left, right, **{**GOOD, **change})


def test_window_not_given_on_a_stream(streams):
    with pytest.raises(cf.WindowError, match="missing"):
        cf.window_join(streams[0], streams[1], where="l.x = r.a", time="ts")


def test_streams_need_a_watermark(spark, streams):
    left, right, without = streams
    with pytest.raises(cf.TimeError, match=r'no watermark on \'ts\'.*withWatermark\("ts"'):
        cf.window_join(without, right, **GOOD)
    with pytest.raises(cf.TimeError, match="needs a TIMESTAMP with a watermark"):
        cf.window_join(left, right.withColumn("ts", right.a), **{**GOOD, "time": ("x", "ts"), "window": 5})
    with pytest.raises(cf.InputError, match="the left input is a stream and the right one static"):
        cf.window_join(left, spark.createDataFrame(RIGHT), **GOOD)
    with pytest.raises(cf.InputError, match="the right side is an empty list"):
        cf.window_join(left, [], **GOOD)
    with pytest.raises(cf.OptionError, match="late_rows= is for streams"):
        static = spark.createDataFrame(LEFT), spark.createDataFrame(RIGHT)
        cf.window_join(*static, engine=cf.Spark(late_rows="late"), **GOOD)
    with pytest.raises(cf.InputError, match="the right input is a Table"):
        cf.window_join(left, RIGHT, **GOOD)


def test_too_many_partitions_are_pointed_out(spark, streams):
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "200")
    try:
        with pytest.warns(UserWarning, match=r"spark.sql.shuffle.partitions is 200, but this join has 4 cells"):
            cf.window_join(streams[0], streams[1], engine=cf.Spark(layout="2x2"), **GOOD)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


def test_evaluation_errors_say_what_to_do():
    zero = pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "a": [0], "label": ["x"]})
    with pytest.raises(cf.EvaluationError, match=r"division by zero in '.*': guard it, or use try_divide"):
        cf.window_join(LEFT, zero, where="l.x / r.a > 1", time="ts", window="1 s")
    assert len(cf.window_join(LEFT, zero, where="r.a <> 0 AND l.x / r.a > 1", time="ts", window="1 s")) == 0
    with pytest.raises(cf.EvaluationError, match=r"cannot cast 'x'.*TRY_CAST"):
        cf.window_join(LEFT, zero, where="CAST(r.label AS INT) = l.x", time="ts", window="1 s")


def test_a_timedelta_is_a_window():
    assert len(cf.window_join(LEFT, RIGHT, where="true", time="ts", window=dt.timedelta(microseconds=1))) == 4
    assert len(cf.window_join(LEFT, RIGHT, where="true", time="ts", window=dt.timedelta(0))) == 2
