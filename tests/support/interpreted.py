"""Kernels without a compiler: the generated modules run as plain Python, with numba's types played by numpy's.

Compiling takes seconds a predicate, so only some predicates are compiled in the tests; this way thousands go
through the very same source.
"""

from __future__ import annotations

import math
import os
import types as python_types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest

from counterflow.windows.compiled import build


class Number:
    """A numba type: called with a value it converts, with types it is a signature, indexed it is an array type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def __call__(self, *values: Any) -> Any:
        if len(values) != 1 or isinstance(values[0], Number):
            return self
        value = values[0]
        if self.dtype in (np.float32, np.float64):
            return self.dtype(value)
        bits = np.iinfo(self.dtype).bits
        wrapped = int(value) & ((1 << bits) - 1)
        if np.iinfo(self.dtype).min < 0:
            return wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped
        return self.dtype(wrapped)

    def __getitem__(self, _: Any) -> Number:
        return self


def njit(*args: Any, **_: Any) -> Any:
    return args[0] if args and callable(args[0]) and not isinstance(args[0], Number) else lambda function: function


def _quiet(function: Any) -> Any:
    def call(*args: float) -> float:
        try:
            return np.float64(function(*args))
        except ValueError:
            return np.float64(math.nan)
        except OverflowError:
            return np.float64(math.inf)

    return call


NAMES: dict[str, Any] = {
    "np": np,
    "njit": njit,
    "prefetch": lambda array, index: None,
    "from_dtype": lambda dtype: Number(np.int64),
    "types": python_types.SimpleNamespace(Tuple=lambda parts: Number(np.int64)),
    "void": Number(np.int64),
    "math": python_types.SimpleNamespace(**{n: _quiet(f) for n, f in vars(math).items() if callable(f)}),
    **{n: Number(getattr(np, n)) for n in ("int32", "int64", "uint8", "uint32", "uint64", "float32", "float64")},
}


@cache
def load(text: str) -> Any:
    assert text.startswith(build.HEADER)
    names: dict[str, Any] = dict(NAMES)
    exec(compile("OPTIONS = INLINED = SPLICED = {}\n" + text.removeprefix(build.HEADER), "<kernel>", "exec"), names)

    def entry(function: Any) -> Any:
        def call(*args: Any) -> Any:
            with np.errstate(all="ignore"):
                return function(*(a.view(np.recarray) if _is_records(a) else a for a in args))

        return call

    found = {
        n: entry(f) if n in ("append", "probe", "scan", "stream", "codes_of", "code_ranges") else f
        for n, f in names.items()
    }
    return python_types.SimpleNamespace(**found)


def _is_records(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.names is not None


@contextmanager
def searching(how: str) -> Iterator[None]:
    """Windows are searched with numpy, or by kernels (interpreted), from the first row on.

    With COUNTERFLOW_COMPILE=always in the environment, by kernels that are really compiled.
    """
    if os.environ.get("COUNTERFLOW_COMPILE") == "always":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "load", load)
        patch.setenv("COUNTERFLOW_COMPILE", {"numpy": "never", "kernels": "always"}[how])
        yield


SEARCHES = ("numpy", "kernels")
