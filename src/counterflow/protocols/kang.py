"""Kang's three-step procedure (Kang, Naughton and Viglas, ICDE 2003), the sequential baseline of all papers.

    When a tuple r arrives from stream R:
      1. scan S's window for the tuples that match r, and emit the pairs;
      2. insert r into R's window;
      3. invalidate all expired tuples in R's window.

Here a batch of arrivals of both streams takes the three steps at once. Inserting before scanning changes
nothing, because a tuple looks only at ordinals that arrived before it (`high`) and from its horizon on
(`low`).
"""

from __future__ import annotations

from counterflow.kernels.access import choose_path
from counterflow.kernels.store import Batch, WindowStore
from counterflow.kernels.vectors import Array
from counterflow.spec.expression import Expression
from counterflow.spec.split import Split


class Kang:
    def __init__(self, predicate: Expression, parts: Split) -> None:
        self.left = WindowStore("left", choose_path(parts, "left"), predicate)
        self.right = WindowStore("right", choose_path(parts, "right"), predicate)

    def process(self, left: Batch, right: Batch) -> list[tuple[Array, Array]]:
        """Arrivals in, pairs of row ids (left, right) out."""
        self.left.append(left)
        self.right.append(right)
        pairs = [(left.rows[p], chunk.batch.rows[s]) for chunk, p, s in self.right.probe(left)]
        pairs += [(chunk.batch.rows[s], right.rows[p]) for chunk, p, s in self.left.probe(right)]
        return pairs

    def invalidate(self, left_before: int, right_before: int) -> None:
        """The horizons of the next arrivals: no tuple before them will be met again."""
        self.left.expire(left_before)
        self.right.expire(right_before)
