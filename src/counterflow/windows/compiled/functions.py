"""Python functions of columns (`predicate.conditions`), compiled with numba where it can, in a loop over candidates.

What is compiled says the same as Python: it sees the same numbers, as 64-bit ones, and where it might compute something
else (`checked`), or raises an error, Python is asked about all of these candidates.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from counterflow.predicate.conditions import PythonFunction
from counterflow.predicate.lists import wide
from counterflow.windows.vectors import Array, Vector

LOOPS_MAX = 256  # compiled loops that a process keeps

compiling = threading.Lock()  # a fork waits for it (`forking`)
_compiled: dict[tuple[str, str, tuple[str, ...]], Any] = {}  # by the function's name, digest and kinds of arguments


def compiled_condition(function: PythonFunction, args: list[Vector], valid: Array) -> Array | None:
    """Return where the function is true, of the rows whose arguments are valid; None where Python has to say."""
    kinds = tuple(kind for arg in args if (kind := _kind(arg)) is not None)
    if len(kinds) < len(args):
        return None
    key = function.name, function.present_digest, kinds
    with compiling:
        if key not in _compiled:
            while len(_compiled) >= LOOPS_MAX:
                del _compiled[next(iter(_compiled))]
            _compiled[key] = _compile(function, kinds)
        loop = _compiled[key]
    if loop is None:
        return None
    out = np.zeros(len(valid), np.uint8)
    parts = [part for arg, kind in zip(args, kinds, strict=True) for part in _parts(arg, kind)]
    try:
        loop(out, np.ascontiguousarray(valid), *parts)
    except Exception:  # Python says which, with the values that it comes from
        return None
    return out.view(bool)


def _kind(arg: Vector) -> str | None:
    """Return how a compiled loop takes an argument: values of a dtype, or lists of one; None: it does not."""
    if arg.type.name == "ARRAY":
        dtypes = {wide(part.dtype) for part in arg.values}
        found = dtypes.pop() if dtypes else np.dtype(np.float64)
        return None if dtypes or found.kind == "u" else f"list {found.str}"
    return None if arg.values.dtype == object or arg.type.is_decimal else wide(arg.values.dtype).str


def _parts(arg: Vector, kind: str) -> list[Array]:
    """Return the arrays that a loop takes for an argument: of lists, all their elements and where each list begins."""
    if not kind.startswith("list"):
        return [np.ascontiguousarray(arg.values, np.dtype(kind))]
    lengths = np.fromiter(map(len, arg.values), np.int64, len(arg.values))
    flat = np.concatenate([np.empty(0, kind.split()[1]), *arg.values])
    return [flat, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])]


def _compile(function: PythonFunction, kinds: tuple[str, ...]) -> Callable[..., Any] | None:
    """Return a loop over rows that calls the function, compiled; None if numba cannot compile it."""
    import numba

    from counterflow.windows.compiled.checked import compiled

    assert function.function is not None
    names, given = [], []
    for k, kind in enumerate(kinds):
        names += [f"a{k}", f"b{k}"] if kind.startswith("list") else [f"a{k}"]
        given.append(f"a{k}[b{k}[i] : b{k}[i + 1]]" if kind.startswith("list") else f"a{k}[i]")
    text = (
        f"def loop(out, valid, {', '.join(names)}):\n    for i in range(len(out)):\n"
        f"        if valid[i]:\n            out[i] = 1 if function({', '.join(given)}) else 0\n"
    )
    try:
        inner: Any = compiled(function.function)
        scope: dict[str, Any] = {"function": inner}
        exec(text, scope)
        loop = numba.njit(nogil=True)(scope["loop"])
        arrays = [numba.types.Array(numba.types.uint8, 1, "C"), _read_only(numba, np.dtype(np.bool_))]
        for kind in kinds:
            arrays.append(_read_only(numba, np.dtype(kind.removeprefix("list "))))
            if kind.startswith("list"):
                arrays.append(_read_only(numba, np.dtype(np.int64)))
        loop.compile(tuple(arrays))
        returned = next(iter(inner.overloads.values())).signature.return_type
    except Exception:  # of many kinds, and of what the function uses: np.dot, for one, needs scipy
        return None
    says = isinstance(returned, numba.types.Boolean | numba.types.Integer)
    return loop if says else None


def _read_only(numba: Any, dtype: np.dtype[Any]) -> Any:
    """Return the type of arrays of which some are read-only: columns are, as Arrow has them."""
    return numba.types.Array(numba.from_dtype(dtype), 1, "C", readonly=True)
