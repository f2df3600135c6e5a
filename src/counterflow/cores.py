"""The cores that this process may use, which of them a thread runs on, and threads that the system may refuse."""

from __future__ import annotations

import os
import threading

from counterflow.errors import UnsupportedError


def usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def pin_thread(k: int) -> None:
    """Keep this thread on the k-th usable core (beyond the last, the first again), where the system allows it."""
    try:
        cores = usable_cores()
        os.sched_setaffinity(0, {cores[k % len(cores)]})
    except (AttributeError, OSError):
        pass


def start_thread(thread: threading.Thread, needs_it: str, advice: str = "use fewer threads") -> None:
    """Start a thread, or raise an error that says who needs it and what to do."""
    try:
        thread.start()
    except RuntimeError as error:
        raise UnsupportedError(
            f"the {needs_it} needs another thread, and the system starts no more ({error}): {advice}, or raise its "
            "limit (ulimit -u)"
        ) from error
