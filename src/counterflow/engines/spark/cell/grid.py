"""A matrix of cells, and which results its cells emit."""

from __future__ import annotations

from dataclasses import dataclass

from counterflow.predicate.expression import Side
from counterflow.spec.join_spec import JoinSpec


@dataclass(frozen=True)
class Grid:
    """A matrix of cells, numbered row by row from `first`, and what its cells emit."""

    rows: int
    columns: int
    first: int = 0
    pairs: bool = True  # its cells emit pairs
    decides: frozenset[Side] = frozenset()  # the sides whose unmatched rows its cells emit

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    def lane_cells(self, side: Side, lane: int) -> list[int]:
        """Return the cells of a row of the matrix (for left rows) or of a column (for right ones)."""
        if side == "left":
            return [self.first + lane * self.columns + column for column in range(self.columns)]
        return [self.first + row * self.columns + lane for row in range(self.rows)]


def padded_sides(spec: JoinSpec) -> frozenset[Side]:
    """Return the sides whose unmatched rows are results."""
    padded: list[tuple[Side, bool]] = [("left", spec.pads_left), ("right", spec.pads_right)]
    return frozenset(side for side, pads in padded if pads)
