"""`counterflow bench spark`: joins of two streams on Spark, beside an identity operator and Spark's own joins.

Times on a shared machine are worth little, ratios of what ran in turns are worth more: so all cases run in one session,
those that are compared take turns, and medians over the micro-batches at a full window are reported.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from counterflow.engines.spark.options import PROVIDER, ROCKSDB
from counterflow.engines.spark.session import local_session
from counterflow.engines.spark.state.counters import CELL_COUNTERS
from counterflow.lab.bench.host import heading
from counterflow.lab.bench.report import Note, Row

if TYPE_CHECKING:
    from counterflow.lab.bench.spark_queries import JoinKind, PairDigest, SyntheticJoin

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"  # Spark's default
SETTINGS = {
    "spark.driver.memory": "4g",  # Spark's default state store is on the heap
    "spark.sql.streaming.numRecentProgressUpdates": "2000",  # of each micro-batch of a run
}
PARTITIONS = CORES = 2
POLL_S = 0.2
SAMPLE_EVERY = 10  # micro-batches between two looks at the workers' memory
HELD = "Pss_Anon:", "Pss_Shmem:"
SAMPLES = 10  # at the start and at the end; their medians are compared

# What the ratios should be.
ASKED = {
    "warm_2m_to_100k": "at most 1.3",
    "band_to_identity": "at least 0.7",
    "band_to_bucket_explode": "at least 5",
    "equi_to_native": "at least 1.5",
    "distance_to_band": "at most 1.5",
    "memory_growth_bytes": "none",
    "band_to_grid": "",
    "equi_warm_5m_to_100k": "",
}
DURATIONS = ("addBatch", "queryPlanning", "latestOffset", "walCommit", "commitOffsets")
TIMES = ("unpack_us", "join_us", "host_us", "state_us")

Through = Literal["counterflow", "identity", "spark_bucket_explode", "spark_grid", "spark_native"]


@dataclass(frozen=True)
class SparkSizes:
    batch_rows: int = 50_000  # of each side
    band_windows: tuple[int, ...] = (100_000, 1_000_000, 2_000_000, 5_000_000)
    distance_window: int = 1_000_000
    equi_windows: tuple[int, ...] = (100_000, 5_000_000)
    turns: int = 2  # how often the cases that are compared run
    settle: int = 5  # micro-batches at least before measuring: workers import, the JVM compiles
    measured: int = 12
    native_measured: int = 6
    slow_measured: int = 1  # where a micro-batch takes half a minute
    trials: tuple[str, ...] = ("band", "equi")  # the joins for which Spark's state stores are tried
    trial_batches: int = 3
    memory_batch_rows: int = 1_000
    memory_window: int = 20_000
    memory_settle: int = 50
    memory_batches: int = 500


SMOKE = SparkSizes(
    batch_rows=2_000,
    band_windows=(4_000,),
    distance_window=4_000,
    equi_windows=(4_000,),
    turns=1,
    settle=2,
    measured=2,
    native_measured=2,
    trials=("equi",),
    trial_batches=1,
    memory_batch_rows=500,
    memory_window=1_000,
    memory_settle=2,
    memory_batches=5,
)


@dataclass
class QueryCase:
    """A query that runs once or several times, each time anew."""

    case: str
    through: Through
    join: SyntheticJoin
    settle: int
    measured: int
    provider: str = ROCKSDB
    asked: str = "auto"  # the layout
    layout: str = ""
    runs: int = 0
    warm: list[Any] = field(default_factory=list)  # progress reports of micro-batches at a full window
    pairs: int = 0  # of a run
    warm_pairs: int = 0  # of all `warm`
    verified: bool = True

    @property
    def fill(self) -> int:
        return max(self.settle, ceil(self.join.window_rows / self.join.batch_rows))

    @property
    def batches(self) -> int:
        return self.fill + self.measured

    @property
    def batch_ms(self) -> float:
        return statistics.median(_durations(self.warm))


class SparkBench:
    """A session, the cases that ran in it, and what was found."""

    def __init__(self, sizes: SparkSizes, session: Any, folder: Path, note: Note) -> None:
        self.sizes, self.session, self.folder, self.note = sizes, session, folder, note
        self.rows: list[Row] = []
        self.remarks: list[str] = []
        self._expected: dict[tuple[SyntheticJoin, int], PairDigest] = {}

    def case(
        self, kind: JoinKind, through: Through, window: int, measured: int = 0, settle: int | None = None, **more: Any
    ) -> QueryCase:
        from counterflow.lab.bench.spark_queries import SyntheticJoin

        join = SyntheticJoin(kind, window, self.sizes.batch_rows)
        settle = self.sizes.settle if settle is None else settle
        return QueryCase(kind, through, join, settle, measured or self.sizes.measured, **more)

    # --- running

    def take(self, case: QueryCase, watch: Callable[[int], None] | None = None) -> None:
        """Run a case once more."""
        join = case.join
        self.note(f"{case.case} through {case.through}, window of {join.window_rows:,} rows, {case.batches} batches")
        reports = self.run(case, watch)
        case.runs += 1
        case.warm += reports[case.fill :]
        case.verified &= self._is_right(case, reports)

    def run(self, case: QueryCase, watch: Callable[[int], None] | None = None) -> list[Any]:
        """Return the progress reports of the micro-batches of one run."""
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        frame = self._frame(case)
        self.session.conf.set(PROVIDER, case.provider)
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            seen = -1
            while seen < case.batches - 1:
                query.awaitTermination(POLL_S)  # raises what ended the query
                progress = query.lastProgress
                if progress is not None and progress["batchId"] > seen:
                    seen = progress["batchId"]
                    if watch is not None:
                        watch(seen)
            return [p for p in query.recentProgress if p["batchId"] < case.batches]
        finally:
            query.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _frame(self, case: QueryCase) -> Any:
        from counterflow.lab.bench import spark_queries as queries

        session, join = self.session, case.join
        if case.through == "counterflow":
            frame, case.layout = queries.counterflow_join(session, join, case.asked)
            return frame
        if case.through == "identity":
            return queries.identity(session, join)
        copies = {"spark_bucket_explode": queries.BUCKETS, "spark_grid": queries.GRID}
        return queries.native_join(session, join, copies.get(case.through))

    def _is_right(self, case: QueryCase, reports: list[Any]) -> bool:
        """Say whether all rows came, and exactly the pairs (or rows) of these micro-batches went out."""
        from counterflow.lab.bench import spark_queries as queries

        join, rows = case.join, case.batches * case.join.batch_rows
        found = sum((queries.observed_digest(p) for p in reports), queries.PairDigest())
        case.pairs = found.count
        case.warm_pairs += sum(queries.observed_digest(p).count for p in reports[case.fill :])
        if (join, rows) not in self._expected and case.through != "identity":
            self.note(f"the same {rows:,} rows of each side in process")
            self._expected[join, rows] = queries.expected_pairs(self.session, join, rows)
        expected = queries.expected_rows(rows) if case.through == "identity" else self._expected[join, rows]
        return found == expected and sum(p["numInputRows"] for p in reports) == 2 * rows

    # --- reporting

    def add(self, case: QueryCase) -> Row:
        durations = _durations(case.warm)
        row = {
            **self.described(case),
            "runs": case.runs,
            "batches": len(case.warm),
            "batch_ms_p50": case.batch_ms,
            "batch_ms_p90": durations[ceil(0.9 * len(durations)) - 1],
            "delay_ms_p50": case.batch_ms,  # from a row's arrival in a micro-batch to its pairs
            "tuples_per_s": 2 * case.join.batch_rows / case.batch_ms * 1000,
            **_breakdown(case.warm),
        }
        self.rows.append(row)
        return row

    def described(self, case: QueryCase) -> Row:
        join = case.join
        row = {
            "case": case.case,
            "through": case.through,
            "window_rows": join.window_rows,
            "batch_rows": join.batch_rows,
            "domain": join.domain,
            "partitions": PARTITIONS,
            "state_store": case.provider.rpartition(".")[2].removesuffix("StateStoreProvider"),
        }
        if case.layout:
            row["layout"] = case.layout
        if case.through != "identity":
            row |= {"pairs": case.pairs, "matches_per_row": case.warm_pairs / (2 * len(case.warm) * join.batch_rows)}
        return {**row, "verified": case.verified}


def bench_spark(smoke: bool, note: Note) -> dict[str, Any]:
    """Return the report of all measurements; with `smoke` as small as they can be, to see that they work."""
    found = heading("spark", smoke)
    with bench_session(note) as (session, folder):
        bench = SparkBench(SMOKE if smoke else SparkSizes(), session, folder, note)
        # Memory first, while the workers are new: windows of queries that have ended stay in them for some minutes.
        seen = {**_measure_memory(bench), **_measure_bands(bench), **_measure_distance(bench)}
        seen |= _measure_equalities(bench)
    bench.remarks.append(
        "delay is a micro-batch's duration; state_commit_ms and the counters in us are sums over tasks that run at once"
    )
    ratios: dict[str, Any] = {name: seen.get(name) for name in ASKED}
    ratios["verified"] = all(row["verified"] for row in bench.rows)
    return {**found, "remarks": bench.remarks, "results": bench.rows, "ratios": ratios}


@contextmanager
def bench_session(note: Note) -> Iterator[tuple[Any, Path]]:
    """Yield a session and a folder, both gone in the end; what Spark prints goes into the folder."""
    with tempfile.TemporaryDirectory(prefix="counterflow-bench-", ignore_cleanup_errors=True) as folder:
        note("starting Spark")
        log = Path(folder) / "spark.log"
        interrupted = signal.getsignal(signal.SIGINT)
        session = local_session("counterflow bench", CORES, PARTITIONS, log, settings=SETTINGS)
        if threading.current_thread() is threading.main_thread():  # Spark's own handler calls Spark amid another call
            signal.signal(signal.SIGINT, interrupted)
        try:
            yield session, Path(folder)
        finally:
            session.stop()


# --- the cases


def _measure_bands(bench: SparkBench) -> dict[str, float]:
    """Measure the benchmark join and the identity operator in turns; then Spark's own joins."""
    sizes, small = bench.sizes, bench.sizes.band_windows[0]
    identity = bench.case("band", "identity", small)
    cases = {window: bench.case("band", "counterflow", window) for window in sizes.band_windows}
    _take_turns(bench, identity, list(cases.values()))
    provider = _faster_provider(bench, "band", "spark_grid")
    grid = bench.case("band", "spark_grid", small, sizes.native_measured, provider=provider)
    bucket = bench.case("band", "spark_bucket_explode", small, sizes.slow_measured, settle=0, provider=provider)
    for case in (grid, bucket):
        bench.take(case)
    for case in (*cases.values(), identity, grid, bucket):
        bench.add(case)
    ratios = {
        "band_to_identity": identity.batch_ms / cases[small].batch_ms,
        "band_to_bucket_explode": bucket.batch_ms / cases[small].batch_ms,
        "band_to_grid": grid.batch_ms / cases[small].batch_ms,
    }
    if {100_000, 2_000_000} <= set(cases):
        ratios["warm_2m_to_100k"] = cases[2_000_000].batch_ms / cases[100_000].batch_ms
    return ratios


