"""Kills at random moments, then a restart from the checkpoint: nothing lost, nothing doubled.

A victim process (chaos.py) joins files, also on a small cluster of real executors (`local-cluster`). The sink is
Spark's own Parquet sink, whose log makes it exactly once. At the end the output is compared row by row with the join in
process. The moments are random; a failure prints the seed, and COUNTERFLOW_SEED=... repeats the choices (not the
scheduler's). COUNTERFLOW_THOROUGH=1 repeats each kill, over a longer stream.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pyarrow as pa
import pytest

import counterflow as cf
from chaos import Victim, full_disk, join, options_of
from inputs import benchmark_inputs
from streams import THOROUGH, cut, results, run_available, write_batches

ROUNDS = 4 if THOROUGH else 1  # how often each kill is repeated
BATCHES = 6  # in each round


@pytest.fixture
def rng():
    seed = int(os.environ.get("COUNTERFLOW_SEED", random.randrange(10**6)))
    print(f"COUNTERFLOW_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_VICTIM", str(tmp_path))
    tables = benchmark_inputs(rows=100 * BATCHES * ROUNDS, seconds=360 * BATCHES * ROUNDS)
    for name, table in zip(("left", "right"), tables, strict=True):
        write_batches(tmp_path / name, cut(table, BATCHES * ROUNDS))
    return tables


def rows_of(table: pa.Table) -> Counter:
    return Counter(map(str, table.select(sorted(table.column_names)).to_pylist()))


def compare(spark, folder, inputs, layout, how):
    """All but the unmatched rows that are not due at the end of the files: the watermark is a minute behind."""
    want = cf.window_join(*inputs, how=how, **options_of(layout))
    found = results(spark, spark.createDataFrame(want), folder)
    lost, doubled = rows_of(want) - rows_of(found), rows_of(found) - rows_of(want)
    assert not doubled
    due = [row for row in lost if how == "inner" or "None" not in row]
    assert not due
    assert len(found) > 0.5 * len(want)


ACTIONS = ["kill_worker", "kill_executor", "corrupt_copies", "lose_directory"]


@pytest.mark.parametrize(
    ("layout", "how", "actions"),
    [("2x1", "left", ACTIONS), *([("2x2", "inner", ACTIONS), ("home:3", "inner", ACTIONS)] if THOROUGH else [])],
)
def test_workers_executors_and_copies(spark, tmp_path, inputs, rng, layout, how, actions):
    """The query survives all of it by itself: Spark runs lost tasks again."""
    victim = Victim(tmp_path, layout, how, "local-cluster[2,1,700]")
    happened = []
    for number, action in enumerate(actions * ROUNDS):
        victim.wait_for(2 + number)
        time.sleep(rng.uniform(0, 0.8))
        if not victim.done and getattr(victim, action)(rng):
            happened.append(action)
    victim.wait_for(BATCHES * ROUNDS + 1)
    victim.process.wait(timeout=120)
    assert victim.process.returncode == 0, victim.tail()
    assert set(happened) == set(actions), "the victim was done too early"
    compare(spark, tmp_path, inputs, layout, how)


def test_driver_and_full_disk(spark, tmp_path, inputs, rng):
    """Killed with everything it started, at any moment; this process goes on, and can write no hot copy."""
    layout, how = "1x2", "full"
    for _ in range(ROUNDS):
        kill_at_any_moment(Victim(tmp_path, layout, how, "local[2]"), rng)
    with full_disk():
        query = run_available(join(spark, tmp_path, layout, how), tmp_path)
    failed = sum(row["copies_failed"] for p in query.recentProgress for row in p["observedMetrics"].values())
    assert failed > 0
    compare(spark, tmp_path, inputs, layout, how)


def kill_at_any_moment(victim, rng):
    victim.wait_for(victim.committed() + rng.randint(1, 3))
    time.sleep(rng.uniform(0, 0.8))
    assert not victim.done, victim.tail()
    victim.kill_driver()


def test_stop(spark, tmp_path, inputs, rng):
    """`query.stop()` in the middle of batches, again and again; the last run goes to the end."""
    layout, how = "hash:2", "inner"
    for _ in range(2 * ROUNDS):
        joined = join(spark, tmp_path, layout, how)
        sink = joined.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        time.sleep(rng.uniform(0.3, 2.5))
        query.stop()
    joined = join(spark, tmp_path, layout, how)
    query = run_available(joined, tmp_path)
    compare(spark, tmp_path, inputs, layout, how)
    assert cf.query_metrics(query)["pairs"] == len(results(spark, joined, tmp_path))
