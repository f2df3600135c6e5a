"""The DataFrames of a join: the physical streams of each side, checked, and packed for the way to their cells."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from counterflow.engines.spark.cell.row_order import TIE, is_order_sensitive
from counterflow.engines.spark.query.layout import Layout
from counterflow.engines.spark.query.routing import PACKED, pack
from counterflow.errors import InputError
from counterflow.predicate.expression import SIDES, Side
from counterflow.spec.join_spec import JoinSpec

SESSION_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True)
class Frames:
    """The physical streams of each side: one DataFrame or several."""

    left: list[Any]
    right: list[Any]

    @classmethod
    def of(cls, left: Any, right: Any) -> Frames:
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
        return any(self.streams(side) for side in SIDES)

    def streams(self, side: Side) -> bool:
        return bool(self.frames(side)[0].isStreaming)

    def frames(self, side: Side) -> list[Any]:
        return self.left if side == "left" else self.right

    def packed(self, spec: JoinSpec, layout: Layout, drop_null_times: bool) -> Any:
        """Return one DataFrame of all rows, as blobs for their cells."""
        parts = []
        for side in SIDES:
            for source, frame in enumerate(self.frames(side)):
                tied = self.streaming or is_order_sensitive(spec)
                if tied:
                    frame = frame.withColumn(TIE, F.xxhash64(*(c for f in frame.schema.fields for c in _hashed(f))))
                parts.append(frame.mapInArrow(pack(spec, layout, side, source, tied, drop_null_times), PACKED))
        return functools.reduce(lambda a, b: a.union(b), parts)


def _hashed(field: StructField) -> Iterator[Any]:
    """Yield what a row's hash is made of: a column, and whether it is NULL, since Spark's hash passes over NULLs."""
    column = F.col(f"`{field.name.replace('`', '``')}`")
    kind = field.dataType.simpleString()
    # Spark refuses to hash maps and variants, and hashes collated strings that are equal but not the same alike.
    yield F.to_json(F.struct(column)) if any(word in kind for word in ("map<", "variant", "collate")) else column
    if field.nullable:
        yield column.isNull()


def _check_analysis(frame: Any) -> None:
    """Refuse a DataFrame that Spark says nothing about yet."""
    try:
        frame.isStreaming  # noqa: B018 - a Connect client asks the server
    except AnalysisException as error:
        if error.getCondition() != "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION":
            raise
        raise InputError(
            "a pipeline's query function cannot ask Spark for the columns of a DataFrame: call window_join outside of "
            "the function, and return its result there"
        ) from error


def arrow_schema(frame: Any) -> pa.Schema:
    """Return a DataFrame's schema as Arrow's, with timestamps in the session's zone."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone = frame.sparkSession.conf.get(SESSION_ZONE)
    try:
        return to_arrow_schema(frame.schema, timezone=zone)
    except TypeError:  # before Spark 4.3 it is always UTC there; the zone matters for `hour` and the like
        schema = to_arrow_schema(frame.schema)
    zoned = [pa.types.is_timestamp(f.type) and f.type.tz is not None for f in schema]
    return pa.schema([f.with_type(pa.timestamp("us", zone)) if z else f for f, z in zip(schema, zoned, strict=True)])
