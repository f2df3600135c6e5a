"""Threads that the system may refuse."""

from __future__ import annotations

import threading

from counterflow.errors import UnsupportedError


def start_thread(thread: threading.Thread, needs_it: str, advice: str = "use fewer threads") -> None:
    """Start it, or raise an error that says who needs it and what to do."""
    try:
        thread.start()
    except RuntimeError as error:
        raise UnsupportedError(
            f"the {needs_it} needs another thread, and the system starts no more ({error}): {advice}, or raise its "
            "limit (ulimit -u)"
        ) from error
