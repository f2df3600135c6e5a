"""The demo: vessels report where they are, lightning strikes, and who was close is known within seconds.

Two live streams (files that appear in two folders) are joined by a Spark streaming query in this process; the
pairs are written as Parquet. At the end every pair is checked against `reference` on the same rows.
"""

from __future__ import annotations

import math
import signal
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import counterflow as cf
from counterflow.cli.check import check_pairs
from counterflow.cli.output_files import make_folder
from counterflow.cli.terminal import plain, say
from counterflow.engines.spark.options import parse_layout

WHERE = (
    "abs(l.x_km - r.x_km) <= 5 AND abs(l.y_km - r.y_km) <= 5 "
    "AND sqrt(pow(l.x_km - r.x_km, 2) + pow(l.y_km - r.y_km, 2)) <= 5"
)
WINDOW = "30 seconds"
SEA_KM = 300.0
STRIKES_SHARE = 0.02
FILE_SECONDS = 0.5
LATENESS_S = 1.0  # reports come up to this much after their time; the watermark allows for it
WATERMARK_DELAY = "2 seconds"

VESSELS = "report LONG, ts TIMESTAMP, vessel STRING, x_km DOUBLE, y_km DOUBLE, knots FLOAT"
STRIKES = "strike LONG, ts TIMESTAMP, x_km DOUBLE, y_km DOUBLE, kiloamperes FLOAT"


