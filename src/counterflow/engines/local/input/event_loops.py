"""Where an asynchronous source is waited for: in the event loop that it belongs to, or in one of its own.

A source that was made in a running event loop may use anything of that loop (queues, connections, tasks), which none
of asyncio's objects lets another loop do. So its items are asked for there, from the reader's thread; the loop must
run meanwhile, which is why nobody may wait for results in its own thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Coroutine
from typing import Any

from counterflow.errors import InputError

LOOK_SECONDS = 1.0  # how soon it is noticed that the source's loop was closed without a word


class Ended(InputError):
    """The loop of a source has ended, or `interrupt` was called."""


CANCELLED = (Ended, asyncio.CancelledError)  # what `run` raises after `interrupt`


class OwnLoop:
    """A loop of this thread, which runs while an item is waited for; its end closes asynchronous generators."""

    iterator: Any = None

    def __enter__(self) -> OwnLoop:
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine)

    def interrupt(self) -> None:
        with contextlib.suppress(RuntimeError):  # closed in the meantime
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()


class TheirLoop:
    """The loop in which the source was made, and which runs in another thread."""

    iterator: Any = None  # closed in the end, if it is a generator

    def __init__(self, loop: asyncio.AbstractEventLoop, label: str) -> None:
        self._loop, self._label = loop, label
        self._waiting: concurrent.futures.Future[Any] | None = None
        self._interrupted = False

    def __enter__(self) -> TheirLoop:
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self.iterator, "aclose"):
            with contextlib.suppress(Ended):
                self._submit(self.iterator.aclose())  # not waited for: whoever closes the join may block the loop

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        self._waiting = future = self._submit(coroutine)
        if self._interrupted:
            future.cancel()
        while True:
            try:
                return future.result(LOOK_SECONDS)
            except concurrent.futures.CancelledError as error:
                raise self._gone() from error
            except TimeoutError:
                if future.done():  # the source's own
                    raise
                if self._loop.is_closed():
                    raise self._gone() from None

    def interrupt(self) -> None:
        self._interrupted = True
        if self._waiting is not None:
            self._waiting.cancel()

    def _submit(self, coroutine: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:
            coroutine.close()
            raise self._gone() from error

    def _gone(self) -> Ended:
        return Ended(
            f"{self._label} belongs to an event loop that has ended: take all results before it ends, or make the "
            "join outside of a running loop, and the source gets a loop of its own"
        )
