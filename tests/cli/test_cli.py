"""The command line, as a user types it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import counterflow as cf
from counterflow.cli import main

WHERE = "abs(l.x - r.a) <= 1"


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def counterflow(monkeypatch, capfd):
    """Run the command line in this process: the same entry point, without another start of Python."""

    def run(*args: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["counterflow", *map(str, args)])
        with pytest.raises(SystemExit) as exited:
            main()
        return Done(int(exited.value.code or 0), *capfd.readouterr())

    return run


def spawn(*args: object) -> Done:
    """The same in a process of its own, for what starts and stops Spark."""
    command = [sys.executable, "-c", "from counterflow.cli import main; main()", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def files(tmp_path):
    left = pa.table({"ts": pa.array([0, 10, 20], pa.timestamp("s")), "x": [1, 5, 9]})
    right = pa.table({"ts": pa.array([1, 12, 50], pa.timestamp("s")), "a": [2, 5, 9]})
    csv.write_csv(left, tmp_path / "left.csv")
    pq.write_table(right, tmp_path / "right.parquet")
    return tmp_path / "left.csv", tmp_path / "right.parquet"


def test_join_to_stdout(counterflow, files):
    done = counterflow("join", *files, "--where", WHERE, "--time", "ts", "--window", "5 seconds")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        '"ts","x","ts_right","a","pair_time"',
        "1970-01-01 00:00:00,1,1970-01-01 00:00:01.000,2,1970-01-01 00:00:01.000000",
        "1970-01-01 00:00:10,5,1970-01-01 00:00:12.000,5,1970-01-01 00:00:12.000000",
    ]
    assert "2 rows to stdout" in done.stderr


@pytest.mark.parametrize("output", ["out.csv", "out.parquet"])
def test_join_to_a_file(counterflow, files, tmp_path, output):
    options = ["--where", WHERE, "--time", "ts,ts", "--window", "rows:2,5 seconds", "--how", "left", "--ordered"]
    done = counterflow("join", *files, *options, "-o", tmp_path / output)
    assert done.returncode == 0, done.stderr
    written = pq.read_table(tmp_path / output) if output.endswith("parquet") else csv.read_csv(tmp_path / output)
    assert written["x"].to_pylist() == [1, 5, 9] and written["a"].to_pylist() == [2, 5, 9]


@pytest.mark.slow
@pytest.mark.spark
def test_join_on_spark_is_the_same(files, tmp_path):
    for engine in ("local", "spark"):
        options = ["--where", WHERE, "--time", "ts", "--window", "5 seconds", "--engine", engine]
        layout = ["--layout", "1x2"] if engine == "spark" else []
        done = spawn("join", *files, *options, *layout, "-o", tmp_path / f"{engine}.parquet")
        assert done.returncode == 0, done.stderr
    local, spark = (pq.read_table(tmp_path / f"{e}.parquet").sort_by("pair_time") for e in ("local", "spark"))
    assert local.column_names == spark.column_names
    assert [str(r) for r in local.to_pylist()] == [str(r) for r in spark.to_pylist()]


def test_explain(counterflow, files):
    options = ["--where", WHERE + " AND l.x > 2", "--time", "ts", "--window", "5 seconds"]
    done = counterflow("explain", *files, *options)
    assert done.returncode == 0, done.stderr
    assert "bands          -1 <= l.x - r.a <= 1" in done.stdout and "found by band on l.x" in done.stdout
    facts = json.loads(counterflow("explain", *files, *options, "--json").stdout)
    assert facts["left_filters"] == ["(l.x > 2)"] and facts["access_path"]["right"] == "band on r.a"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--where", "l.nope = 1"], "no column 'nope' in the left input"),
        (["--window", "5"], "the window needs a unit"),
        (["--window", "rows:x"], "write rows:100"),
        (["--how", "sideways"], "unknown how='sideways'"),
        (["--engine", "flink"], "use local or spark"),
        (["--layout", "2x2"], "use it with --engine spark"),
        (["-o", "out.xlsx"], "ends in .csv or .parquet"),
        (["-o", "nowhere/out.csv"], "does not exist"),
    ],
)
def test_errors_are_one_line_and_exit_with_2(counterflow, files, change, message):
    done = counterflow("join", *files, "--where", WHERE, "--time", "ts", "--window", "5 seconds", *change)
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_missing_and_broken_files(counterflow, files, tmp_path):
    options = ["--where", WHERE, "--time", "ts"]
    assert "does not exist" in counterflow("join", "no.csv", files[1], *options).stderr
    (tmp_path / "broken.parquet").write_text("not parquet")
    assert "cannot read the left input" in counterflow("join", tmp_path / "broken.parquet", files[1], *options).stderr


def test_help_and_version(counterflow):
    for command in ([], ["demo"], ["join"], ["explain"]):
        done = counterflow(*command, "--help")
        assert done.returncode == 0 and "Usage" in done.stdout
    assert counterflow("--version").stdout.strip() == f"counterflow {cf.__version__}"


@pytest.mark.slow
@pytest.mark.spark
def test_demo(tmp_path):
    """The main job, small: live streams on Spark, Parquet out, every pair checked."""
    done = spawn("demo", "--seconds", "3", "--rate", "100", "--layout", "2x1", "-o", tmp_path / "demo", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["verified"] and summary["late_rows"] == 0
    assert summary["vessel_reports"] + summary["strikes"] == 350
    assert summary["pairs"] == len(pq.read_table(tmp_path / "demo" / "pairs"))
    assert spawn("demo", "-o", tmp_path / "demo").returncode == 2  # not empty: nothing is overwritten


def test_what_py4j_logs_of_an_interrupt_is_not_shown(counterflow, caplog):
    assert counterflow("--help").returncode == 0
    logging.error("KeyboardInterrupt while sending command.")
    logging.getLogger("py4j.clientserver").error("Exception occurred while shutting down connection")
    logging.error("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"]
