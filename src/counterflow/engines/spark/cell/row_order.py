"""The order of rows, where results depend on it: (time, side, source, tie).

The source is the number of the physical stream, and the tie a hash of the whole row: it stands in for the row's
position, which a distributed stream does not have. The rows of every stream bring their hash, so that a cell can
bring them into one order before it writes them (`in_one_order` in `state/chunks.py`).
"""

from __future__ import annotations

from counterflow.spec.join_spec import JoinSpec

RESERVED = "_counterflow_"  # how the names of our own columns begin
SOURCE, TIE = f"{RESERVED}source", f"{RESERVED}tie"
HOME = f"{RESERVED}home"  # with layout `band`, see `query/value_grid.py`: two rows may be a pair here if either has it


def has_row_windows(spec: JoinSpec) -> bool:
    """Return whether a window of either side is a number of rows."""
    return "rows" in (spec.left.window.kind, spec.right.window.kind)


def is_order_sensitive(spec: JoinSpec) -> bool:
    """Return whether the results, or their sequence, depend on the order of rows with equal times."""
    return spec.ordered or has_row_windows(spec)
