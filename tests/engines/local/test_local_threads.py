"""Streams in process: their threads end whatever happens, and their buffers are bounded.

No test measures time; what waits, waits for an event, and a hang fails after a minute.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import queue
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.engines.local import join_threads
from counterflow.engines.local import stream_join as lifecycle
from counterflow.engines.local.input import sources
from counterflow.engines.local.input.intake import Intake
from counterflow.engines.local.input.sources import open_side
from live import (
    LEFT,
    NEAR,
    RIGHT,
    SCHEMA,
    WAIT_SECONDS,
    batch,
    endless,
    failing,
    ids_of,
    ours,
    table,
    threads_end,  # noqa: F401  runs after each test
    wait_until,
)
from oracle import HOWS

pytestmark = pytest.mark.timeout(60)


# --- the end of threads


def test_close_in_the_middle():
    closed = [threading.Event(), threading.Event()]
    with cf.window_join(*(cf.stream(endless(closed=c)) for c in closed), **NEAR) as joined:
        assert next(joined).num_rows
        assert ours()
    assert not ours() and all(c.is_set() for c in closed)
    assert next(joined, None) is None
    joined.close()


def test_close_before_the_start():
    closed = threading.Event()
    source = endless(closed=closed)
    next(source)
    joined = cf.window_join(cf.stream(source, schema=SCHEMA), cf.stream(RIGHT), **NEAR)
    joined.close()
    assert closed.is_set() and list(joined) == [] and not ours()


def test_close_from_another_thread():
    """While the consumer waits for a result that never comes."""
    joined = cf.window_join(cf.stream(queue.Queue(), schema=SCHEMA), cf.stream(queue.Queue(), schema=SCHEMA), **NEAR)
    got = []
    consumer = threading.Thread(target=lambda: got.append(list(joined)))
    consumer.start()
    wait_until(lambda: len(ours()) == 3)
    joined.close()
    consumer.join(WAIT_SECONDS)
    assert got == [[]]


def test_close_while_a_schema_is_waited_for():
    joined = cf.window_join(cf.stream(queue.Queue()), cf.stream(queue.Queue()), **NEAR)
    consumer = threading.Thread(target=lambda: list(joined))
    consumer.start()
    wait_until(ours)
    joined.close()
    consumer.join(WAIT_SECONDS)
    assert not consumer.is_alive()


def test_garbage_collection_ends_it():
    closed = [threading.Event(), threading.Event()]
    for _ in cf.window_join(*(cf.stream(endless(closed=c)) for c in closed), **NEAR):
        break  # the only reference was the loop's
    gc.collect()
    assert all(c.wait(WAIT_SECONDS) for c in closed)


def test_closing_its_punctuated_results_ends_it():
    """The generator has the only reference to the join."""
    closed = [threading.Event(), threading.Event()]
    punctuated = cf.window_join(*(cf.stream(endless(closed=c)) for c in closed), **NEAR).punctuated()
    next(punctuated)
    assert ours() and not any(c.is_set() for c in closed)
    punctuated.close()
    gc.collect()
    assert all(c.wait(WAIT_SECONDS) for c in closed)
    wait_until(lambda: not ours())


def test_garbage_in_a_cycle_is_collected_too():
    closed = threading.Event()
    cycle = [cf.window_join(cf.stream(endless(closed=closed)), cf.stream(endless()), **NEAR)]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert closed.wait(WAIT_SECONDS)


def test_an_error_in_the_consumer():
    closed = threading.Event()

    def consume():
        with cf.window_join(cf.stream(endless(closed=closed)), cf.stream(endless()), **NEAR) as joined:
            for _ in joined:
                raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        consume()
    assert closed.is_set()


def test_closing_a_chain_closes_all_of_it():
    closed = [threading.Event() for _ in range(3)]
    a, b, c = (cf.stream(endless(closed=event)) for event in closed)
    inner = cf.window_join(a, b, ordered=True, **NEAR)
    outer = cf.window_join(inner, c, where="l.id = r.id", time=(None, "t"), window=10, suffix="_c")
    next(outer)
    outer.close()
    assert all(event.wait(WAIT_SECONDS) for event in closed)


def test_an_asynchronous_source_is_cancelled():
    ended = threading.Event()

    async def silent():
        try:
            yield LEFT[0]
            await asyncio.Event().wait()
        finally:
            ended.set()

    joined = cf.window_join(cf.stream(silent()), cf.stream(endless()), **NEAR)
    next(joined)
    joined.close()
    assert ended.is_set() and not ours()


def test_a_source_that_does_not_return_does_not_hang_close(monkeypatch):
    """Nobody can stop it; its thread ends when it does."""
    monkeypatch.setattr(lifecycle, "CLOSE_SECONDS", 0.01)
    release, closed = threading.Event(), threading.Event()

    def stuck():
        try:
            yield LEFT[0]
            release.wait(WAIT_SECONDS)
            yield LEFT[1]
        finally:
            closed.set()

    joined = cf.window_join(cf.stream(stuck()), cf.stream(endless()), **NEAR)
    next(joined)
    joined.close()
    assert len(ours()) == 1 and not closed.is_set()
    release.set()
    assert closed.wait(WAIT_SECONDS)


def test_close_does_not_wait_for_a_source_that_waits(monkeypatch):
    """However long threads may take: one that has waited in its source's code for a while will not notice."""
    monkeypatch.setattr(lifecycle, "CLOSE_SECONDS", 1e6)
    release = threading.Event()

    def stuck():
        yield LEFT[0]
        release.wait(WAIT_SECONDS)

    joined = cf.window_join(cf.stream(stuck()), cf.stream(endless()), **NEAR)
    next(joined)
    joined.close()
    assert [thread.name for thread in ours()] == ["counterflow reader of the left stream"]
    release.set()


