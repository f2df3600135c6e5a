"""What `bench spark` runs: the same two synthetic streams through this library, an identity operator and Spark's joins.

Row i of a stream has the id i and a time that follows from i; its values are hashes of i. So a stream's first rows are
known, and the pairs that a query reports (`DIGEST`) can be compared with the join in process of the same rows.

pyspark comes in through `engines/spark`, as everywhere.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

import counterflow as cf
from counterflow.engines.spark.cell.grid import Grid
from counterflow.engines.spark.query.cell_operator import StatefulProcessor
from counterflow.engines.spark.query.inputs import F
from counterflow.engines.spark.query.layout import Layout
from counterflow.engines.spark.session.worker import settle_worker
from counterflow.lab.bench.benchmark_inputs import BAND, DOMAIN
from counterflow.predicate.expression import SIDES, Side
from counterflow.windows.vectors import Array

JoinKind = Literal["band", "distance", "equi"]
WHERE: dict[JoinKind, str] = {
    "band": f"abs(l.x - r.a) <= {BAND} AND abs(l.y - r.b) <= {BAND}",
    "distance": f"sqrt(pow(l.x - r.a, 2) + pow(l.y - r.b, 2)) <= {BAND}",
    "equi": "l.k = r.k",
}
STEP_US = 20  # between two rows of a stream
START_US = 1_700_000_000_000_000
WINDOW_OF_DOMAIN = 100_000  # rows: the window that goes with the papers' domain
KEYS_PER_ROW = 2  # of an equi-join's window: half a match a row
CELLS = 2

# How a left row is copied, such that it meets each of its partners in exactly one bucket: for one column or two, the
# buckets of a left row and the one of a right row.
Copies = list[tuple[str, str]]
BUCKETS: Copies = [
    (
        "array({0} - 1, {0}, {0} + 1)".format(f"CAST(floor(x / {BAND}) AS INT)"),
        f"CAST(floor(a / {BAND}) AS INT)",
    )
]
CELL = 20.5  # a band of 10 to each side, and what rounding may add, meets two cells of this width
GRID: Copies = [
    (
        "array({0}, {0} + 1)".format(f"CAST(floor(({x} - {BAND}.01D) / {CELL}D) AS INT)"),
        f"CAST(floor({a} / {CELL}D) AS INT)",
    )
    for x, a in (("x", "a"), ("y", "b"))
]

DIGEST = "pairs_digest"
# The sum's factors: not linear in a pair's ids, so that a wrong partner shows; 32 bits, so that sums stay inside 64.
MIX = 982_451_653, 961_748_941
LOW_BITS = 0xFFFF_FFFF


@dataclass(frozen=True)
class SyntheticJoin:
    """A join of two made-up streams, with the rows of each side in a micro-batch and in a window."""

    kind: JoinKind
    window_rows: int
    batch_rows: int

    @property
    def domain(self) -> int:
        """The range of values: it grows with the window, so that a row has as many matches in a larger one."""
        if self.kind == "equi":
            return KEYS_PER_ROW * self.window_rows
        return max(round(DOMAIN * (self.window_rows / WINDOW_OF_DOMAIN) ** 0.5), 4 * BAND)

    @property
    def window_us(self) -> int:
        return self.window_rows * STEP_US

    def columns(self, side: Side) -> list[str]:
        """Return how `value` makes the columns of R(ts, id, x, y, z) and S(ts, id, a, b, c, d); or k for x and a."""
        left = side == "left"
        seed = 0 if left else 100
        whole, real = ("x", "y") if left else ("a", "b")
        whole = "k" if self.kind == "equi" else whole
        values = [
            f"timestamp_micros({START_US} + value * {STEP_US}) AS ts",
            "value AS id",
            f"CAST(pmod(xxhash64(value, {seed + 1}), {self.domain}) + 1 AS INT) AS {whole}",
            f"CAST(pmod(xxhash64(value, {seed + 2}), {1000 * self.domain}) / 1000 + 1 AS FLOAT) AS {real}",
        ]
        if left:
            return [*values, "lpad(CAST(value AS STRING), 20, '0') AS z"]
        return [*values, "value / 7 AS c", "value % 2 = 0 AS d"]

    def stream(self, session: Any, side: Side) -> Any:
        source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", self.batch_rows)
        source = source.option("numPartitions", 2).option("advanceMillisPerBatch", 1000)
        return source.load().selectExpr(*self.columns(side)).withWatermark("ts", "0 seconds")

    def table(self, session: Any, side: Side, rows: int) -> pa.Table:
        """Return the first rows of the stream, without the columns that no predicate uses."""
        static = session.range(rows).withColumnRenamed("id", "value").selectExpr(*self.columns(side)[:4])
        return static.toArrow()


# --- queries


def counterflow_join(session: Any, join: SyntheticJoin, layout: str = "auto") -> tuple[Any, str]:
    """Return the joined stream, and its layout."""
    streams = [join.stream(session, side) for side in SIDES]
    options: dict[str, Any] = dict(
        where=WHERE[join.kind],
        time="ts",
        window=dt.timedelta(microseconds=join.window_us),
        engine=cf.Spark(layout=layout),
    )
    layout = cf.explain(*streams, **options, show=False).details["layout"].split(" (")[0]
    return _with_digest(cf.window_join(*streams, **options), "id", "id_right"), layout


def native_join(session: Any, join: SyntheticJoin, copies: Copies | None = None) -> Any:
    """Return Spark's own stream-stream join. It needs an equality: a band gets one by copies of the left rows."""
    left, right = (join.stream(session, side) for side in SIDES)
    right = right.withColumnsRenamed({"ts": "ts_right", "id": "id_right", "k": "k_right"})
    reach = f"INTERVAL {join.window_us} MICROSECONDS"
    conditions = [f"ts_right BETWEEN ts - {reach} AND ts + {reach}"]
    if copies is None:
        conditions.append("k = k_right")
    else:
        conditions += [f"abs(x - a) <= {BAND}", f"abs(y - b) <= {BAND}"]
        for number, (of_left, of_right) in enumerate(copies):
            left = left.selectExpr("*", f"explode({of_left}) AS bucket_{number}")
            right = right.selectExpr("*", f"{of_right} AS bucket_right_{number}")
            conditions.append(f"bucket_{number} = bucket_right_{number}")
    joined = left.join(right, F.expr(" AND ".join(conditions)))
    buckets = [f"{name}_{number}" for number in range(len(copies or ())) for name in ("bucket", "bucket_right")]
    return _with_digest(joined.drop(*buckets), "id", "id_right")


