"""How functions are compiled: options, and a cache on disk (`code_cache`).

Numba's own cache looks at the file of a function alone, not at those it calls, and believes whatever it finds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from counterflow.code_cache import CodeCache
from counterflow.folders import cache_directory

__all__ = ["OPTIONS", "cache_directory", "cfunc", "choose_instructions", "compiled", "inlined", "njit"]

# Arrays are never owned by compiled code: without `_nrt=False` threads would contend for their reference counts.
OPTIONS = dict(nogil=True, error_model="numpy", boundscheck=False, _nrt=False)


def compiled(function: Callable[..., Any]) -> Any:
    """Return the function compiled, without the GIL: when it is first called, or from the cache."""
    return _cached(function, OPTIONS)


def inlined(function: Callable[..., Any]) -> Any:
    """Do the same, put in place of every call: a call with many arrays costs more than a short function does."""
    return _cached(function, {**OPTIONS, "forceinline": True})


def _cached(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    if others := _closed_over(function):
        # Symbols are named by function, and by a number that means something in the process that compiled it only: two
        # of the same name, loaded from the cache, would be one and the same.
        function.__qualname__ += f"[{', '.join(f'{other.__module__}.{other.__qualname__}' for other in others)}]"
    dispatcher = _dispatcher(function, options)
    dispatcher.get_call_template = _without_constants(dispatcher.get_call_template)
    return dispatcher


def njit(signature: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function as numba's `njit` does, with this package's cache; for code that is generated."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = _dispatcher(function, options)
        if signature is not None:
            dispatcher.compile(signature)
            dispatcher.disable_compile()
        return dispatcher

    return decorate


def cfunc(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function as numba's `cfunc` does, with this package's cache."""
    from numba.core.ccallback import CFunc
    from numba.core.sigutils import normalize_signature

    def decorate(function: Callable[..., Any]) -> Any:
        callback: Any = CFunc(function, normalize_signature(signature), locals={}, options=options)
        callback._cache = CodeCache(function, options, _modules(function))
        callback.compile()
        return callback

    return decorate


def _dispatcher(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    import numba

    choose_instructions()
    dispatcher: Any = numba.njit(**options)(function)
    dispatcher._cache = CodeCache(function, options, _modules(function))
    return dispatcher


def _closed_over(function: Callable[..., Any]) -> list[Any]:
    """Return the compiled functions that a function was given when it was made."""
    return [cell.cell_contents.py_func for cell in function.__closure__ or ()]


def _modules(function: Callable[..., Any]) -> frozenset[str]:
    """Return the modules that a function's code may come from: its own, and those of the functions it was given."""
    return frozenset({function.__module__}).union(*(_modules(other) for other in _closed_over(function)))


def _without_constants(get_call_template: Any) -> Any:
    """Let all constants share one version: Numba would compile the function again for each of them."""
    from numba.core.types import unliteral

    def get(args: Any, kws: Any) -> Any:
        return get_call_template(tuple(map(unliteral, args)), {name: unliteral(ty) for name, ty in kws.items()})

    return get


@cache
def choose_instructions() -> None:
    """Use the whole width of AVX-512, where it is there: half of it, LLVM's choice, compares more slowly than AVX2.

    It holds for all that numba compiles in this process from now on; NUMBA_CPU_NAME or NUMBA_CPU_FEATURES decide
    otherwise.
    """
    import numba
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    config: Any = numba.config
    if config.CPU_NAME is None and config.CPU_FEATURES is None and features.get("avx512vl"):
        config.CPU_FEATURES = features.flatten() + ",-prefer-256-bit"
