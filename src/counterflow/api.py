"""The public functions: look at the inputs, build a JoinSpec, hand it to an engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Required, TypeAlias, TypedDict, Unpack, overload

import pyarrow as pa

from counterflow.engines.local.core import auto_reason
from counterflow.engines.local.engine import join_streams, join_tables
from counterflow.engines.local.input.pushed import PushedStream
from counterflow.engines.local.input.sources import is_stream, open_side
from counterflow.engines.local.input.streams import Stream
from counterflow.engines.local.input.tables import side_table
from counterflow.engines.local.matrix import choose_layout, lay_out
from counterflow.engines.local.options import Local
from counterflow.engines.local.output.joined import JoinedStream
from counterflow.engines.simulated.options import Simulated
from counterflow.engines.spark.options import Spark
from counterflow.errors import InputError, OptionError, UnsupportedError
from counterflow.explanation import Explanation
from counterflow.predicate.expression import Side
from counterflow.predicate.python_expressions import Expr
from counterflow.spec.join_spec import JoinSpec, build_spec

if TYPE_CHECKING:
    from counterflow.engines.spark.engine import DataFrame

OneStream: TypeAlias = Stream | PushedStream | JoinedStream
StreamSide: TypeAlias = OneStream | Sequence[OneStream]


class ExportsArrow(Protocol):
    """A table that exports Arrow data: Arrow's own, polars frames, and many others."""

    def __arrow_c_stream__(self, requested_schema: Any = None, /) -> Any: ...


class PandasFrame(Protocol):
    """A pandas DataFrame, by what only it has: its stubs need not tell that it exports Arrow data."""

    def iterrows(self) -> Any: ...


class LazyFrame(Protocol):
    """A polars LazyFrame."""

    def collect_schema(self) -> Any: ...


Tabular: TypeAlias = ExportsArrow | PandasFrame | LazyFrame


class JoinOptions(TypedDict, total=False):
    """The options of `window_join`, for its overloads, which say what it returns."""

    where: Required[str | Expr]
    time: str | tuple[str | None, str | None] | None
    window: Any
    how: str
    suffix: str
    ordered: bool
    engine: Local | Spark | Simulated | None


@overload
def window_join(left: StreamSide, right: Any, **options: Unpack[JoinOptions]) -> JoinedStream: ...


@overload
def window_join(left: Any, right: StreamSide, **options: Unpack[JoinOptions]) -> JoinedStream: ...


@overload
def window_join(
    left: DataFrame | Sequence[DataFrame], right: DataFrame | Sequence[DataFrame], **options: Unpack[JoinOptions]
) -> DataFrame: ...


@overload
def window_join(
    left: Tabular | Sequence[Tabular], right: Tabular | Sequence[Tabular], **options: Unpack[JoinOptions]
) -> pa.Table: ...


def window_join(
    left: Any,
    right: Any,
    *,
    where: str | Expr,
    time: str | tuple[str | None, str | None] | None = None,
    window: Any = None,
    how: str = "inner",
    suffix: str = "_right",
    ordered: bool = False,
    engine: Local | Spark | Simulated | None = None,
) -> Any:
    """Join two inputs on any predicate within sliding windows.

    Parameters
    ----------
    left, right
        Two Spark DataFrames (streaming or static); or two tables (Arrow, pandas, polars, or anything else that
        exports Arrow data); or streams in this process: `cf.stream(...)`, the result of another join of streams, or
        one of these and a table. A list of them is a side with several physical streams.
    where
        A SQL condition over `l.` and `r.` columns with Spark's meaning, or the same as a Python expression
        (`cf.left.x`, `cf.band("x", "a", 10)`).
    time
        The time column: one name for both sides, or a pair. A timestamp, or an integer of any unit. An input
        that is itself the result of a join uses its `pair_time` if nothing is said. A table may have none,
        `("ts", None)`: its rows are then before every tuple, and in the window always.
    window
        `"15 minutes"`, a timedelta, an integer (integer time), `cf.rows(1000)`, `cf.window(before=, after=)`,
        a pair `(left_window, right_window)`, or None: unbounded, for finite inputs only.
    how
        inner, left, right, full, semi or anti.
    suffix
        Added to a right column whose name is also a left one.
    ordered
        Results in ascending order of (pair_time, later tuple, earlier tuple).
    engine
        `cf.Local(...)` or `cf.Spark(...)`; inferred from the inputs if not given. `cf.Simulated(...)` for tables.

    Returns
    -------
    A Spark DataFrame for Spark DataFrames, an Arrow table for tables, a `JoinedStream` (an iterator of Arrow batches)
    if a side is a stream: the left columns, the right columns, and `pair_time`, the time of the pair's later tuple.

    Examples
    --------
    >>> import counterflow as cf, pyarrow as pa
    >>> ships = pa.table({"ts": [1, 2, 3], "x": [10, 20, 30]})
    >>> radar = pa.table({"ts": [2, 3, 9], "a": [11, 28, 31]})
    >>> pairs = cf.window_join(ships, radar, where="abs(l.x - r.a) <= 3", time="ts", window=5, ordered=True)
    >>> pairs.select(["x", "a", "pair_time"]).to_pylist()
    [{'x': 10, 'a': 11, 'pair_time': 2}, {'x': 30, 'a': 28, 'pair_time': 3}]
    """
    options: dict[str, Any] = dict(where=where, time=time, window=window, how=how, suffix=suffix, ordered=ordered)
    if _is_spark(left) or _is_spark(right):
        spark = _spark_engine(left, right, engine)
        return spark.join_dataframes(left, right, options, engine or Spark())
    local = _local_engine(engine)
    if is_stream(left) or is_stream(right):
        return join_streams(left, right, options, _for_streams(local))
    left_table, right_table = side_table(left, "left"), side_table(right, "right")
    spec = build_spec(left_table.schema, right_table.schema, **options)
    _check_for_tables(local)
    if isinstance(local, Simulated):
        from counterflow.engines.simulated.stepped_core import join_simulated  # compiled: not before it is needed

        return join_simulated(spec, left_table, right_table, local)
    return join_tables(spec, left_table, right_table, local)


