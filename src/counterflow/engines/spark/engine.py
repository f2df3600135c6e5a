"""Two DataFrames in, one DataFrame out: the plan that Spark runs.

    left  -> pack ┐                                    ┌ unpack -> result rows
                  ├ union -> by cell -> cell operator ─┤
    right -> pack ┘        (state: chunks)             └ observe -> query_metrics

Static DataFrames take the same way without state. A stream beside a table without a time needs none of this
(`query/table_join.py`).
"""

from __future__ import annotations

import itertools
from typing import Any

from pyspark.sql import DataFrame

from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.query.inputs import Frames
from counterflow.engines.spark.query.layout import Layout, possible_layouts
from counterflow.engines.spark.query.metrics import OBSERVATION, observed_metrics
from counterflow.engines.spark.query.planning import cell_threads, output_type, plan, prepare_session
from counterflow.engines.spark.query.static_join import join_static
from counterflow.engines.spark.query.table_join import join_beside_table
from counterflow.engines.spark.query.unpacking import unpacked
from counterflow.errors import UnsupportedError
from counterflow.explanation import Explanation
from counterflow.predicate.expression import SIDES

_observation_numbers = itertools.count(1)


def join_dataframes(left: Any, right: Any, options: dict[str, Any], engine: Spark) -> DataFrame:
    """Return the DataFrame of the join's results. Nothing runs yet, but all that can be refused is refused."""
    inputs = Frames.of(left, right)
    spec, layout = plan(inputs, options, engine)
    output = output_type(spec, inputs)
    threads = cell_threads(inputs.session, engine)
    if layout is None:
        return join_beside_table(spec, inputs, output, engine, threads)
    packed = inputs.packed(spec, layout, engine.null_times == "drop")
    if not inputs.streaming:
        # A stated number of partitions: Spark would merge them by their bytes, but a cell's work is not its bytes.
        cells = packed.repartition(layout.cells, "cell")
        return unpacked(cells.mapInArrow(join_static(spec, layout, threads), "payload BINARY"), spec, output)
    prepare_session(inputs.session, layout)
    from counterflow.engines.spark.query.cell_operator import OUTPUT, CounterflowCell

    cells = packed.groupBy("cell")
    if not hasattr(cells, "transformWithStateInPandas"):
        raise UnsupportedError("Spark Connect before 4.1 has no stateful operator in Python: use a newer Spark")
    operated = cells.transformWithStateInPandas(
        CounterflowCell(spec, layout, engine.late_rows, threads), OUTPUT, outputMode="append", timeMode="eventTime"
    )
    observed = operated.observe(f"{OBSERVATION}_{next(_observation_numbers)}", *observed_metrics())
    return unpacked(observed.select("payload").where("payload IS NOT NULL"), spec, output)


def explain_dataframes(left: Any, right: Any, options: dict[str, Any], engine: Spark) -> Explanation:
    """Return how the join would be laid out, and what it would keep."""
    inputs = Frames.of(left, right)
    spec, layout = plan(inputs, options, engine)
    threads, said = cell_threads(inputs.session, engine), " (spark.task.cpus)" if engine.threads is None else ""
    if layout is None:
        again = "once" if engine.refresh is None else f"every {engine.refresh_s:g} s while a stream runs"
        details = {
            "layout": "none: the stream's rows are joined where they are",
            "table": f"read by window_join, {again}; in memory, with its index, on every executor",
            "state": "none",
            "threads": f"{threads} in each task{said}",
        }
        return Explanation(spec, engine="Spark, a stream beside a table", details=details)
    left_copies, right_copies = _rounded(layout)
    copies = f"a left row goes to {left_copies} of them, a right row to {right_copies}"
    details = {"layout": f"{layout} ({layout.cells} cells; {copies})", "because": layout.reason}
    details["copies"] = _copies(possible_layouts(spec, engine, layout.grids[0].cells))
    details["threads"] = f"{threads} in each cell{said}"
    if inputs.streaming:
        held = [
            f"{s.side} rows, {s.window if s.window.reach is None else f'{s.window.reach / 1e6:g} s'}"
            for s in (spec.left, spec.right)
        ]
        details["state"] = f"{' and '.join(held)}, behind the watermark, in the state store"
    return Explanation(spec, engine=f"Spark, {'streaming' if inputs.streaming else 'static'}", details=details)


def _copies(layouts: list[Layout]) -> str:
    """Return to how many cells each layout would send a row on average."""

    def said(layout: Layout) -> str:
        name = f"band {layout.grids[0].cells}" if layout.kind == "band" else str(layout)
        return f"{name}: {' and '.join(_rounded(layout))}"

    return f"of a left and a right row, by layout: {'; '.join(map(said, layouts))}"


def _rounded(layout: Layout) -> list[str]:
    return [f"{round(layout.copies[side], 2):g}" for side in SIDES]
