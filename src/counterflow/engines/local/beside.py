"""A second thread beside the driver's: while that one searches one window, it searches the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from counterflow.engines.local.input.intake import Bell


class Beside:
    """One work at a time: a thread begins it, and later asks for its result.

    It is done by the thread that runs `run`, or by who asks for the result, if nobody has begun with it until then.
    """

    def __init__(self) -> None:
        self._begun, self._done = Bell(), Bell()
        self._work: deque[Callable[[], Any]] = deque()  # the one that nobody has taken
        self._result: Any = None
        self._error: BaseException | None = None
        self.available = False  # whether it may be used; who has a thread for it says so
        self.start: Callable[[], None] = lambda: None  # starts that thread: with the first work
        self._started = self._closed = False

    def run(self) -> None:
        """Work, in a thread of its own, until it is closed."""
        while not self._closed:
            self._begun.wait(None)
            if (work := self._taken()) is None:
                continue
            try:
                self._result = work()
            except BaseException as error:  # it belongs to who asks for the result
                self._error = error
            del work
            self._done.ring()

    def begin(self, work: Callable[[], Any]) -> None:
        """Begin a work; ask for its `result` before the next one."""
        self._work.append(work)
        if not self._started:
            self._started = True
            self.start()
        self._begun.ring()

    def result(self) -> Any:
        """Return the result of the work that was begun, or raise its error."""
        if (work := self._taken()) is not None:
            return work()
        self._done.wait(None)  # whoever took it comes to its end
        result, error, self._result, self._error = self._result, self._error, None, None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let the thread end when it has nothing to do."""
        self.available, self._closed = False, True
        self._begun.ring()

    def _taken(self) -> Callable[[], Any] | None:
        """Take the work, if nobody has: one of two threads gets it."""
        try:
            return self._work.popleft()
        except IndexError:
            return None
