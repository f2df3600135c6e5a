"""Two whole streams in a machine's memory: what a run may offer of them, and what follows from a rank."""

from __future__ import annotations

import numpy as np

from counterflow.protocols import words as w
from counterflow.protocols.feed import check_horizons
from counterflow.protocols.machine import Machine
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array


class Loaded:
    """`ends`: by rank, the left and right tuples before it, and those of them that no tuple from it on meets."""

    def __init__(self, machine: Machine, left: Batch, right: Batch) -> None:
        self.machine, self.m = machine, machine.m
        check_horizons(left, right)
        self._write(left, right)
        self.total = total = len(left) + len(right)
        self.totals = np.array([len(left), len(right)], np.int64)
        is_left = np.zeros(total, bool)
        is_left[left.at + left.high + 1] = True
        lefts = np.concatenate([[0], np.cumsum(is_left)])
        # What no tuple from a rank on meets: the horizon of the next tuple of the other side.
        after_left, after_right = np.append(left.low, len(right)), np.append(right.low, len(left))
        rights = np.arange(total + 1) - lefts
        expired = np.minimum(after_right[rights], lefts), np.minimum(after_left[lefts], rights)
        self.ends = np.stack([lefts, rights, *expired], axis=1)

    def _write(self, left: Batch, right: Batch) -> None:
        for side, batch in enumerate((left, right)):
            self.machine.incoming[side].resize(len(batch))
            self.machine.write(side, batch)
        self.machine.publish_incoming()

    def offer(self, rank: int) -> None:
        """Let the tuples before this rank lie ready for the feed."""
        feed = self.machine.feed
        self.m[feed + w.FEED_OFFERED : feed + w.FEED_OFFERED + 2] = self.ends[rank, :2]

    def expire_all(self) -> None:
        """Let everything expire, after the last tuple."""
        feed = self.machine.feed
        self.m[feed + w.FEED_BOUND : feed + w.FEED_BOUND + 2] = self.totals


class LoadedSources(Loaded):
    """The same in the rings of physical sources: `owners` and `times` say whose a tuple is, and when it comes."""

    def __init__(
        self, machine: Machine, left: Batch, right: Batch, owners: tuple[Array, Array], times: tuple[Array, Array]
    ) -> None:
        self._owners, self._times = owners, times
        super().__init__(machine, left, right)

    def _write(self, left: Batch, right: Batch) -> None:
        for number, (at, ring) in enumerate(zip(self.machine.sources, self.machine.source_rings, strict=True)):
            side = self.machine.source_side(number)
            mine = np.flatnonzero(self._owners[side] == number)
            ring.resize(len(mine))
            ring.publish(self.m, at)
            ring.times[: len(mine)], ring.passes[: len(mine)] = self._times[side][mine], 1
            if len(mine):
                self.machine.write_source(number, (left, right)[side].take(mine))

    @property
    def source_totals(self) -> Array:
        """How many tuples each source has."""
        return np.bincount(np.concatenate(self._owners), minlength=len(self.machine.sources))