def _measure_distance(bench: SparkBench) -> dict[str, float]:
    """Measure a distance and the benchmark join's bands in turns."""
    window = bench.sizes.distance_window
    distance, band = bench.case("distance", "counterflow", window), bench.case("band", "counterflow", window)
    _take_turns(bench, band, [distance])
    bench.add(distance)
    return {"distance_to_band": distance.batch_ms / band.batch_ms}


def _measure_equalities(bench: SparkBench) -> dict[str, float]:
    """Measure the equi-join and Spark's native one in turns."""
    sizes, small = bench.sizes, bench.sizes.equi_windows[0]
    cases = {window: bench.case("equi", "counterflow", window) for window in sizes.equi_windows}
    provider = _faster_provider(bench, "equi", "spark_native")
    native = bench.case("equi", "spark_native", small, sizes.native_measured, provider=provider)
    _take_turns(bench, native, list(cases.values()))
    for case in (*cases.values(), native):
        bench.add(case)
    ratios = {"equi_to_native": native.batch_ms / cases[small].batch_ms}
    if {100_000, 5_000_000} <= set(cases):
        ratios["equi_warm_5m_to_100k"] = cases[5_000_000].batch_ms / cases[100_000].batch_ms
    return ratios


def _take_turns(bench: SparkBench, other: QueryCase, ours: list[QueryCase]) -> None:
    """Run what is compared in every turn (the other one, ours with the smallest window), the rest in one turn."""
    small, *larger = ours
    for turn in range(bench.sizes.turns):
        for case in (other, small, *larger[turn :: bench.sizes.turns]):
            bench.take(case)


