"""Python functions of columns (`predicate.conditions`), compiled with numba where it can, in a loop over candidates."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from counterflow.errors import EvaluationError
from counterflow.predicate.conditions import PythonFunction
from counterflow.windows.vectors import Array, Vector

_compiling = threading.Lock()
_compiled: dict[tuple[PythonFunction, tuple[str, ...]], Any] = {}  # by function and kinds of arguments


def compiled_condition(function: PythonFunction, args: list[Vector], valid: Array) -> Array | None:
    """Return where the function is true, of the rows whose arguments are valid; None where numba cannot say."""
    kinds = tuple(kind for arg in args if (kind := _kind(arg)) is not None)
    if len(kinds) < len(args):
        return None
    with _compiling:
        if (function, kinds) not in _compiled:
            _compiled[function, kinds] = _compile(function, kinds)
        loop = _compiled[function, kinds]
    if loop is None:
        return None
    out = np.zeros(len(valid), np.uint8)
    try:
        loop(out, valid, *(part for arg, kind in zip(args, kinds, strict=True) for part in _parts(arg, kind)))
    except Exception as error:
        raise EvaluationError(f"{function.name}() raised {type(error).__name__}: {error}") from error
    return out.view(bool)


def _kind(arg: Vector) -> str | None:
    """Return how a compiled loop takes an argument: values of a dtype, or lists of one; None: it does not."""
    if arg.type.name == "ARRAY":
        dtypes = {part.dtype for part in arg.values}
        return f"list {dtypes.pop().str}" if len(dtypes) == 1 else "list <f8" if not dtypes else None
    return None if arg.values.dtype == object or arg.type.is_decimal else arg.values.dtype.str


def _parts(arg: Vector, kind: str) -> list[Array]:
    """Return the arrays that a loop takes for an argument: of lists, all their elements and where each list begins."""
    if not kind.startswith("list"):
        return [np.ascontiguousarray(arg.values)]
    lengths = np.fromiter(map(len, arg.values), np.int64, len(arg.values))
    flat = np.concatenate([np.empty(0, kind.split()[1]), *arg.values])
    return [flat, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])]


def _compile(function: PythonFunction, kinds: tuple[str, ...]) -> Callable[..., Any] | None:
    """Return a loop over rows that calls the function, compiled; None if numba cannot compile it."""
    import numba

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
        inner: Any = numba.njit(nogil=True)(function.function)
        scope: dict[str, Any] = {"function": inner}
        exec(text, scope)
        loop = numba.njit(nogil=True)(scope["loop"])
        arrays = [numba.types.Array(numba.types.uint8, 1, "C"), numba.types.Array(numba.types.boolean, 1, "C")]
        for kind in kinds:
            element = numba.from_dtype(np.dtype(kind.removeprefix("list ")))
            arrays.append(numba.types.Array(element, 1, "C"))
            if kind.startswith("list"):
                arrays.append(numba.types.Array(numba.types.int64, 1, "C"))
        loop.compile(tuple(arrays))
        returned = next(iter(inner.overloads.values())).signature.return_type
    except Exception:  # of many kinds, and of what the function uses: np.dot, for one, needs scipy
        return None
    says = isinstance(returned, numba.types.Boolean | numba.types.Integer)
    return loop if says else None
