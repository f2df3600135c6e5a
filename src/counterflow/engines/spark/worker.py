"""What every Python worker that runs our code should do once."""

from __future__ import annotations

import gc

SETTLE_CALLS = 4  # imports, then kernels: after the first tasks of a worker nothing large is loaded any more

_calls = 0


def settle_worker() -> None:
    """Take what is loaded by now out of the garbage collector's sight.

    Spark collects all garbage in a worker after each task: with numba and pandas loaded that takes 70 ms, as long as
    the task itself. What lives as long as the process need not be looked at again.
    """
    global _calls
    if _calls < SETTLE_CALLS:
        _calls += 1
        gc.collect()
        gc.freeze()
