"""What Spark's session and types say of a predicate's meaning beyond Arrow's: the session's zone, and collations.

Differential tests: Spark itself joins the same rows on the same text.
"""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import functions as F

import counterflow as cf
from streams import run_available

WORDS = ["a", "A", "b", "ß", "B", None]


# --- zones


@pytest.mark.parametrize(
    "where",
    [
        "hour(timestamp_seconds(l.n)) = hour(timestamp_seconds(r.n + 3600 * r.id))",  # no column is a TIMESTAMP
        "CAST(timestamp_seconds(l.n) AS STRING) LIKE '%2:00:00' AND r.id = 0",
        "to_date(timestamp_seconds(l.n)) < to_date(timestamp_seconds(r.n))",
        "hour(l.z) = 22 AND dayofweek(timestamp_seconds(r.n)) = 1",
    ],
)
def test_the_session_s_zone_is_the_predicate_s(spark, where):
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        columns = ["id", "id AS t", "id * 5400 + 1704067200 AS n", "timestamp_seconds(id * 5400 + 1704067200) AS z"]
        left, right = (spark.range(20).selectExpr(*columns) for _ in range(2))
        joined = cf.window_join(left, right, where=where, time="t", window=None, engine=cf.Spark(layout="2x1"))
        found = Counter((row["id"], row["id_right"]) for row in joined.collect())
        own = left.alias("l").join(right.alias("r"), F.expr(where)).selectExpr("l.id AS a", "r.id AS b")
        assert found == Counter((row["a"], row["b"]) for row in own.collect())
        assert found
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


# --- collations


def collated(spark, kind: str = "UTF8_LCASE"):
    rows = [(i, i, word) for i, word in enumerate(WORDS)]
    return spark.createDataFrame(rows, "id BIGINT, t BIGINT, plain STRING").selectExpr(
        "id",
        "t",
        "plain",
        f"collate(plain, '{kind}') AS k",
        f"struct(collate(plain, '{kind}') AS s) AS struct",
        f"array(collate(plain, '{kind}')) AS list",
        f"map('key', collate(plain, '{kind}')) AS map",
    )


@pytest.mark.parametrize("kind", ["UTF8_LCASE", "UNICODE", "UNICODE_CI", "UTF8_BINARY_RTRIM"])
@pytest.mark.parametrize("where", ["l.k = r.k", "r.plain < l.k", "lower(r.K) LIKE 'a%' AND l.id = r.id"])
def test_a_collated_column_is_not_compared(spark, kind, where):
    frame = collated(spark, kind)
    side = "right" if "r.k" in where.lower() and "l.k" not in where else "left"
    with pytest.raises(cf.UnsupportedError, match=rf"column 'k' of the {side} input has the collation {kind}.*collate"):
        cf.window_join(frame, frame, where=where, time="t", window=None)
    with pytest.raises(cf.UnsupportedError, match=kind):
        cf.explain(frame, frame, where=where, time="t", window=None)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_collated_column_is_carried_along(spark, ordered):
    """With its type, alone and nested; rows that differ in case only keep their order."""
    frame = collated(spark)
    where = "lower(l.plain) = lower(r.plain)"
    joined = cf.window_join(frame, frame, where=where, time="t", window=None, ordered=ordered, how="left")
    types = dict(joined.dtypes)
    assert [types[name] for name in ("k", "struct", "list", "map")] == [
        dict(frame.dtypes)[name] for name in ("k", "struct", "list", "map")
    ]
    assert "UTF8_LCASE" in types["k"] and "UTF8_LCASE" in types["map"]
    rows = joined.collect()
    assert all(row["k"] == row["plain"] == row["struct"]["s"] == row["list"][0] == row["map"]["key"] for row in rows)
    own = frame.alias("l").join(frame.alias("r"), F.expr("l.k = r.k"), "left").selectExpr("l.id AS a", "r.id AS b")
    assert Counter((r["id"], r["id_right"]) for r in rows) == Counter((r["a"], r["b"]) for r in own.collect())
    assert joined.where("k = 'A'").count() == 4  # Spark compares the result by its collation again


def test_a_stream_s_collated_column(spark, tmp_path):
    collated(spark).drop("struct", "list", "map").withColumn("ts", F.timestamp_seconds("t")).write.parquet(
        str(tmp_path / "in")
    )
    schema = spark.read.parquet(str(tmp_path / "in")).schema
    assert not schema["k"].dataType.isUTF8BinaryCollation()

    def stream():
        return spark.readStream.schema(schema).parquet(str(tmp_path / "in")).withWatermark("ts", "1 minute")

    options = dict(time="ts", window="10 minutes")
    with pytest.raises(cf.UnsupportedError, match="UTF8_LCASE"):
        cf.window_join(stream(), stream(), where="l.k = r.k", **options)
    joined = cf.window_join(stream(), stream(), where="lower(l.plain) = lower(r.plain)", **options)
    run_available(joined, tmp_path)
    assert spark.read.schema(joined.schema).parquet(str(tmp_path / "out")).where("k = k_right").count() == 9