def explain(
    left: Any,
    right: Any,
    *,
    where: str | Expr,
    time: str | tuple[str | None, str | None] | None = None,
    window: Any = None,
    how: str = "inner",
    suffix: str = "_right",
    ordered: bool = False,
    engine: Local | Spark | Simulated | None = None,
    show: bool = True,
    estimate: bool = False,
) -> Explanation:
    """Print how the same call of `window_join` would be executed, and return it. Reads no row.

    With `estimate=True` up to 1,000 rows of each table are read, and it says how many candidates there will be.

    >>> import counterflow as cf, pyarrow as pa
    >>> left, right = pa.table({"ts": [1], "x": [10]}), pa.table({"ts": [2], "a": [15]})
    >>> options = dict(where="abs(l.x - r.a) <= 3", time="ts", window=(90, 1), engine=cf.Local("dpjoin", workers=4))
    >>> explanation = cf.explain(left, right, **options)
    window join, inner
      where  abs(l.x - r.a) <= 3
      bands          -3 <= l.x - r.a <= 3
      conditions     (abs((l.x - r.a)) <= 3): band index; checked: compiled
      left           time ts, window <= 90, found by band on l.x
      right          time ts, window <= 1, found by band on r.a
      engine         in process, algorithm dpjoin, layout 4x1
      layout         4x1
      because        least latency by DP-Join's Expression 6: rows in the windows 90 : 1, rates 1 : 1 by the ...
      output         ts: int64, x: int64, ts_right: int64, a: int64, pair_time: int64
    """
    options: dict[str, Any] = dict(where=where, time=time, window=window, how=how, suffix=suffix, ordered=ordered)
    if estimate and (_is_spark(left) or _is_spark(right) or is_stream(left) or is_stream(right)):
        raise OptionError("estimate=True reads tables: call explain() with some rows of both sides, as Arrow tables")
    if _is_spark(left) or _is_spark(right):
        explanation = _spark_engine(left, right, engine).explain_dataframes(left, right, options, engine or Spark())
    else:
        local = _local_engine(engine)
        streaming = is_stream(left) or is_stream(right)
        _for_streams(local) if streaming else _check_for_tables(local)
        explanation = (_explain_streams if streaming else _explain_tables)(left, right, options, local)
        if estimate:
            explanation.details["candidates"] = _estimated(explanation.spec, left, right)
    if show:
        print(explanation)
    return explanation


def _estimated(spec: JoinSpec, left: Any, right: Any) -> str:
    from counterflow.windows.estimate import estimate

    found = estimate(spec, side_table(left, "left"), side_table(right, "right"))
    return "not known: a table is empty" if found is None else str(found)


def _explain_tables(left: Any, right: Any, options: dict[str, Any], engine: Local | Simulated) -> Explanation:
    left_table, right_table = side_table(left, "left"), side_table(right, "right")
    spec = build_spec(left_table.schema, right_table.schema, **options)
    return _explained(spec, engine, (len(left_table), len(right_table)))


