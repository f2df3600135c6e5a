"""Differential test: a predicate means what it means in Spark SQL itself.

Spark cross joins two small tables that hold every type with its edges, and computes many predicates in one
query, each from its own text. The reference and the vectorised evaluator (through `window_join`, so with its
access paths too) must find the same pairs.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

import counterflow as cf
import inputs
import predicates as given
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec
from inputs import NEW_YORK, TEXTS, TYPED_COLUMNS, ZONED_COLUMNS, typed_table

PLAIN = typed_table()
WITH_TEXTS = typed_table([*TYPED_COLUMNS, ("v", pa.string(), TEXTS)])
FEW_TEXTS = typed_table([*TYPED_COLUMNS, ("v", pa.string(), ["1", "true", "2024-03-01", "2024-03-01 01:02:03"])])
WITH_WORDS = typed_table([*TYPED_COLUMNS, ("v", pa.string(), inputs.WORDS)])
FEW_WORDS = typed_table([*TYPED_COLUMNS, ("v", pa.string(), inputs.FEW_WORDS)])
ZONED = typed_table(ZONED_COLUMNS)

GROUPS = {
    "comparisons": (given.COMPARISONS, PLAIN, PLAIN),
    "logic": (given.LOGIC, PLAIN, PLAIN),
    "arithmetic": (given.ARITHMETIC, PLAIN, PLAIN),
    "strings": (given.STRINGS, PLAIN, PLAIN),
    "casts": (given.CASTS, WITH_TEXTS, FEW_TEXTS),
    "times": (given.TIMES, PLAIN, PLAIN),
    "functions of texts": (given.TEXT_FUNCTIONS, WITH_WORDS, FEW_WORDS),
    "patterns": (given.PATTERNS, WITH_WORDS, FEW_WORDS),
    "digests": (given.DIGESTS, WITH_WORDS, FEW_WORDS),
    "functions of numbers": (given.NUMBER_FUNCTIONS, PLAIN, PLAIN),
    "functions of dates": (given.DATE_FUNCTIONS, PLAIN, PLAIN),
}


@pytest.fixture(autouse=True, scope="module")
def expressions_compiled_alone(spark):
    """Hundreds of columns fused into one method with the join compile four times as slowly, to the same code."""
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    yield
    spark.conf.unset("spark.sql.codegen.wholeStage")


@pytest.mark.parametrize("group", GROUPS)
def test_same_pairs_as_spark(spark, group):
    predicates, left, right = GROUPS[group]
    assert_same(spark, {p: p for p in predicates}, left, right)


def test_same_pairs_in_a_zone_with_summer_time(spark):
    spark.conf.set("spark.sql.session.timeZone", NEW_YORK)
    try:
        assert_same(spark, {p: p for p in given.ZONED}, ZONED, ZONED)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_overflow_is_computed_exactly(spark):
    assert_same(spark, given.OVERFLOWS, PLAIN, PLAIN)
    for predicate in given.OVERFLOWS:
        with pytest.raises(Exception, match=r"OVERFLOW|OUT_OF_RANGE"):
            crossed(spark, PLAIN, PLAIN).where(predicate).collect()


@pytest.mark.parametrize("predicate", given.ERRORS)
def test_what_stops_spark_stops_us(spark, predicate):
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException):
        crossed(spark, WITH_TEXTS, FEW_TEXTS).where(predicate).collect()
    for pairs in (pairs_of_reference, pairs_of_join):
        with pytest.raises(cf.EvaluationError, match=given.ERRORS[predicate]):
            pairs(predicate, WITH_TEXTS, FEW_TEXTS)


@pytest.mark.parametrize("predicate", given.REFUSED)
def test_what_spark_refuses_we_refuse(spark, predicate):
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException):
        crossed(spark, PLAIN, PLAIN).where(predicate).collect()
    with pytest.raises((cf.PredicateError, cf.ColumnError)):
        build_spec(PLAIN.schema, PLAIN.schema, where=predicate, time="id")


# --- the three answers


def assert_same(spark, predicates: dict[str, str], left: pa.Table, right: pa.Table) -> None:
    """`predicates`: ours, and what Spark is asked."""
    expected = pairs_of_spark(crossed(spark, left, right), list(predicates.values()))
    differing = []
    for ours, asked in predicates.items():
        for source in (pairs_of_reference, pairs_of_join):
            found = source(ours, left, right)
            if found != expected[asked]:
                missing, extra = sorted(expected[asked] - found)[:3], sorted(found - expected[asked])[:3]
                differing.append(f"{ours}\n    {source.__name__}: missing {missing}, too many {extra}")
    assert not differing, f"{len(differing)} of {len(predicates)} differ from Spark:\n" + "\n".join(differing)


def crossed(spark, left: pa.Table, right: pa.Table):
    from pyspark.sql.pandas.types import from_arrow_schema

    def frame(table: pa.Table, name: str):
        schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
        return spark.createDataFrame(table, schema=schema).alias(name)

    return frame(left, "l").crossJoin(frame(right, "r"))


def pairs_of_spark(frame, predicates: list[str]) -> dict[str, set[tuple[int, int]]]:
    columns = [f"coalesce({p}, false) AS p{i}" for i, p in enumerate(predicates)]
    answer = frame.selectExpr("l.id AS left_id", "r.id AS right_id", *columns).toArrow()
    ids = list(zip(answer["left_id"].to_pylist(), answer["right_id"].to_pylist(), strict=True))
    hits = (answer[f"p{i}"].to_pylist() for i in range(len(predicates)))
    return {
        p: {pair for pair, hit in zip(ids, hit, strict=True) if hit} for p, hit in zip(predicates, hits, strict=True)
    }


def pairs_of_reference(where: str, left: pa.Table, right: pa.Table) -> set[tuple[int, int]]:
    spec = build_spec(left.schema, right.schema, where=where, time="id", window=None)
    return {(le, ri) for le, ri, _ in reference_pairs(spec, left, right)}  # the rows' numbers are their ids


def pairs_of_join(where: str, left: pa.Table, right: pa.Table) -> set[tuple[int, int]]:
    joined = cf.window_join(left, right, where=where, time="id", window=None)
    pairs = list(zip(joined["id"].to_pylist(), joined["id_right"].to_pylist(), strict=True))
    assert len(pairs) == len(set(pairs)), f"{where}: a pair was found twice"
    return set(pairs)
