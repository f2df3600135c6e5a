"""How the Spark engine lays out a join. Nothing here needs pyspark."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from math import inf
from typing import Any

from counterflow.errors import OptionError
from counterflow.predicate.durations import duration_us, shown

CELLS_MAX = 4096
LAYOUT = r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})|(auto)|(home|hash|band)(?::([1-9][0-9]{0,3}))?"
THREADS_MAX = 1024
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Spark:
    """How a join runs on Spark.

    `layout`: 'auto'; 'MxN' cells (DP-Join's matrix: a left row goes to the N cells of one of M rows, a right row to the
    M cells of one of N columns); 'home' (every cell searches for every row, one stores it); 'hash' (equal keys meet);
    'band' (like values meet). 'home:8', 'hash:8' and 'band:8' say how many cells. `rates`: rows a second of the left
    and the right stream, for 'auto' and 'band'. `sample`: tables or static DataFrames of some left and some right rows,
    for 'band': where their values crowd, more cells share them.
    `late_rows`: a folder or URI to which late rows are written as Parquet, one folder a side. `null_times`: what to do
    with a row whose time is null: 'error' (the query ends) or 'drop' (the row is left out, and counted). `refresh`: how
    often the table beside a stream is read again, as '10 minutes'; it is read once if nothing is said. `threads` share
    the work of each cell; by default as many as a task has cores (spark.task.cpus). They change no result, and may be
    others after a restart.

    >>> import counterflow as cf
    >>> engine = cf.Spark(layout="2x3", null_times="drop")  # for cf.window_join(..., engine=engine)
    >>> cf.Spark(layout="2 by 3")
    Traceback (most recent call last):
    counterflow.errors.OptionError: layout='2 by 3': use 'auto', ...
    """

    layout: str = "auto"
    rates: tuple[float, float] | None = None
    sample: tuple[Any, Any] | None = field(default=None, compare=False, repr=False)
    late_rows: str | None = None
    null_times: str = "error"
    refresh: str | dt.timedelta | None = None
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
        if self.rates is not None and kind not in ("auto", "band"):
            raise OptionError(
                f"rates={self.rates!r} help layout='auto' and 'band' to choose, and layout={self.layout!r} is chosen "
                "already: leave one of them out"
            )
        if self.sample is not None and kind != "band":
            raise OptionError(
                f"sample= says where values crowd, and layout={self.layout!r} does not look at values: use 'band', or "
                "leave it out"
            )
        if self.sample is not None and not (isinstance(self.sample, tuple | list) and len(self.sample) == 2):
            raise OptionError("sample: give two tables or static DataFrames, of left and of right rows")
        if self.late_rows is not None and not (isinstance(self.late_rows, str) and self.late_rows):
            raise OptionError(f"late_rows={self.late_rows!r}: give a folder or URI, for example 's3://bucket/late'")
        if self.null_times not in ("error", "drop"):
            raise OptionError(f"null_times={self.null_times!r}: use 'error' or 'drop'")
        if self.refresh is not None and not (isinstance(self.refresh, str | dt.timedelta) and self.refresh_s >= 1):
            raise OptionError(f"refresh={self.refresh!r}: give a duration of a second or more, such as '10 minutes'")
        if self.threads is not None and not (
            isinstance(self.threads, int) and not isinstance(self.threads, bool) and 1 <= self.threads <= THREADS_MAX
        ):
            raise OptionError(
                f"threads={self.threads!r}: give a whole number from 1 to {THREADS_MAX}, or leave it out for as many "
                "as a task has cores (spark.task.cpus)"
            )

    @property
    def refresh_s(self) -> float:
        """The seconds from one reading of the table to the next; infinity if it is read once."""
        return inf if self.refresh is None else duration_us(self.refresh) / 1e6


def parse_layout(layout: str) -> tuple[str, tuple[int, ...]]:
    """Return a layout's kind and size: ('matrix', (2, 3)) for '2x3', ('hash', (4,)) for 'hash:4', or ('auto', ())."""
    match = re.fullmatch(LAYOUT, str(layout))
    if match:
        rows, columns, auto, kind, cells = match.groups()
        size = tuple(int(n) for n in (rows, columns, cells) if n)
        if (size[0] * size[-1] if rows else sum(size)) <= CELLS_MAX:
            return auto or kind or "matrix", size
    raise OptionError(
        f"layout={layout!r}: use 'auto', rows x columns such as '2x3', 'home', 'hash' or 'band' (also 'home:4'), with "
        f"at most {CELLS_MAX} cells in all"
    )


def check_partitions(partitions: Any) -> None:
    """Refuse what is no number of partitions."""
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= CELLS_MAX:
        raise OptionError(f"partitions={shown(partitions)}: give a whole number from 1 to {CELLS_MAX}")
