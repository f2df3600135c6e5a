"""The in-process engine's two entries: `join_tables` (Arrow in, Arrow out) and `join_streams`.

Finite tables are joined here, at once; streams in the threads of a `stream_join`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from counterflow.cores import start_thread
from counterflow.engines.local.checkpoint import CheckpointFolder
from counterflow.engines.local.core import make_core
from counterflow.engines.local.input.sources import open_side
from counterflow.engines.local.matrix import lay_out, rows_of
from counterflow.engines.local.options import Local, Progress
from counterflow.engines.local.order import sorting
from counterflow.engines.local.output.joined import JoinedStream
from counterflow.engines.local.stamps import StampedTables, stamp_tables
from counterflow.engines.local.stream_join import StreamJoin
from counterflow.spec.join_spec import JoinSpec, build_spec
from counterflow.spec.window_sizes import WindowPair, rows
from counterflow.windows.gather import gather
from counterflow.windows.store import COMPILE_AFTER, Batch, WindowStore
from counterflow.windows.two_windows import TwoWindows
from counterflow.windows.vectors import Array

COLLECT_S = 0.1  # how long to wait for results at once: an interrupt waits as long
STOP_S = 1.0  # how long threads are waited for that were stopped
Meet = Callable[[Batch, Batch], Iterator[tuple[Array, Array]]]
Result = TypeVar("Result")
FindPairs = Callable[[JoinSpec, StampedTables, Local], tuple[Array, Array]]  # row numbers of the tables


def join_streams(left: Any, right: Any, options: dict[str, Any], engine: Local) -> JoinedStream:
    """Join two sides, one or both of them streams; check as much of the options as the known schemas allow."""
    _check_options(options)
    folder = None if engine.checkpoint is None else CheckpointFolder(engine.checkpoint)
    if folder is not None:
        options = {**options, "ordered": True}  # so that they are the same in each run
    try:
        left_sources, left_columns = open_side(left, "left", folder)
        right_sources, right_columns = open_side(right, "right", folder)
        plan = partial(build_spec, streaming=True, **options)
        columns = left_columns, right_columns
        join = StreamJoin(left_sources + right_sources, columns, plan, engine, options["ordered"], folder)
    except BaseException:
        if folder is not None:
            folder.close()
        raise
    return JoinedStream(join)


def _check_options(options: dict[str, Any]) -> None:
    """Raise an error for what is wrong whatever the columns are."""
    window = options["window"]
    sizes = (window.left, window.right) if isinstance(window, WindowPair) else window
    sizes = sizes if isinstance(sizes, tuple | list) else (sizes, sizes)
    # A side may be a table, which its columns tell: then no window is needed.
    beside_table = isinstance(options["time"], tuple | list) and None in options["time"]
    bounds = window
    if len(sizes) == 2:
        bounds = tuple(None if size is None and not beside_table else rows(1) for size in sizes)
    some = pa.schema({"t": pa.int64()})
    build_spec(some, some, streaming=True, **{**options, "where": "true", "time": "t", "window": bounds})


def join_tables(
    spec: JoinSpec, left: pa.Table, right: pa.Table, engine: Local, find_pairs: FindPairs | None = None
) -> pa.Table:
    """Join two tables. `find_pairs` replaces the threads, for the simulator."""
    stamped = stamp_tables(spec, left, right)
    left_rows, right_rows = (find_pairs or _find_pairs)(spec, stamped, engine)
    left_rows, right_rows, pair_time = _apply_how(spec, stamped, left_rows, right_rows)
    if spec.ordered:
        order = _order(stamped, left_rows, right_rows, pair_time)
        left_rows, right_rows, pair_time = left_rows[order], right_rows[order], pair_time[order]
    return gather(spec, left, right, left_rows, right_rows, pair_time)


def _find_pairs(spec: JoinSpec, stamped: StampedTables, engine: Local) -> tuple[Array, Array]:
    """Drive the tuples, in order and in batches, through Kang's procedure; or through the algorithm asked for."""
    if engine.driven:
        return _find_pairs_by_core(spec, stamped, lay_out(engine, spec, rows_of(stamped)))
    left_rows, right_rows = (rows + min(engine.batch_rows, stamped.total) for rows in stamped.window_rows())
    large = stamped.total >= COMPILE_AFTER
    join = TwoWindows(
        spec.predicate,
        spec.parts,
        (left_rows, right_rows),
        threads=max(engine.threads // 2, 1),
        compile_after=0 if large else COMPILE_AFTER,
    )
    progress = _Progress(engine.progress, stamped.total)

    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        join.stop()

    def through(window: WindowStore, meet: Meet) -> list[tuple[Array, Array]]:
        found: list[tuple[Array, Array]] = []
        for begin in range(0, stamped.total, engine.batch_rows):
            if stopped.is_set():
                break
            end = min(begin + engine.batch_rows, stamped.total)
            new = list(meet(*stamped.batch(begin, end)))
            found += new
            window.expire(stamped.horizons(end)[0 if window is join.left else 1])
            progress.advance(end - begin, sum(len(part[0]) for part in new))
        return found

    calls = [partial(through, join.right, join.meet_right_window), partial(through, join.left, join.meet_left_window)]
    if not large:
        halves = [call() for call in calls]
    elif engine.threads > 1:
        halves = _at_once(calls, stop)
    else:
        halves = _at_once([lambda: [call() for call in calls]], stop)[0]
    found = [(np.empty(0, np.int64), np.empty(0, np.int64)), *halves[0], *halves[1]]
    return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])


