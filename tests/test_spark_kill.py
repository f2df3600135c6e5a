"""Kills at random moments, then a restart from the checkpoint: nothing lost, nothing doubled.

A victim process (chaos.py) joins files, also on a small cluster of real executors (`local-cluster`). The sink is
Spark's own Parquet sink, whose log makes it exactly once. At the end the output is compared row by row with the join in
process. The moments are random; a failure prints the seed, and COUNTERFLOW_SEED=... repeats the choices (not the
scheduler's).
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pyarrow as pa
import pytest

import counterflow as cf
from chaos import Victim, options_of
from inputs import benchmark_inputs
from streams import cut, results, write_batches

BATCHES = 12


@pytest.fixture
def rng():
    seed = int(os.environ.get("COUNTERFLOW_SEED", random.randrange(10**6)))
    print(f"COUNTERFLOW_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_VICTIM", str(tmp_path))
    tables = benchmark_inputs(rows=1200, seconds=3600)
    for name, table in zip(("left", "right"), tables, strict=True):
        write_batches(tmp_path / name, cut(table, BATCHES))
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


@pytest.mark.parametrize(
    ("layout", "how", "actions"),
    [
        ("2x2", "inner", ["kill_worker", "kill_executor", "lose_directory", "corrupt_copies"]),
        ("home:3", "inner", ["corrupt_copies", "kill_executor", "kill_worker"]),
        ("2x1", "left", ["kill_worker", "lose_directory", "kill_executor"]),
    ],
)
def test_workers_executors_and_copies(spark, tmp_path, inputs, rng, layout, how, actions):
    """The query survives all of it by itself: Spark runs lost tasks again."""
    victim = Victim(tmp_path, layout, how, "local-cluster[2,1,700]")
    happened = []
    for number, action in enumerate(actions):
        victim.wait_for(2 + 2 * number)
        time.sleep(rng.uniform(0, 0.8))
        if not victim.done and getattr(victim, action)(rng):
            happened.append(action)
    victim.wait_for(BATCHES + 1)
    victim.process.wait(timeout=120)
    assert victim.process.returncode == 0, victim.tail()
    assert len(happened) >= len(actions) - 1, "the victim was done too early"
    compare(spark, tmp_path, inputs, layout, how)


@pytest.mark.parametrize(("layout", "how"), [("hash:2", "inner"), ("1x2", "full")])
def test_driver(spark, tmp_path, inputs, rng, layout, how):
    """Killed with everything it started, twice, at any moment."""
    kills = 0
    while kills < 2:
        victim = Victim(tmp_path, layout, how, "local[2]")
        victim.wait_for(victim.committed() + rng.randint(1, 3))
        time.sleep(rng.uniform(0, 0.8))
        assert not victim.done, victim.tail()
        kills += victim.kill_driver()
    victim = Victim(tmp_path, layout, how, "local[2]")
    victim.process.wait(timeout=240)
    assert victim.process.returncode == 0, victim.tail()
    compare(spark, tmp_path, inputs, layout, how)
