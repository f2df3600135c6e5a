"""A crew: the threads that share the work on one join's windows.

    where a window is scanned    its rows are dealt out, and each new row is met by all threads (ScaleJoin, LLHJ)
    where it has an index        the new rows are dealt out over the one window (CellJoin)

Threads gain where they hold Python's lock seldom: in compiled kernels, and in what numpy and Arrow do with many rows. A
crew's threads begin when there is work to share, anew in a process that was forked off, and end with the crew.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from counterflow.cores import no_more_threads

AHEAD = 1  # tasks that are begun beyond those that the threads are at: nobody waits for the one who takes the results


class Task(Protocol):
    """Work in steps of at most some tenths of a second, since nobody can interrupt one."""

    done: bool

    def step(self) -> None: ...


SomeTask = TypeVar("SomeTask", bound=Task)
Result = TypeVar("Result")


@dataclass
class _Call(Generic[Result]):
    """A call as a task of one step."""

    call: Callable[[], Result]
    result: Any = None
    done: bool = True

    def step(self) -> None:
        self.result = self.call()


class Crew:
    """At most `threads` threads; with one, all is done by whoever asks for it."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._made_for = (0, 0)  # process and threads

    def deal(self, tasks: Iterable[SomeTask], threads: int | None = None) -> Iterator[SomeTask]:
        """Yield each task whenever it has made a step, in their order; one that is not done then makes its next step.

        With `threads` about so many share the work, where it is not worth all of them. An error in a task is raised
        here. When this ends, early or not, no thread is at it any more.
        """
        threads = min(threads or self.threads, self.threads)
        if threads == 1:
            for task in tasks:
                task.step()
                yield task
                while not task.done:
                    task.step()
                    yield task
            return
        to_come = iter(tasks)
        begun: deque[tuple[SomeTask, Future[None]]] = deque()
        try:
            while True:
                for task in islice(to_come, max(threads + AHEAD - len(begun), 0)):
                    begun.append((task, self._begin(task.step)))
                if not begun:
                    return
                task, future = begun[0]
                future.result()
                begun.popleft()
                yield task
                if not task.done:
                    begun.appendleft((task, self._begin(task.step)))
        finally:
            _end([future for _, future in begun])

    def in_turn(self, calls: Iterable[Callable[[], Result]]) -> Iterator[Result]:
        """Yield what the calls return, in their order."""
        for task in self.deal(map(_Call, calls)):
            yield task.result

    @contextmanager
    def beside(self, call: Callable[[], object]) -> Iterator[None]:
        """Do what the context contains, and the call beside it (before it, if there is one thread only)."""
        if self.threads == 1:
            call()
            yield
            return
        future = self._begin(call)
        try:
            yield
        except BaseException:
            _end([future])
            raise
        future.result()

    def _begin(self, call: Callable[[], Any]) -> Future[Any]:
        made_for = os.getpid(), self.threads  # a fork has none of the threads
        if self._pool is None or self._made_for != made_for:
            self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="counterflow-crew")
            self._made_for = made_for
        try:
            return self._pool.submit(call)
        except RuntimeError as error:
            self._pool.shutdown(cancel_futures=True)  # it may have kept the call for later
            self._pool = None
            raise no_more_threads("search of a window", error) from error


def crew_of(threads: int | Crew) -> Crew:
    """Return a crew with so many threads, or the one that is given."""
    return threads if isinstance(threads, Crew) else Crew(threads)


def _end(futures: list[Future[Any]]) -> None:
    """Wait until no thread is at these, whatever comes of them; those not begun are dropped."""
    wait([future for future in futures if not future.cancel()])
