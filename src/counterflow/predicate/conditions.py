"""Conditions that are Python functions of columns: `cf.condition(function, "l.x", "r.a")`.

A predicate is SQL, and this is the way out of it. Such a condition is NULL where an argument is; its function sees
numbers, texts, bytes and booleans as `predicate.expression` describes them (dates are day numbers, times microseconds),
and columns of lists as numpy arrays of 64-bit numbers, which it cannot change. `windows.compiled.functions` calls it on
candidates.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from sqlglot import exp

from counterflow.errors import EvaluationError, PredicateError
from counterflow.predicate.expression import Call, Expression
from counterflow.predicate.function_digest import digest_of
from counterflow.predicate.lists import as_argument
from counterflow.predicate.parsing import parse
from counterflow.predicate.python_expressions import Expr

FUNCTION = "counterflow_function"  # the argument of a node that has the function


@dataclass(frozen=True)
class PythonFunction:
    """A function, its name, and a digest of what it is: two with the same digest are taken for the same."""

    function: Callable[..., Any] | None = field(compare=False)  # None in a process that only compiles the rest
    name: str
    digest: str

    def __call__(self, *args: Any) -> bool | None:
        """Return what the function says. Raises an EvaluationError if it raises, or says neither yes nor no."""
        assert self.function is not None
        args = tuple(as_argument(arg) if isinstance(arg, np.ndarray) else arg for arg in args)
        try:
            found = self.function(*args)
        except Exception as error:
            raise EvaluationError(f"{self._called(args)} raised {type(error).__name__}: {error}") from error
        if found is None:
            return None
        if not isinstance(found, bool | int | np.bool_ | np.integer):
            raise EvaluationError(
                f"{self._called(args)} returned {_short(found)}: a condition returns True, False or None"
            )
        return bool(found)

    def _called(self, args: tuple[Any, ...]) -> str:
        return f"{self.name}({', '.join(map(_short, args))})"

    @cached_property
    def present_digest(self) -> str:
        """The digest when the function is first called in this process: what it uses may have changed until then."""
        return "" if self.function is None else digest_of(self.function)

    def __reduce__(self) -> tuple[Any, ...]:
        return PythonFunction, (self.function, self.name, self.digest)

    def __deepcopy__(self, memo: Any) -> PythonFunction:
        return self  # a syntax tree is copied, but not what it calls


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


@dataclass(frozen=True)
class Condition(Call):
    """A call of a Python function: `op` is "condition"."""

    function: PythonFunction

    def __str__(self) -> str:
        return f"{self.function.name}@{self.function.digest}({', '.join(map(str, self.args))})"


def functions_of(expression: Expression) -> list[PythonFunction]:
    """Return the Python functions in a predicate, from left to right."""
    own = [expression.function] if isinstance(expression, Condition) else []
    args = expression.args if isinstance(expression, Call) else ()
    return own + [function for arg in args for function in functions_of(arg)]


def condition(function: Callable[..., Any], *columns: str | Expr) -> Expr:
    """Use a Python function of columns as a condition, alone or with `&`, `|` and `~`.

    Columns are "l.x" or "r.a", or expressions such as `cf.left.x + 1`. A NULL among them is no match. Where numba can,
    the function is compiled; elsewhere Python calls it, as it does where compiled code would wrap around or raise an
    error. Either way only candidates are looked at, which the rest of the predicate finds. It returns True, False or
    None, which is SQL's NULL, and depends on nothing that changes while the join runs. A checkpoint knows it by its
    name and a digest of its code and of the values that it uses from outside: another function is another join.

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
    for column in columns:
        if not isinstance(column, str | Expr):
            raise PredicateError(f"condition(..., {column!r}): a column is 'l.x' or 'r.a', or an expression of columns")
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
    node.set(FUNCTION, PythonFunction(function, name, digest_of(function)))
    return Expr(node)
