"""What every Python worker that runs our code does: settle once, and say clearly what went wrong."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

from pyspark import TaskContext

from counterflow.errors import CounterflowError

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


def readable(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return a function whose `CounterflowError`s come without the traceback of PySpark's worker.

    Such an error names what is at fault and says what to do; twenty lines of frames before it would hide that. Errors
    of any other kind keep their traceback: a worker ends with its first error, so the variable, which PySpark reads
    when it sends an error to Spark, concerns no other one.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Iterator[Any]:
        try:
            yield from function(*args, **options)
        except CounterflowError:
            if TaskContext.get() is not None:  # in a worker, not in a test that drives the operator
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return wrapped
