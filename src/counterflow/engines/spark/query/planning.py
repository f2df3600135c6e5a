"""What a join on Spark needs before it runs: its spec, its layout, the session's settings, the result's columns.

Everything that can be refused is refused here, before a query starts.
"""

from __future__ import annotations

import warnings
from typing import Any

from pyspark.errors import PySparkAttributeError, PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from counterflow.engines.spark.cell.row_order import RESERVED
from counterflow.engines.spark.options import CELLS_MAX, CHANGELOG, PROVIDER, ROCKSDB, Spark
from counterflow.engines.spark.query.inputs import SESSION_ZONE, Frames, arrow_schema
from counterflow.engines.spark.query.layout import Layout, choose_layout
from counterflow.errors import ColumnError, InputError, OptionError, TimeError, UnsupportedError
from counterflow.predicate.expression import SIDES, Side, columns_of, opposite
from counterflow.spec.join_spec import PAIR_TIME, JoinSpec, SideSpec, build_spec

TASK_CPUS = "spark.task.cpus"
WATERMARK_KEY = "spark.watermarkDelayMs"  # how Spark marks an event-time column in a schema's metadata


def plan(inputs: Frames, options: dict[str, Any], engine: Spark) -> tuple[JoinSpec, Layout | None]:
    """Return the join's spec and layout; a stream beside a table without a time has none.

    Raises a `CounterflowError` for whatever Spark could not run.
    """
    schemas = [arrow_schema(inputs.frames(side)[0]) for side in SIDES]
    for side, schema in zip(SIDES, schemas, strict=True):
        for name in schema.names:
            if name.lower().startswith(RESERVED):
                raise ColumnError(f"column '{name}' of the {side} input starts with '{RESERVED}': rename it")
    zone = inputs.session.conf.get(SESSION_ZONE)
    spec = build_spec(*schemas, streaming=inputs.streaming, zone=zone, **options)
    _check_kinds(inputs, spec.table_side)
    _check_collations(spec, inputs)
    if spec.table_side is not None and inputs.streaming:
        _check_beside_table(spec, engine, inputs.session)
        return spec, None
    if engine.refresh is not None:
        raise OptionError(
            "refresh= says how often the table beside a stream is read: it needs one side that is a stream, and a "
            "static one without a time, as in time=('ts', None)"
        )
    if inputs.streaming:
        for side_spec in (spec.left, spec.right):
            for frame in inputs.frames(side_spec.side):
                _check_watermark(side_spec, frame)
    elif engine.late_rows is not None:
        raise OptionError("late_rows= is for streams: no row of a static DataFrame is late")
    return spec, choose_layout(spec, engine, _cells_at_once(inputs.session, engine))


def _check_kinds(inputs: Frames, table: Side | None) -> None:
    """Refuse streams and static DataFrames together, unless the static side is a table without a time."""
    kinds = {side: {frame.isStreaming for frame in inputs.frames(side)} for side in SIDES}
    said = {
        side: "streams and static ones" if len(k) > 1 else "a stream" if k == {True} else "static"
        for side, k in kinds.items()
    }
    if table is not None and kinds[table] == {True}:
        raise TimeError(
            f"time= is missing for the {table} stream: only a static table can be without one. Name the stream's time "
            "column"
        )
    mixed = len(kinds["left"] | kinds["right"]) > 1
    if mixed and (table is None or len(kinds[table]) > 1 or len(kinds[opposite(table)]) > 1):
        raise InputError(
            f"the left input is {said['left']} and the right one {said['right']}: make all of them streams "
            "(spark.readStream) or all static (spark.read); a static side whose rows have no time, and are always in "
            "the window, is time=('ts', None) or (None, 'ts')"
        )


