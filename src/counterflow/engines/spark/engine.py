"""Two DataFrames in, one DataFrame out: the plan that Spark runs.

    left  -> pack ┐                                    ┌ unpack -> result rows
                  ├ union -> by cell -> cell operator ─┤
    right -> pack ┘        (state: chunks)             └ observe -> query_metrics

Static DataFrames take the same way without state.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkAttributeError, PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from counterflow.engines.spark.blobs import BLOB_ROWS_MAX, from_blob, gathered, to_blob
from counterflow.engines.spark.cell import BEGIN, END, NewRows, sorted_results
from counterflow.engines.spark.layout import SIDES, Layout, choose_layout
from counterflow.engines.spark.metrics import OBSERVATION, observed_metrics
from counterflow.engines.spark.options import CELLS_MAX, CHANGELOG, PROVIDER, ROCKSDB, Spark
from counterflow.engines.spark.ranked import new_cell
from counterflow.engines.spark.routing import PACKED, RESERVED, TIE, is_order_sensitive, pack
from counterflow.engines.spark.worker import readable
from counterflow.errors import ColumnError, InputError, OptionError, TimeError, UnsupportedError
from counterflow.explanation import Explanation
from counterflow.predicate.expression import Side, columns_of
from counterflow.spec.join_spec import PAIR_TIME, JoinSpec, SideSpec, build_spec

WATERMARK_KEY = "spark.watermarkDelayMs"  # how Spark marks an event-time column in a schema's metadata
SESSION_ZONE = "spark.sql.session.timeZone"
_observation_numbers = itertools.count(1)


def join_dataframes(left: Any, right: Any, options: dict[str, Any], engine: Spark) -> Any:
    inputs = _Inputs.of(left, right)
    spec, layout = _plan(inputs, options, engine)
    output = _output_type(spec, inputs)
    packed = inputs.packed(spec, layout, engine.null_times == "drop")
    if not inputs.streaming:
        # A stated number of partitions: Spark would merge them by their bytes, but a cell's work is not its bytes.
        cells = packed.repartition(layout.cells, "cell")
        return _unpacked(cells.mapInArrow(_join_static(spec, layout), "payload BINARY"), spec, output)
    _prepare_session(inputs.session, layout)
    from counterflow.engines.spark.operator import OUTPUT, CounterflowCell

    cells = packed.groupBy("cell")
    if not hasattr(cells, "transformWithStateInPandas"):
        raise UnsupportedError("Spark Connect before 4.1 has no stateful operator in Python: use a newer Spark")
    operated = cells.transformWithStateInPandas(
        CounterflowCell(spec, layout, engine.late_rows), OUTPUT, outputMode="append", timeMode="eventTime"
    )
    observed = operated.observe(f"{OBSERVATION}_{next(_observation_numbers)}", *observed_metrics())
    return _unpacked(observed.select("payload").where("payload IS NOT NULL"), spec, output)


def explain_dataframes(left: Any, right: Any, options: dict[str, Any], engine: Spark) -> Explanation:
    inputs = _Inputs.of(left, right)
    spec, layout = _plan(inputs, options, engine)
    left_copies, right_copies = layout.copies["left"], layout.copies["right"]
    copies = f"a left row goes to {left_copies} of them, a right row to {right_copies}"
    details = {"layout": f"{layout} ({layout.cells} cells; {copies})", "because": layout.reason}
    if inputs.streaming:
        held = [
            f"{s.side} rows, {s.window if s.window.reach is None else f'{s.window.reach / 1e6:g} s'}"
            for s in (spec.left, spec.right)
        ]
        details["state"] = f"{' and '.join(held)}, behind the watermark, in the state store"
    return Explanation(spec, engine=f"Spark, {'streaming' if inputs.streaming else 'static'}", details=details)


@dataclass(frozen=True)
class _Inputs:
    """The physical streams of each side: one DataFrame or several."""

    left: list[Any]
    right: list[Any]

    @classmethod
    def of(cls, left: Any, right: Any) -> _Inputs:
        inputs = cls(*(list(frames) if isinstance(frames, list | tuple) else [frames] for frames in (left, right)))
        _check_analysis(inputs.left[0])
        for side, frames in (("left", inputs.left), ("right", inputs.right)):
            for number, frame in enumerate(frames):
                if frame.schema.simpleString() != frames[0].schema.simpleString():
                    raise InputError(
                        f"the {side} streams differ: the first is {frames[0].schema.simpleString()}, number {number} "
                        f"is {frame.schema.simpleString()}; select the same columns in the same order and types"
                    )
        return inputs

    @property
    def session(self) -> Any:
        return self.left[0].sparkSession

    @property
    def streaming(self) -> bool:
        return bool(self.left[0].isStreaming)

    def frames(self, side: Side) -> list[Any]:
        return self.left if side == "left" else self.right

    def packed(self, spec: JoinSpec, layout: Layout, drop_null_times: bool) -> Any:
        parts = []
        for side in SIDES:
            for source, frame in enumerate(self.frames(side)):
                tied = self.streaming or is_order_sensitive(spec)
                if tied:
                    frame = frame.withColumn(TIE, F.xxhash64(*(c for f in frame.schema.fields for c in _hashed(f))))
                parts.append(frame.mapInArrow(pack(spec, layout, side, source, tied, drop_null_times), PACKED))
        return functools.reduce(lambda a, b: a.union(b), parts)


def _hashed(field: StructField) -> Iterator[Any]:
    """What a row's hash is made of: each column, and whether it is NULL, since Spark's hash passes over NULLs."""
    column = F.col(f"`{field.name.replace('`', '``')}`")
    kind = field.dataType.simpleString()
    # Spark refuses to hash maps and variants, and hashes collated strings that are equal but not the same alike.
    yield F.to_json(F.struct(column)) if any(word in kind for word in ("map<", "variant", "collate")) else column
    if field.nullable:
        yield column.isNull()


def _plan(inputs: _Inputs, options: dict[str, Any], engine: Spark) -> tuple[JoinSpec, Layout]:
    """Everything that can be refused is refused here, before a query starts."""
    kinds = {side: {frame.isStreaming for frame in inputs.frames(side)} for side in SIDES}
    if len(kinds["left"] | kinds["right"]) > 1:
        said = {
            side: "streams and static ones" if len(k) > 1 else "a stream" if k == {True} else "static"
            for side, k in kinds.items()
        }
        raise InputError(
            f"the left input is {said['left']} and the right one {said['right']}: make all of them streams "
            "(spark.readStream) or all static (spark.read)"
        )
    schemas = [_arrow_schema(inputs.frames(side)[0]) for side in SIDES]
    for side, schema in zip(SIDES, schemas, strict=True):
        for name in schema.names:
            if name.lower().startswith(RESERVED):
                raise ColumnError(f"column '{name}' of the {side} input starts with '{RESERVED}': rename it")
    zone = inputs.session.conf.get(SESSION_ZONE)
    spec = build_spec(*schemas, streaming=inputs.streaming, zone=zone, **options)
    _check_collations(spec, inputs)
    if inputs.streaming:
        for side_spec in (spec.left, spec.right):
            for frame in inputs.frames(side_spec.side):
                _check_watermark(side_spec, frame)
    elif engine.late_rows is not None:
        raise OptionError("late_rows= is for streams: no row of a static DataFrame is late")
    return spec, choose_layout(spec, engine, _cores(inputs.session))


def _check_collations(spec: JoinSpec, inputs: _Inputs) -> None:
    """Refuse a text that Spark would compare by a collation. It is carried along as it is."""
    for column in columns_of(spec.predicate):
        kind = inputs.frames(column.side)[0].schema[column.name].dataType
        if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            raise UnsupportedError(
                f"column '{column.name}' of the {column.side} input has the collation {kind.collation}, and predicates "
                f"compare texts byte by byte: give the join a column with collate({column.name}, 'UTF8_BINARY'), and "
                "write lower(...) on both sides of the comparison to ignore case"
            )


def _check_analysis(frame: Any) -> None:
    try:
        frame.isStreaming  # noqa: B018 - a Connect client asks the server
    except AnalysisException as error:
        if error.getCondition() != "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION":
            raise
        raise InputError(
            "a pipeline's query function cannot ask Spark for the columns of a DataFrame: call window_join outside of "
            "the function, and return its result there"
        ) from error


def _arrow_schema(frame: Any) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    zone = frame.sparkSession.conf.get(SESSION_ZONE)
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
    """On how many cores the session runs tasks, as Spark's own sources count them."""
    try:
        return int(session.sparkContext.defaultParallelism)
    except PySparkAttributeError:  # a Connect session has no SparkContext, but as many partitions in a range
        parts = session.range(CELLS_MAX).select(F.spark_partition_id().alias("part"))
        return int(parts.agg(F.max("part") + 1).collect()[0][0])


