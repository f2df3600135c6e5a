"""Threads that race in compiled loops without the GIL, apart or on one core."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from counterflow.jit import compiled
from counterflow.lockfree.atomics import fetch_add, load_acquire, pause, yield_thread
from counterflow.lockfree.waiting import waiter_size

HANG_S = 120
WAITER = waiter_size()
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
APART, ONE_CORE = "apart", "one core"
PLACES = [APART, ONE_CORE] if CORES else [APART]


def loop(function: Callable) -> Callable:
    """Compiled and cached. The package's digest does not cover tests, so this file's content is in the name."""
    text = Path(function.__code__.co_filename).read_bytes() + Path(__file__).read_bytes()
    function.__qualname__ += "_" + hashlib.sha256(text).hexdigest()[:16]
    return compiled(function)


def run_together(*calls: Callable[[], object], place: str = APART) -> list:
    """Each call in a thread of its own, on all cores in turn: left alone, the system may keep them on one.

    A thread that does not end is a failure, not a hang.
    """
    results: list = [None] * len(calls)
    failures: list[BaseException] = []
    begin = threading.Barrier(len(calls))

    def run(k: int) -> None:
        try:
            if CORES:  # of this thread alone
                os.sched_setaffinity(0, [CORES[k % len(CORES) if place == APART else 0]])
            begin.wait()
            results[k] = calls[k]()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + HANG_S
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    return results


@loop
def wait_for(words, i, value):
    """Until words[i] is at least `value`; fair to a thread on the same core."""
    turn = 0
    while load_acquire(words, i) < value:
        turn += 1
        if turn % 100 == 0:
            yield_thread()
        else:
            pause()


@loop
def line_up(words, i, threads):
    """Wait until words[i] threads are there: Python starts them one by one, and a short loop would soon be over."""
    fetch_add(words, i, 1)
    wait_for(words, i, threads)
