"""Spark Connect: the same pairs and metrics through a client that has no JVM.

A process has either classic sessions or Connect ones, so the joins run in a process of their own (this file as a
script), with a real server that the client starts.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import counterflow as cf
from counterflow.engines.spark.session.java import ensure_java
from effort import THOROUGH
from inputs import SCHEMA, window_of
from oracle import expected
from oracle import results as results_of
from places import SUPPORT
from sentinels import SENTINELS, unique_times, without_sentinels
from streams import read_stream, write_batches


def of_one_parity():
    """A Python function beside a band: made by a function, so that Spark takes it along."""
    return cf.condition(lambda x, y: (x - y) % 2 == 0, "l.x", "r.x") & cf.band("x", "x", 4)


JOINS = [
    ("hash", dict(where="l.s = r.s AND l.x > r.x", window="duration", how="left", ordered=True)),
    ("2x2", dict(where="abs(l.x - r.x) <= 1", window="asymmetric", how="inner", ordered=False)),
    ("auto", dict(where="l.x < r.x - 4", window="rows", how="anti", ordered=False)),
    ("1x2", dict(where=of_one_parity(), window="duration", how="inner", ordered=False)),
]


def options_of(join: dict) -> dict:
    return {**join, "window": window_of(join["window"]), "time": "ts"}


@pytest.mark.slow
def test_connect(tmp_path, connect_port):
    left, right = unique_times(21, 40), unique_times(22, 30)
    for side, table in (("left", left), ("right", right)):
        cuts = [0, 3, 17, len(table) - len(SENTINELS), len(table)]
        write_batches(tmp_path / side, [table.slice(a, b - a) for a, b in itertools.pairwise(cuts)])
    ensure_java()
    joins = JOINS if THOROUGH else JOINS[:1]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, __file__, str(tmp_path), str(len(joins))]
    with open(tmp_path / "log", "w") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=log)
    assert done.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    for (layout, join), found in zip(joins, json.loads((tmp_path / "found").read_text()), strict=True):
        want = without_sentinels(expected(left, right, **options_of(join)))
        got = without_sentinels([tuple(row) for row in found["streaming"]])
        assert len(want) > 5
        assert got == want if join["ordered"] else Counter(got) == Counter(want), layout
        assert Counter(map(tuple, found["static"])) == Counter(expected(left, right, **options_of(join))), layout
        assert found["metrics"]["rows_left"] == len(left) and found["metrics"]["late_left"] == 0
        assert found["metrics"]["pairs"] == len(found["streaming"])
        assert sum(cell["state_rows_left"] for cell in found["metrics"]["cells"]) == found["metrics"]["state_rows_left"]
    assert (tmp_path / "beside_table").read_text().startswith("a stream beside a table, on Spark Connect")


def run(folder: Path, joins: int) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]")
    for key, value in (("spark.sql.shuffle.partitions", "4"), ("spark.sql.session.timeZone", "UTC")):
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    report = []
    for number, (layout, join) in enumerate(JOINS[:joins]):
        frames = [read_stream(spark, folder / side, SCHEMA.empty_table(), "9 minutes") for side in ("left", "right")]
        joined = cf.window_join(*frames, engine=cf.Spark(layout=layout), **options_of(join))
        query = (
            joined.writeStream.queryName(f"found{number}")
            .format("memory")
            .option("checkpointLocation", str(folder / f"checkpoint{number}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        tables = [spark.read.schema(frames[0].schema).parquet(str(folder / side)) for side in ("left", "right")]
        static = cf.window_join(*tables, engine=cf.Spark(layout=layout), **options_of(join))
        report.append(
            {
                "streaming": results_of(spark.table(f"found{number}").toArrow(), join["how"]),
                "static": results_of(static.toArrow(), join["how"]),
                "metrics": cf.query_metrics(query),
            }
        )
    (folder / "found").write_text(json.dumps(report))
    try:
        cf.window_join(frames[0], tables[1], where="l.x = r.x", time=("ts", None))
    except cf.CounterflowError as error:
        (folder / "beside_table").write_text(str(error))
    spark.stop()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
