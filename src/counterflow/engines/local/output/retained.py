"""All columns of the rows that a durable join would need again, in the steps in which they came."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from counterflow.engines.local.stamps import Stamped
from counterflow.windows.vectors import Array


@dataclass(frozen=True)
class _Part:
    stamped: Stamped
    rows: pa.RecordBatch
    ordinal: int  # of its first row
    number: int


class RetainedRows:
    """The last rows of one side, without a gap."""

    def __init__(self, nothing: pa.RecordBatch) -> None:
        self._nothing = nothing
        self._parts: deque[_Part] = deque()
        self._ordinals = self._numbers = 0

    def append(self, stamped: Stamped, rows: pa.RecordBatch) -> None:
        """Add the rows of a step."""
        if len(stamped):
            self._parts.append(_Part(stamped, rows, self._ordinals, self._numbers))
            self._ordinals += len(stamped)
            self._numbers += len(stamped.tuples)

    def drop(self, ordinal: int, number: int) -> None:
        """Forget the steps whose rows are all before the ordinal, and before the number."""
        while self._parts:
            first = self._parts[0]
            if first.ordinal + len(first.stamped) > ordinal or first.number + len(first.stamped.tuples) > number:
                return
            self._parts.popleft()

    @property
    def rows(self) -> pa.RecordBatch:
        """All of them as one batch."""
        return pa.concat_batches([self._nothing, *(part.rows for part in self._parts)])

    @property
    def ranks(self) -> Array:
        return np.concatenate([np.empty(0, np.int64), *(part.stamped.rank for part in self._parts)])

    @property
    def ordinals(self) -> Array:
        return np.arange(self._parts[0].ordinal if self._parts else self._ordinals, self._ordinals)

    @property
    def numbers(self) -> Array:
        """The number of each row; -1 where it has none."""
        found = []
        for part in self._parts:
            own = np.full(len(part.stamped), -1)
            own[slice(None) if part.stamped.kept is None else part.stamped.kept] = part.number + np.arange(
                len(part.stamped.tuples)
            )
            found.append(own)
        return np.concatenate([np.empty(0, np.int64), *found])
