"""What `auto` chooses for a scan of streams while it runs: one thread that deals scans out in calls, or nodes.

A call is dealt out over as many cores as its scan is worth (`PART_COMPARISONS` each), and the thread that drives waits
for it. LLHJ's nodes need no call: all of them scan while the driver brings the next tuples. So nodes win where
calls are too small to be dealt out over all cores: with small batches, or with many cores.

    time of a tuple, sequential    driving + joining
                     with nodes    the longer one of   driving   and   joining * threads / cores + NODES_S

`joining` is what calls take now, with `threads` of them at once. It is the scan only where a step compares much: what a
call costs beside that no core takes over, so small steps decide nothing, and neither do windows that still grow. What
is promised is measured after a change: where nodes are slower than calls were, `auto` goes back and stays there. An
index is asked by one thread in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

from counterflow.windows.compiled.compiled_window import PART_COMPARISONS

NODES_S = 0.5e-6  # what nodes take for a tuple beside its comparisons (docs/benchmarks.md: llhj)
GAIN_MIN = 1.3  # what a change has to promise: it costs bringing the windows to the other core
JOINING_MIN = 0.5  # of the time: otherwise something else holds the join up, or it waits for rows
IDLE_MAX = 0.3  # of what one thread could do: below it nodes are not needed
COMPARED_MIN = 1 << 22  # in a step: some 0.4 ms of scanning, several times what the calls of a step cost beside it
STEADY = 0.1  # windows that differ by less are of one size
WINDOW_ROWS = 4096  # taken for a window whose rows are not known beforehand


@dataclass(frozen=True)
class Seen:
    """What was seen of a join for a while: tuples, the steps they came in, and the pairs in their windows."""

    tuples: int
    steps: int
    compared: int
    seconds: float
    joining_s: float  # of these: in the core's `feed`, where nodes are waited for as well

    @property
    def joining(self) -> float:
        return self.joining_s / self.seconds

    @property
    def tuples_per_s(self) -> float:
        return self.tuples / self.seconds

    @property
    def window(self) -> float:
        """The rows that a tuple is compared with."""
        return self.compared / max(self.tuples, 1)

    def like(self, other: Seen) -> bool:
        """Return whether windows are as large as in another period."""
        return abs(self.window - other.window) <= STEADY * other.window

    def threads(self, cores: int) -> int:
        """Return how many threads a call was worth; each step has two, one for each window."""
        return min(cores, max(self.compared // (2 * self.steps * PART_COMPARISONS), 1))


def nodes_may_gain(cores: int, batch_rows: int, window_rows: int | None) -> bool:
    """Return whether the largest steps are too small to be dealt out over all cores; None: the window is not known."""
    return batch_rows * (window_rows or WINDOW_ROWS) < 2 * cores * PART_COMPARISONS


def gain_of_nodes(seen: Seen, cores: int) -> float:
    """Return how much faster nodes would be than the thread that was seen."""
    joining, driving = seen.joining_s / seen.tuples, (seen.seconds - seen.joining_s) / seen.tuples
    return (driving + joining) / max(driving, joining * seen.threads(cores) / cores + NODES_S)


def reason_for_nodes(seen: Seen, last: Seen, cores: int) -> str | None:
    """Return why a join in one thread should go on with nodes, from the last two periods; None: it should not."""
    if not seen.tuples or not seen.like(last) or seen.joining < JOINING_MIN:
        return None
    gain = gain_of_nodes(seen, cores)
    if gain < GAIN_MIN or seen.compared < COMPARED_MIN * seen.steps:
        return None
    return (
        f"scans of {seen.window:,.0f} rows in steps of {seen.tuples / seen.steps:,.0f} are worth "
        f"{seen.threads(cores)} of {cores} cores: nodes promise {gain:.1f} times the rate"
    )


def reason_for_one_thread(seen: Seen, before: Seen) -> str | None:
    """Return why a join with nodes should go back to one thread, which was seen `before`; None: it should not."""
    if seen.tuples_per_s * max(seen.window / before.window, 1) < IDLE_MAX * before.tuples_per_s:
        return "one thread suffices for what comes"
    if were_slower(seen, before):
        return "nodes were slower, as measured"
    return None


def were_slower(seen: Seen, before: Seen) -> bool:
    """Return whether nodes, with as much to do as they could, were slower than one thread with such windows."""
    return seen.joining >= JOINING_MIN and seen.like(before) and seen.tuples_per_s < before.tuples_per_s
