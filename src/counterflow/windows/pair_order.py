"""Pairs in the order of results: by the later tuple in the total order, then by the earlier one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterflow.windows.compiled.forking import compiled_module
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array


@dataclass(frozen=True)
class StepPairs:
    """The pairs that the tuples of a step have found, as left and right numbers.

    The step has the tuples from the numbers `first` on. Pairs of `by_left` have a left tuple of it for the later one,
    those of `by_right` a right one.
    """

    left: Batch
    right: Batch
    first: tuple[int, int]
    by_left: list[tuple[Array, Array]]
    by_right: list[tuple[Array, Array]]

    def __len__(self) -> int:
        return sum(len(part[0]) for part in (*self.by_left, *self.by_right))

    def in_order(self, compiled: bool) -> tuple[Array, Array]:
        """Return them in order; `compiled`: by code that is compiled already."""
        cut = sum(len(part[0]) for part in self.by_left)
        pairs = np.empty((2, len(self)), np.int64)
        for i in (0, 1) if pairs.shape[1] else ():
            np.concatenate([part[i] for part in (*self.by_left, *self.by_right)], out=pairs[i])
        if pairs.shape[1] < 2:
            return pairs[0], pairs[1]
        left, right = self.left, self.right
        if compiled:
            ordered, ends = np.empty_like(pairs), np.empty(len(left) + len(right) + 2, np.int64)
            compiled_module("ordering").order_pairs(left.high, right.high, *self.first, cut, pairs, ends, ordered)
            return ordered[0], ordered[1]
        later = np.concatenate(
            [
                pairs[0, :cut] + left.high[pairs[0, :cut] - self.first[0]],
                pairs[1, cut:] + right.high[pairs[1, cut:] - self.first[1]],
            ]
        )
        order = np.lexsort((np.concatenate([pairs[1, :cut], pairs[0, cut:]]), later))
        return pairs[0, order], pairs[1, order]