@pytest.mark.parametrize("kind", [queue.Queue, queue.LifoQueue, queue.PriorityQueue])
def test_close_wakes_a_reader_of_a_queue(monkeypatch, kind):
    """It need not look again by itself."""
    monkeypatch.setattr(sources, "POLL_SECONDS", 1e6)
    monkeypatch.setattr(lifecycle, "CLOSE_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr(join_threads, "SOURCE_SECONDS", WAIT_SECONDS)
    items = kind()
    joined = cf.window_join(cf.stream(items), cf.stream(endless()), **NEAR)
    items.put(LEFT[0])
    next(joined)
    joined.close()
    assert not ours()
    items.put(LEFT[1])  # nobody takes it
    assert items.qsize() == 1


def test_a_queue_whose_lock_is_taken_does_not_hang_close():
    """Garbage collection may stop a join in a thread that is just putting something into its queue."""
    items = queue.Queue()
    joined = cf.window_join(cf.stream(items, schema=SCHEMA), cf.stream(endless()), **NEAR)
    items.put(LEFT[0])
    next(joined)
    with items.mutex:
        joined.stop()
    wait_until(lambda: not ours())


SCRIPT = """
    import queue, sys, threading
    import pyarrow as pa
    import counterflow as cf

    def endless(pause):
        try:
            n = 0
            while True:
                yield pa.record_batch({"id": [n], "t": [n]})
                n += 1
                if n == 10:
                    print("ready", flush=True)
                if pause:
                    threading.Event().wait(pause if n > 5 else 0)
        finally:
            print("closed", flush=True)

    def join(pause):
        streams = cf.stream(endless(pause)), cf.stream(endless(0))
        return cf.window_join(*streams, where="l.id = r.id", time="t", window=10)
"""


def run_script(code: str, interrupt: bool = False) -> tuple[int, str, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT) + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if interrupt:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_SECONDS)
    return process.returncode, out, err


