"""Two DataFrames in, one DataFrame out: the plan that Spark runs.

    left  -> pack ┐                                    ┌ unpack -> result rows
                  ├ union -> by cell -> cell operator ─┤
    right -> pack ┘        (state: chunks)             └ observe -> query_metrics

Static DataFrames take the same way without state.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from counterflow.engines.spark.blobs import BLOB_ROWS_MAX, from_blob, gathered, to_blob
from counterflow.engines.spark.cell import CellWindows, split_rows
from counterflow.engines.spark.metrics import OBSERVATION
from counterflow.engines.spark.options import PROVIDER, ROCKSDB, Spark, auto_layout, parse_layout
from counterflow.engines.spark.routing import PACKED, Layout, pack
from counterflow.errors import InputError, TimeError, UnsupportedError
from counterflow.explanation import Explanation
from counterflow.spec.join_spec import PAIR_TIME, JoinSpec, SideSpec, build_spec

WATERMARK_KEY = "spark.watermarkDelayMs"  # how Spark marks an event-time column in a schema's metadata
_observation_numbers = itertools.count(1)


def join_dataframes(left: Any, right: Any, options: dict[str, Any], engine: Spark) -> Any:
    spec, layout = _plan(left, right, options, engine)
    output = _output_type(spec, left, right)
    packed = _packed(left, spec, layout, "left").union(_packed(right, spec, layout, "right"))
    if not left.isStreaming:
        # A stated number of partitions: Spark would merge them by their bytes, but a cell's work is not its bytes.
        joined = (
            packed.repartition(layout.cells, "cell").groupBy("cell").applyInArrow(_join_static(spec), "payload BINARY")
        )
        return joined.mapInArrow(_unpack, output)
    _prepare_session(left.sparkSession, layout)
    from counterflow.engines.spark.operator import COUNTERS, OUTPUT, CellOperator

    operated = packed.groupBy("cell").transformWithStateInPandas(
        CellOperator(spec, layout), OUTPUT, outputMode="append", timeMode="eventTime"
    )
    metrics = [F.sum(name).alias(name) for name in COUNTERS] + [F.max("event_time_max").alias("event_time_max")]
    observed = operated.observe(f"{OBSERVATION}_{next(_observation_numbers)}", *metrics)
    return observed.select("payload").mapInArrow(_unpack, output)


def explain_dataframes(left: Any, right: Any, options: dict[str, Any], engine: Spark) -> Explanation:
    spec, layout = _plan(left, right, options, engine)
    copies = f"each left row goes to {layout.columns} cells, each right row to {layout.rows}"
    details = {"layout": f"{layout} ({layout.cells} cells): {copies}"}
    if left.isStreaming:
        reach = [f"{s.side} rows for {(s.window.reach or 0) / 1e6:g} s" for s in (spec.left, spec.right)]
        details["state"] = f"{' and '.join(reach)} behind the watermark, in the state store"
    return Explanation(spec, engine=f"Spark, {'streaming' if left.isStreaming else 'static'}", details=details)


def _plan(left: Any, right: Any, options: dict[str, Any], engine: Spark) -> tuple[JoinSpec, Layout]:
    """Everything that can be refused is refused here, before a query starts."""
    if left.isStreaming != right.isStreaming:
        streaming, static = ("left", "right") if left.isStreaming else ("right", "left")
        raise InputError(
            f"the {streaming} input is a stream and the {static} one is not: make both streams (spark.readStream) or "
            "both static (spark.read)"
        )
    spec = build_spec(_arrow_schema(left), _arrow_schema(right), streaming=left.isStreaming, **options)
    if spec.how != "inner":
        raise UnsupportedError(f"how={spec.how!r} is not on Spark yet: use how='inner', or join tables in process")
    if spec.ordered:
        raise UnsupportedError(
            "ordered=True is not on Spark yet: sort a static result by pair_time, or join in process"
        )
    for side, frame in ((spec.left, left), (spec.right, right)):
        if side.window.kind == "rows":
            raise UnsupportedError(f"the {side.side} window is in rows, which is not on Spark yet: use a duration")
        if left.isStreaming:
            _check_watermark(side, frame)
    rows, columns = auto_layout(_cores(left.sparkSession)) if engine.layout == "auto" else parse_layout(engine.layout)
    return spec, Layout(rows, columns)


def _arrow_schema(frame: Any) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    try:
        return to_arrow_schema(frame.schema, timezone=zone)
    except TypeError:  # before Spark 4.3 it is always UTC there; the zone matters for `hour` and the like
        schema = to_arrow_schema(frame.schema)
    zoned = [pa.types.is_timestamp(f.type) and f.type.tz is not None for f in schema]
    return pa.schema([f.with_type(pa.timestamp("us", zone)) if z else f for f, z in zip(schema, zoned, strict=True)])


def _check_watermark(side: SideSpec, frame: Any) -> None:
    kind = frame.schema[side.time].dataType.typeName()
    if kind != "timestamp":
        raise TimeError(
            f"time column '{side.time}' of the {side.side} stream is {kind}: a Spark stream needs a TIMESTAMP with a "
            "watermark; convert it, for example with timestamp_micros"
        )
    if WATERMARK_KEY not in frame.schema[side.time].metadata:
        raise TimeError(
            f"the {side.side} stream has no watermark on '{side.time}', so its rows could never be forgotten: call "
            f'.withWatermark("{side.time}", "10 seconds") with how late its rows may come'
        )


def _cores(session: Any) -> int:
    try:
        return int(session.sparkContext.defaultParallelism)
    except Exception:  # a Connect session has no SparkContext
        return 4


def _prepare_session(session: Any, layout: Layout) -> None:
    if "RocksDB" not in session.conf.get(PROVIDER):
        # Python stateful operators need it. Queries with a checkpoint keep the provider they were started with.
        session.conf.set(PROVIDER, ROCKSDB)
    partitions = int(session.conf.get("spark.sql.shuffle.partitions"))
    if partitions > max(16, 4 * layout.cells):
        warnings.warn(
            f"spark.sql.shuffle.partitions is {partitions}, but this join has {layout.cells} cells: most tasks of "
            "every micro-batch would be empty. "
            f'Set spark.conf.set("spark.sql.shuffle.partitions", {layout.cells}) first',
            stacklevel=4,
        )


def _packed(frame: Any, spec: JoinSpec, layout: Layout, side: Any) -> Any:
    return frame.mapInArrow(pack(spec, layout, side), PACKED)


def _output_type(spec: JoinSpec, left: Any, right: Any) -> StructType:
    """The columns, types and nullability of Spark's own inner join, and `pair_time` as the event time."""
    fields = []
    for side, frame in ((spec.left, left), (spec.right, right)):
        for field, name in zip(frame.schema.fields, side.output_names, strict=True):
            if name is not None:
                metadata = {k: v for k, v in (field.metadata or {}).items() if k != WATERMARK_KEY}
                fields.append(StructField(name, field.dataType, field.nullable, metadata))
    times = [frame.schema[side.time] for side, frame in ((spec.left, left), (spec.right, right))]
    kind = times[0].dataType if times[0].dataType == times[1].dataType else LongType()
    delays = [t.metadata[WATERMARK_KEY] for t in times if WATERMARK_KEY in (t.metadata or {})]
    metadata = {WATERMARK_KEY: max(delays)} if left.isStreaming else {}
    return StructType([*fields, StructField(PAIR_TIME, kind, False, metadata)])


def _join_static(spec: JoinSpec) -> Any:
    def join_cell(key: Any, packed: pa.Table) -> pa.Table:
        sides, payloads = packed["side"].to_pylist(), packed["payload"].to_pylist()
        tables = {s: [from_blob(p) for p, t in zip(payloads, sides, strict=True) if t == s] for s in ("left", "right")}
        new = [piece for side, parts in tables.items() for piece in split_rows(spec, side, parts)]  # type: ignore[arg-type]
        blobs = [to_blob(part) for part in gathered(CellWindows(spec).join(new))]
        return pa.table({"payload": pa.array(blobs, pa.binary())})

    return join_cell


def _unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for payload in batch.column("payload"):
            if payload.is_valid:
                yield from from_blob(payload.as_buffer()).to_batches(max_chunksize=BLOB_ROWS_MAX)
