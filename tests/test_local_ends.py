"""Finite joins that end before their end: by Ctrl-C, for want of a thread, and in a process that was forked off.

No test measures time: a join that would run for hours is interrupted, so that it cannot have run to its end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.engines.local import engine as finite
from live import LEFT, NEAR, RIGHT, batch, ours, wait_until
from live import table as table_of

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
    import sys, threading
    import numpy as np, pyarrow as pa
    import counterflow as cf

    def join(where, algorithm, batch_rows, rows=4_000_000):
        random = np.random.default_rng(1)
        tables = (pa.table({"t": np.arange(rows), "x": random.random(rows)}) for _ in range(2))
        progress = lambda done, total, pairs: print("ready", flush=True)
        engine = cf.Local(algorithm=algorithm, batch_rows=batch_rows, progress=progress)
        cf.window_join(*tables, where=where, time="t", window=rows, engine=engine)
        print("ran to the end")

    where, algorithm, batch_rows = sys.argv[1:]
    try:
        join(where, algorithm, int(batch_rows))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("where", "algorithm", "batch_rows"),
    [
        ("l.x * r.x > 2", "auto", 1 << 16),  # compiled, without an index
        ("l.x * r.x > 2", "kang", 1 << 16),
        ("l.x * r.x > 2", "llhj", 1 << 16),
        ("concat(CAST(l.x AS STRING), CAST(r.x AS STRING)) LIKE '%z'", "auto", 64),  # with numpy, which is slow
    ],
)
def test_an_interrupt_ends_a_large_join(where, algorithm, batch_rows):
    """16 million million comparisons: hours of them. The first batches are through when it is interrupted."""
    arguments = [textwrap.dedent(SCRIPT), where, algorithm, str(batch_rows)]
    process = subprocess.Popen([sys.executable, "-c", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=200)
    assert out.replace("ready\n", "") == "interrupted\n"
    assert process.returncode == 0


def test_an_error_in_one_thread_stops_the_other():
    """A table's two windows are searched at the same time: the error of one is not kept until the other is done."""
    stopped = threading.Event()

    def failing():
        raise cf.EvaluationError("division by zero")

    with pytest.raises(cf.EvaluationError, match="division by zero"):
        finite._at_once([lambda: stopped.wait(100), failing], stopped.set)


# --- threads that do not start


class NoMoreThreads:
    """Lets this many of our threads start."""

    def __init__(self, monkeypatch, count: int) -> None:
        self.left, self._start = count, threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self.start(thread))

    def start(self, thread: threading.Thread) -> None:
        if thread.name.startswith("counterflow"):
            if not self.left:
                raise RuntimeError("can't start new thread")
            self.left -= 1
        self._start(thread)


@pytest.mark.parametrize("algorithm", ["celljoin", "handshake", "llhj", "dpjoin", "scalejoin"])
@pytest.mark.parametrize("streaming", [False, True])
def test_threads_that_started_end_when_one_does_not(monkeypatch, algorithm, streaming):
    """Each place in turn at which the next thread is refused: one clear error, and nothing is left running."""
    engine = cf.Local(algorithm=algorithm, workers=4)
    refused = 0
    for count in range(20):
        with monkeypatch.context() as patch:
            NoMoreThreads(patch, count)
            left, right = (cf.stream(LEFT), cf.stream(RIGHT)) if streaming else (table_of(*LEFT), table_of(*RIGHT))
            try:
                found = cf.window_join(left, right, engine=engine, **NEAR)
                rows = sum(part.num_rows for part in found) if streaming else found.num_rows
            except cf.UnsupportedError as error:
                assert "starts no more (can't start new thread): " in str(error) and "ulimit -u" in str(error)
                refused += 1
            else:
                assert rows == 20
                break
            wait_until(lambda: not ours())
    assert refused == (7 if streaming else 6)  # four nodes and a driver; two readers, or the thread that collects


def test_a_large_table_and_no_threads(monkeypatch):
    """The two threads that search its windows."""
    monkeypatch.setattr(finite, "COMPILE_AFTER", 1)
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "never")
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    rows = pa.Table.from_batches([batch(range(100))])
    for count in range(2):
        with monkeypatch.context() as patch:
            NoMoreThreads(patch, count)
            with pytest.raises(cf.UnsupportedError, match=r"the join needs another thread.*can't start new thread"):
                cf.window_join(rows, rows, **NEAR)
        wait_until(lambda: not ours())
    assert np.array_equal(np.sort(cf.window_join(rows, rows, **NEAR)["id"].to_numpy()), np.arange(100))