def _prepare_session(session: Any, layout: Layout) -> None:
    """Settings that the query needs when it starts. Queries with a checkpoint keep those they were started with."""
    try:
        if "RocksDB" not in session.conf.get(PROVIDER):  # Python stateful operators need it
            session.conf.set(PROVIDER, ROCKSDB)
        if session.conf.get(CHANGELOG, "") != "true":  # or each commit copies the whole state
            session.conf.set(CHANGELOG, "true")
    except PySparkException as error:
        if "SESSION_MUTATION_IN_DECLARATIVE_PIPELINE" not in str(error):
            raise
        # Not an error: a table may have it in its own `spark_conf`, which cannot be seen from here.
        warnings.warn(
            "this join needs the RocksDB state store with changelog checkpoints, and a pipeline's settings cannot be "
            f'changed from Python: put "{PROVIDER}: {ROCKSDB}" and "{CHANGELOG}: \'true\'" under `configuration:` in '
            "the pipeline spec",
            stacklevel=4,
        )
    partitions = int(session.conf.get("spark.sql.shuffle.partitions"))
    if partitions > max(16, 4 * layout.cells):
        warnings.warn(
            f"spark.sql.shuffle.partitions is {partitions}, but this join has {layout.cells} cells: most tasks of "
            "every micro-batch would be empty. "
            f'Set spark.conf.set("spark.sql.shuffle.partitions", {layout.cells}) first',
            stacklevel=4,
        )


