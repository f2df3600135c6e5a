"""Both windows of a join in one process: what Kang's three-step procedure does with a batch of arrivals.

A batch is scanned, inserted and, later, invalidated (`protocols.kang` has the procedure as its paper tells it). It may
be inserted before it is scanned: a tuple looks only at opposite tuples that came before it (`high`), from its horizon
on (`low`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from counterflow.predicate.expression import Expression
from counterflow.predicate.split import Split
from counterflow.windows.store import Batch, WindowStore
from counterflow.windows.vectors import Array


class TwoWindows:
    """The two windows; `expected_rows` are the left and the right one's, `options` those of `WindowStore`."""

    def __init__(
        self, predicate: Expression, parts: Split, expected_rows: tuple[int, int] = (0, 0), **options: Any
    ) -> None:
        self.left = WindowStore("left", predicate, parts, expected_rows=expected_rows[0], **options)
        self.right = WindowStore("right", predicate, parts, expected_rows=expected_rows[1], **options)

    # The two windows have nothing to do with each other: a finite join fills and scans them at the same time.

    def meet_right_window(self, left: Batch, right: Batch) -> Iterator[tuple[Array, Array]]:
        self.right.append(right)
        for p, rows in self.right.probe(left):
            yield left.rows[p], rows

    def meet_left_window(self, left: Batch, right: Batch) -> Iterator[tuple[Array, Array]]:
        self.left.append(left)
        for p, rows in self.left.probe(right):
            yield rows, right.rows[p]

    def use_threads(self, threads: int) -> None:
        """Search with this many threads from the next probe on, in whatever thread this is said."""
        self.left.use_threads(threads)
        self.right.use_threads(threads)

    def is_settled(self, left: Batch, right: Batch) -> bool:
        """Return whether both windows are compiled, and stay so with these arrivals: then two threads may meet them."""
        nulls = left.has_nulls or right.has_nulls
        return all(window.is_settled(nulls) for window in (self.left, self.right))

    def stop(self) -> None:
        """Let all searches end soon, in whatever thread they are."""
        self.left.stop()
        self.right.stop()

    def invalidate(self, left_before: int, right_before: int) -> None:
        """Forget the tuples before the horizons of the next arrivals: they will not be met again."""
        self.left.expire(left_before)
        self.right.expire(right_before)
