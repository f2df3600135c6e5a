"""Two DataFrames in, one DataFrame out: the plan that Spark runs.

    left  -> pack ┐                                    ┌ unpack -> result rows
                  ├ union -> by cell -> cell operator ─┤
    right -> pack ┘        (state: chunks)             └ observe -> query_metrics

Static DataFrames take the same way without state.
"""

from __future__ import annotations

import itertools
from typing import Any

from pyspark.sql import DataFrame

from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.query.inputs import Frames
from counterflow.engines.spark.query.metrics import OBSERVATION, observed_metrics
from counterflow.engines.spark.query.planning import cell_threads, output_type, plan, prepare_session
from counterflow.engines.spark.query.static_join import join_static
from counterflow.engines.spark.query.unpacking import unpacked
from counterflow.errors import UnsupportedError
from counterflow.explanation import Explanation

_observation_numbers = itertools.count(1)


def join_dataframes(left: Any, right: Any, options: dict[str, Any], engine: Spark) -> DataFrame:
    """Return the DataFrame of the join's results. Nothing runs yet, but all that can be refused is refused."""
    inputs = Frames.of(left, right)
    spec, layout = plan(inputs, options, engine)
    output = output_type(spec, inputs)
    threads = cell_threads(inputs.session, engine)
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
    left_copies, right_copies = layout.copies["left"], layout.copies["right"]
    copies = f"a left row goes to {left_copies} of them, a right row to {right_copies}"
    threads = cell_threads(inputs.session, engine)
    each = f"{threads} in each cell" + (" (spark.task.cpus)" if engine.threads is None else "")
    details = {"layout": f"{layout} ({layout.cells} cells; {copies})", "because": layout.reason, "threads": each}
    if inputs.streaming:
        held = [
            f"{s.side} rows, {s.window if s.window.reach is None else f'{s.window.reach / 1e6:g} s'}"
            for s in (spec.left, spec.right)
        ]
        details["state"] = f"{' and '.join(held)}, behind the watermark, in the state store"
    return Explanation(spec, engine=f"Spark, {'streaming' if inputs.streaming else 'static'}", details=details)
