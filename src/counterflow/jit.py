"""How code that is compiled once is compiled: options, and a cache on disk that cannot be stale.

Numba's own cache looks at the file of a function alone, not at those it calls; here a change of any file that is
compiled makes everything be compiled anew. What is generated for a predicate (`kernels.compiled.build`) is cached
beside its text, which is named by its content.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
NOT_COMPILED = ("machine.py", "driver.py", "arena.py")
SIMULATED = ("words", "checks", "schedules", "stepping", "exhaustive", "clock")
SOURCES = (
    "jit.py",
    "lockfree/*.py",
    "protocols/*.py",
    "kernels/compiled/intrinsics.py",
    "kernels/compiled/block.py",
    *(f"engines/simulated/{name}.py" for name in SIMULATED),
    "hardware/cores.py",
    "hardware/merging.py",
    "bench/hops.py",
)
# Arrays are never owned by compiled code: without `_nrt=False` threads would contend for their reference counts.
OPTIONS = dict(nogil=True, error_model="numpy", boundscheck=False, _nrt=False)


def cache_directory() -> Path:
    """Where compiled code is kept: COUNTERFLOW_CACHE_DIR, the user's cache, or a private temporary directory."""
    candidates = []
    if given := os.environ.get("COUNTERFLOW_CACHE_DIR"):
        candidates.append(Path(given))
    if home := os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"):
        candidates.append(Path(home) / "counterflow")
    candidates.append(Path(tempfile.gettempdir()) / f"counterflow-{os.getuid() if hasattr(os, 'getuid') else 'user'}")
    for directory in candidates:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = directory.stat()
            private = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
            if private and os.access(directory, os.W_OK):  # code is loaded from there: nobody else may write to it
                return directory
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="counterflow-"))


@cache
def sources_digest(*patterns: str) -> str:
    """Of files that are compiled as they stand; of all of them, if nothing is said."""
    digest = hashlib.sha256()
    for pattern in patterns or SOURCES:
        for path in sorted(p for p in PACKAGE.glob(pattern) if p.name not in NOT_COMPILED):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:24]


def compiled(function: Callable[..., Any]) -> Any:
    """A function for compiled code, without the GIL; compiled when first called, or loaded from the cache."""
    return _cached(function, OPTIONS)


def inlined(function: Callable[..., Any]) -> Any:
    """The same, put in place of every call: for short functions, as a call with many arrays costs more than they do."""
    return _cached(function, {**OPTIONS, "forceinline": True})


def _cached(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    from numba import njit

    choose_instructions()
    if function.__closure__:
        # Symbols are named by function, and by a number that means something in the process that compiled it only: two
        # of the same name, loaded from the cache, would be one and the same.
        others = [cell.cell_contents.py_func for cell in function.__closure__]
        around = ", ".join(f"{f.__module__}.{f.__qualname__}" for f in others)
        function.__qualname__ += f"[{around}]"
    dispatcher = njit(**options)(function)
    dispatcher._cache = _cache_class()(function)
    dispatcher.get_call_template = _without_constants(dispatcher.get_call_template)
    return dispatcher


def _without_constants(get_call_template: Any) -> Any:
    """One version for all constants: Numba would compile a function again for each one that it is called with."""
    from numba.core.types import unliteral

    def get(args: Any, kws: Any) -> Any:
        return get_call_template(tuple(map(unliteral, args)), {name: unliteral(ty) for name, ty in kws.items()})

    return get


@cache
def _cache_class() -> Any:
    from numba.core import caching

    class Locator(caching._CacheLocator):
        """One directory for all, and one stamp: the digest of the sources."""

        def __init__(self, function: Any) -> None:
            self.line = function.__code__.co_firstlineno

        def get_cache_path(self) -> str:
            return str(cache_directory() / "compiled")

        def get_source_stamp(self) -> str:
            return sources_digest()

        def get_disambiguator(self) -> str:
            return str(self.line)

        @classmethod
        def from_function(cls, function: Any, path: str) -> Any:
            return cls(function)

    class Implementation(caching.CompileResultCacheImpl):
        _locator_classes = [Locator]  # type: ignore[list-item]  # noqa: RUF012

    class Cache(caching.FunctionCache):
        _impl_class = Implementation

    return Cache


@cache
def choose_instructions() -> None:
    """Where there is AVX-512, its whole width: half of it, LLVM's choice, is slower than AVX2 for comparisons.

    It holds for all that numba compiles in this process from now on; NUMBA_CPU_NAME or NUMBA_CPU_FEATURES decide
    otherwise.
    """
    import numba
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    config: Any = numba.config
    if config.CPU_NAME is None and config.CPU_FEATURES is None and features.get("avx512vl"):
        config.CPU_FEATURES = features.flatten() + ",-prefer-256-bit"
