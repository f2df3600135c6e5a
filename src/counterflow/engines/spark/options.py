"""How the Spark engine lays out a join. Nothing here needs pyspark."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf

from counterflow.errors import OptionError

CELLS_MAX = 4096
LAYOUT = r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})|(auto)|(home|hash)(?::([1-9][0-9]{0,3}))?"
THREADS_MAX = 1024
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Spark:
    """How a join runs on Spark.

    `layout`: 'auto'; 'MxN' cells (DP-Join's matrix: a left row goes to the N cells of one of M rows, a right row to the
    M cells of one of N columns); 'home' (every cell searches for every row, one stores it); 'hash' (equal keys meet).
    'home:8' and 'hash:8' say how many cells. `rates`: rows a second of the left and the right stream, for 'auto'.
    `late_rows`: a folder or URI to which late rows are written as Parquet, one folder a side. `null_times`: what to do
    with a row whose time is null: 'error' (the query ends) or 'drop' (the row is left out, and counted). `threads`
    share the work of each cell; by default as many as a task has cores (spark.task.cpus). They change no result, and
    may be others after a restart.

    >>> import counterflow as cf
    >>> engine = cf.Spark(layout="2x3", null_times="drop")  # for cf.window_join(..., engine=engine)
    >>> cf.Spark(layout="2 by 3")
    Traceback (most recent call last):
    counterflow.errors.OptionError: layout='2 by 3': use 'auto', ...
    """

    layout: str = "auto"
    rates: tuple[float, float] | None = None
    late_rows: str | None = None
    null_times: str = "error"
    threads: int | None = None

    def __post_init__(self) -> None:
        kind, _ = parse_layout(self.layout)
        if self.rates is not None and not (
            isinstance(self.rates, tuple | list)
            and len(self.rates) == 2
            and all(isinstance(rate, int | float) and not isinstance(rate, bool) for rate in self.rates)
            and all(0 < rate < inf for rate in self.rates)
        ):
            raise OptionError(
                f"rates={self.rates!r}: give rows a second of the left and the right stream, both above 0"
            )
        if self.rates is not None and kind != "auto":
            raise OptionError(
                f"rates={self.rates!r} help layout='auto' to choose, and layout={self.layout!r} is chosen already: "
                "leave one of them out"
            )
        if self.late_rows is not None and not (isinstance(self.late_rows, str) and self.late_rows):
            raise OptionError(f"late_rows={self.late_rows!r}: give a folder or URI, for example 's3://bucket/late'")
        if self.null_times not in ("error", "drop"):
            raise OptionError(f"null_times={self.null_times!r}: use 'error' or 'drop'")
        if self.threads is not None and not (
            isinstance(self.threads, int) and not isinstance(self.threads, bool) and 1 <= self.threads <= THREADS_MAX
        ):
            raise OptionError(
                f"threads={self.threads!r}: give a whole number from 1 to {THREADS_MAX}, or leave it out for as many "
                "as a task has cores (spark.task.cpus)"
            )


def parse_layout(layout: str) -> tuple[str, tuple[int, ...]]:
    """Return a layout's kind and size: ('matrix', (2, 3)) for '2x3', ('hash', (4,)) for 'hash:4', or ('auto', ())."""
    match = re.fullmatch(LAYOUT, str(layout))
    if match:
        rows, columns, auto, kind, cells = match.groups()
        size = tuple(int(n) for n in (rows, columns, cells) if n)
        if (size[0] * size[-1] if rows else sum(size)) <= CELLS_MAX:
            return auto or kind or "matrix", size
    raise OptionError(
        f"layout={layout!r}: use 'auto', rows x columns such as '2x3', 'home' or 'hash' (also 'home:4', 'hash:4'), "
        f"with at most {CELLS_MAX} cells in all"
    )