def _faster_provider(bench: SparkBench, kind: JoinKind, through: Through) -> str:
    """Return the faster state store for Spark's own join, tried with fewer rows: Spark should have what suits it."""
    from counterflow.lab.bench.spark_queries import SyntheticJoin

    if kind not in bench.sizes.trials:
        return HDFS
    rows = max(bench.sizes.batch_rows // 5, 1)
    medians = {}
    for provider in (HDFS, ROCKSDB):
        trial = QueryCase(kind, through, SyntheticJoin(kind, 2 * rows, rows), 2, bench.sizes.trial_batches, provider)
        bench.note(f"{kind} through {through}, trying {provider.rpartition('.')[2]}")
        medians[provider] = statistics.median(_durations(bench.run(trial)[trial.fill :]))
    tried = ", ".join(f"{provider.rpartition('.')[2]} {ms:.0f} ms" for provider, ms in medians.items())
    bench.remarks.append(
        f"{kind} through Spark's own join: the faster state store of two, in batches of {rows:,} ({tried})"
    )
    return min(medians, key=lambda provider: medians[provider])


# --- memory


def _measure_memory(bench: SparkBench) -> dict[str, float]:
    """Measure the Python workers' memory over many small micro-batches at a full window."""
    from counterflow.lab.bench.spark_queries import SyntheticJoin

    sizes = bench.sizes
    if not Path("/proc/self/smaps_rollup").exists():
        bench.remarks.append("memory was not measured: this system has no /proc/*/smaps_rollup")
        return {}
    join = SyntheticJoin("band", sizes.memory_window, sizes.memory_batch_rows)
    case = QueryCase("memory", "counterflow", join, sizes.memory_settle, sizes.memory_batches)
    samples: list[dict[int, int]] = []

    def watch(batch: int) -> None:
        if batch >= case.fill and (batch - case.fill) // SAMPLE_EVERY >= len(samples):
            samples.append(worker_bytes())

    bench.take(case, watch)
    totals = [sum(sample.values()) for sample in samples]
    first, last = statistics.median(totals[:SAMPLES]), statistics.median(totals[-SAMPLES:])
    row = bench.described(case) | {
        "batches": len(case.warm),
        "batch_ms_p50": case.batch_ms,
        "worker_bytes_first": int(first),
        "worker_bytes_last": int(last),
        "growth_bytes": int(last - first),
        "workers_first": len(samples[0]),
        "workers_last": len(samples[-1]),
        "samples": len(samples),
    }
    bench.rows.append(row)
    return {"memory_growth_bytes": row["growth_bytes"]}


def worker_bytes() -> dict[int, int]:
    """Return, by process, what each of this session's Python workers holds in memory apart from mapped files.

    Workers are forked, so pages that several of them share are counted in parts (Pss). Mapped files are libraries:
    who else on the machine uses them changes a process's part.
    """
    parents: dict[int, int] = {}
    workers: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                    workers.append(int(folder.name))
            except OSError:
                continue  # it has ended
    found = {}
    for worker in workers:
        if _descends(worker, parents):
            try:
                lines = Path(f"/proc/{worker}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            found[worker] = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(HELD))
    return found


def _descends(process: int, parents: dict[int, int]) -> bool:
    """Say whether a process is a child of this one, or of a child, and so on."""
    while process in parents:
        process = parents[process]
        if process == os.getpid():
            return True
    return False


# --- progress reports


def _durations(reports: list[Any]) -> list[float]:
    return sorted(p["durationMs"]["triggerExecution"] for p in reports)


def _breakdown(reports: list[Any]) -> Row:
    """Return where a micro-batch's time went, as medians: by Spark, and by our operator's counters."""

    def median(values: list[float]) -> float:
        return statistics.median(values)

    row = {f"{_snake(part)}_ms": median([p["durationMs"].get(part, 0) for p in reports]) for part in DURATIONS}
    row["state_commit_ms"] = median([p["stateOperators"][0]["commitTimeMs"] for p in reports])
    row["state_rows"] = median([p["stateOperators"][0]["numRowsTotal"] for p in reports])
    ours = [_counters(p) for p in reports]
    if all(ours):
        row |= {name: median([counters[name] for counters in ours]) for name in TIMES}
        row |= {name: sum(counters[name] for counters in ours) for name in ("hot_hits", "rebuilds")}
        row["state_rows"] = median([c["state_rows_left"] + c["state_rows_right"] for c in ours])
        row["state_bytes"] = median([c["state_bytes"] for c in ours])
    return row


def _counters(progress: Any) -> dict[str, int]:
    """Return our operator's counters, summed over the cells."""
    names = (*CELL_COUNTERS, "state_rows_left", "state_rows_right", "state_bytes")
    for name, observed in progress["observedMetrics"].items():
        if name.startswith("counterflow"):
            return {counter: int(observed[counter]) for counter in names}
    return {}


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
