"""What a cell counts: in each batch, and since its query first started."""

from __future__ import annotations

from dataclasses import dataclass

from counterflow.predicate.expression import Side

# What a cell tells of the batch alone.
CELL_COUNTERS = (
    "hot_hits",  # the windows were found in memory
    "rebuilds",  # the windows had to be built from chunks
    "chunks_copied",  # chunks read from copies
    "chunks_read",  # chunks read from the state store
    "copies_failed",  # copies that could not be written
    "hosted_bytes",  # the memory of this cell's windows in its host
    "unpack_us",  # unpacking the rows
    "join_us",  # joining them, in the host
    "host_us",  # waiting for the host: contains join_us
    "state_us",  # writing state and copies
)


@dataclass
class Totals:
    """Rows and pairs, in a batch or since the query first started. One of the cells that see a row counts it."""

    rows_left: int = 0
    rows_right: int = 0
    late_left: int = 0
    late_right: int = 0
    pairs: int = 0
    null_times_left: int = 0
    null_times_right: int = 0

    def count_null_times(self, side: Side, rows: int) -> None:
        """Count rows that were dropped because their time is null; they are not among the rows that were read."""
        if side == "left":
            self.null_times_left += rows
        else:
            self.null_times_right += rows

    def count(self, side: Side, rows: int, late: int) -> None:
        if side == "left":
            self.rows_left, self.late_left = self.rows_left + rows, self.late_left + late
        else:
            self.rows_right, self.late_right = self.rows_right + rows, self.late_right + late


COUNTERS = (
    *Totals.__dataclass_fields__,  # in this batch
    *(f"total_{name}" for name in Totals.__dataclass_fields__),
    "state_rows_left",
    "state_rows_right",
    "state_bytes",
    *CELL_COUNTERS,
)