@dataclass(eq=False)
class Feeder(threading.Thread):
    """A thread that writes both streams, a pair of files every half second, until it is told to stop."""

    folder: Path
    rate: int
    seconds: float
    stopped: threading.Event = field(default_factory=threading.Event)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    reports: int = 0
    strikes: int = 0

    def __post_init__(self) -> None:
        super().__init__(daemon=True, name="feeder")
        self.course = self.rng.uniform(0, SEA_KM, (200, 2))
        self.heading = self.rng.uniform(-0.01, 0.01, (200, 2))
        for name in ("vessels", "strikes", "arriving"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        begin = time.time()
        for number in range(1, 1 + round(self.seconds / FILE_SECONDS)):
            self.write(number)
            if self.stopped.wait(max(0.0, begin + number * FILE_SECONDS - time.time())):
                break

    def write(self, number: int) -> None:
        """Write what arrives in half a second."""
        strikes = max(1, round(self.rate * FILE_SECONDS * STRIKES_SHARE))
        self._write("vessels", number, self._vessels(round(self.rate * FILE_SECONDS) - strikes))
        self._write("strikes", number, self._strikes(strikes))

    def _times(self, n: int) -> pa.Array:
        us = (time.time() - self.rng.uniform(0, LATENESS_S, n)) * 1e6
        return pa.array(us.astype(np.int64), pa.timestamp("us", "UTC"))

    def _vessels(self, n: int) -> pa.Table:
        which = self.rng.integers(0, len(self.course), n)
        self.course = (self.course + self.heading) % SEA_KM
        position = self.course[which]
        first, self.reports = self.reports, self.reports + n
        return pa.table(
            {
                "report": pa.array(np.arange(first, first + n)),
                "ts": self._times(n),
                "vessel": pa.array([f"MV-{v:03d}" for v in which]),
                "x_km": pa.array(position[:, 0]),
                "y_km": pa.array(position[:, 1]),
                "knots": pa.array(self.rng.uniform(0, 24, n).astype(np.float32)),
            }
        )

    def _strikes(self, n: int) -> pa.Table:
        first, self.strikes = self.strikes, self.strikes + n
        return pa.table(
            {
                "strike": pa.array(np.arange(first, first + n)),
                "ts": self._times(n),
                "x_km": pa.array(self.rng.uniform(0, SEA_KM, n)),
                "y_km": pa.array(self.rng.uniform(0, SEA_KM, n)),
                "kiloamperes": pa.array(self.rng.gamma(3, 8, n).astype(np.float32)),
            }
        )

    def _write(self, stream: str, number: int, table: pa.Table) -> None:
        arriving = self.folder / "arriving" / f"{stream}-{number:06d}.parquet"
        pa.parquet.write_table(table, arriving)
        arriving.rename(self.folder / stream / arriving.name)  # a file appears whole or not at all


@dataclass
class Demo:
    seconds: int
    rate: int
    layout: str
    output: Path | None
    notes: Console

    def run(self) -> dict[str, Any]:
        """Run the demo and say how it went. `verified` tells whether the check passed."""
        from counterflow.engines.spark.session import local_session

        folder = self.output or Path(tempfile.mkdtemp(prefix="counterflow-demo-"))
        make_folder(folder)
        if any(folder.iterdir()):
            raise cf.OptionError(f"--output {folder}: the folder is not empty; choose a new one")
        cells = math.prod(parse_layout(self.layout)[1] or (2,))
        feeder = Feeder(folder, self.rate, self.seconds)

        def interrupted(*_: Any) -> None:
            self.notes.print("\nstopping: joining what has arrived (Ctrl-C again to abandon)")
            feeder.stopped.set()
            signal.signal(signal.SIGINT, signal.default_int_handler)

        previous = signal.signal(signal.SIGINT, interrupted)
        say(f"starting Spark in this process; everything goes to {folder}")
        spark = local_session("counterflow demo", cores=2, partitions=cells, log=folder / "spark.log")
        try:
            if not feeder.stopped.is_set():
                signal.signal(signal.SIGINT, interrupted)  # Spark's own handler would cancel the running batch
            pairs = self._join(spark, folder)
            metrics, wall_s = self._stream(pairs, feeder)
            found = spark.read.schema(pairs.schema).parquet(str(folder / "pairs")).toArrow()
        finally:
            feeder.stopped.set()
            signal.signal(signal.SIGINT, previous)
            spark.stop()
        return self._summarise(folder, found, metrics, wall_s)

    def _join(self, spark: Any, folder: Path) -> Any:
        def stream(name: str, schema: str) -> Any:
            source = spark.readStream.schema(schema).parquet(str(folder / name))
            return source.withWatermark("ts", WATERMARK_DELAY)

        return cf.window_join(
            stream("vessels", VESSELS),
            stream("strikes", STRIKES),
            where=WHERE,
            time="ts",
            window=WINDOW,
            engine=cf.Spark(layout=self.layout),
        )

    def _stream(self, pairs: Any, feeder: Feeder) -> tuple[dict[str, Any], float]:
        """Run the query on the live streams. Returns its metrics and for how long the streams were live."""
        sink = pairs.writeStream.format("parquet").option("path", str(feeder.folder / "pairs"))
        query = (
            sink.option("checkpointLocation", str(feeder.folder / "checkpoint")).queryName("counterflow demo").start()
        )
        self._warm_up(query, feeder)
        wall_s = self._watch(query, feeder)
        query.processAllAvailable()  # also the empty batch that follows, which only moves the watermark
        metrics = cf.query_metrics(query)
        query.stop()
        return metrics, wall_s

    def _warm_up(self, query: Any, feeder: Feeder) -> None:
        """Run the first batch: starting Python workers and compiling Spark's plan should not look like a delay."""
        feeder.write(0)
        with self.notes.status("first micro-batch"):
            while _behind(cf.query_metrics(query), feeder):
                _raise_failure(query)
                time.sleep(0.1)

    def _watch(self, query: Any, feeder: Feeder) -> float:
        """Show progress while the streams run, then until everything that arrived is joined."""
        begin = time.time()
        feeder.start()
        with Live(console=self.notes, refresh_per_second=4, transient=False) as live:
            shown = -1
            while feeder.is_alive() or _behind(cf.query_metrics(query), feeder):
                _raise_failure(query)
                time.sleep(0.25)
                metrics = cf.query_metrics(query)
                if self.notes.is_terminal:
                    live.update(_table(metrics, feeder, time.time() - begin))
                elif metrics["batch_id"] is not None and metrics["batch_id"] // 5 != shown // 5:
                    shown = metrics["batch_id"]
                    self.notes.print(_line(metrics, time.time() - begin))
        return time.time() - begin

    def _summarise(self, folder: Path, pairs: pa.Table, metrics: dict[str, Any], wall_s: float) -> dict[str, Any]:
        vessels, strikes = (pa.parquet.read_table(folder / name) for name in ("vessels", "strikes"))
        with self.notes.status(f"checking {len(pairs):,} pairs against the reference"):
            check = check_pairs(
                vessels, strikes, pairs, ids=("report", "strike"), where=WHERE, time="ts", window=WINDOW
            )
        summary = {
            "vessel_reports": metrics["rows_left"],
            "strikes": metrics["rows_right"],
            "pairs": len(pairs),
            "late_rows": metrics["late_left"] + metrics["late_right"],
            "rows_per_s": round((metrics["rows_left"] + metrics["rows_right"]) / wall_s, 1),
            "delay_s": metrics.get("delay_s"),
            "layout": self.layout,
            "results": str(folder / "pairs"),
            "verified": check.ok,
            "check": str(check),
        }
        table = Table(title="vessels within 5 km of a lightning strike, within 30 seconds", show_header=False)
        for key, value in summary.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            table.add_row(key.replace("_", " "), Text(f"{value:,}" if number else plain(str(value))))
        self.notes.print(table)
        return summary


def _raise_failure(query: Any) -> None:
    failure = query.exception()
    if failure is not None:
        raise failure


def _behind(metrics: dict[str, Any], feeder: Feeder) -> bool:
    return metrics["rows_left"] + metrics["rows_right"] < feeder.reports + feeder.strikes


def _table(metrics: dict[str, Any], feeder: Feeder, elapsed: float) -> Table:
    table = Table("seconds", "vessel reports", "strikes", "pairs", "rows/s", "delay", "held rows", "late")
    rows = metrics["rows_left"] + metrics["rows_right"]
    held = metrics.get("state_rows_left", 0) + metrics.get("state_rows_right", 0)
    delay = metrics.get("delay_s")
    table.add_row(
        f"{elapsed:.0f}",
        f"{metrics['rows_left']:,}",
        f"{metrics['rows_right']:,}",
        f"{metrics['pairs']:,}",
        f"{rows / elapsed:,.0f}" if elapsed else "",
        "" if delay is None else f"{delay:.1f} s",
        f"{held:,}",
        f"{metrics['late_left'] + metrics['late_right']:,}",
    )
    return table


def _line(metrics: dict[str, Any], elapsed: float) -> str:
    rows = metrics["rows_left"] + metrics["rows_right"]
    return (
        f"{elapsed:5.0f} s  {rows:,} rows in, {metrics['pairs']:,} pairs, {rows / elapsed:,.0f} rows/s, "
        f"delay {metrics.get('delay_s')} s"
    )
