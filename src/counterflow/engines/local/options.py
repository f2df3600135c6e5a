"""How the in-process engine runs a join."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from counterflow.errors import OptionError, UnsupportedError
from counterflow.suggest import did_you_mean

ALGORITHMS = ("auto", "kang", "celljoin", "handshake", "llhj", "dpjoin", "scalejoin")
OVERFLOWS = ("block", "drop_newest", "drop_results")
TABLE_BATCH_ROWS = 1 << 16  # finite inputs have no latency to keep: large batches
BUFFER_ROWS = 1 << 16
LATE_ROWS = 10_000
Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Local:
    """Join in this process.

    `batch_rows`: how many arrivals are processed at once, at most. `progress` is called after each batch of a table
    with the rows done, the rows in all, and the pairs found.

    For streams: `buffer_rows` is how many rows may wait in each buffer (what a source has sent; what is ahead of the
    slowest source; what was joined and not asked for). `overflow` says what happens when they are full: 'block' (the
    sources wait), 'drop_newest' (batches that a source sends meanwhile are dropped) or 'drop_results' (results that
    nobody takes in time are dropped); all that is dropped is counted. `late_rows`: how many of the last late rows of
    each side are kept to be read.
    """

    algorithm: str = "auto"
    workers: int = 1
    batch_rows: int = TABLE_BATCH_ROWS
    progress: Progress | None = None
    overflow: str = "block"
    buffer_rows: int = BUFFER_ROWS
    late_rows: int = LATE_ROWS

    @property
    def threads(self) -> int:
        """A table's rows are probed in parallel where no algorithm is asked for."""
        return (os.cpu_count() or 1) if self.algorithm == "auto" else 1

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise OptionError(f"unknown algorithm {self.algorithm!r}{did_you_mean(str(self.algorithm), ALGORITHMS)}")
        if self.algorithm not in ("auto", "kang"):
            raise UnsupportedError(f"algorithm {self.algorithm!r} is not in this release yet: use 'kang' or 'auto'")
        if self.overflow not in OVERFLOWS:
            raise OptionError(f"unknown overflow={self.overflow!r}{did_you_mean(str(self.overflow), OVERFLOWS)}")
        for option, least in (("workers", 1), ("batch_rows", 1), ("buffer_rows", 1), ("late_rows", 0)):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{option}={value!r}: must be a positive integer{'' if least else ', or 0'}")
        if self.workers != 1:
            raise UnsupportedError(f"workers={self.workers}: 'kang' is sequential, so workers must be 1")
