"""`cf.condition` on Spark: functions go to the workers with the query, on static DataFrames and on streams.

Oracle tests: the pairs are `reference`'s. As with any function that Spark is given, one of a module is found there by
its name; one of the main program, of a notebook, or made by another function goes there as it is.
"""

from __future__ import annotations

import math
import random
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import counterflow as cf
from effort import THOROUGH
from inputs import START_S
from oracle import expected
from streams import cut, read_stream, results, run_available, write_batches

TIME_US = 1_000_000


def table(seed: int, rows: int) -> pa.Table:
    """Embeddings of two dimensions, some of them NULL or empty, and numbers; a row a second."""
    rng = random.Random(seed)
    angles = [rng.choice([None, 0.0, 0.5, 1.0, 2.0, 3.0]) for _ in range(rows)]
    lists = [None if a is None else [] if a == 3.0 else [math.cos(a), math.sin(a)] for a in angles]
    return pa.table(
        {
            "id": pa.array(range(rows)),
            "ts": pa.array([(START_S + i) * TIME_US for i in range(rows)], pa.timestamp("us", "UTC")),
            "x": pa.array([rng.choice([None, *range(6)]) for _ in range(rows)], pa.int32()),
            "s": [rng.choice(["a", "ab", "b"]) for _ in range(rows)],
            "v": pa.array(lists, pa.list_(pa.float32())),
        }
    )


def similar(least: float):
    def cosine(v, w):
        if len(v) != len(w) or len(v) == 0:
            return None
        return v[0] * w[0] + v[1] * w[1] >= least

    return cf.condition(cosine, "l.v", "r.v")


def pairs_of(found: pa.Table) -> Counter:
    times = found["pair_time"].cast("int64").to_pylist()
    return Counter(zip(found["id"].to_pylist(), found["id_right"].to_pylist(), times, strict=True))


def conditions() -> dict:
    texts = cf.condition(lambda s, t: s.startswith(t), "l.s", "r.s")
    return {
        "lists and a band": ("2x2", similar(0.8) & cf.band("x", "x", 2)),
        "texts and an equality": ("hash:3", texts & (cf.left.x == cf.right.x)),
        "nothing beside it": ("1x2", ~cf.condition(lambda x, y: (x + y) % 3 == 0, "l.x", "r.x")),
    }


@pytest.mark.parametrize("name", conditions() if THOROUGH else ["lists and a band"])
def test_static(spark, name):
    layout, where = conditions()[name]
    left, right = table(1, 60), table(2, 50)
    options = dict(where=where, time="ts", window="20 seconds")
    frames = spark.createDataFrame(left), spark.createDataFrame(right)
    joined = cf.window_join(*frames, engine=cf.Spark(layout=layout), **options)
    want = Counter(expected(left, right, **options))
    assert pairs_of(joined.toArrow()) == want and len(want) > 50


def streamed(spark, folder, where):
    frames = [read_stream(spark, folder / side, table(0, 1)) for side in ("left", "right")]
    return cf.window_join(*frames, where=where, time="ts", window="20 seconds", engine=cf.Spark(layout="2x1"))


def test_streams_and_a_restart(spark, tmp_path):
    """The same function, made again, goes on from the checkpoint; one that another value makes differ is refused."""
    left, right = table(3, 60), table(4, 60)
    parts = {"left": cut(left, 3), "right": cut(right, 3)}
    for side, tables in parts.items():
        write_batches(tmp_path / side, tables[:2])
    where = similar(0.8) & cf.band("x", "x", 2)
    run_available(streamed(spark, tmp_path, where), tmp_path)
    for side, tables in parts.items():
        write_batches(tmp_path / side, tables[2:], first=2)
    changed = streamed(spark, tmp_path, similar(0.9) & cf.band("x", "x", 2))
    with pytest.raises(PySparkException, match="the checkpoint belongs to another join") as refused:
        run_available(changed, tmp_path)
    assert str(refused.value).count("cosine@") >= 2
    again = streamed(spark, tmp_path, similar(0.8) & cf.band("x", "x", 2))
    run_available(again, tmp_path)
    want = Counter(expected(left, right, where=where, time="ts", window="20 seconds"))
    assert pairs_of(results(spark, again, tmp_path)) == want and len(want) > 50


def test_an_error_in_a_function_is_readable(spark):
    def inverse(x, y):
        return 1 / (x - y) > 0

    frame = spark.createDataFrame(table(5, 30))
    where = cf.condition(inverse, "l.x", "r.x")
    joined = cf.window_join(frame, frame, where=where, time="ts", window="5 seconds", engine=cf.Spark(layout="1x1"))
    with pytest.raises(PySparkException) as error:
        joined.toArrow()
    head = str(error.value)[:600]
    assert "EvaluationError: inverse(" in head and "ZeroDivisionError: division by zero" in head
    assert "Traceback" not in head
