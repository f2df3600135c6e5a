"""Two whole streams in a machine's memory: what a run may offer of them, and what follows from a rank."""

from __future__ import annotations

import numpy as np

from counterflow.protocols import words as w
from counterflow.protocols.feed import check_horizons
from counterflow.protocols.machine import Machine
from counterflow.windows.store import Batch


class Loaded:
    """`ends`: by rank, the left and right tuples before it, and those of them that no tuple from it on meets."""

    def __init__(self, machine: Machine, left: Batch, right: Batch) -> None:
        self.machine, self.m = machine, machine.m
        check_horizons(left, right)
        for side, batch in enumerate((left, right)):
            machine.incoming[side].resize(len(batch))
            machine.write(side, batch)
        machine.publish_incoming()
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

    def offer(self, rank: int) -> None:
        """Let the tuples before this rank lie ready for the feed."""
        feed = self.machine.feed
        self.m[feed + w.FEED_OFFERED : feed + w.FEED_OFFERED + 2] = self.ends[rank, :2]

    def expire_all(self) -> None:
        """Let everything expire, after the last tuple."""
        feed = self.machine.feed
        self.m[feed + w.FEED_BOUND : feed + w.FEED_BOUND + 2] = self.totals
