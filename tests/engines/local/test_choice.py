"""What `auto` chooses for scans from what it sees, and that it changes its mind without a trace in the results."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.engines.local import choice, choosing, core, options
from counterflow.engines.local.choice import (
    Seen,
    gain_of_nodes,
    nodes_may_gain,
    reason_for_nodes,
    reason_for_one_thread,
    were_slower,
)
from counterflow.engines.local.core import SequentialCore, may_change
from counterflow.spec.join_spec import build_spec
from live import threads_end  # noqa: F401  the fixture runs after each test

pytestmark = pytest.mark.timeout(100)
COMPARISON_S = 1e-10  # as long as one comparison takes where figures below are made up
SCHEMA = pa.schema({"t": pa.int64(), "i": pa.int64(), "k": pa.int64()})
SCAN = "l.k * r.k = 12"


def seen(window: int, step: int, cores: int = 2, driving_s: float = 1e-6, seconds: float = 1.0) -> Seen:
    """A second of a join that is always busy: steps of so many tuples, each compared with a window."""
    threads = min(cores, max(step * window // 2 // choice.PART_COMPARISONS, 1))
    joining_s = window * COMPARISON_S / threads
    tuples = int(seconds / (driving_s + joining_s))
    return Seen(tuples, max(tuples // step, 1), tuples * window, seconds, tuples * joining_s)


@pytest.mark.parametrize(
    "cores, window, step, gain",
    [
        (2, 100_000, 64, 2.0),  # 3.2 million comparisons are one thread's work
        (2, 100_000, 65_536, 1.0),  # and 3.3 billion are dealt out
        (2, 1_000, 64, 1.1),  # the scan is short: there is nothing to win
        (64, 100_000, 64, 11.0),
        (64, 200_000, 1_024, 4.3),  # worth 6 of 64 cores
        (64, 1_000_000, 65_536, 1.2),
    ],
)
def test_nodes_gain_where_steps_are_too_small_to_be_dealt_out(cores, window, step, gain):
    found = seen(window, step, cores)
    assert gain_of_nodes(found, cores) == pytest.approx(gain, rel=0.15)
    because = reason_for_nodes(found, found, cores)
    assert (because is not None) == (gain >= choice.GAIN_MIN)


def test_one_core_gains_nothing():
    assert gain_of_nodes(seen(100_000, 64, 1), 1) < 1.1 and not seen(100_000, 64, 8).threads(1) > 1


def test_a_reason_has_the_figures():
    found = seen(100_000, 64)
    assert reason_for_nodes(found, found, 2) == (
        "scans of 100,000 rows in steps of 64 are worth 1 of 2 cores: nodes promise 2.0 times the rate"
    )


def test_a_join_that_waits_for_rows_stays_as_it_is():
    busy = seen(100_000, 64)
    idle = Seen(busy.tuples // 10, busy.steps // 10, busy.compared // 10, busy.seconds, busy.joining_s / 10)
    assert reason_for_nodes(busy, busy, 2) is not None
    assert reason_for_nodes(idle, idle, 2) is None and reason_for_nodes(Seen(0, 0, 0, 1.0, 0.0), busy, 2) is None


def test_windows_that_grow_decide_nothing():
    assert reason_for_nodes(seen(100_000, 64), seen(80_000, 64), 2) is None


def test_small_steps_decide_nothing():
    """Calls of 16 tuples cost more than their scans, and that no other core takes over."""
    found = seen(100_000, 16)
    assert gain_of_nodes(found, 2) > choice.GAIN_MIN and reason_for_nodes(found, found, 2) is None


@pytest.mark.parametrize(
    "rate, window, joining_s, said, slower",
    [
        (2.0, 1.0, 0.9, None, False),  # twice as fast
        (0.8, 1.0, 0.9, "nodes were slower, as measured", True),  # they had as much to do as they could
        (0.8, 2.0, 0.9, None, False),  # windows are larger now: who would be faster is not known
        (0.8, 1.0, 0.1, None, False),  # less came: nobody waited for them
        (0.2, 1.0, 0.1, "one thread suffices for what comes", False),
        (0.2, 2.0, 0.1, None, False),  # it would not: windows are twice as large
    ],
)
def test_what_was_promised_is_measured(rate, window, joining_s, said, slower):
    before = seen(100_000, 64)
    tuples = int(rate * before.tuples)
    now = Seen(tuples, max(tuples // 64, 1), int(tuples * window * 100_000), 1.0, joining_s)
    assert reason_for_one_thread(now, before) == said and were_slower(now, before) == slower


def test_it_does_not_go_back_and_forth():
    """What makes it change to nodes, at twice the rate, is far from what makes it go back."""
    before = seen(100_000, 64)
    assert reason_for_one_thread(before, before) is None and choice.IDLE_MAX * choice.GAIN_MIN < choice.JOINING_MIN


# --- which joins may change


@pytest.mark.parametrize(
    "cores, batch_rows, window, may",
    [(2, 64, 100_000, True), (2, 65_536, 2_000, False), (2, 65_536, None, False), (32, 65_536, None, True)],
)
def test_nodes_may_gain(cores, batch_rows, window, may):
    assert nodes_may_gain(cores, batch_rows, window) == may


@pytest.mark.parametrize(
    "where, window, ordered, engine, may",
    [
        (SCAN, 50, True, cf.Local(batch_rows=64), True),
        (SCAN, cf.rows(9), False, cf.Local(batch_rows=64), True),
        (SCAN, 50, True, cf.Local(), False),  # its steps can be dealt out
        (SCAN, 50, False, cf.Local(batch_rows=64), False),  # each side in its own order: nodes need one of both
        (SCAN, 50, True, cf.Local(workers=1, batch_rows=64), False),
        ("l.k = r.k", 50, True, cf.Local(batch_rows=64), False),
    ],
)
def test_which_joins_may_change(monkeypatch, where, window, ordered, engine, may):
    monkeypatch.setattr(options, "usable_cores", lambda: [0, 1])
    spec = build_spec(SCHEMA, SCHEMA, streaming=True, where=where, time="t", window=window, ordered=ordered)
    assert may_change(spec, engine) == may
    streams = [cf.stream(schema=SCHEMA) for _ in range(2)]
    explained = cf.explain(*streams, where=where, time="t", window=window, ordered=ordered, engine=engine, show=False)
    assert ("nodes take over" in explained.details["because"]) == may
    found = choosing.core_of_streams(spec, engine)
    assert isinstance(found, SequentialCore) == (not may), "what cannot change keeps no rows"
    found.close()


# --- while it runs


def rows_in_order(seed: int, rows: int = 20_000) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table([np.sort(rng.integers(0, rows, rows)), np.arange(rows), rng.integers(0, 60, rows)], schema=SCHEMA)


@pytest.fixture
def changing_its_mind(monkeypatch):
    """It looks after every step, and changes to and fro; the steps wait for the cores that are made."""
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "always")
    monkeypatch.setattr(options, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(choosing, "PERIOD_SECONDS", 0.0)
    monkeypatch.setattr(choosing, "reason_for_nodes", lambda seen, last, cores: "the test says so")
    monkeypatch.setattr(choosing, "reason_for_one_thread", lambda seen, before: "the test says so, too")
    monkeypatch.setattr(choosing, "were_slower", lambda seen, before: False)
    look = choosing.ChoosingCore._look

    def look_and_wait(self, found, last):
        look(self, found, last)
        if self._making is not None:
            self._making.join()

    monkeypatch.setattr(choosing.ChoosingCore, "_look", look_and_wait)


@pytest.mark.parametrize("how", ["inner", "full", "semi", "anti"])
def test_results_do_not_show_it(changing_its_mind, how, threads_end):  # noqa: F811
    """Differential: the same rows in the same order as tables give."""
    tables = rows_in_order(1), rows_in_order(2)
    options = dict(where=SCAN, time="t", window=500, ordered=True, how=how)
    sides = [cf.stream(table.to_batches(997), schema=SCHEMA) for table in tables]
    joined = cf.window_join(*sides, engine=cf.Local(batch_rows=1024), **options)
    got = pa.Table.from_batches(list(joined), schema=joined.schema)
    assert got.equals(cf.window_join(*tables, **options))
    assert joined.metrics()["changes"] >= 4
    assert joined.metrics()["chosen"] in (
        "auto: algorithm llhj, 2 workers, as the test says so",
        "auto: one thread, as the test says so, too",
    )


def test_a_user_has_the_last_word(changing_its_mind):
    """With workers=1 there is one thread from then on, whatever was about to be."""
    tables = rows_in_order(1, 5_000), rows_in_order(2, 5_000)
    options = dict(where=SCAN, time="t", window=500, ordered=True)
    named = []

    def batches(table):
        for k, batch in enumerate(table.to_batches(100)):
            if table is tables[0] and k == 25:
                joined.rescale(workers=1)
            yield batch

    sides = [cf.stream(batches(table), schema=SCHEMA) for table in tables]
    joined = cf.window_join(*sides, engine=cf.Local(batch_rows=128, buffer_rows=256), **options)
    got = []
    for batch in joined:
        got.append(batch)
        named.append(joined.metrics()["chosen"])
    assert pa.Table.from_batches(got).equals(cf.window_join(*tables, **options))
    assert any("llhj" in name for name in named)
    assert joined.metrics()["chosen"] == "auto: one core, as workers=1 asks for"


def test_nodes_that_cannot_be_had_are_a_warning(changing_its_mind, monkeypatch):
    def refused(*_):
        raise cf.errors.UnsupportedError("no more threads")

    real = core.make_core
    monkeypatch.setattr(
        choosing,
        "make_core",
        lambda spec, engine, *rest: (real if engine.algorithm == "auto" else refused)(spec, engine),
    )
    sides = [cf.stream(rows_in_order(k, 2_000).to_batches(100), schema=SCHEMA) for k in (1, 2)]
    joined = cf.window_join(*sides, where=SCAN, time="t", window=50, ordered=True, engine=cf.Local(batch_rows=128))
    with pytest.warns(RuntimeWarning, match="goes on as it is: no more threads"):
        assert sum(batch.num_rows for batch in joined) > 0
    assert joined.metrics()["changes"] == 0
    assert not any(thread.name == "counterflow change" for thread in threading.enumerate())
