"""What everything else has to know of an algorithm: a record that its module exports as PROTOCOL.

Nothing outside the protocols asks for an algorithm by its name: the feed, the machine, the collector, the options, the
simulator and the benchmarks read this record. `registry` knows where each module is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from counterflow.protocols import words as w

if TYPE_CHECKING:
    from counterflow.protocols.design import Design

DRIVER = -1  # a sender that is no node


class Link(NamedTuple):
    """A ring of messages from one node, or from the driver, to another, and the words by which both know it."""

    sender: int
    receiver: int
    inbox: int
    outlet: int  # 0 where the sender finds the ring elsewhere


def from_driver_to_all(design: Design) -> Iterator[Link]:
    """Link every node to the driver, if there is one."""
    for k in range(design.nodes if design.sources is None else 0):
        yield Link(DRIVER, k, w.NODE_FROM_LEFT, 0)


def along_a_row(design: Design) -> Iterator[Link]:
    """Link a row of nodes in both directions; left tuples enter at its left end, right tuples at the other."""
    last = design.nodes - 1
    yield Link(DRIVER, 0, w.NODE_FROM_LEFT, 0)
    yield Link(DRIVER, last, w.NODE_FROM_RIGHT, 0)
    for k in range(last):
        yield Link(k, k + 1, w.NODE_FROM_LEFT, w.NODE_TO_RIGHT)
        yield Link(k + 1, k, w.NODE_FROM_RIGHT, w.NODE_TO_LEFT)


def whole_windows(design: Design, k: int, side: int) -> tuple[int, int]:
    """Let a node store every tuple that reaches it."""
    return 1, 0


def every_nth(design: Design, k: int, side: int) -> tuple[int, int]:
    """Let each node store every n-th tuple."""
    return design.nodes, k


def rings_of_its_own(design: Design, k: int, side: int) -> int:
    """Let each node keep the rows that it stores itself."""
    return k


@dataclass(frozen=True)
class Protocol:
    """An algorithm: its step, how its nodes are linked, and what its memory, driver and collector must know."""

    name: str  # as users say it
    step: Any  # compiled: what node k does next, of (m, k); IDLE, WORKED or NEEDS

    # --- how tuples reach the nodes
    way: int  # one of words.TO_*
    links: Callable[[Design], Iterator[Link]]

    # --- what a node stores
    stores: Callable[[Design, int, int], tuple[int, int]] = whole_windows  # (stride, offset) of tuple numbers
    ring_of: Callable[[Design, int, int], int] = rings_of_its_own  # the node whose ring holds this node's rows
    readers_keep_rows: bool = False  # a row of a shared ring stays until every node that reads it has forgotten it
    keeps_transit: bool = False  # a node keeps right tuples that are between two nodes
    holds_incoming: bool = False  # tuples stay where the driver wrote them as long as they are in the window
    forgets: Literal["own", "whole", "at the end"] = (
        "own"  # each node its rows, the coordinator, or the row's last node
    )

    # --- what it finds
    meets_later: bool = False  # a probe may find tuples that came after it
    found_until_both_leave: bool = False  # a pair may be found after its later tuple has passed a node
    orders_results: bool = False  # a second gate can bring results in order

    # --- what a user may ask of it
    sequential: bool = False  # it has one node
    matrix: bool = False  # its nodes stand in rows and columns, the layout
    symmetric_form: bool = False  # it has the first report's form, too

    # --- what a step costs under the virtual clock
    hands_on_first: bool = False  # a node hands tuples on before it looks for their partners
    handles_all: bool = True  # a node has to do with every tuple, not only with those that it stores

    @property
    def has_gate(self) -> bool:
        """Whether tuples reach the nodes through a gate, to which sources can add theirs."""
        return self.way == w.TO_GATE
