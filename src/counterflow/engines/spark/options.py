"""How the Spark engine lays out a join. Nothing here needs pyspark."""

from __future__ import annotations

import re
from dataclasses import dataclass

from counterflow.errors import OptionError, UnsupportedError

CELLS_MAX = 4096
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Spark:
    """`layout`: 'MxN' cells (DP-Join's matrix), or 'auto'.

    A left row goes to the N cells of one of M rows, a right row to the M cells of one of N columns, so that
    every pair meets in exactly one cell.
    """

    layout: str = "auto"

    def __post_init__(self) -> None:
        if self.layout == "home":
            raise UnsupportedError("layout='home' is not in this release yet: use 'auto' or a matrix such as '2x3'")
        if self.layout != "auto":
            parse_layout(self.layout)


def parse_layout(layout: str) -> tuple[int, int]:
    """'2x3' as (2, 3)."""
    match = re.fullmatch(r"([0-9]+)x([0-9]+)", layout) if isinstance(layout, str) else None
    rows, columns = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (rows and columns and rows * columns <= CELLS_MAX):
        raise OptionError(
            f"layout={layout!r}: use 'auto', or rows x columns such as '2x3' with at most {CELLS_MAX} cells in all"
        )
    return rows, columns


def auto_layout(cores: int) -> tuple[int, int]:
    """The squarest matrix with a cell for every core: replication is least where it is square (DP-Join, expr. 7)."""
    rows = max(r for r in range(1, int(cores**0.5) + 1) if cores % r == 0)
    return rows, cores // rows
