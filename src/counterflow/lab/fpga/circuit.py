"""A handshake join circuit as it is described before it is built: sizes, clocks, and what follows from them.

"SIGMOD" is Teubner and Mueller, "How Soccer Players Would do Stream Joins" (2011), Section 6; "A.2" and the like are
sections of the appendix of its first report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from counterflow.errors import OptionError

Admission = Literal["both", "either"]
Overload = Literal["wait", "discard_input", "drop_results"]

BRAM_FIFO_SLOTS = 1024  # a 36 kbit block RAM as a FIFO, at its widest (A.4)


@dataclass(frozen=True)
class Circuit:
    """Two windows, in rows, cut into a segment for each core; FIFOs and mergers for the results.

    `admission` says what may be shifted in at once: a tuple of each stream ("both"), or of one of them ("either").
    `overload` says what a throttle signal does: tuples wait before the chip, new tuples are discarded, or results that
    wait in the throttling cores' FIFOs are dropped.
    """

    cores: int
    left_window: int
    right_window: int
    admission: Admission = "both"
    overload: Overload = "wait"
    evaluators: int = 1  # predicate circuits for each scan of a core
    fifo_slots: int = BRAM_FIFO_SLOTS
    fan_in: int = 8
    clock_hz: int = 150_000_000  # of shift registers and cores
    merge_clock_hz: int = 150_000_000  # of the merging network

    def __post_init__(self) -> None:
        for name in ("cores", "evaluators", "clock_hz", "merge_clock_hz"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}={getattr(self, name)}: must be positive")
        if min(self.left_window, self.right_window) < self.cores:
            # A tuple that skips a core would pass opposite tuples there without meeting them.
            raise OptionError(f"{self.cores} cores need windows of at least {self.cores} rows: one for each core")
        if self.fan_in < 2:
            raise OptionError(f"fan_in={self.fan_in}: a merger reads from two FIFOs or more")
        if self.admission not in get_args(Admission):
            raise OptionError(f"admission={self.admission!r}: use one of {get_args(Admission)}")
        if self.overload not in get_args(Overload):
            raise OptionError(f"overload={self.overload!r}: use one of {get_args(Overload)}")
        if self.fifo_slots < self.reserve:
            raise OptionError(f"fifo_slots={self.fifo_slots}: a core may find {self.reserve} results in one scan")

    @property
    def segment_rows(self) -> tuple[int, int]:
        """The largest segment of each window: ⌈W/n⌉."""
        return -(-self.left_window // self.cores), -(-self.right_window // self.cores)

    @property
    def cycles_per_tuple(self) -> int:
        """The cycles of one scan: max(⌈W_R/n⌉, ⌈W_S/n⌉), less with several evaluators (A.2)."""
        return -(-max(self.segment_rows) // self.evaluators)

    @property
    def tuples_per_s(self) -> float:
        """The throughput by the formula (A.5): each stream's if both are admitted at once, otherwise both streams'."""
        return self.clock_hz / self.cycles_per_tuple

    @property
    def reserve(self) -> int:
        """The free FIFO entries below which a core throttles: as many as it may find in the next scan (A.3)."""
        return sum(self.segment_rows) if self.admission == "both" else max(self.segment_rows)

    @property
    def selectivity_max(self) -> float:
        """The share of compared pairs that may match before results leave the chip too slowly for its throughput."""
        compared = self.left_window + self.right_window  # by a tuple of each stream, in one scan or in two
        scans = 1 if self.admission == "both" else 2
        return min(1.0, scans * self.merge_clock_hz / self.tuples_per_s / compared)

    @property
    def levels(self) -> list[int]:
        """FIFOs on each level of the merging network, from the cores' own to the one at the top."""
        widths = [self.cores]
        while widths[-1] > 1:
            widths.append(-(-widths[-1] // self.fan_in))
        return widths

    @property
    def fifos(self) -> int:
        """All result FIFOs: one for each core and one for each merger (A.4)."""
        return sum(self.levels)

    def segments(self) -> tuple[list[int], list[int]]:
        """Return the segments' borders in each shift register, from its entry: core k has rows [k] to [k + 1].

        The right stream enters at the last core: there, [k] belongs to the k-th core from the right.
        """
        left = [k * self.left_window // self.cores for k in range(self.cores + 1)]
        return left, [k * self.right_window // self.cores for k in range(self.cores + 1)]
