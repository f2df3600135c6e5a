"""Live use: rows that are pushed, results that are polled or awaited, and streams that fall silent.

No test measures time; what waits, waits for an event, and a hang fails after a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import counterflow as cf
from counterflow.engines.local.input import intake
from counterflow.lab.simulator.window_forms import BOUNDED, draw_window
from live import (
    ALL,
    LEFT,
    NEAR,
    RIGHT,
    SCHEMA,
    WAIT_SECONDS,
    asynchronous,
    ids_of,
    threads_end,  # noqa: F401  runs after each test
    wait_until,
)

pytestmark = pytest.mark.timeout(60)


def row(i: int) -> dict:
    return {"id": i, "t": i, "s": f"row {i}"}


def two(**options) -> tuple[cf.PushedStream, cf.PushedStream, cf.JoinedStream]:
    left, right = cf.stream(schema=SCHEMA), cf.stream(schema=SCHEMA)
    return left, right, cf.window_join(left, right, **{**NEAR, **options})


def taken(joined: cf.JoinedStream, rows: int) -> list[int]:
    """The ids of the next results, polled until there are as many."""
    found: list[int] = []
    while len(found) < rows:
        part = joined.poll(timeout=WAIT_SECONDS)
        assert part is not None, f"only {len(found)} of {rows} results"
        found += part["id"].to_pylist()
    return found


# --- push and poll


def test_a_row_alone_gets_its_pairs_at_once():
    """No batch has to fill: each pair is out before the next row is pushed."""
    left, right, joined = two()
    for i in range(30):
        left.push(row(i))
        right.push(row(i))
        assert taken(joined, 1) == [i]
    joined.close()


def test_in_order_a_row_waits_for_what_may_come_before_it():
    left, right, joined = two(ordered=True)
    left.push(row(1))
    right.push(row(1))
    assert joined.poll(timeout=0.01) is None  # another left row at time 1 would be before the right one
    left.advance(1)
    assert taken(joined, 1) == [1]
    joined.close()


def test_a_pair_does_not_wait_for_the_slower_side():
    """Whichever row comes second finds the other, be it the earlier or the later one."""
    left, right, joined = two(where="true", window=cf.window(before=10, after=2))
    right.push([row(i) for i in (100, 103, 120)])
    left.push(row(90))  # meets what is at most 2 later
    left.push(row(101))
    assert taken(joined, 2) == [101, 101]
    right.push(row(121))
    left.push(row(114))
    left.push(row(125))
    assert taken(joined, 2) == [125, 125]
    left.close(), right.close()
    assert ids_of(joined) == []


def test_the_faster_side_waits_before_it_is_too_far_ahead():
    """Its rows stay in the window until the other side has passed them: so they are bounded, too."""
    left, right, joined = two(engine=cf.Local(buffer_rows=20))
    pushed: list[int] = []

    def push_all():
        with contextlib.suppress(cf.InputError):
            for i in range(1000):
                right.push(row(i))
                pushed.append(i)

    threads = [threading.Thread(target=push_all), threading.Thread(target=lambda: list(joined))]
    for thread in threads:
        thread.start()
    wait_until(lambda: joined.metrics()["waiting_rows_right"] >= 20 and joined.metrics()["queued_rows_right"] == 20)
    assert joined.metrics()["waiting_rows_right"] < 40 and len(pushed) <= 60
    left.push(row(500))
    wait_until(lambda: len(pushed) >= 500)
    assert len(pushed) <= 560
    joined.close()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    "form",
    [
        lambda part: part,
        lambda part: pa.Table.from_batches([part]),
        lambda part: pa.Table.from_batches([part.slice(0, 1), part.slice(1)]),
        lambda part: part.to_pylist(),
        lambda part: part.to_pandas(),
        lambda part: pl.from_arrow(part),
    ],
    ids=["batch", "table", "chunks", "dicts", "pandas", "polars"],
)
def test_whatever_is_pushed(form):
    left, right, joined = two()
    for part in LEFT:
        left.push(form(part) if part.num_rows else part)
    for part in RIGHT:
        right.push(form(part))
    left.close()
    right.close()
    assert ids_of(joined) == ALL and joined.ended
    assert joined.metrics()["rows_left"] == 20


def test_rows_come_out_as_dicts():
    left, right, joined = two()
    left.push([row(1), row(2)])
    right.push(row(2))
    left.close(), right.close()
    assert list(joined.rows()) == [
        {"id": 2, "t": 2, "s": "row 2", "id_right": 2, "t_right": 2, "s_right": "row 2", "pair_time": 2}
    ]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_interleaving_gives_the_same_pairs(data):
    """Pushes, watermarks and polls in any order, results of all ways out: what tables give."""
    sides = [sorted(data.draw(st.lists(st.integers(0, 30), max_size=12))) for _ in range(2)]
    tables = [pa.table({"id": side, "t": side, "s": [str(i) for i in side]}, schema=SCHEMA) for side in sides]
    how = data.draw(st.sampled_from(["inner", "left", "full", "anti"]))
    window = draw_window(data.draw(st.sampled_from(BOUNDED)), data.draw(st.randoms()))
    ordered = data.draw(st.booleans())
    options = {**NEAR, "where": "abs(l.id - r.id) <= 1", "window": window, "how": how, "ordered": ordered}
    expected = cf.window_join(*tables, **options).to_pylist()
    left, right, joined = two(**options)
    streams, at, found = (left, right), [0, 0], []
    while at[0] < len(sides[0]) or at[1] < len(sides[1]):
        i = data.draw(st.sampled_from([i for i in (0, 1) if at[i] < len(sides[i])]))
        end = data.draw(st.integers(at[i] + 1, len(sides[i])))
        streams[i].push(tables[i].slice(at[i], end - at[i]))
        at[i] = end
        if end < len(sides[i]) and data.draw(st.booleans()):
            streams[i].advance(sides[i][end] - 1)
        if data.draw(st.booleans()) and (part := joined.poll()) is not None:
            found += part.to_pylist()
    for stream in streams:
        stream.close()
    found += joined.rows()
    assert (found if ordered else sorted(found, key=repr)) == (expected if ordered else sorted(expected, key=repr))


def test_poll_says_whether_it_has_ended():
    left, right, joined = two()
    assert joined.poll() is None and not joined.ended
    left.push(row(1))
    right.push(row(1))
    left.close(), left.close(), right.close()
    assert taken(joined, 1) == [1]
    assert joined.poll(timeout=WAIT_SECONDS) is None and joined.ended
    assert joined.poll() is None and next(joined, None) is None
    for wrong in (-1, "1", None, True, float("nan")):
        with pytest.raises(cf.OptionError, match="poll"):
            joined.poll(timeout=wrong)


def test_advance_lets_the_other_side_go_on():
    left, right, joined = two(how="left")
    left.push(row(5))
    right.advance(14)
    assert joined.poll(timeout=0.01) is None  # a right row with time 15 would still meet it
    right.advance(15)
    assert taken(joined, 1) == [5]
    with pytest.raises(cf.TimeError, match=r"cf\.watermark\('soon'\)"):
        right.advance("soon")
    right.push(row(7))
    with pytest.raises(cf.TimeError, match="row 0 of the right stream has time 7"):
        joined.poll(timeout=WAIT_SECONDS)
    assert joined.ended


# --- what cannot be pushed


def test_mistakes_name_the_way_out():
    with pytest.raises(cf.InputError, match="schema="):
        cf.stream()
    loose = cf.stream(schema=SCHEMA)
    for use in (lambda: loose.push(row(1)), lambda: loose.advance(1), loose.close, lambda: asyncio.run(loose.apush(1))):
        with pytest.raises(cf.InputError, match="window_join"):
            use()
    left, right, joined = two()
    with pytest.raises(cf.InputError, match="side of a join already"):
        cf.window_join(left, right, **NEAR)
    with pytest.raises(cf.ColumnError, match="'it' that the stream does not have"):
        left.push({"id": 1, "it": 1, "s": ""})
    with pytest.raises(cf.InputError, match=r"1\.5"):
        left.push([row(1), {"id": 1.5, "t": 1, "s": ""}])
    with pytest.raises(cf.InputError, match="item 0"):
        left.push(object())
    for wrong in (-1, float("nan"), "1"):
        with pytest.raises(cf.OptionError, match="timeout="):
            left.push(row(1), timeout=wrong)
    left.push(row(1))
    right.push(row(1))
    left.close()
    assert taken(joined, 1) == [1]  # nothing of what was refused was taken
    with pytest.raises(cf.InputError, match="was closed"):
        left.push(row(2))
    joined.close()
    with pytest.raises(cf.InputError, match="the join was closed"):
        right.push(row(2))
    assert "id: int64" in repr(left)


def test_a_join_that_is_refused_leaves_its_streams_free():
    left, right = cf.stream(schema=SCHEMA), cf.stream(schema=SCHEMA)
    with pytest.raises(cf.ColumnError, match="nothing"):
        cf.window_join(left, right, **{**NEAR, "where": "l.nothing = r.id"})
    joined = cf.window_join(left, right, **NEAR)
    left.push(row(1))
    right.push(row(1))
    assert taken(joined, 1) == [1]
    joined.close()


def test_a_self_join_is_refused():
    """One stream cannot be both sides: its rows would have to be pushed twice."""
    both = cf.stream(schema=SCHEMA)
    with pytest.raises(cf.InputError, match="side of a join already"):
        cf.window_join(both, both, **NEAR)


# --- full buffers


def test_a_full_buffer_blocks_until_results_are_taken():
    left, right, joined = two(engine=cf.Local(buffer_rows=10))
    pushed: list[int] = []

    def push_all():
        for i in range(200):
            left.push(row(i))
            right.push(row(i))
            pushed.append(i)
        left.close()
        right.close()

    thread = threading.Thread(target=push_all)
    thread.start()
    wait_until(lambda: joined.metrics()["queued_rows_left"] >= 9)
    assert len(pushed) < 20
    assert ids_of(joined) == list(range(200))
    thread.join()


def test_one_thread_pushes_much_before_it_takes_results():
    """A push that finds no room makes it, by results that wait to be taken."""
    left, right, joined = two(engine=cf.Local(buffer_rows=100))
    found = []
    for begin in range(0, 1000, 10):
        left.push([row(i) for i in range(begin, begin + 10)])
        right.push([row(i) for i in range(begin, begin + 10)])
        if begin % 90 == 0 and (batch := joined.poll()) is not None:
            found += ids_of([batch])
    left.close()
    right.close()
    assert found + ids_of(joined) == list(range(1000))


def test_another_thread_begins_to_take_results_while_one_makes_room():
    """The thread that makes a join is the one that takes results until another one comes."""
    for _ in range(5):
        left, right, joined = two(engine=cf.Local(buffer_rows=20, batch_rows=4))
        found = []
        thread = threading.Thread(target=lambda joined=joined, found=found: found.extend(ids_of(joined)))
        for i in range(200):
            left.push(row(i))
            right.push(row(i))
            if i == 100:
                thread.start()
        left.close()
        right.close()
        thread.join()
        assert found == list(range(200))


def test_results_that_nobody_takes_are_bounded(monkeypatch):
    monkeypatch.setattr(intake, "STUCK_SECONDS", 0.05)
    left, right, joined = two(engine=cf.Local(buffer_rows=10))
    pushed = 0
    with pytest.raises(cf.InputError, match=r"joined\.poll\(\) between pushes"):
        for i in range(1000):
            left.push(row(i))
            right.push(row(i))
            pushed += 1
    assert 10 <= pushed < 100
    assert taken(joined, pushed) == list(range(pushed))
    joined.close()


def test_a_push_that_could_wait_for_ever_is_an_error(monkeypatch):
    monkeypatch.setattr(intake, "STUCK_SECONDS", 0.01)
    left, _, joined = two(engine=cf.Local(buffer_rows=10))
    with pytest.raises(cf.InputError, match=r"joined\.poll\(\) between pushes"):
        for i in range(100):
            left.push(row(i))
    with pytest.raises(cf.InputError, match=r"full for 0\.01 s"):
        left.push(row(100), timeout=0.01)
    assert joined.metrics()["dropped_left"] == 0


def test_drop_newest_refuses_and_counts():
    left, right, joined = two(engine=cf.Local(buffer_rows=10, overflow="drop_newest"))
    kept = [i for i in range(50) if left.push(row(i))]
    assert kept == list(range(10)) and joined.metrics()["dropped_left"] == 40
    right.push([row(3), row(30)])
    left.close(), right.close()
    assert ids_of(joined) == [3]


def test_results_that_nobody_polls_are_dropped():
    left, right, joined = two(engine=cf.Local(buffer_rows=10, overflow="drop_results"))
    assert joined.poll() is None  # starts it
    for i in range(100):
        left.push(row(i), timeout=WAIT_SECONDS)
        right.push(row(i), timeout=WAIT_SECONDS)
    left.close(), right.close()
    found = ids_of(joined)
    assert len(found) + joined.metrics()["results_dropped"] == 100 and found == sorted(found)


def test_closing_a_stream_ends_a_push_that_waits():
    left, _, _joined = two(engine=cf.Local(buffer_rows=1))
    left.push(row(0))
    errors: list[Exception] = []

    def push():
        try:
            left.push(row(1))
        except cf.InputError as error:
            errors.append(error)

    thread = threading.Thread(target=push)
    thread.start()
    left.close()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive() and "was closed" in str(errors[0])


def test_a_forgotten_join_ends():
    left, right, joined = two()
    left.push([row(1), row(2)])
    right.push(row(1))
    assert taken(joined, 1) == [1]
    del joined
    with pytest.raises(cf.InputError, match="the join was closed"):
        left.push(row(3))


# --- in an event loop


def test_push_and_await_in_one_loop():
    """Both ends of the join in the thread of one event loop, with buffers that are full again and again."""

    async def main():
        left, right, joined = two(engine=cf.Local(buffer_rows=10))

        async def push_all():
            for i in range(100):
                await left.apush(row(i))
                await right.apush([row(i)])
            left.close()
            right.close()

        task = asyncio.create_task(push_all())
        found = [i async for part in joined for i in part["id"].to_pylist()]
        await task
        return found

    assert asyncio.run(main()) == list(range(100))


def test_await_results_of_sources_of_the_same_loop():
    async def main():
        joined = cf.window_join(cf.stream(asynchronous(LEFT)), cf.stream(asynchronous(RIGHT)), **NEAR)
        return [i async for part in joined for i in part["id"].to_pylist()]

    assert asyncio.run(main()) == ALL


def test_a_cancelled_wait_loses_nothing():
    async def main():
        left, right, joined = two()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(joined), 0.001)
        left.push([row(1), row(2)])
        right.push([row(1), row(2)])
        cancelled = asyncio.ensure_future(anext(joined))
        await asyncio.sleep(0)
        taken = [] if cancelled.cancel() else [cancelled.result()]  # it may have had its result before
        left.close()
        right.close()
        taken += [part async for part in joined]
        found = [i for part in taken for i in part["id"].to_pylist()]
        with pytest.raises(StopAsyncIteration):
            await anext(joined)
        return found

    assert asyncio.run(main()) == [1, 2]


def test_a_cancelled_push_has_pushed_nothing():
    async def main():
        left, right, joined = two(engine=cf.Local(buffer_rows=2))
        await left.apush([row(1), row(2)])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(left.apush(row(3)), 0.01)
        right.push([row(1), row(3)])
        left.close(), right.close()
        return [i async for part in joined for i in part["id"].to_pylist()]

    assert asyncio.run(main()) == [1]


def test_an_error_is_awaited_once():
    async def main():
        left, right, joined = two()
        left.push([row(2)])
        left.push([row(1)])
        with pytest.raises(cf.TimeError, match="goes back in time"):
            async for _ in joined:
                pass
        return [part async for part in joined], joined.ended, right

    assert asyncio.run(main())[:2] == ([], True)


# --- streams that fall silent


def silent(timeout, **options):
    left = cf.stream(schema=SCHEMA, timeout=timeout)
    right = cf.stream(schema=SCHEMA)
    return left, right, cf.window_join(left, right, **{**NEAR, **options})


def test_a_silent_stream_is_not_waited_for():
    left, right, joined = silent("10 ms", how="right")
    right.push([row(i) for i in range(30)])
    assert len(taken(joined, 19)) >= 19  # those that a left row from time 29 on does not meet
    left.push([row(3), row(29)])  # the join has gone on without the first
    wait_until(lambda: joined.metrics()["rows_left"] == 2)
    right.push(row(40))
    left.close(), right.close()
    rest = list(joined.rows())
    assert joined.late("left")["id"].to_pylist() == [3] and joined.metrics()["late_left"] == 1
    assert [found["id_right"] for found in rest if found["id"] is not None] == [29]


def test_without_a_timeout_it_is_waited_for():
    left, right, joined = silent(None, how="right")
    right.push([row(i) for i in range(30)])
    assert joined.poll(timeout=0.05) is None
    left.push(row(3))
    left.close(), right.close()
    assert len(list(joined.rows())) == 30


def test_all_silent_is_no_busy_wait():
    """Each is excused once, and then the driver sleeps."""
    sides = [cf.stream(schema=SCHEMA, timeout=0.001) for _ in range(2)]
    joined = cf.window_join(*sides, **NEAR)
    assert joined.poll(timeout=0.05) is None
    sides[0].push(row(5))
    sides[1].push(row(6))
    sides[1].push(row(5 + 20))
    wait_until(lambda: joined.metrics()["rows_right"] == 2)
    for side in sides:
        side.close()
    assert list(joined.rows()) == [] and joined.metrics()["late_left"] + joined.metrics()["late_right"] == 0


@pytest.mark.parametrize("wrong", [0, -1, "soon", True, [], "2 years", float("inf")])
def test_a_timeout_that_is_none(wrong):
    with pytest.raises(cf.CounterflowError):
        cf.stream([], timeout=wrong)


def test_timeouts_of_all_kinds():
    assert [cf.stream([], timeout=t).timeout for t in ("2 seconds", dt.timedelta(seconds=2), 2, 2.0)] == [2.0] * 4


# --- what a notebook shows


def test_a_notebook_shows_the_state():
    left, right, joined = two(where="l.id < r.id")
    shown = joined._repr_html_()
    assert "l.id &lt; r.id" in shown and "open" in shown and "<td>rows_left</td><td>0</td>" in shown
    left.close(), right.close()
    assert list(joined) == []
    assert "ended" in joined._repr_html_()


def test_pandas_times_are_times():
    """A frame's nanoseconds become the schema's microseconds."""
    schema = pa.schema({"t": pa.timestamp("us"), "x": pa.int64()})
    left, right = cf.stream(schema=schema), cf.stream(schema=schema)
    joined = cf.window_join(left, right, where="l.x = r.x", time="t", window="1 s")
    left.push(pd.DataFrame({"t": pd.to_datetime(["2026-01-01"]), "x": [1]}))
    right.push({"t": dt.datetime(2026, 1, 1, 0, 0, 1), "x": 1})
    left.close(), right.close()
    assert [found["pair_time"] for found in joined.rows()] == [dt.datetime(2026, 1, 1, 0, 0, 1)]
