"""Asynchronous sources and asynchronous callers: nothing waits for an event loop that waits for it.

No test measures time; what waits, waits for an event, and a hang fails after a minute.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

import counterflow as cf
from counterflow.engines.local.input import event_loops
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


async def from_queue(items):
    """A source that needs the loop in which the queue is filled."""
    while (item := await items.get()) is not None:
        yield item


async def from_task(loop):
    """A source whose items another task of that loop makes."""
    for item in LEFT:
        yield await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0, item), loop))


async def from_future(items):
    for item in LEFT:
        yield await items.pop(0) if items else item


def futures(loop):
    found = [loop.create_future() for _ in LEFT]
    for future, item in zip(found, LEFT, strict=True):
        loop.call_soon(future.set_result, item)
    return found


async def filled():
    items = asyncio.Queue()

    async def fill():
        for item in [*LEFT, None]:
            await asyncio.sleep(0)
            await items.put(item)

    items.task = asyncio.create_task(fill())
    return items


async def sources():
    """Each needs the very loop that runs here."""
    loop = asyncio.get_running_loop()
    return {
        "queue": from_queue(await filled()),
        "task": from_task(loop),
        "futures": from_future(futures(loop)),
        "its own": asynchronous(LEFT),
    }


async def collected(joined):
    found = []
    while (batch := await asyncio.to_thread(next, joined, None)) is not None:
        found += batch["id"].to_pylist()
    return found


KINDS = ["queue", "task", "futures", "its own"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_a_source_of_the_callers_loop_works_beside_it(kind, schema):
    """Results are taken in a thread, so the loop runs; the documented `next(joined, None)` tells the end."""

    async def main():
        left = (await sources())[kind]
        joined = cf.window_join(cf.stream(left, schema=schema), cf.stream(RIGHT), ordered=True, **NEAR)
        return await collected(joined)

    assert asyncio.run(main()) == ALL


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ask", ["next", "for", "schema", "chained"])
def test_blocking_the_loop_of_a_source_is_an_error(kind, ask):
    """Instead of a wait for ever; the join is not lost: it goes on in a thread."""

    async def main():
        left = (await sources())[kind]
        joined = cf.window_join(cf.stream(left), cf.stream(RIGHT), ordered=True, **NEAR)
        asked = joined
        if ask == "chained":
            asked = cf.window_join(
                joined, cf.stream(RIGHT), where="l.id = r.id", time=(None, "t"), window=10, suffix="_2", ordered=True
            )
        with pytest.raises(cf.InputError, match=r"the left stream .*belongs to the event loop.*asyncio.to_thread"):
            if ask == "schema":
                asked.schema  # noqa: B018
            elif ask == "for":
                list(asked)
            else:
                next(asked)
        return await collected(asked)

    assert asyncio.run(main()) == ALL


def test_other_sources_may_be_waited_for_in_a_loop():
    """They need no loop, or have one of their own: those of a join that was made before the loop ran."""
    made_before = cf.window_join(cf.stream(asynchronous(LEFT)), cf.stream(RIGHT), ordered=True, **NEAR)

    async def main():
        return ids_of(made_before), ids_of(cf.window_join(cf.stream(LEFT), cf.stream(RIGHT), ordered=True, **NEAR))

    assert asyncio.run(main()) == (ALL, ALL)


def test_a_join_that_outlives_its_loop():
    """A source that was not begun gets a loop of its own; one that was is told that its loop has ended."""

    async def made():
        return cf.window_join(cf.stream(asynchronous(LEFT)), cf.stream(RIGHT), ordered=True, **NEAR)

    assert ids_of(asyncio.run(made())) == ALL

    async def begun():
        joined = cf.window_join(cf.stream(from_queue(asyncio.Queue()), schema=SCHEMA), cf.stream(RIGHT), **NEAR)
        failures = []
        consumer = threading.Thread(target=lambda: failures.append(error_of(lambda: list(joined))))
        consumer.start()
        while not joined._join.intake.inside[0]:
            await asyncio.sleep(0.001)
        return consumer, failures

    consumer, failures = asyncio.run(begun())
    consumer.join(WAIT_SECONDS)
    assert isinstance(failures[0], cf.InputError) and "event loop that has ended" in str(failures[0])


def error_of(call):
    try:
        return call()
    except Exception as error:
        return error


def test_a_loop_that_is_closed_without_a_word(monkeypatch):
    """Nobody cancels what it had to do: that it is closed is noticed."""
    monkeypatch.setattr(event_loops, "LOOK_SECONDS", 0.001)
    loop = asyncio.new_event_loop()
    running = event_loops.TheirLoop(loop, "the left stream")
    failures, never = [], asyncio.sleep(0)
    waiting = threading.Thread(target=lambda: failures.append(error_of(lambda: running.run(never))))
    waiting.start()
    wait_until(lambda: running._waiting is not None)
    loop._ready.clear()  # as if it had not come to it
    loop.close()
    waiting.join(WAIT_SECONDS)
    never.close()
    assert "event loop that has ended" in str(failures[0])
    assert "event loop that has ended" in str(error_of(lambda: running.run(asyncio.sleep(0))))


def test_closing_in_the_loop_of_a_waiting_source():
    """`close` blocks the loop, so nothing that needs it is waited for; the generator is closed when it runs again."""
    ended = []

    async def silent():
        try:
            yield LEFT[0]
            await asyncio.Event().wait()
        finally:
            ended.append(asyncio.get_running_loop())

    async def main():
        joined = cf.window_join(cf.stream(silent()), cf.stream(RIGHT), **NEAR)
        assert await asyncio.to_thread(next, joined)
        joined.close()
        while not ended:
            await asyncio.sleep(0.001)
        return ended == [asyncio.get_running_loop()]

    assert asyncio.run(main())


def test_an_error_of_a_source_in_the_callers_loop():
    async def broken():
        yield LEFT[0]
        raise TimeoutError("too slow")

    async def main():
        await collected(cf.window_join(cf.stream(broken()), cf.stream(RIGHT), **NEAR))

    with pytest.raises(TimeoutError, match="too slow"):
        asyncio.run(main())
