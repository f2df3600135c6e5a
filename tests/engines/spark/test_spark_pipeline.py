"""The join in a Spark Declarative Pipeline: the example of examples/pipeline, run by `spark-pipelines` itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import counterflow as cf
from counterflow.engines.spark.session.java import ensure_java
from effort import THOROUGH
from inputs import table_of
from places import ROOT
from streams import cut, write_batches

EXAMPLE = ROOT / "examples" / "pipeline"


def rows(first: int, last: int, step: int) -> pa.Table:
    """One row a second, with an `x` that jumps about."""
    table = table_of([(s, 0, (s * step) % 101, 0.0, "a") for s in range(first, last)])
    return table.set_column(0, "id", pa.array(range(first, last), pa.int64())).select(["id", "ts", "x"])


def pipeline(folder: Path, *arguments: str) -> None:
    ensure_java()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("SPARK_HOME", None)
    command = [Path(sys.executable).parent / "spark-pipelines", "--remote", "local[2]"]
    command += ["--conf", "spark.sql.catalogImplementation=hive", "--conf", "spark.ui.enabled=false"]
    done = subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def pairs(table: pa.Table) -> list[tuple]:
    times = table["pair_time"].cast(pa.timestamp("us")).cast("int64").to_pylist()
    return sorted(zip(table["id"].to_pylist(), table["id_right"].to_pylist(), times, strict=True))


@pytest.mark.slow
def test_a_pipeline(tmp_path, connect_port):
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    spec = tmp_path / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/near", str(tmp_path)))
    ships, strikes = rows(0, 120, 37), rows(0, 120, 59)

    def feed(first: int, last: int) -> None:
        for name, table in (("ships", ships), ("strikes", strikes)):
            write_batches(tmp_path / "data" / name, cut(table.slice(first, last - first), 2), first=first)

    def check(last: int) -> None:
        # A streaming sink lists its files in _spark_metadata; without a failed attempt they are those in the folder.
        files = [str(path) for path in (tmp_path / "spark-warehouse" / "near").glob("*.parquet")]
        want = cf.window_join(
            ships.slice(0, last),
            strikes.slice(0, last),
            where="l.x BETWEEN r.x - 3 AND r.x + 3",
            time="ts",
            window="10 seconds",
        )
        assert len(want) > 20
        assert pairs(ds.dataset(files).to_table()) == pairs(want)

    feed(0, 60)
    pipeline(tmp_path, "run")
    check(60)
    if THOROUGH:
        feed(60, 120)
        pipeline(tmp_path, "run")  # an incremental update: from the checkpoint
        check(120)
        pipeline(tmp_path, "run", "--full-refresh", "near")  # from nothing: the table is emptied first
        check(120)
