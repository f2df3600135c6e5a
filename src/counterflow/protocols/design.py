"""What kind of machine a join runs on: the algorithm, its nodes, and sizes."""

from __future__ import annotations

from dataclasses import dataclass

from counterflow.protocols import words as w
from counterflow.protocols.registry import protocol
from counterflow.protocols.traits import Protocol
from counterflow.spec.window_sizes import Window
from counterflow.windows.compiled.compiled_predicate import BASIC_BLOCK, Access

CAPACITY_MIN = 1 << 10


@dataclass(frozen=True)
class Sources:
    """Physical sources that add their tuples to ScaleJoin's first gate themselves; the windows, for who stamps them."""

    left: int
    right: int
    windows: tuple[Window, Window]
    waiting_rows: int = 0  # tuples of each that lie ready and are not yet in the gate, at most; it can be more

    def __len__(self) -> int:
        return self.left + self.right

    def side(self, source: int) -> int:
        """Return the side of a source: those of the left side come first."""
        return w.LEFT if source < self.left else w.RIGHT


@dataclass(frozen=True)
class Design:
    """The algorithm, how many nodes it has and in which layout, and the sizes of what is bounded."""

    algorithm: str
    nodes: int = 1
    batch_rows: int = 64
    layout: tuple[int, int] = (1, 1)  # rows and columns, where nodes stand in a matrix
    access: Access = "auto"
    basic_block: int = BASIC_BLOCK  # rows in a block that is sorted, with access="merge"
    symmetric: bool = False  # handshake join as in the first report
    in_flight: int = 1 << 13  # tuples that the driver, or each source, is ahead of the slowest node, at most
    outbox_rows: int = 1 << 13  # results that a node is ahead of the collector, at most
    ordered_output: bool = False  # results are wanted in order: a second gate, where the algorithm has one
    expected_rows: tuple[int, int] = (0, 0)  # of the whole windows
    strategy: str = "park"
    nullable: bool = False
    capacity_min: int = CAPACITY_MIN  # rows of a segment
    wired: bool = False  # every queue has a sender's and a receiver's half: a simulator carries messages over
    sources: Sources | None = None  # None: the driver puts all tuples in order, and feeds them

    def __post_init__(self) -> None:
        if self.sources is not None and self.protocol.way != w.TO_GATE:
            raise ValueError(f"{self.algorithm} has no gate that sources could add their tuples to")
        if self.sources is not None and min(self.sources.left, self.sources.right) < 1:
            raise ValueError("each side has at least one source")

    @property
    def protocol(self) -> Protocol:
        return protocol(self.algorithm)

    @property
    def gates_results(self) -> bool:
        """Whether results go through a second gate."""
        return self.ordered_output and self.protocol.orders_results

    @property
    def ahead(self) -> int:
        """How many tuples the driver may be ahead of the slowest node."""
        return 1 << 60 if self.protocol.holds_incoming else self.in_flight

    @property
    def lanes(self) -> tuple[int, int]:
        """How many lanes the left and the right tuples are dealt out to."""
        return self.layout if self.protocol.matrix else (1, 1)

    def lane(self, node: int, side: int) -> int:
        """Return the lane of the tuples of a side that the node gets."""
        if not self.protocol.matrix:
            return 0
        return node // self.layout[1] if side == w.LEFT else node % self.layout[1]
