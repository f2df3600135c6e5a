"""DP-Join's layout where the user gives none: the one of least latency by Expression 6 (`plan.model`).

Expression 6 needs how many rows each window holds and how fast each side comes, both only up to a factor. When a join
starts, its windows are known; of tables the row counts are, and stand for their rates; streams are taken as equally
fast, because nothing has come yet and a layout cannot change once tuples are stored by it.
"""

from __future__ import annotations

from dataclasses import replace

from counterflow.engines.local.options import Local
from counterflow.engines.local.stamps import StampedTables
from counterflow.plan.model import Layout, Load, least_latency
from counterflow.spec.join_spec import JoinSpec
from counterflow.spec.window_sizes import Window

TableRows = tuple[int, int]


def rows_of(stamped: StampedTables) -> TableRows:
    """Return how many rows the two tables have."""
    return len(stamped.times[0]), len(stamped.times[1])


def lay_out(engine: Local, spec: JoinSpec, table_rows: TableRows | None = None) -> Local:
    """Return the engine with its layout decided, if its algorithm has one; `table_rows` are those of two tables."""
    if not (engine.protocol and engine.protocol.matrix) or engine.layout is not None:
        return engine
    (rows, columns), _ = choose_layout(engine, spec, table_rows)
    return replace(engine, layout=f"{rows}x{columns}")


def choose_layout(engine: Local, spec: JoinSpec, table_rows: TableRows | None = None) -> tuple[Layout, str]:
    """Return the layout that was asked for, or the one of least latency; and why."""
    if engine.layout is not None:
        return engine.matrix, "as asked"
    if engine.nodes == 1:
        return engine.matrix, "there is one worker"
    load = expected_load(spec, table_rows)
    if load is None:
        return engine.matrix, "as square as the workers allow: which window holds more rows is not known beforehand"
    return least_latency(engine.nodes, load), f"least latency by DP-Join's Expression 6: {_said(load, table_rows)}"


def expected_load(spec: JoinSpec, table_rows: TableRows | None = None) -> Load | None:
    """Return rates and windows in some unit of time; None where the windows cannot be compared."""
    rates = (1, 1) if table_rows is None else (max(table_rows[0], 1), max(table_rows[1], 1))
    windows = spec.left.window, spec.right.window
    if all(window.kind == "duration" for window in windows):
        left_s, right_s = (float(max(window.size, 1)) for window in windows)
        return Load(*rates, left_s, right_s)
    left, right = (_rows(window, None if table_rows is None else n) for window, n in zip(windows, rates, strict=True))
    return None if left is None or right is None else Load(*rates, left / rates[0], right / rates[1])


def _rows(window: Window, table_rows: int | None) -> int | None:
    """Return how many rows a window holds at most, if that does not depend on times."""
    if window.kind == "duration":
        return None
    if window.kind == "unbounded":
        return table_rows
    return window.size if table_rows is None else min(window.size, table_rows)


def _said(load: Load, table_rows: TableRows | None) -> str:
    held = f"rows in the windows {_ratio(load.left_rows, load.right_rows)}"
    if table_rows is None:
        return f"{held}, rates taken as equal"
    return f"{held}, rates {_ratio(load.left_rate, load.right_rate)} by the tables' row counts"


def _ratio(left: float, right: float) -> str:
    least = min(left, right)
    return f"{left / least:.4g} : {right / least:.4g}"
