"""The threads of one running join: how they start, and how long their ends are waited for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from counterflow.cores import start_thread
from counterflow.errors import UnsupportedError

SOURCE_SECONDS = 0.3  # how long one may be in a source's code and be waited for: nobody can stop it there
STARTING_SECONDS = 0.001


class JoinThreads:
    """Threads that belong together, each with the rank of the source that it reads, if it reads one.

    `stuck_since` says since when the reader of a source is in code of the source's own, where it hears nothing.
    """

    def __init__(self, stuck_since: Callable[[int], float | None]) -> None:
        self.process = os.getpid()
        self._stuck_since = stuck_since
        self._threads: dict[threading.Thread, int | None] = {}

    @property
    def are_elsewhere(self) -> bool:
        """Whether this process was forked off the one that has them."""
        return bool(self._threads) and self.process != os.getpid()

    def start(self, target: Callable[[], None], name: str, rank: int | None = None) -> None:
        """Start a thread; one that cannot be had is an error."""
        # A daemon, because a reader may be in a source's code for ever; all are stopped and waited for at exit.
        thread = threading.Thread(target=target, name=f"counterflow {name}", daemon=True)
        if not self._threads:
            self.process = os.getpid()  # it may have been made in another one
        self._threads[thread] = rank  # before its start, which an interrupt may cut short
        try:
            start_thread(thread, name, "join fewer streams at once")
        except UnsupportedError:
            del self._threads[thread]
            raise

    def wait(self, deadline: float) -> None:
        """Wait for their ends; not for one that waits in a source's own code."""
        for thread, rank in list(self._threads.items()):
            if thread is threading.current_thread():
                continue
            while thread.ident is None and time.monotonic() < deadline:  # an interrupt came while it was started
                time.sleep(STARTING_SECONDS)
            while thread.is_alive():
                since = None if rank is None else self._stuck_since(rank)
                left = (deadline if since is None else min(deadline, since + SOURCE_SECONDS)) - time.monotonic()
                if left <= 0:
                    break
                thread.join(left)
