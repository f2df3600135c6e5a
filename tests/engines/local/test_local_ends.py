"""Finite joins that end before their end: by Ctrl-C, for want of a thread, and in a process that was forked off.

No test measures time: a join that would run for hours is interrupted, so that it cannot have run to its end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from functools import cached_property

import numpy as np
import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.engines.local import engine as finite
from counterflow.windows.compiled.build import Kernels
from live import LEFT, NEAR, RIGHT, batch, ours, wait_until
from live import table as table_of

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
    import os, sys, threading
    import numpy as np, pyarrow as pa
    import counterflow as cf

    def join(where, algorithm, batch_rows, rows=4_000_000):
        random = np.random.default_rng(1)
        tables = (pa.table({"t": np.arange(rows), "x": random.random(rows)}) for _ in range(2))
        progress = lambda done, total, pairs: os.write(1, b"ready\\n")  # at once: an interrupt may cut print() short
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
    carriers = 2 if streaming and algorithm == "scalejoin" else 0  # to its gate
    # Four nodes and a driver; two readers, or the thread that collects.
    assert refused == (7 if streaming else 6) + carriers


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


# --- forks


FORKED = """
    import os, signal, sys, threading, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
    import pyarrow as pa
    import counterflow as cf

    SCHEMA = pa.schema({"x": pa.int64(), "t": pa.int64()})

    def rows(n):
        return pa.table([list(range(n)), list(range(n))], schema=SCHEMA)

    def join(where):
        return cf.window_join(rows(50), rows(50), where=where, time="t", window=100).num_rows

    def forked(work):
        # Its answer; a child that hangs is ended by its alarm.
        child = os.fork()
        if child == 0:
            signal.alarm(100)
            try:
                say(work())
            finally:
                os._exit(0)
        return os.waitpid(child, 0)[1]

    def say(what):
        os.write(1, f"{what}\\n".encode())  # a line at once: another process or thread may write beside it
"""


def run_forking(code: str, **environment: str) -> list[str]:
    script = textwrap.dedent(FORKED) + textwrap.dedent(code)
    found = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=250,
        env={**os.environ, **environment},
    )
    return found.stdout.split("\n")[:-1]


def test_a_fork_while_another_thread_compiles(tmp_path):
    """The child compiles too, really: it has inherited no lock, and the compiler's state is whole."""
    tmp_path.chmod(0o700)
    out = run_forking(
        """
        from counterflow.windows.compiled import build
        thread = threading.Thread(target=lambda: say(join("l.x = r.x + 1")))
        thread.start()
        while not build.TIMES.lock.locked():
            time.sleep(0.001)
        say(forked(lambda: join("l.x = r.x + 2")))
        thread.join()
        """,
        COUNTERFLOW_CACHE_DIR=str(tmp_path),
        COUNTERFLOW_COMPILE="always",
    )
    assert sorted(out) == ["0", "48", "49"]


def test_a_fork_while_any_lock_of_the_compiler_is_held():
    """It waits for each of them, whoever has it; and they are free in both processes then."""
    out = run_forking(
        """
        import numba
        from counterflow.windows.compiled import build
        from counterflow.windows.compiled import forking
        real = list(forking._locks())

        class Watched:  # says that the fork is waiting
            def __init__(self, lock):
                self.lock, self.release = lock, lock.release

            def acquire(self, timeout):
                waits.set()
                return self.lock.acquire(timeout=timeout)

        forking._locks = lambda: map(Watched, real)

        def hold(lock):
            with lock:
                taken.set()
                waits.wait(100)

        def all_free():
            return all(lock.acquire(timeout=50) for lock in real) and [lock.release() for lock in real] != []

        for lock in real:
            taken, waits = threading.Event(), threading.Event()
            thread = threading.Thread(target=hold, args=(lock,))
            thread.start()
            taken.wait()
            print(forked(all_free), flush=True)
            waits.set()
            thread.join()
            print(all_free(), flush=True)
        """
    )
    kernels = [value for value in vars(Kernels).values() if isinstance(value, cached_property)]
    assert len(kernels) == 6
    locked = sum(hasattr(value, "lock") for value in kernels)  # until Python 3.11
    assert out == ["True", "0", "True"] * (locked + 4)  # and of imports, kernels, numba and LLVM


def test_a_joined_stream_in_a_forked_process():
    """Its threads are in the parent: taking results there is an error, ending it changes nothing for the parent."""
    out = run_forking(
        """
        import itertools
        def endless():
            for n in itertools.count():
                yield rows(1).set_column(1, "t", [[n]])
        joined = cf.window_join(cf.stream(endless()), cf.stream(endless()), where="l.x = r.x", time="t", window=5)
        next(joined)

        def take():
            try:
                next(joined)
            except cf.InputError as error:
                joined.close()
                return str(error)

        print(forked(take), next(joined).num_rows > 0, flush=True)
        child = os.fork()
        if child == 0:
            signal.alarm(100)
            sys.exit(7)  # with all that runs at the end of a program
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), next(joined).num_rows > 0, flush=True)
        joined.close()
        """,
        COUNTERFLOW_COMPILE="never",
    )
    assert "forked off" in out[0]
    assert out[1:] == ["0 True", "7 True"]
