"""The slow oracle: short enough to be read as the definition of the join."""

from counterflow.reference.join import Result, Tuple, window_join
from counterflow.reference.table_rows import reference_pairs

__all__ = ["Result", "Tuple", "reference_pairs", "window_join"]
