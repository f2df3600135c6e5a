"""How the in-process engine runs a join."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from counterflow.cores import usable_cores
from counterflow.errors import OptionError
from counterflow.plan.model import Load, least_latency
from counterflow.protocols.registry import NAMES, protocol
from counterflow.suggest import did_you_mean

if TYPE_CHECKING:
    from counterflow.protocols.traits import Protocol

ALGORITHMS = ("auto", *NAMES)
ACCESSES = ("auto", "index", "scan", "merge")
LAYOUT = re.compile(r"[1-9][0-9]{0,3}[xX][1-9][0-9]{0,3}")
OVERFLOWS = ("block", "drop_newest", "drop_results")
WAITINGS = ("park", "yield", "spin")
TABLE_BATCH_ROWS = 1 << 16  # finite inputs have no latency to keep: large batches
BUFFER_ROWS = 1 << 16
LATE_ROWS = 10_000
Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Local:
    """Join in this process.

    `algorithm`: 'kang', 'celljoin', 'handshake', 'llhj', 'dpjoin' or 'scalejoin', compiled and on as many threads as
    there are `workers` (one for each core, if nothing is said; 'kang' is sequential); 'auto' is Kang's procedure,
    compiled once enough rows have come; large tables, and windows of streams that have no index, are searched on all
    cores, unless `workers=1`, and with small batches by LLHJ's nodes, if it sees that they pay. `layout` is
    DP-Join's, as in '2x3': the left window in 2 parts, the right one in 3; if none is given, the one of least latency
    for the windows, as `cf.explain` shows. `access='scan'` compares each tuple with
    the whole window, as the papers do, where an index could help; `access='merge'` is the merge join of sorted basic
    blocks (handshake join's first report), for predicates with a band; `access='index'` refuses a predicate that can
    have none. They are for any algorithm but 'auto', and so is `waiting`.
    `symmetric`: handshake join acknowledges tuples in both directions, as in its first report.

    `waiting`: what threads do that have nothing to do. With 'park' they sleep after a while; with 'yield' they offer
    the core and look again, which keeps the cores busy and has the lowest latency; with 'spin' they only look.

    `batch_rows`: how many arrivals are processed at once, at most. `progress` is called after each batch of a table
    with the rows done, the rows in all, and the pairs found.

    For streams: `buffer_rows` is how many rows may wait in each buffer (what a source has sent; what is ahead of the
    slowest source; what was joined and not asked for). `overflow` says what happens when they are full: 'block' (the
    sources wait), 'drop_newest' (batches that a source sends meanwhile are dropped) or 'drop_results' (results that
    nobody takes in time are dropped); all that is dropped is counted. `late_rows`: how many of the last late rows of
    each side are kept to be read. `checkpoint`: a folder that makes the join durable: `joined.checkpoint()` writes its
    state there, and the same join with the same folder goes on from it. Its results come in order.

    >>> import counterflow as cf, pyarrow as pa
    >>> left, right = pa.table({"t": [1, 2], "x": [5, 6]}), pa.table({"t": [2, 3], "y": [6, 5]})
    >>> pairs = cf.window_join(left, right, where="l.x = r.y", time="t", window=9, engine=cf.Local(batch_rows=1))
    >>> len(pairs)
    2
    >>> cf.Local("dpjoin", workers=6).described
    'algorithm dpjoin, 6 workers'
    """

    algorithm: str = "auto"
    workers: int | None = None
    layout: str | None = None
    access: str = "auto"
    symmetric: bool = False
    waiting: str = "park"
    batch_rows: int = TABLE_BATCH_ROWS
    progress: Progress | None = None
    overflow: str = "block"
    buffer_rows: int = BUFFER_ROWS
    late_rows: int = LATE_ROWS
    checkpoint: str | os.PathLike[str] | None = None

    @property
    def protocol(self) -> Protocol | None:
        """What is to be known of the algorithm; 'auto' is none. It imports the compiler."""
        return None if self.algorithm == "auto" else protocol(self.algorithm)

    @property
    def sequential(self) -> bool:
        return self.protocol is None or self.protocol.sequential

    @property
    def has_gate(self) -> bool:
        """Whether the algorithm's nodes take tuples from a gate that sources can add theirs to."""
        return self.protocol is not None and self.protocol.has_gate

    @property
    def threads(self) -> int:
        """The threads that 'auto' searches windows with: all cores; one with `workers=1`, or another algorithm."""
        return len(usable_cores()) if self.algorithm == "auto" and self.workers is None else 1

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise OptionError(f"unknown algorithm {self.algorithm!r}{did_you_mean(str(self.algorithm), ALGORITHMS)}")
        for option, known in (("access", ACCESSES), ("overflow", OVERFLOWS), ("waiting", WAITINGS)):
            value = getattr(self, option)
            if value not in known:
                raise OptionError(f"unknown {option}={value!r}{did_you_mean(str(value), known)}")
        for option, least in (("workers", 1), ("batch_rows", 1), ("buffer_rows", 1), ("late_rows", 0)):
            value = getattr(self, option)
            if value is None and option == "workers":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{option}={value!r}: must be a positive integer{'' if least else ', or 0'}")
        if self.workers not in (None, 1) and self.sequential:
            raise OptionError(
                f"workers={self.workers}: {self.algorithm!r} is sequential; choose another algorithm, or 1"
            )
        for option in ("access", "waiting"):
            if self.algorithm == "auto" and getattr(self, option) != _default(option):
                raise OptionError(
                    f"{option}={getattr(self, option)!r} is for compiled algorithms, and 'auto' starts without a "
                    "compiler: choose one, such as algorithm='handshake'"
                )
        if not isinstance(self.symmetric, bool):
            raise OptionError(f"symmetric={self.symmetric!r}: use True or False")
        if self.progress is not None and not callable(self.progress):
            raise OptionError(f"progress={self.progress!r}: give a function of (rows done, rows in all, pairs found)")
        if self.symmetric and not (self.protocol and self.protocol.symmetric_form):
            raise OptionError(f"symmetric=True is a form of handshake join, not of {self.algorithm!r}")
        if self.checkpoint is not None:
            if not isinstance(self.checkpoint, str | os.PathLike) or not str(self.checkpoint):
                raise OptionError(f"checkpoint={self.checkpoint!r}: give a folder")
            if self.overflow != "block":
                raise OptionError(
                    f"overflow={self.overflow!r} drops what the next run could not drop in the same way, so it does "
                    "not go with checkpoint=: leave one of them out"
                )
        self._check_layout()

    def _check_layout(self) -> None:
        if self.layout is None:
            return
        if not (self.protocol and self.protocol.matrix):
            raise OptionError(f"layout={self.layout!r} is DP-Join's: use algorithm='dpjoin', not {self.algorithm!r}")
        if not isinstance(self.layout, str) or not LAYOUT.fullmatch(self.layout):
            raise OptionError(f"layout={self.layout!r}: write rows and columns, as in '2x3'")
        rows, columns = self.matrix
        if self.workers not in (None, rows * columns):
            raise OptionError(f"layout={self.layout!r} has {rows * columns} workers, not workers={self.workers}")

    def check_inputs(self, streaming: bool) -> None:
        """Refuse what has no effect on streams, or on tables."""
        if streaming and self.progress is not None:
            raise OptionError(
                "progress= is for tables, whose rows can be counted beforehand: of streams, joined.metrics() tells "
                "what was read and found"
            )
        for option in () if streaming else ("overflow", "buffer_rows", "late_rows", "checkpoint"):
            if getattr(self, option) != _default(option):
                raise OptionError(
                    f"{option}={getattr(self, option)!r} is for streams, and these inputs are tables, of which nothing "
                    "is buffered, late, dropped or resumed: leave it out, or join cf.stream(...)"
                )

    @property
    def driven(self) -> bool:
        """Whether a table goes through the algorithm's own nodes; for 'kang' only if something is said of them."""
        plain = self.access == _default("access") and self.waiting == _default("waiting")
        return not self.sequential or not plain

    @property
    def described(self) -> str:
        """The algorithm and its nodes, in a few words."""
        if self.sequential:
            return "algorithm kang"
        if self.layout is not None:
            return f"algorithm {self.algorithm}, layout {self.matrix[0]}x{self.matrix[1]}"
        return f"algorithm {self.algorithm}, {self.nodes} workers"

    @property
    def nodes(self) -> int:
        """The number of nodes that the algorithm has."""
        if self.sequential:
            return 1
        if self.layout is not None:
            return self.matrix[0] * self.matrix[1]
        return self.workers or len(usable_cores())

    @property
    def matrix(self) -> tuple[int, int]:
        """DP-Join's layout: as asked for, or as square as the workers allow. `lay_out` knows a join's windows."""
        if self.layout is not None:
            given = self.layout.lower().split("x")
            return int(given[0]), int(given[1])
        if not (self.protocol and self.protocol.matrix):
            return 1, 1
        return least_latency(self.nodes, Load(1, 1, 1, 1))


def _default(option: str) -> object:
    return Local.__dataclass_fields__[option].default
