"""A fork while code is being compiled: the child would inherit locks whose owners it has not.

So a fork waits until no thread of this process compiles, as `logging` and others do it with their locks: then the
compiler's state is whole in both processes.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from functools import cache, cached_property
from importlib import import_module
from typing import Any

WAIT_SECONDS = 60.0  # a fork that waits longer goes ahead: better a child that cannot compile than none
_held: list[Any] = []
_importing = threading.RLock()


@cache
def compiled_module(name: str) -> Any:
    """Return a module of this package that is compiled when it is imported: here, so that a fork waits for it.

    A module that is being imported has a lock, and in a child nobody would open it.
    """
    with _importing:
        return import_module(f"counterflow.windows.compiled.{name}")


def _locks() -> Iterator[Any]:
    """Yield the locks that compiling takes, in the order in which it takes them; only of what is imported."""
    if (functions := sys.modules.get("counterflow.windows.compiled.functions")) is not None:
        yield functions.compiling
    yield _importing
    if (build := sys.modules.get("counterflow.windows.compiled.build")) is not None:
        # A kernel is a cached property, which holds a lock for all instances while it is made (until Python 3.11).
        properties = [value for value in vars(build.Kernels).values() if isinstance(value, cached_property)]
        yield from (lock for value in properties if (lock := getattr(value, "lock", None)) is not None)
        yield build.TIMES.lock
    if (compiler_lock := sys.modules.get("numba.core.compiler_lock")) is not None:
        yield compiler_lock.global_compiler_lock._lock
    if (ffi := sys.modules.get("llvmlite.binding.ffi")) is not None:
        yield ffi.lib._lock._lock


def _before() -> None:
    for lock in _locks():
        if lock.acquire(timeout=WAIT_SECONDS):
            _held.append(lock)


def _after() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