def test_interrupt():
    """Ctrl-C while the consumer waits for a batch: its threads end, the generators are closed."""
    code, out, err = run_script(
        """
        schema = pa.schema({"id": pa.int64(), "t": pa.int64()})
        left, right = (cf.stream(queue.Queue(), schema=schema) for _ in range(2))
        joined = cf.window_join([left, cf.stream(endless(0))], right, where="l.id = r.id", time="t", window=10)
        try:
            next(joined)
        except KeyboardInterrupt:
            print("interrupted", len(threading.enumerate()), flush=True)
        """,
        interrupt=True,
    )
    assert (code, out, err) == (0, "closed\ninterrupted 1\n", "")


@pytest.mark.parametrize(
    ("code", "closed"),
    [
        ("joined = join(0); next(joined)", 2),  # a reference is kept until the end
        ("next(join(0))", 2),
        ("joined = join(0); next(joined); sys.exit(0)", 2),
        ("joined = join(1000); next(joined)", 1),  # a source that does not return
    ],
)
def test_interpreter_exit(code, closed):
    status, out, err = run_script(code)
    assert (status, out.count("closed"), err) == (0, closed, "")


# --- bounds


def test_a_slow_consumer_holds_the_sources_back():
    """Each buffer holds `buffer_rows`: what was read, what is ahead, what is joined; and the batch in hand."""
    asked = [[], []]
    engine = cf.Local(buffer_rows=100)
    joined = cf.window_join(*(cf.stream(endless(asked=a)) for a in asked), engine=engine, **NEAR)
    got: list[int] = []
    for _ in range(20):
        got += next(joined)["id"].to_pylist()
        wait_until(lambda: min(joined.metrics()[f"queued_rows_{side}"] for side in ("left", "right")) == 100)
        for a in asked:
            assert sum(a) <= len(got) + 100 * 5 + 20
    assert got == list(range(len(got)))
    joined.close()


def test_a_fast_source_waits_for_a_slow_one():
    """The left stream is not read ahead of the right one by more than the buffers."""
    asked, slow = [], queue.Queue()
    joined = cf.window_join(
        cf.stream(endless(asked=asked)), cf.stream(slow, schema=SCHEMA), engine=cf.Local(buffer_rows=100), **NEAR
    )
    consumer = threading.Thread(target=lambda: list(joined))
    consumer.start()
    wait_until(lambda: joined.metrics()["waiting_rows_left"] >= 100)
    assert sum(asked) <= 100 * 3 + 20
    slow.put(batch([500]))
    wait_until(lambda: sum(asked) >= 500)
    assert sum(asked) <= 500 + 100 * 3 + 20
    joined.close()
    consumer.join(WAIT_SECONDS)


def test_drop_newest():
    """A source that sends more than is taken loses batches, and every row is counted."""
    slow = queue.Queue()
    finished = threading.Event()

    def burst():
        yield from (batch(range(n, n + 10)) for n in range(0, 1000, 10))
        finished.set()

    engine = cf.Local(overflow="drop_newest", buffer_rows=50)
    joined = cf.window_join(cf.stream(burst()), cf.stream(slow, schema=SCHEMA), how="left", engine=engine, **NEAR)
    got: list[int] = []
    consumer = threading.Thread(target=lambda: got.extend(ids_of(joined)))
    consumer.start()
    assert finished.wait(WAIT_SECONDS)  # it never had to wait
    slow.put(None)
    consumer.join(WAIT_SECONDS)
    metrics = joined.metrics()
    assert metrics["dropped_left"] > 0 and metrics["dropped_right"] == 0
    assert len(got) == metrics["rows_left"] == 1000 - metrics["dropped_left"]
    # A table can wait: nothing of it is dropped.
    small = cf.Local(overflow="drop_newest", buffer_rows=1)
    assert sorted(ids_of(cf.window_join(table(*LEFT), table_beside_streams(), engine=small, **NEAR))) == list(range(20))


def table_beside_streams():
    """The right side: a table as well, and a stream that has nothing to add."""
    return [table(*RIGHT), cf.stream([], schema=SCHEMA)]