def _output_type(spec: JoinSpec, inputs: _Inputs) -> StructType:
    """The columns, types and nullability of Spark's own join, and `pair_time` as the event time."""
    fields = []
    for side, nullable in ((spec.left, spec.pads_right), (spec.right, spec.how in ("left", "full"))):
        if side.side == "left" or spec.has_right_columns:
            schema = inputs.frames(side.side)[0].schema
            for field, name in zip(schema.fields, side.output_names, strict=True):
                if name is not None:
                    metadata = {k: v for k, v in (field.metadata or {}).items() if k != WATERMARK_KEY}
                    fields.append(StructField(name, field.dataType, field.nullable or nullable, metadata))
    times = [f.schema[side.time] for side in (spec.left, spec.right) for f in inputs.frames(side.side)]
    kind = times[0].dataType if times[0].dataType == times[-1].dataType else LongType()
    delays = [t.metadata[WATERMARK_KEY] for t in times if WATERMARK_KEY in (t.metadata or {})]
    # An unmatched row comes when the watermark has left its time behind: an operator after the join would drop it.
    on_time = inputs.streaming and not (spec.pads_left or spec.pads_right)
    metadata = {WATERMARK_KEY: max(delays)} if on_time else {}
    return StructType([*fields, StructField(PAIR_TIME, kind, False, metadata)])


def _join_static(spec: JoinSpec, layout: Layout) -> Any:
    @readable
    def counterflow_join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cells: dict[int, list[NewRows]] = {}
        for message in (row for batch in batches for row in batch.to_pylist() if row["side"] in SIDES):
            new = NewRows(message["side"], from_blob(message["payload"]), message["stored"])
            cells.setdefault(layout.cell(message["cell"]), []).append(new)
        for cell, rows in cells.items():
            for part in gathered(new_cell(spec, layout.grid(cell)).step(rows, BEGIN, END)):
                yield pa.RecordBatch.from_arrays([pa.array([to_blob(part)], pa.binary())], ["payload"])

    counterflow_join.__name__ = counterflow_join.__qualname__ = f"counterflow join in {layout}"
    return counterflow_join


def _unpacked(results: Any, spec: JoinSpec, output: StructType) -> Any:
    if spec.ordered:
        return results.repartition(1).mapInArrow(counterflow_unpack_in_order, output)
    return results.mapInArrow(counterflow_unpack, output)


@readable
def counterflow_unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for payload in batch.column("payload"):
            yield from from_blob(payload.as_buffer()).to_batches(max_chunksize=BLOB_ROWS_MAX)


@readable
def counterflow_unpack_in_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    tables = [from_blob(payload.as_buffer()) for batch in batches for payload in batch.column("payload")]
    if tables:
        yield from sorted_results(pa.concat_tables(tables)).to_batches(max_chunksize=BLOB_ROWS_MAX)
