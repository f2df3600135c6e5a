"""SIGKILL of the driver in the middle of the stream, then a restart from the checkpoint: nothing lost or doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import counterflow as cf
from inputs import BENCHMARK, benchmark_inputs
from streams import cut, results, run_available, write_batches
from test_benchmark_join import keys, stream_join

OPTIONS = dict(where=BENCHMARK, time="ts", window="15 minutes")


def run(folder: Path) -> None:
    """What the process that will be killed does: the benchmark join over the files in `folder`."""
    from counterflow.engines.spark.session import local_session

    spark = local_session("victim", cores=2, partitions=4)
    joined = stream_join(spark, folder, benchmark_inputs(rows=10, seconds=10), "2x2")
    run_available(joined, folder)


def committed(folder: Path) -> int:
    log = folder / "checkpoint" / "commits"
    return len([p for p in log.glob("*") if p.name.isdigit()]) if log.exists() else 0


def test_killed_driver(spark, tmp_path):
    inputs = benchmark_inputs(rows=1000, seconds=3600)
    for name, table in zip(("left", "right"), inputs, strict=True):
        write_batches(tmp_path / name, cut(table, 8))
    victim = subprocess.Popen(
        [sys.executable, __file__, str(tmp_path)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while committed(tmp_path) < 2:
        assert victim.poll() is None, "the victim ended by itself"
        time.sleep(0.05)
    os.killpg(victim.pid, signal.SIGKILL)  # driver, JVM and workers, wherever they are
    victim.wait()
    before = committed(tmp_path)
    assert before < 9, "it was already done"
    joined = stream_join(spark, tmp_path, inputs, "2x2")
    query = run_available(joined, tmp_path)
    pairs = keys(cf.window_join(*inputs, **OPTIONS))
    assert keys(results(spark, joined, tmp_path)) == pairs
    assert cf.query_metrics(query)["pairs"] == len(pairs)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