def test_drop_results():
    """Results that nobody takes are dropped and counted; the sources do not wait."""
    finished = threading.Event()

    def burst(done=None):
        yield from (batch(range(n, n + 10)) for n in range(0, 5000, 10))
        if done:
            done.set()

    engine = cf.Local(overflow="drop_results", buffer_rows=100)
    joined = cf.window_join(cf.stream(burst(finished)), cf.stream(burst()), engine=engine, **NEAR)
    got = next(joined)["id"].to_pylist()
    assert finished.wait(WAIT_SECONDS)
    got += ids_of(joined)
    metrics = joined.metrics()
    assert metrics["results_dropped"] > 0 and metrics["pairs"] == 5000
    assert len(got) == metrics["results"] == 5000 - metrics["results_dropped"]
    broken = cf.window_join(cf.stream(failing(LEFT, OSError("gone"))), cf.stream(RIGHT), engine=engine, **NEAR)
    with pytest.raises(OSError, match="gone"):
        list(broken)
    stopped = cf.window_join(cf.stream(endless()), cf.stream(endless()), engine=engine, **NEAR)
    assert next(stopped)["id"].to_pylist()[0] == 0
    stopped.close()
    assert not ours() and list(stopped) == []


@pytest.mark.parametrize("how", HOWS)
def test_memory_is_that_of_the_window(how):
    """A long stream: rows, and the bytes that Arrow holds, stay what a window needs."""
    rows, count = 400, 150

    def long(step):
        for n in range(count):
            times = np.arange(n * rows, (n + 1) * rows)
            yield pa.record_batch([times * step, times, [f"a long text, number {t}" for t in times]], schema=SCHEMA)

    held, before = [], pa.total_allocated_bytes()
    options = dict(where="l.id = r.id AND l.id % 3 = 0", time="t", window=100, how=how, ordered=how in ("full", "semi"))
    engine = cf.Local(buffer_rows=1000)
    joined = cf.window_join(cf.stream(long(1)), cf.stream(long(1), delay=50), engine=engine, **options)
    for part in joined:
        del part
        metrics = joined.metrics()
        held.append((metrics["state_rows_left"] + metrics["state_rows_right"], pa.total_allocated_bytes() - before))
    assert max(rows for rows, _ in held) < 10_000
    assert max(size for _, size in held[len(held) // 2 :]) < 4_000_000  # all of it would be 15 MB


def test_a_large_batch_is_freed_behind_the_window():
    """One batch of 200,000 rows and a window of 100: behind the window its memory is free."""
    before = pa.total_allocated_bytes()
    times = np.arange(200_000)
    large = pa.record_batch([times, times, pa.array([f"a long text, number {t}" for t in times])], schema=SCHEMA)
    large_bytes = pa.total_allocated_bytes() - before
    left, right = queue.Queue(), queue.Queue()
    joined = cf.window_join(
        cf.stream(left, schema=SCHEMA), cf.stream(right, schema=SCHEMA), where="l.id = r.id", time="t", window=100
    )
    left.put(large)
    right.put(large)
    del large
    seen = 0
    for part in joined:
        seen += part.num_rows
        del part
        if seen >= 199_999:
            break
    left.put(batch([200_001]))
    right.put(batch([200_001]))
    assert next(joined).num_rows
    wait_until(lambda: pa.total_allocated_bytes() - before < large_bytes / 10)
    joined.close()


def test_watermarks_do_not_pile_up():
    """While a source sends nothing else, one of them waits: the largest. One that is wrong is an error, not lost."""
    intake = Intake(open_side(cf.stream([], schema=SCHEMA), "left")[0], 10, shed=False)
    for item in (cf.watermark(5), cf.watermark(9), cf.watermark(7), batch([1]), cf.watermark(8)):
        assert intake._put(0, item)
    taken = [intake.poll([0], rows_max=10) for _ in range(4)]
    assert [None if t is None else t[1] for t in taken] == [cf.watermark(9), batch([1]), cf.watermark(8), None]
    mixed = cf.stream([batch([1]), cf.watermark(5), cf.watermark(dt.datetime(2024, 1, 1))])
    with pytest.raises(cf.TimeError, match="give an integer"):
        list(cf.window_join(mixed, cf.stream(RIGHT), **NEAR))
