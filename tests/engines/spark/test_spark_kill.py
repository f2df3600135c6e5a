"""Kills at random moments, then a restart from the checkpoint: nothing lost, nothing doubled.

A victim process (chaos.py) joins files, also on a small cluster of real executors (`local-cluster`). The sink is
Spark's own Parquet sink, whose log makes it exactly once. The last file of each side has a row of the far future, so
that every row before it is decided at the end; then the output is compared row by row with the join in process. The
moments are random; a failure prints the seed, and COUNTERFLOW_SEED=... repeats the choices (not the scheduler's).
`--thorough` goes through every kind of join, layout and file manager: 210 kills, some four minutes for seven.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest

import counterflow as cf
from chaos import FILE_MANAGER, FILE_MANAGERS, Victim, file_manager, forget_last_commit, full_disk, join, options_of
from effort import THOROUGH
from exactly import batches_of, check_same_rows, compare, unmatched
from inputs import benchmark_inputs
from streams import results, run_available, write_batches

pytestmark = pytest.mark.slow
KILLS = ["kill_worker", "kill_daemon", "kill_executor", "kill_jvm", "kill_driver"]
DAMAGE = ["corrupt_copies", "lose_directory"]  # no process dies of it, and nothing may be lost by it
BATCHES = 9
RIGHT = {"a", "b", "c", "d"}  # columns of the right side


@pytest.fixture
def rng():
    seed = int(os.environ.get("COUNTERFLOW_SEED", random.randrange(10**6)))
    print(f"COUNTERFLOW_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_VICTIM", str(tmp_path))
    tables = benchmark_inputs(rows=100 * BATCHES, seconds=360 * BATCHES)
    for name, table in zip(("left", "right"), tables, strict=True):
        write_batches(tmp_path / name, batches_of(table, BATCHES))
    return tables


@pytest.mark.parametrize("how", ["inner", "left", "full", "anti", "ordered"])
def test_the_comparison_sees_every_row(inputs, how):
    """A row of either kind that is lost, doubled, or in another's place; and a pair that came unmatched, too."""
    want = cf.window_join(*inputs, **options_of("2x2", how))
    rows = want.to_pylist()
    alone = unmatched(want, how)
    paired = [place for place in range(len(rows)) if place not in set(alone)]
    assert len(alone) > 10 or how in ("inner", "ordered")
    assert len(paired) > 10 or how == "anti"
    check_same_rows(pa.Table.from_pylist(rows[::-1], want.schema), want)
    for places in (alone, paired):
        for one, other in itertools.pairwise(places[:2]):
            wrong = {
                "lost": rows[:one] + rows[one + 1 :],
                "doubled": [*rows, rows[one]],
                "doubled or": [*rows[:one], *rows[one + 1 :], rows[other]],
                "doubled or invented": [*rows, rows[one] | dict.fromkeys(RIGHT & set(want.column_names))],
            }
            for said, given in wrong.items():
                with pytest.raises(AssertionError, match=said):
                    check_same_rows(pa.Table.from_pylist(given, want.schema), want)


MANAGERS = list(FILE_MANAGERS) if THOROUGH else ["rename"]  # the one that keeps the first file is the harder one
EVERYTHING = [
    (how, layout, files)
    for how in ("inner", "left", "full", "anti", "ordered")
    for layout in ("2x2", "home:3", "hash:3", "band:3")
    for files in FILE_MANAGERS
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("how", "layout", "files"), EVERYTHING if THOROUGH else [("left", "2x2", "default")])
def test_kills_over_several_restarts(spark, tmp_path, inputs, rng, how, layout, files):
    """Spark survives the loss of workers, daemons and executors by itself; after the driver it is started again."""
    kills = [*KILLS, *rng.sample(KILLS, 2)] if THOROUGH else rng.sample(KILLS, 3)
    actions = [*kills, *DAMAGE]
    rng.shuffle(actions)
    victim = None
    happened = []
    while actions:
        if victim is None or victim.done:
            victim = Victim(tmp_path, layout, how, "local-cluster[2,1,700]", files)
        victim.wait_for(min(victim.committed() + rng.randint(0, 1), BATCHES - 1))
        time.sleep(rng.uniform(0, 1.5))
        if victim.done and victim.process.returncode == 0:
            break  # no batch is left to be disturbed
        assert not victim.done, victim.tail()
        if getattr(victim, actions[-1])(rng):
            happened.append(actions.pop())
    if victim.done and victim.process.returncode != 0:
        victim = Victim(tmp_path, layout, how, "local-cluster[2,1,700]", files)
    victim.wait_for(BATCHES + 1)
    assert victim.process.wait(timeout=240) == 0, victim.tail()
    print("happened:", happened)
    assert len(happened) >= len(kills), "the victim was done too early"
    compare(spark, tmp_path, inputs, layout, how)


