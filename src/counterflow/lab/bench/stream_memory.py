"""What a join of streams holds in memory while many rows go through small windows: a part of `bench streams`.

Row i of the right stream has the key of row i - window / 2 of the left one, so each row has one partner, and every pair
is known beforehand without keeping any input.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from counterflow.api import window_join
from counterflow.engines.local.input.streams import stream
from counterflow.engines.local.options import Local
from counterflow.lab.bench.host import resident_bytes
from counterflow.lab.bench.report import Row
from counterflow.predicate.expression import Side
from counterflow.spec.window_sizes import rows

SETTLED = 0.1  # of all rows: until then windows, buffers and the allocator find their sizes


@dataclass(frozen=True)
class LongRun:
    """A join of `count` rows a side in windows of `window` rows, in batches of `batch_rows`."""

    algorithm: str
    window: int
    count: int
    batch_rows: int

    def take(self) -> Row:
        joined = window_join(
            stream(self._batches("left")),
            stream(self._batches("right")),
            where="l.k = r.k",
            time="ts",
            window=rows(self.window),
            ordered=True,
            engine=Local(self.algorithm),
        )
        pairs = settled = most = 0
        right = True
        began = time.perf_counter()
        for found in joined:
            lefts, rights = (found[name].to_numpy() for name in ("i", "i_right"))
            right &= bool((rights == np.arange(pairs, pairs + len(rights)) + self.lag).all())
            right &= bool((lefts == rights - self.lag).all())
            pairs += len(found)
            if pairs >= SETTLED * self.count:
                held = resident_bytes()
                settled, most = settled or held, max(most, held)
        seconds = time.perf_counter() - began
        return {
            "algorithm": self.algorithm,
            "path": "hash",
            "window_rows": self.window,
            "batch_rows": self.batch_rows,
            "ordered": True,
            "rows": 2 * self.count,
            "seconds": seconds,
            "tuples_per_s": 2 * self.count / seconds,
            "resident_bytes_settled": settled,
            "resident_bytes_max": most,
            "growth_bytes": most - settled,
            "pairs": pairs,
            "verified": right and pairs == self.count - self.lag,
        }

    @property
    def lag(self) -> int:
        return self.window // 2

    def _batches(self, side: Side) -> Iterator[pa.RecordBatch]:
        moved = self.lag if side == "right" else 0
        for begin in range(0, self.count, self.batch_rows):
            i = np.arange(begin, min(begin + self.batch_rows, self.count))
            columns = {"ts": 2 * i + (side == "right"), "i": i, "k": i - moved}
            yield pa.record_batch({name: pa.array(values) for name, values in columns.items()})
