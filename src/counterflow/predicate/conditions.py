"""Conditions that are Python functions of columns: `cf.condition(function, "l.x", "r.a")`.

A predicate is SQL, and this is the way out of it. Such a condition is NULL where an argument is; its function sees
numbers, texts, bytes and booleans as `predicate.expression` describes them (dates are day numbers, times microseconds),
and columns of lists as numpy arrays. `windows.compiled.functions` calls it on candidates.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from sqlglot import exp

from counterflow.errors import EvaluationError, PredicateError
from counterflow.predicate.expression import Call
from counterflow.predicate.parsing import parse
from counterflow.predicate.python_expressions import Expr

FUNCTION = "counterflow_function"  # the argument of a node that has the function


@dataclass(frozen=True)
class PythonFunction:
    """A function, its name, and a digest of its code: two with the same digest are taken for the same."""

    function: Callable[..., Any] | None = field(compare=False)  # None in a process that only compiles the rest
    name: str
    digest: str

    def __call__(self, *args: Any) -> bool | None:
        """Return what the function says. Raises an EvaluationError if it raises, or says neither yes nor no."""
        assert self.function is not None
        try:
            found = self.function(*args)
        except Exception as error:
            values = ", ".join(map(repr, args))
            raise EvaluationError(f"{self.name}({values}) raised {type(error).__name__}: {error}") from error
        if found is None:
            return None
        if not (hasattr(found, "__bool__") and not hasattr(found, "__len__")):
            raise EvaluationError(f"{self.name}() returned {found!r}: a condition returns True, False or None")
        return bool(found)


@dataclass(frozen=True)
class Condition(Call):
    """A call of a Python function: `op` is "condition"."""

    function: PythonFunction

    def __str__(self) -> str:
        return f"{self.function.name}@{self.function.digest}({', '.join(map(str, self.args))})"


def condition(function: Callable[..., Any], *columns: str | Expr) -> Expr:
    """Use a Python function of columns as a condition, alone or with `&`, `|` and `~`.

    Columns are "l.x" or "r.a", or expressions such as `cf.left.x + 1`. A NULL among them is no match. Where numba can,
    the function is compiled, with 64-bit integers; elsewhere Python calls it. Either way only candidates are looked at,
    which the rest of the predicate finds.

    >>> import counterflow as cf, pyarrow as pa
    >>> def same_parity(x, a):
    ...     return x % 2 == a % 2
    >>> left, right = pa.table({"ts": [1, 2], "x": [10, 11]}), pa.table({"ts": [3], "a": [12]})
    >>> near = cf.band("x", "a", 2) & cf.condition(same_parity, "l.x", "r.a")
    >>> cf.window_join(left, right, where=near, time="ts", window=5)["x"].to_pylist()
    [10]
    """
    if not callable(function):
        raise PredicateError(f"condition({function!r}, ...): the first argument is a Python function")
    if not columns:
        raise PredicateError('condition(function, ...): name the columns it is called with, such as "l.x", "r.a"')
    function = getattr(function, "py_func", function)  # of one that numba has compiled
    name = getattr(function, "__name__", type(function).__name__)
    name = name if name.isidentifier() else "function"
    try:
        inspect.signature(function).bind(*columns)
    except TypeError as error:
        raise PredicateError(f"condition({name}, ...): it cannot take {len(columns)} columns: {error}") from error
    except ValueError:  # a builtin does not say what it takes
        pass
    node = exp.Anonymous(this=name, expressions=[parse(column).copy() for column in columns])
    node.set(FUNCTION, PythonFunction(function, name, _digest(function)))
    return Expr(node)


def _digest(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    parts = [repr(function)] if code is None else _text_of(code)
    parts += [repr(getattr(function, "__defaults__", None))]
    for cell in getattr(function, "__closure__", None) or ():
        parts.append(repr(cell.cell_contents))
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _text_of(code: CodeType) -> list[str]:
    constants = [line for c in code.co_consts for line in (_text_of(c) if isinstance(c, CodeType) else [repr(c)])]
    return [code.co_code.hex(), repr(code.co_names), *constants]
