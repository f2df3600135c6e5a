"""Live streams for the tests of the in-process engine: small, endless and failing ones; a fixture sees threads end."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
import time

import pyarrow as pa
import pytest

SCHEMA = pa.schema({"id": pa.int64(), "t": pa.int64(), "s": pa.string()})
NEAR = dict(where="l.id = r.id", time="t", window=10)
WAIT_SECONDS = 120  # a compilation takes twenty on a quiet machine


BEFORE: set[threading.Thread] = set()  # of other tests in this process, such as those that serve state for Spark


SPARKS = ("counterflow-host", "counterflow-alive")  # they serve a cell's windows, for as long as the process lives


def ours() -> list[threading.Thread]:
    """The threads of joins in process that run now."""
    named = [t for t in threading.enumerate() if t.name.startswith("counterflow") and not t.name.startswith(SPARKS)]
    return [t for t in named if t not in BEFORE]


def after_left(items):
    """For the right stream: when the left one has ended, which the driver notices before it takes these."""
    wait_until(lambda: not any("reader of the left" in thread.name for thread in ours()))
    yield from items


def wait_until(what) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not what():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def threads_end(monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "never")  # which takes seconds; other tests compile
    BEFORE.update(ours())
    gc.freeze()  # what other tests have left need not be gone through below
    yield
    gc.collect()
    gc.unfreeze()
    wait_until(lambda: not ours())


def batch(ids, times=None) -> pa.RecordBatch:
    times = list(ids) if times is None else times
    return pa.record_batch([list(ids), list(times), [f"row {i}" for i in ids]], schema=SCHEMA)


def table(*batches) -> pa.Table:
    return pa.Table.from_batches(list(batches), schema=SCHEMA)


def ids_of(joined) -> list[int]:
    return [i for part in joined for i in part["id"].to_pylist()]


LEFT = [batch(range(0, 5)), batch(range(5, 8)), batch([]), batch(range(8, 20))]
RIGHT = [batch(range(0, 9)), batch(range(9, 20))]
ALL = list(range(20))


def generated(batches):
    yield from batches


async def asynchronous(batches):
    for item in batches:
        await asyncio.sleep(0)
        yield item


def queued(batches):
    found = queue.Queue()
    for item in [*batches, None]:
        found.put(item)
    return found


def endless(rows=10, asked=None, closed=None):
    """0, 1, 2, ... in batches; counts what it was asked for, and tells when it is closed."""
    try:
        first = 0
        while True:
            yield batch(range(first, first + rows))
            first += rows
            if asked is not None:
                asked.append(rows)
    finally:
        if closed is not None:
            closed.set()


def failing(batches, error):
    yield from batches
    raise error