class Identity(StatefulProcessor):
    """An operator that shows what state in Python costs by itself: rows pass, and a counter is kept."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "count LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        passed = 0
        for frame in rows:
            passed += len(frame)
            yield frame
        before = self.count.get()
        self.count.update(((before[0] if before else 0) + passed,))

    def close(self) -> None:
        settle_worker()  # so that it has what the join's operator has


def identity(session: Any, join: SyntheticJoin) -> Any:
    """Return both sides' rows, with the wider one's columns, through `Identity`; each of two keys has a partition."""
    left, right = (join.stream(session, side) for side in SIDES)
    left = left.selectExpr("*", "0.0D AS c")
    right = right.selectExpr("ts", "id", "a", "b", "CAST(NULL AS STRING) AS z", "c")
    keys = Layout("matrix", (Grid(1, CELLS),)).keys
    rows = left.union(right).selectExpr("*", f"CAST(IF(id % 2 = 0, {keys[0]}, {keys[1]}) AS INT) AS cell")
    passed = rows.groupBy("cell").transformWithStateInPandas(
        Identity(), rows.schema, outputMode="append", timeMode="none"
    )
    return _with_digest(passed, "id", "id")


# --- checks


@dataclass(frozen=True)
class PairDigest:
    """The number of pairs (or rows), and a sum over them that does not depend on their order."""

    count: int = 0
    sum: int = 0

    def __add__(self, other: PairDigest) -> PairDigest:
        return PairDigest(self.count + other.count, self.sum + other.sum)


def _with_digest(frame: Any, left_id: str, right_id: str) -> Any:
    mixed = f"({left_id} * {MIX[0]} ^ {right_id} * {MIX[1]}) & {LOW_BITS}L"
    return frame.observe(DIGEST, F.expr("count(*)").alias("count"), F.expr(f"sum({mixed})").alias("sum"))


def observed_digest(progress: Any) -> PairDigest:
    observed = progress["observedMetrics"][DIGEST]
    return PairDigest(int(observed["count"]), int(observed["sum"] or 0))


def _digest_of(left: Array, right: Array) -> PairDigest:
    return PairDigest(len(left), int(((left * MIX[0] ^ right * MIX[1]) & LOW_BITS).sum()))


def expected_pairs(session: Any, join: SyntheticJoin, rows: int) -> PairDigest:
    """Return the digest of the pairs of each side's first rows, joined in process."""
    tables = [join.table(session, side, rows) for side in SIDES]
    window = dt.timedelta(microseconds=join.window_us)
    pairs = cf.window_join(*tables, where=WHERE[join.kind], time="ts", window=window, engine=cf.Local())
    return _digest_of(pairs["id"].to_numpy(), pairs["id_right"].to_numpy())


def expected_rows(rows: int) -> PairDigest:
    ids = np.arange(rows)
    return _digest_of(ids, ids) + _digest_of(ids, ids)
