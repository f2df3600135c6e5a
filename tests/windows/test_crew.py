"""A crew: whatever its threads do and when, tasks come back in their order, and nobody is at work in the end.

Property tests let threads hold and release each other, so that no order of theirs is left to the scheduler.
"""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.windows.crew import AHEAD, Crew, crew_of

WAIT_S = 30


class Steps:
    """A task of some steps, which notes where it is."""

    at_work = most = 0
    lock = threading.Lock()

    def __init__(self, name: int, steps: int) -> None:
        self.name, self.left, self.taken = name, steps, 0

    @property
    def done(self) -> bool:
        return self.taken == self.left

    def step(self) -> None:
        with Steps.lock:
            Steps.at_work += 1
            Steps.most = max(Steps.most, Steps.at_work)
        self.taken += 1
        with Steps.lock:
            Steps.at_work -= 1


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.integers(1, 4), max_size=12), threads=st.integers(1, 4), fewer=st.integers(1, 5))
def test_tasks_come_in_their_order_after_each_step(steps, threads, fewer):
    Steps.most = 0
    tasks = [Steps(name, count) for name, count in enumerate(steps)]
    seen = [(task.name, task.taken) for task in Crew(threads).deal(tasks, fewer)]
    assert seen == [(name, step) for name, count in enumerate(steps) for step in range(1, count + 1)]
    assert Steps.most <= threads and Steps.at_work == 0


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_are_at_work_at_once(threads):
    """Each call waits until as many are there as there are threads."""
    barrier = threading.Barrier(threads)
    assert len(list(Crew(threads).in_turn([lambda: barrier.wait(WAIT_S)] * (2 * threads)))) == 2 * threads


def test_one_thread_is_the_caller_s():
    names = list(Crew(1).in_turn([lambda: threading.current_thread().name] * 3))
    assert names == [threading.current_thread().name] * 3


def test_no_more_is_begun_than_threads_need():
    """What is found waits for whoever takes it: a caller that takes nothing has few results in memory."""
    begun: list[int] = []
    results = Crew(2).in_turn(lambda i=i: begun.append(i) or i for i in range(100))
    assert next(results) == 0
    assert len(begun) <= 2 + AHEAD
    assert list(results) == list(range(1, 100))


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_comes_out_as_it_is_when_nobody_is_at_work(threads):
    running, failed = threading.Event(), threading.Event()

    def fails() -> None:
        if threads > 1:
            assert running.wait(WAIT_S)
        failed.set()
        raise cf.StateError("the third row")

    def runs() -> str:
        running.set()
        assert threads == 1 or failed.wait(WAIT_S)
        ended.append(1)
        return "ran"

    ended: list[int] = []
    with pytest.raises(cf.StateError, match="the third row"):
        list(Crew(threads).in_turn([fails, runs, runs, runs]))
    assert len(ended) <= AHEAD + 1 and (threads == 1 or ended)


def test_who_stops_early_waits_for_the_others():
    ended: list[int] = []
    running, go = threading.Event(), threading.Event()

    def runs() -> None:
        running.set()
        assert go.wait(WAIT_S)
        ended.append(1)

    results = Crew(2).in_turn([lambda: None, runs])
    next(results)
    assert running.wait(WAIT_S)
    with ThreadPoolExecutor(1) as other:
        closing = other.submit(results.close)
        assert not ended
        go.set()
        closing.result(WAIT_S)
        assert ended


@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_beside_others(threads):
    crew, done = Crew(threads), []
    with crew.beside(lambda: done.append("beside")):
        assert list(crew.in_turn([lambda: 1, lambda: 2])) == [1, 2]
    assert done == ["beside"]
    with pytest.raises(cf.StateError), crew.beside(_fails):
        pass
    begun = threading.Event()
    with pytest.raises(KeyError), crew.beside(lambda: begun.set() or done.append("ended")):
        assert begun.wait(WAIT_S)
        raise KeyError
    assert done == ["beside", "ended"]


def _fails() -> None:
    raise cf.StateError("no")


def test_threads_end_with_their_crew():
    crew = Crew(2)
    threads = set(crew.in_turn([threading.current_thread] * 20))
    assert threads and threading.current_thread() not in threads
    del crew
    gc.collect()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_fork_has_threads_of_its_own():
    crew = Crew(2)
    assert list(crew.in_turn([os.getpid] * 4)) == [os.getpid()] * 4
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        found = list(crew.in_turn([os.getpid] * 4))
        os.write(write, b"right" if found == [os.getpid()] * 4 else b"wrong")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 5) == b"right"
    os.close(read)
    os.close(write)


def test_the_number_of_threads_may_change():
    crew = Crew(1)
    assert crew_of(crew) is crew and crew_of(3).threads == 3
    crew.threads = 3
    barrier = threading.Barrier(3)
    assert len(list(crew.in_turn([lambda: barrier.wait(WAIT_S)] * 3))) == 3


def test_threads_that_the_system_refuses(monkeypatch):
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuses)
    with pytest.raises(cf.UnsupportedError, match="use fewer threads"):
        list(Crew(2).in_turn([lambda: 1] * 3))
