"""The cores that this process may use, and which of them a thread runs on."""

from __future__ import annotations

import os


def usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def pin_thread(k: int) -> None:
    """Keep this thread on the k-th usable core (beyond the last, the first again), where the system allows it."""
    try:
        cores = usable_cores()
        os.sched_setaffinity(0, {cores[k % len(cores)]})
    except (AttributeError, OSError):
        pass