@pytest.mark.parametrize("files", MANAGERS)
def test_tasks_that_run_again_after_their_commit(spark, tmp_path, inputs, files):
    """Each task commits its state and then fails, once, in every batch; then a restart reads all of it back."""
    layout, how = "1x2", "full"
    last = [tmp_path / side / f"{BATCHES - 1:04d}.parquet" for side in ("left", "right")]
    for path in last:
        path.rename(path.with_name(f".{path.name}"))
    for _ in range(2):
        victim = Victim(tmp_path, layout, how, "local[2,20]", files, again=True)
        assert victim.process.wait(timeout=400) == 0, victim.tail()
        for path in last:
            if not path.exists():
                path.with_name(f".{path.name}").rename(path)
    assert "this task is to run again" in (tmp_path / "log").read_text()
    compare(spark, tmp_path, inputs, layout, how)


@pytest.fixture
def with_file_manager(spark, request):
    """The session with another file manager, for queries that start now."""
    spark.conf.set(FILE_MANAGER, file_manager(request.param))
    yield spark
    spark.conf.unset(FILE_MANAGER)


@pytest.mark.parametrize("with_file_manager", MANAGERS, indirect=True)
def test_a_stop_between_the_state_s_commit_and_the_batch_s(with_file_manager, tmp_path, inputs):
    """The last batches are in the state store but not in the query's log: they run again, and the query goes on."""
    layout, how = "band:2", "left"
    hidden = []
    for side in ("left", "right"):
        files = sorted((tmp_path / side).glob("*.parquet"))
        hidden.append([path.rename(path.with_name(f".{path.name}")) for path in files[-3:]])
    for number in range(3):
        run_available(join(with_file_manager, tmp_path, layout, how), tmp_path)
        forget_last_commit(tmp_path)
        lose_hot_copies(with_file_manager)
        for files in hidden:  # the next run has one more batch
            files[number].rename(files[number].with_name(files[number].name[1:]))
    run_available(join(with_file_manager, tmp_path, layout, how), tmp_path)
    compare(with_file_manager, tmp_path, inputs, layout, how)


def lose_hot_copies(spark) -> None:
    """As after a restart on another machine: nothing is left but the checkpoint."""
    for folder in Path(spark.conf.get("spark.local.dir")).glob("blockmgr-*/counterflow"):
        shutil.rmtree(folder)


def test_driver_and_full_disk(spark, tmp_path, inputs, rng):
    """Killed with everything it started, at any moment; this process goes on, and can write no hot copy."""
    layout, how = "1x2", "full"
    victim = Victim(tmp_path, layout, how, "local[2]", "default")
    victim.wait_for(rng.randint(1, 3))
    time.sleep(rng.uniform(0, 0.8))
    assert not victim.done, victim.tail()
    victim.kill_driver(rng)
    with full_disk():
        query = run_available(join(spark, tmp_path, layout, how), tmp_path)
    failed = sum(row["copies_failed"] for p in query.recentProgress for row in p["observedMetrics"].values())
    assert failed > 0
    compare(spark, tmp_path, inputs, layout, how)


def test_stop(spark, tmp_path, inputs, rng):
    """`query.stop()` in the middle of batches, again and again; the last run goes to the end."""
    layout, how = "hash:2", "inner"
    for _ in range(8 if THOROUGH else 2):
        joined = join(spark, tmp_path, layout, how)
        sink = joined.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        time.sleep(rng.uniform(0.3, 2.5))
        query.stop()
    joined = join(spark, tmp_path, layout, how)
    query = run_available(joined, tmp_path)
    compare(spark, tmp_path, inputs, layout, how)
    assert cf.query_metrics(query)["pairs"] == len(results(spark, joined, tmp_path))