def _explain_streams(left: Any, right: Any, options: dict[str, Any], engine: Local | Simulated) -> Explanation:
    return _explained(build_spec(_schema(left, "left"), _schema(right, "right"), streaming=True, **options), engine)


def _explained(spec: JoinSpec, engine: Local | Simulated, table_rows: tuple[int, int] | None = None) -> Explanation:
    asked, details = engine.local if isinstance(engine, Simulated) else engine, {}
    if asked.protocol and asked.protocol.matrix:
        (rows, columns), because = choose_layout(asked, spec, table_rows)
        details = {"layout": f"{rows}x{columns}", "because": because}
    elif asked.algorithm == "auto":
        details = {"because": auto_reason(spec, asked, streaming=table_rows is None)}
    local = lay_out(asked, spec, table_rows)
    described = engine.describe(local) if isinstance(engine, Simulated) else local.described
    return Explanation(spec, engine=f"in process, {described}", details=details)


def _schema(data: Any, side: Side) -> pa.Schema:
    columns = open_side(data, side)[1]
    if columns.schema is None:
        raise InputError(f"the {side} stream's columns are known from its first batch on: name them with schema=")
    return columns.schema


def query_metrics(query: Any) -> dict[str, Any]:
    """Return what a running Spark query has read, joined, dropped late and holds, and how far behind it is.

    It needs a running query:

    >>> import counterflow as cf
    >>> query = pairs.writeStream.format("noop").start()  # doctest: +SKIP
    >>> cf.query_metrics(query)["late_left"]  # doctest: +SKIP
    0
    """
    from counterflow.engines.spark.query.metrics import query_metrics as metrics

    return metrics(query)


def rescale(
    checkpoint: str | os.PathLike[str],
    partitions: int,
    *,
    spark: Any = None,
    file_sink: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Change the number of partitions, and so of tasks, of a stopped Spark query; it goes on with the same results.

    `checkpoint` is the query's checkpointLocation. If it writes files, `file_sink` is their folder, whose log has to
    know the batch that this makes. `spark` is a classic session of Spark 4.2 or newer: the active one, or one of its
    own, if none is given. Returns what was done, as a dict.

    >>> import counterflow as cf
    >>> done = cf.rescale("checkpoint", partitions=4, file_sink="pairs")  # doctest: +SKIP
    >>> done["partitions_before"], done["partitions"], done["cells"]  # doctest: +SKIP
    (2, 4, 8)
    """
    from counterflow.engines.spark.rescale import rescale as spark_rescale

    return spark_rescale(checkpoint, partitions, spark, file_sink)


def _is_spark(data: Any) -> bool:
    if isinstance(data, list | tuple):
        return any(map(_is_spark, data))
    return any(cls.__module__.startswith("pyspark.") and cls.__name__ == "DataFrame" for cls in type(data).__mro__)


def _local_engine(engine: Any) -> Local | Simulated:
    if isinstance(engine, Spark):
        raise InputError("engine=cf.Spark(...) joins Spark DataFrames, these are none: use spark.createDataFrame")
    if engine is not None and not isinstance(engine, Local | Simulated):
        raise OptionError(f"engine={engine!r}: use cf.Local(...) or cf.Spark(...)")
    return engine or Local()


def _for_streams(engine: Local | Simulated) -> Local:
    if isinstance(engine, Simulated):
        raise UnsupportedError("engine=cf.Simulated(...) joins tables: join streams with cf.Local(...)")
    engine.check_inputs(streaming=True)
    return engine


def _check_for_tables(engine: Local | Simulated) -> None:
    if isinstance(engine, Local):
        engine.check_inputs(streaming=False)


def _spark_engine(left: Any, right: Any, engine: Any) -> Any:
    for side, given in (("left", left), ("right", right)):
        frames = given if isinstance(given, list | tuple) else [given]
        if not frames:
            raise InputError(f"the {side} side is an empty list: give a DataFrame, or a list of one or more")
        for data in (frame for frame in frames if not _is_spark(frame)):
            raise InputError(
                f"the {side} input is a {type(data).__name__}, another one a Spark DataFrame: make both Spark "
                "DataFrames (spark.createDataFrame), or both tables (df.toArrow())"
            )
    if isinstance(engine, Local | Simulated):
        name = type(engine).__name__
        raise InputError(f"engine=cf.{name}(...) joins tables: these inputs are Spark DataFrames; use df.toArrow()")
    if engine is not None and not isinstance(engine, Spark):
        raise OptionError(f"engine={engine!r}: use cf.Local(...) or cf.Spark(...)")
    from counterflow.engines.spark import engine as spark_engine

    return spark_engine
