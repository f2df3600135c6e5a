"""Where kernels write pairs of rows: buffers that their owner keeps, and that grow when a kernel says so."""

from __future__ import annotations

import numpy as np

PAIRS_MIN = 1 << 14
PAIRS_MAX = 1 << 19  # a buffer with this many pairs is handed out before it is filled further


class Pairs:
    """A buffer of pairs: `probes[i]` and `rows[i]`, for i below `count`."""

    def __init__(self, capacity: int = PAIRS_MIN) -> None:
        self.probes = np.empty(capacity, np.int64)
        self.rows = np.empty(capacity, np.int64)
        self.count = 0

    def reserve(self, more: int) -> None:
        """Make room for `more` pairs after those that are there."""
        if self.count + more <= len(self.probes):
            return
        capacity = max(2 * len(self.probes), self.count + more)
        for name in ("probes", "rows"):
            grown = np.empty(capacity, np.int64)
            grown[: self.count] = getattr(self, name)[: self.count]
            setattr(self, name, grown)
