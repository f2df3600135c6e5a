"""What changes between two runs of a query: partitions, the release, a column. Results stay those of the input."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import counterflow as cf
import golden
from chaos import Victim, forget_last_commit, join
from counterflow.cli import main
from counterflow.engines.spark import session
from counterflow.engines.spark.rescale import COMPACT_INTERVAL, PARTITIONS
from counterflow.engines.spark.state.migrations import FORMAT
from counterflow.errors import OptionError, StateError, UnsupportedError
from exactly import FAR, batches_of, check_same_rows, compare, unmatched
from inputs import benchmark_inputs
from streams import cut, read_stream, results, results_in_order, run_available, write_batches

# --- another release

GOLDEN = Path(__file__).parent / "checkpoints"


@pytest.mark.parametrize("format_", range(3, FORMAT + 1))
def test_a_checkpoint_of_every_format_goes_on(spark, tmp_path, format_):
    """Written by `golden.py` once for each format; the output before and after is one sequence."""
    golden.unpack(GOLDEN / f"format-{format_}", tmp_path)
    want = cf.window_join(golden.rows(1), golden.rows(2), **golden.OPTIONS)
    before = len(results_in_order(tmp_path, want.schema))
    joined = cf.window_join(*golden.frames(spark, tmp_path), engine=cf.Spark(layout=golden.LAYOUT), **golden.OPTIONS)
    query = run_available(joined, tmp_path)
    far = golden.batches(1)[-1]["ts"][0].as_py()
    found = [row for row in results_in_order(tmp_path, want.schema).to_pylist() if row["pair_time"] < far]
    assert found == want.to_pylist()
    alone = unmatched(want, "left", "id_right")
    assert 10 < before < len(want) - 10 and 3 < len(alone) < len(want) - 10
    assert cf.query_metrics(query)["rows_left"] == len(golden.rows(1)) + 1


# --- another number of partitions


@pytest.fixture
def two_partitions(spark):
    """The session for a query that starts with two partitions, and makes every other entry of a sink a long one."""
    before = spark.conf.get(PARTITIONS)
    spark.conf.set(PARTITIONS, 2)
    spark.conf.set(COMPACT_INTERVAL, 2)
    yield spark
    spark.conf.set(PARTITIONS, before)
    spark.conf.unset(COMPACT_INTERVAL)


@pytest.fixture
def command_line(spark, monkeypatch, capfd):
    """The command in this process, on the session of the tests."""

    def run(*args: object) -> dict:
        monkeypatch.setattr(session, "local_session", lambda *_, **__: spark)
        monkeypatch.setattr(spark, "stop", lambda: None)
        monkeypatch.setattr(sys, "argv", ["counterflow", *map(str, args)])
        with pytest.raises(SystemExit) as exited:
            main()
        out, err = capfd.readouterr()
        assert not exited.value.code, err
        assert len(err.splitlines()) == 1, err
        return json.loads(out)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("how", ["left", pytest.param("ordered", marks=pytest.mark.thorough)])
def test_rescaled_twice(two_partitions, tmp_path, command_line, how):
    """2 -> 4 -> 2 partitions, with a batch between that was not finished."""
    inputs = benchmark_inputs(rows=400, seconds=1600)
    files = [batches_of(table, 5) for table in inputs]
    spark, checkpoint, sink = two_partitions, tmp_path / "checkpoint", tmp_path / "out"

    def run(begin: int, end: int):
        for side, of_side in zip(("left", "right"), files, strict=True):
            write_batches(tmp_path / side, of_side[begin:end], first=begin)
        return run_available(join(spark, tmp_path, "2x2", how), tmp_path)

    run(0, 2)
    forget_last_commit(tmp_path)
    with pytest.raises(StateError, match="was begun and not finished: start the query once more"):
        cf.rescale(checkpoint, 4, file_sink=sink)
    run(2, 2)
    done = command_line("rescale", checkpoint, "--partitions", 4, "--file-sink", sink, "--json")
    assert {name: done[name] for name in ("partitions_before", "partitions", "cells")} == {
        "partitions_before": 2,
        "partitions": 4,
        "cells": 4,
    }
    run(2, 3)
    assert cf.rescale(str(checkpoint), partitions=2, spark=spark, file_sink=sink)["partitions_before"] == 4
    query = run(3, 5)
    compare(spark, tmp_path, inputs, "2x2", how)
    metrics = cf.query_metrics(query)
    assert (metrics["rows_left"], len(metrics["cells"])) == (401, 4)


@pytest.fixture
def stopped(spark, tmp_path):
    """A query of two cells that has joined one file a side, and its checkpoint."""
    table = benchmark_inputs(rows=20, seconds=60)[0]
    for side in ("left", "right"):
        write_batches(tmp_path / side, [table])
    streams = [read_stream(spark, tmp_path / side, table) for side in ("left", "right")]
    joined = cf.window_join(
        *streams, where="l.x = r.x", time="ts", window="1 minute", engine=cf.Spark(layout="1x2"), suffix="_r"
    )
    run_available(joined, tmp_path)
    return SimpleNamespace(checkpoint=tmp_path / "checkpoint", joined=joined, folder=tmp_path)


def test_what_cannot_be_rescaled(spark, stopped, tmp_path, monkeypatch):
    table = pq.read_table(tmp_path / "left")
    for name, frame in {
        "stateless": read_stream(spark, tmp_path / "left", table),
        "another": read_stream(spark, tmp_path / "left", table).dropDuplicates(["x", "ts"]),
    }.items():
        run_available(frame, tmp_path / name)
        with pytest.raises(StateError, match="has no join of Counterflow in it"):
            cf.rescale(tmp_path / name / "checkpoint", 2)
    for number in (0, -1, True, 4097, "4", 2.0, None, 10**5000):
        with pytest.raises(OptionError, match=r"partitions=.*: give a whole number from 1 to 4096"):
            cf.rescale(stopped.checkpoint, number)
    with pytest.raises(OptionError, match=r"partitions=4: the checkpoint .* has as many already"):
        cf.rescale(stopped.checkpoint, 4)
    with pytest.raises(StateError, match=r"is no checkpoint of a streaming query: it has no 'metadata' and 'offsets'"):
        cf.rescale(tmp_path / "left", 2)
    with pytest.raises(StateError, match="is no checkpoint of a streaming query"):
        cf.rescale(tmp_path / "nowhere", 2)
    with pytest.raises(OptionError, match="checkpoint='nonsense://bucket/checkpoint' cannot be reached"):
        cf.rescale("nonsense://bucket/checkpoint", 2)
    for nothing in ("", None, 5):
        with pytest.raises(OptionError, match="give a folder or URI"):
            cf.rescale(nothing, 2)
    with pytest.raises(OptionError, match="no file sink has written there"):
        cf.rescale(stopped.checkpoint, 2, file_sink=tmp_path / "left")
    (tmp_path / "other" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "other" / "_spark_metadata" / "7").write_text("v1")
    with pytest.raises(OptionError, match="the last batch there is 7, and the checkpoint's is 1"):
        cf.rescale(stopped.checkpoint, 2, file_sink=tmp_path / "other")
    with pytest.raises(OptionError, match="give a SparkSession"):
        cf.rescale(stopped.checkpoint, 2, spark="local[2]")
    connected = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(UnsupportedError, match="Spark Connect cannot rescale"):
        cf.rescale(stopped.checkpoint, 2, spark=connected)
    sink = stopped.joined.writeStream.format("noop").option("checkpointLocation", str(stopped.checkpoint))
    query = sink.start()
    with pytest.raises(StateError, match=r"is running: stop it \(query.stop\(\)\) first"):
        cf.rescale(stopped.checkpoint, 2)
    query.stop()
    monkeypatch.delattr(type(spark), "_streamingCheckpointManager")
    with pytest.raises(UnsupportedError, match=r"Spark 4\.2 or newer"):
        cf.rescale(stopped.checkpoint, 2)


def test_a_sink_that_was_forgotten(spark, stopped):
    """Without `file_sink` its log lacks the batch; the same call with it, before the query goes on, mends that."""
    with pytest.warns(UserWarning, match="has 2 cells, so 1 of 3 tasks of every micro-batch will be empty"):
        done = cf.rescale(stopped.checkpoint, 3)
    assert (done["layout"], done["batch_id"]) == ("1x2", 2)
    log = stopped.folder / "out" / "_spark_metadata"
    assert not (log / "2").exists()
    with pytest.warns(UserWarning):
        again = cf.rescale(stopped.checkpoint, 3, file_sink=stopped.folder / "out")
    assert again == done and (log / "2").read_text() == "v1"
    run_available(stopped.joined, stopped.folder)
    assert len(results(spark, stopped.joined, stopped.folder)) > 10


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", ["inner", "left", "full", "anti", "ordered"])
def test_rescaled_across_kills(spark, tmp_path, monkeypatch, how):
    """The query is killed anywhere, and so is the command: 4 -> 2 -> 3 -> 4 partitions."""
    rng = random.Random(f"{how} {os.environ.get('COUNTERFLOW_SEED', 1)}")
    monkeypatch.setenv("COUNTERFLOW_VICTIM", str(tmp_path))
    inputs = benchmark_inputs(rows=600, seconds=2160)
    files = [batches_of(table, 7) for table in inputs]
    checkpoint, sink, layout = tmp_path / "checkpoint", tmp_path / "out", "2x2"
    for begin, partitions in ((0, 2), (2, 3), (4, 4), (6, None)):
        for side, of_side in zip(("left", "right"), files, strict=True):
            write_batches(tmp_path / side, of_side[begin : begin + 2], first=begin)
        victim = Victim(tmp_path, layout, how, "local[2]", "default")
        victim.wait_for(victim.committed() + 1)
        time.sleep(rng.uniform(0, 1))
        victim.kill_driver(rng)
        run_available(join(spark, tmp_path, layout, how), tmp_path)
        if partitions is None:
            break
        command = ["rescale", checkpoint, "--partitions", partitions, "--file-sink", sink]
        with subprocess.Popen(
            [sys.executable, "-c", "from counterflow.cli import main; main()", *map(str, command)],
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        ) as killed:
            time.sleep(rng.uniform(4, 14))
            with suppress(ProcessLookupError):
                os.killpg(killed.pid, signal.SIGKILL)
        with suppress(OptionError):  # it was done already
            cf.rescale(checkpoint, partitions, file_sink=sink)
    compare(spark, tmp_path, inputs, layout, how)


# --- a column more, and options that say how a join runs


def test_options_and_a_column_change(spark, tmp_path):
    """Rows from before the restart have NULL in the new column; they meet those that came with a value."""
    tables = [t.append_column("id", pa.array(range(len(t)))) for t in benchmark_inputs(rows=120, seconds=900)]
    for side, table in zip(("left", "right"), tables, strict=True):
        write_batches(tmp_path / side, cut(table, 3)[:2])
    options = dict(where="abs(l.x - r.a) <= 20", time="ts", window="10 minutes", how="full")
    streams = [
        read_stream(spark, tmp_path / side, table) for side, table in zip(("left", "right"), tables, strict=True)
    ]
    run_available(cf.window_join(*streams, engine=cf.Spark(layout="1x2"), **options), tmp_path)
    noted = [
        t.append_column("note", pc.binary_join_element_wise("no. ", pc.cast(t["id"], "string"), "")) for t in tables
    ]
    for side, table in zip(("left", "right"), noted, strict=True):
        far = table.slice(0, 1).set_column(0, "ts", pa.array([FAR], table.schema.field("ts").type))
        write_batches(tmp_path / side, [cut(table, 3)[2], far], first=2)
    streams = [read_stream(spark, tmp_path / side, table) for side, table in zip(("left", "right"), noted, strict=True)]
    engine = cf.Spark(layout="1x2", late_rows=str(tmp_path / "late"), null_times="drop")
    joined = cf.window_join(*streams, engine=engine, suffix="_r", **options)
    run_available(joined, tmp_path)
    notes = [pa.array([None] * 80 + table["note"].to_pylist()[80:], pa.string()) for table in noted]
    whole = [t.set_column(t.num_columns - 1, "note", column) for t, column in zip(noted, notes, strict=True)]
    want = cf.window_join(*whole, suffix="_r", **options)
    earlier = [want.schema.field(f"{name}_r").with_name(f"{name}_right") for name in ("ts", "id")]
    found = results_in_order(tmp_path, pa.schema([*want.schema, *earlier]))
    for name in ("ts", "id"):
        place, both = want.schema.get_field_index(f"{name}_r"), [found[f"{name}_r"], found[f"{name}_right"]]
        found = found.set_column(place, f"{name}_r", pc.coalesce(*both))
    found = found.select(want.column_names)
    check_same_rows(found.filter(pc.less(found["pair_time"], pa.scalar(FAR, found["pair_time"].type))), want)
    mixed = [row for row in want.to_pylist() if row["id"] is not None and row["id"] < 80 and row["note_r"] is not None]
    assert len(mixed) > 5