def _at_once(calls: Sequence[Callable[[], Result]], stop: Callable[[], None]) -> list[Result]:
    """Return what the calls return, each in a thread of its own; an interrupt, or an error in one, stops the others.

    Only the main thread is interrupted, so it does nothing but wait: what is compiled, or runs as machine code, would
    keep the interrupt waiting. The threads are daemons, as one that compiles cannot be stopped.
    """
    results: dict[int, Result] = {}
    failures: list[BaseException] = []

    def run(i: int) -> None:
        try:
            results[i] = calls[i]()
        except BaseException as error:
            failures.append(error)
            stop()

    threads = [threading.Thread(target=run, args=(i,), name="counterflow half", daemon=True) for i in range(len(calls))]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            start_thread(thread, "join")
            started.append(thread)
        for thread in started:
            thread.join()
    except BaseException:
        stop()
        deadline = time.monotonic() + STOP_S
        for thread in started:
            thread.join(max(deadline - time.monotonic(), 0))
        raise
    if failures:
        raise failures[0]
    return [results[i] for i in range(len(calls))]


def _find_pairs_by_core(spec: JoinSpec, stamped: StampedTables, engine: Local) -> tuple[Array, Array]:
    stopped = threading.Event()
    left, right = _at_once([lambda: _collected(spec, stamped, engine, stopped)], stopped.set)[0]
    return stamped.left.rows[left], stamped.right.rows[right]


def _collected(spec: JoinSpec, stamped: StampedTables, engine: Local, stopped: threading.Event) -> tuple[Array, Array]:
    """Return all pairs, as numbers, that the core finds; some of them if it is stopped."""
    core = make_core(spec, engine, stamped.window_rows())
    failures: list[BaseException] = []

    def drive() -> None:
        try:
            for begin in range(0, stamped.total, engine.batch_rows):
                if core.finished:  # closed
                    return
                end = min(begin + engine.batch_rows, stamped.total)
                core.feed(*stamped.batch(begin, end))
                core.expire(*stamped.horizons(end))
            core.finish()
        except BaseException as error:
            failures.append(error)
            core.close()

    driver = threading.Thread(target=drive, name="counterflow-driver", daemon=True)
    found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    pairs = 0
    try:
        start_thread(driver, "join")
        while not (core.finished or stopped.is_set()):
            new = core.collect(COLLECT_S)
            if new is not None:
                found.append((new.left, new.right))
                pairs += len(new.left)
                if engine.progress is not None:
                    engine.progress(sum(new.complete), stamped.total, pairs)
    finally:
        core.close()
        if driver.ident is not None:
            driver.join()
    if failures:
        raise failures[0]
    return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])


class _Progress:
    """The progress through both windows: a row is done when it has gone through both."""

    def __init__(self, report: Progress | None, total: int) -> None:
        self.report, self.total = report, total
        self.steps = self.pairs = 0
        self.lock = threading.Lock()

    def advance(self, rows: int, pairs: int) -> None:
        with self.lock:
            self.steps, self.pairs = self.steps + rows, self.pairs + pairs
            if self.report is not None:
                self.report(self.steps // 2, self.total, self.pairs)


def _apply_how(
    spec: JoinSpec, stamped: StampedTables, left_rows: Array, right_rows: Array
) -> tuple[Array, Array, Array]:
    """Turn pairs into results: keep them, or their left rows once, and add the rows that have no pair."""
    left_time, right_time = stamped.times
    pair_time = np.maximum(left_time[left_rows], right_time[right_rows])
    unmatched_left = _absent(left_rows, len(left_time)) if spec.pads_left else np.empty(0, np.int64)
    unmatched_right = _absent(right_rows, len(right_time)) if spec.pads_right else np.empty(0, np.int64)
    if spec.how == "semi":  # the first of each left row's pairs
        order = np.lexsort((pair_time, left_rows))
        first = order[np.unique(left_rows[order], return_index=True)[1]]
        left_rows, pair_time = left_rows[first], pair_time[first]
        right_rows = np.full(len(first), -1)
    elif spec.how == "anti":
        left_rows, right_rows, pair_time = left_rows[:0], right_rows[:0], pair_time[:0]
    return (
        np.concatenate([left_rows, unmatched_left, np.full(len(unmatched_right), -1)]),
        np.concatenate([right_rows, np.full(len(unmatched_left), -1), unmatched_right]),
        np.concatenate([pair_time, left_time[unmatched_left], right_time[unmatched_right]]),
    )


def _absent(rows: Array, n: int) -> Array:
    """Return the row numbers below n that are not among `rows`."""
    present = np.zeros(n, bool)
    present[rows] = True
    return np.flatnonzero(~present)


def _order(stamped: StampedTables, left_rows: Array, right_rows: Array, pair_time: Array) -> Array | slice:
    """Return what puts results in order: ascending (pair_time, later tuple, earlier tuple)."""
    ranks = stamped.ranks()
    left_rank = np.append(ranks[0], -1)[left_rows]  # row -1, the missing side, ranks first
    right_rank = np.append(ranks[1], -1)[right_rows]
    return sorting(np.minimum(left_rank, right_rank), np.maximum(left_rank, right_rank), pair_time)
