"""What a running query says of itself, through Spark's own progress reports (observed metrics)."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from counterflow.engines.spark.state.counters import CELL_COUNTERS, COUNTERS, Totals
from counterflow.errors import InputError

OBSERVATION = "counterflow"  # the metrics' name starts with this in `query.lastProgress["observedMetrics"]`


def observed_metrics() -> list[Any]:
    """Return what Spark computes from the operator's counters in each batch: their sums, and every cell's as JSON."""
    from pyspark.sql import functions as F

    of_cell = F.when(F.col("cell").isNotNull(), F.struct("cell", *COUNTERS))  # other rows hold results
    return [
        *(F.sum(name).alias(name) for name in COUNTERS),
        F.max("event_time_max").alias("event_time_max"),
        F.to_json(F.collect_list(of_cell)).alias("cells"),
    ]


def query_metrics(query: Any) -> dict[str, Any]:
    """Return the totals since the query first started, what it holds now, and its last batch.

    `delay_s` is the time from the newest row's event time to the end of the batch that joined it. In a chain of
    joins all of it is about the last one.
    """
    reports = list(query.recentProgress)
    for progress in reversed(reports):
        observed = _observed(progress)
        if observed is not None and observed.get("total_pairs") is not None:
            return _summary(progress, observed, reports)
    if any(_rows_in(progress) for progress in reports):
        raise InputError(
            "this query has no Counterflow join of two streams in it: its progress has no 'counterflow' metrics"
        )
    return {name: 0 for name in Totals.__dataclass_fields__} | {"batch_id": None}  # nothing has come yet


def _observed(progress: Any) -> dict[str, Any] | None:
    """Return our metrics in a progress report, if it has any; those of the last join if a query has several."""
    ours = {name: row for name, row in (progress["observedMetrics"] or {}).items() if name.startswith(OBSERVATION)}
    if not ours:
        return None
    return _plain(ours[max(ours, key=lambda name: int(name.rpartition("_")[2]))])


def _plain(row: Any) -> dict[str, Any]:
    """Return the metrics by name. A Connect client gets their values and, beside them, the schema."""
    found = row.asDict() if hasattr(row, "asDict") else dict(row)
    if found.keys() == {"values", "schema"}:
        return dict(zip((field["name"] for field in found["schema"]["fields"]), found["values"], strict=True))
    return found


def _rows_in(progress: Any) -> int:
    """Return the rows that a batch has read. A Connect client is told those of each source only."""
    return progress["numInputRows"] or sum(source["numInputRows"] for source in progress["sources"])


def _summary(progress: Any, observed: dict[str, Any], reports: list[Any]) -> dict[str, Any]:
    totals = {name: int(observed[f"total_{name}"]) for name in Totals.__dataclass_fields__}
    held = {name: int(observed[name]) for name in ("state_rows_left", "state_rows_right", "state_bytes")}
    batch = {name: int(observed[name]) for name in (*Totals.__dataclass_fields__, *CELL_COUNTERS)}
    batch["duration_ms"] = int(progress["durationMs"].get("triggerExecution", 0))
    watermark = (reports[-1]["eventTime"] or {}).get("watermark")
    cells = sorted(json.loads(observed["cells"]), key=lambda cell: int(cell["cell"]))
    return {
        **totals,
        **held,
        "cells": cells,
        "evenness": _evenness([cell["state_rows_left"] + cell["state_rows_right"] for cell in cells]),
        "batch_id": progress["batchId"],
        "batch": batch,
        "watermark": watermark,
        "delay_s": _delay_s(reports),
    }


def _evenness(rows: list[int]) -> float | None:
    """Return the average cell's rows divided by the fullest one's: 1 if no cell has more to do than another."""
    return round(sum(rows) / len(rows) / max(rows), 3) if any(rows) else None


def _delay_s(reports: list[Any]) -> float | None:
    """Return the seconds from the newest row's event time to the end of its batch."""
    for progress in reversed(reports):
        newest = (_observed(progress) or {}).get("event_time_max")
        if newest is not None:
            started = dt.datetime.fromisoformat(progress["timestamp"])
            ended = started.timestamp() + progress["durationMs"].get("triggerExecution", 0) / 1000
            return round(ended - int(newest) / 1e6, 3)
    return None
