"""The second thread beside the driver's: each work is done once, by one of the two; and the join is the same."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.engines.local import core, options
from counterflow.engines.local.beside import Beside
from live import wait_until

SCHEMA = pa.schema({"ts": pa.int64(), "x": pa.int64()})


@pytest.fixture
def beside():
    found = Beside()
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    yield found
    found.close()
    thread.join(10)
    assert not thread.is_alive()


def test_each_work_is_done_once(beside):
    """By the thread, or by who asks for the result before the thread has begun with it."""
    done, here = [], threading.get_ident()
    for n in range(2000):
        beside.begin(lambda n=n: (done.append((n, threading.get_ident())), n)[1])
        if n % 3 == 0:
            wait_until(lambda n=n: len(done) > n)
        assert beside.result() == n
    assert [n for n, _ in done] == list(range(2000))
    assert {thread == here for n, thread in done if n % 3 == 0} == {False}


def test_an_error_belongs_to_who_asks(beside):
    for _ in range(3):
        begun = threading.Event()

        def fail(begun=begun):
            begun.set()
            raise ValueError("of the work")

        beside.begin(fail)
        begun.wait(10)
        with pytest.raises(ValueError, match="of the work"):
            beside.result()
    beside.begin(lambda: 5)
    assert beside.result() == 5


def test_closed_in_the_middle_of_a_work(beside):
    begun, go_on, done = threading.Event(), threading.Event(), []
    beside.begin(lambda: (begun.set(), go_on.wait(10), done.append(1)))
    begun.wait(10)
    beside.close()
    threading.Timer(0.05, go_on.set).start()
    beside.result()
    assert done == [1]
    beside.begin(lambda: 7)  # nobody else is there any more
    assert beside.result() == 7


@pytest.mark.parametrize("how", ["inner", "full", "semi"])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("window", [40, cf.rows(30), cf.window(before=30, after=0, closed=False)], ids=repr)
def test_both_windows_at_the_same_time(monkeypatch, window, ordered, how):
    """Every step is worth a second thread here, and NULLs come in the middle; the results are those of one thread."""
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "always")
    monkeypatch.setattr(options, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(core, "BESIDE_ROWS", 1)
    begun = []
    begin = Beside.begin
    monkeypatch.setattr(Beside, "begin", lambda beside, work: (begun.append(work), begin(beside, work))[1])
    rng, sides = np.random.default_rng(7), []
    for _ in range(2):
        missing = (rng.random(900) < 0.01) & (np.arange(900) > 500)
        sides.append(
            pa.table(
                [np.sort(rng.integers(0, 900, 900)), pa.array(rng.integers(0, 60, 900), mask=missing)], schema=SCHEMA
            )
        )
    found = []
    for workers in (None, 1):
        streams = [cf.stream(side.to_batches(max_chunksize=83)) for side in sides]
        given = dict(where="abs(l.x - r.x) <= 3", time="ts", window=window, how=how, ordered=ordered)
        with cf.window_join(*streams, engine=cf.Local(workers=workers, batch_rows=90), **given) as joined:
            rows = [row for batch in joined for row in batch.to_pylist()]
        found.append(rows if ordered else sorted(rows, key=repr))
        assert bool(begun) == (workers is None)
        begun.clear()
    assert found[0] == found[1] and len(found[0]) > 500
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("counterflow other")]