def _check_beside_table(spec: JoinSpec, engine: Spark, session: Any) -> None:
    """Refuse what a stateless join cannot give, and options without an effect on it."""
    if not hasattr(session, "sparkContext"):
        raise UnsupportedError(
            "a stream beside a table, on Spark Connect: there the workers of a streaming query are not given the files "
            "of its session, which is how the table gets to them. Use a classic session"
        )
    if spec.ordered:
        raise UnsupportedError(
            "ordered=True of a stream beside a table: a row's pairs come in its own micro-batch, whatever the "
            "watermark, so that rows that come out of order would have to wait in a state. Sort in foreachBatch, or "
            "leave ordered out"
        )
    given = {"layout": engine.layout != "auto", **{n: getattr(engine, n) for n in ("rates", "sample", "late_rows")}}
    said = [f"{name}=" for name, value in given.items() if value]
    if said:
        raise OptionError(
            f"{' and '.join(said)} of a stream beside a table: its rows are joined where they "
            "are, and none of them is late; leave it out"
        )


def _check_collations(spec: JoinSpec, inputs: Frames) -> None:
    """Refuse a text in the predicate that Spark would compare by a collation. Any other is carried along as it is."""
    for column in columns_of(spec.predicate):
        kind = inputs.frames(column.side)[0].schema[column.name].dataType
        if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            raise UnsupportedError(
                f"column '{column.name}' of the {column.side} input has the collation {kind.collation}, and predicates "
                f"compare texts byte by byte: give the join a column with collate({column.name}, 'UTF8_BINARY'), and "
                "write lower(...) on both sides of the comparison to ignore case"
            )


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


def cell_threads(session: Any, engine: Spark) -> int:
    """Return how many threads share the work of a cell: as many as asked for, or as a task has cores."""
    return _task_cpus(session) if engine.threads is None else engine.threads


def _task_cpus(session: Any) -> int:
    """Return the cores that Spark reserves for each task; 1 where a session does not tell."""
    try:
        return max(int(session.conf.get(TASK_CPUS, "1")), 1)
    except (PySparkException, ValueError):
        return 1


def _cells_at_once(session: Any, engine: Spark) -> int:
    """Return how many cells can run at once, each in a task with its threads."""
    return max(_cores(session) // max(cell_threads(session, engine), _task_cpus(session)), 1)


def _cores(session: Any) -> int:
    """Return the number of cores on which the session runs tasks, as Spark's own sources count them."""
    try:
        return int(session.sparkContext.defaultParallelism)
    except PySparkAttributeError:  # a Connect session has no SparkContext, but as many partitions in a range
        parts = session.range(CELLS_MAX).select(F.spark_partition_id().alias("part"))
        return int(parts.agg(F.max("part") + 1).collect()[0][0])


def prepare_session(session: Any, layout: Layout) -> None:
    """Set what the query needs when it starts. A query with a checkpoint keeps the settings it was started with."""
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


def output_type(spec: JoinSpec, inputs: Frames) -> StructType:
    """Return the columns, types and nullability of Spark's own join, with `pair_time` as the event time."""
    fields = []
    for side, nullable in ((spec.left, spec.pads_right), (spec.right, spec.how in ("left", "full"))):
        if side.side == "left" or spec.has_right_columns:
            schema = inputs.frames(side.side)[0].schema
            for field, name in zip(schema.fields, side.output_names, strict=True):
                if name is not None:
                    metadata = {k: v for k, v in (field.metadata or {}).items() if k != WATERMARK_KEY}
                    fields.append(StructField(name, field.dataType, field.nullable or nullable, metadata))
    timed = [side for side in (spec.left, spec.right) if not side.is_table]
    times = [f.schema[side.time] for side in timed for f in inputs.frames(side.side)]
    kind = times[0].dataType if times[0].dataType == times[-1].dataType else LongType()
    delays = [t.metadata[WATERMARK_KEY] for t in times if WATERMARK_KEY in (t.metadata or {})]
    # An unmatched row comes when the watermark has left its time behind: an operator after the join would drop it.
    # Beside a table it comes at once.
    on_time = inputs.streaming and (spec.table_side is not None or not (spec.pads_left or spec.pads_right))
    metadata = {WATERMARK_KEY: max(delays)} if on_time and delays else {}
    return StructType([*fields, StructField(PAIR_TIME, kind, False, metadata)])
