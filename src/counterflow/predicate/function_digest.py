"""What a Python function is, as a text that another process finds again: its code and all that it uses from outside.

Two functions of the same code may differ by a default, by a value of the function around them, or by a global name. All
of these are in the digest, as they are when it is made: of functions and objects that other installed packages define,
only what they call themselves. It is the same after a restart, with the same version of Python.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))


def digest_of(function: Callable[..., Any]) -> str:
    """Return a short digest of a function."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return _hashed(_Walk(module.partition(".")[0]).of(function))


def _hashed(parts: Iterator[str]) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = "\n".join([version, *parts])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class _Walk:
    """A way through values, each visited once. `package` is that of the function."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.seen: dict[int, Any] = {}  # by identity; they are kept, so that no other takes their place

    def of(self, value: Any) -> Iterator[str]:
        """Yield texts that say what a value is."""
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
            return
        if isinstance(value, tuple | frozenset):  # whether two equal ones are the same one is Python's to choose
            yield f"{type(value).__name__} of {len(value)}"
            yield from self._inside(value)
            return
        if id(value) in self.seen:
            yield "again"
            return
        self.seen[id(value)] = value
        if isinstance(value, list | dict | set):
            yield f"{type(value).__name__} of {len(value)}"
            yield from self._inside(value)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            yield f"array {value.dtype.str} {value.shape}"
            yield hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        elif isinstance(value, CodeType):
            yield from self._code(value)
        elif (python := getattr(value, "py_func", None)) is not None:  # compiled by numba
            yield from self.of(python)
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, MethodType):
            yield from self.of(value.__func__)
            yield from self.of(value.__self__)
        elif isinstance(value, functools.partial):
            yield from self._inside([value.func, value.args, value.keywords])
        elif isinstance(value, type | ModuleType | BuiltinFunctionType | np.ufunc):
            yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
            if not isinstance(bound := getattr(value, "__self__", None), ModuleType | None):
                yield from self.of(bound)
        else:
            yield from self._object(value)

    def _is_of_another(self, module: str | None) -> bool:
        """Return whether a module is part of Python, or of an installed package that is not the function's."""
        package = (module or "").partition(".")[0]
        if package in ("", "__main__", self.package):
            return False
        path = getattr(sys.modules.get(module or ""), "__file__", None) or ""
        return package in sys.stdlib_module_names or bool(re.search(r"[/\\](site|dist)-packages[/\\]", path))

    def _inside(self, values: Any) -> Iterator[str]:
        if isinstance(values, set | frozenset):  # in no order
            yield from sorted(_hashed(_Walk(self.package).of(value)) for value in values)
            return
        for value in values.items() if isinstance(values, dict) else values:
            yield from self._inside(value) if isinstance(values, dict) else self.of(value)

    def _code(self, code: CodeType, documentation: str | None = None) -> Iterator[str]:
        arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        yield f"code {arguments} {code.co_code.hex()} {code.co_exceptiontable.hex()} {code.co_names}"
        for constant in code.co_consts:
            if documentation is None or constant is not documentation:
                yield from self.of(constant)

    def _function(self, function: FunctionType) -> Iterator[str]:
        yield from self._code(function.__code__, function.__doc__)
        yield from self._inside([function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            try:
                yield from self.of(cell.cell_contents)
            except ValueError:  # nothing is in it yet
                yield "empty"
        if not self._is_of_another(function.__module__):
            yield from self._globals(function.__code__, function.__globals__)

    def _globals(self, code: CodeType, names: dict[str, Any]) -> Iterator[str]:
        """Yield what the code's names stand for, and what it takes from modules by a name."""
        for name in code.co_names:
            if name in names:
                yield f"global {name}"
                yield from self.of(names[name])
                if isinstance(module := names[name], ModuleType):
                    taken = [vars(module)[other] for other in code.co_names if other in vars(module)]
                    yield from self._inside([value for value in taken if not isinstance(value, ModuleType)])
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                yield from self._globals(inner, names)

    def _object(self, value: Any) -> Iterator[str]:
        kind = type(value)
        yield f"object of {kind.__module__}.{kind.__qualname__}"
        if not self._is_of_another(kind.__module__):
            if isinstance(call := kind.__call__, FunctionType):
                yield from self.of(call)
            yield from self._inside(getattr(value, "__dict__", {}))
        if kind.__repr__ is not object.__repr__:
            yield re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(value))
