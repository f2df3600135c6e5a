"""Functions compiled by numba that say where Python would compute something else.

Compiled integers wrap around at 64 bits, where Python's grow; compiled `math.sqrt(-1)` is NaN, where Python raises an
error; an integer is compared with a float as if it were one. In a function that is compiled here, such an operation
raises an error: its caller asks Python then. Arrays are checked for indices that are out of bounds.

    x * y + 1        becomes        add(multiply(x, y), 1)        of the twins below
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import ir, types
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.ir_utils import build_definitions, mk_unique_var
from numba.core.untyped_passes import IRProcessing
from numba.extending import overload

EXACT = 2**53  # below it a DOUBLE holds every integer
WHOLE = 2.0**63 * (1 - 2.0**-40)  # a size that certainly fits into 64 bits, however a DOUBLE has rounded it


def compiled(function: Callable[..., Any]) -> Any:
    """Return a function as numba's, which raises an error where it may do otherwise than Python."""
    return numba.njit(nogil=True, boundscheck=True, pipeline_class=_Compiler)(function)


# --- of two integers


# The sum is looked at as a DOUBLE: numba tells LLVM that integers never overflow, so it would believe that they do not.


def _add(a: int, b: int) -> int:
    if abs(float(a) + float(b)) > WHOLE:
        raise OverflowError
    return a + b


def _subtract(a: int, b: int) -> int:
    if abs(float(a) - float(b)) > WHOLE:
        raise OverflowError
    return a - b


def _multiply(a: int, b: int) -> int:
    if abs(float(a) * float(b)) > WHOLE:
        raise OverflowError
    return a * b


def _power(a: int, b: int) -> int:
    if b < 0 or abs(float(a) ** float(b)) > WHOLE:
        raise OverflowError
    return a**b


def _shift_left(a: int, b: int) -> int:
    if b < 0 or b > 62 or abs(float(a)) * 2.0**b > WHOLE:
        raise OverflowError
    return a << b


def _shift_right(a: int, b: int) -> int:
    if b < 0 or b > 63:
        raise OverflowError
    return a >> b


def _divide(a: int, b: int) -> float:
    if abs(float(a)) >= EXACT or abs(float(b)) >= EXACT:  # Python rounds the quotient alone
        raise OverflowError
    return a / b


def _floor_divide(a: int, b: int) -> int:
    if b == -1 and a == -(2**63):
        raise OverflowError
    return a // b


def _remainder(a: int, b: int) -> int:
    return 0 if b == -1 else a % b  # of the least integer the processor would stop


_INTEGERS: dict[Any, Callable[..., Any]] = {
    operator.add: _add,
    operator.sub: _subtract,
    operator.mul: _multiply,
    operator.pow: _power,
    operator.lshift: _shift_left,
    operator.rshift: _shift_right,
    operator.truediv: _divide,
    operator.floordiv: _floor_divide,
    operator.mod: _remainder,
}


# --- of one number


def _negative(a: int) -> int:
    if a == -(2**63):
        raise OverflowError
    return -a


def _absolute(a: int) -> int:
    return -_negative_compiled(a) if a >= 0 else _negative_compiled(a)


def _whole(a: float) -> int:
    if not abs(a) < WHOLE:
        raise OverflowError
    return int(a)


def _float_power(a: float, b: float) -> float:
    c = a**b
    if not math.isfinite(c) and not math.isnan(a) and not math.isnan(b):  # an error, a complex number, or infinity
        raise OverflowError
    return c


_negative_compiled = numba.njit(_negative)


# --- the twins: functions of a name only, of which numba compiles what the types of their arguments ask for


def _function(text: str, **scope: Any) -> Any:
    exec(text, scope)
    return next(value for name, value in scope.items() if name == "twin")


def _is_integer(kind: Any) -> bool:
    number: Any = getattr(kind, "literal_type", kind)
    return isinstance(number, types.Integer) and bool(getattr(number, "signed", False))


def _is_float(kind: Any) -> bool:
    return isinstance(kind, types.Float)


def _operator_twin(op: Any, checked: Callable[..., Any] | None, in_place: bool) -> Any:
    twin = _function("def twin(a, b): raise NotImplementedError")
    sign = {"pow": "**", "lshift": "<<", "rshift": ">>", "truediv": "/", "floordiv": "//", "mod": "%"}
    sign |= {"add": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    text = f"    a {sign[op.__name__]}= b\n    return a" if in_place else f"    return a {sign[op.__name__]} b"
    plain = _function(f"def twin(a, b):\n{text}")
    guarded = None if checked is None else numba.njit(checked)
    ints = _function("def twin(a, b):\n    return guarded(int64(a), int64(b))", guarded=guarded, int64=np.int64)
    of_floats = numba.njit(_float_power)
    floats = _function("def twin(a, b):\n    return power(float(a), float(b))", power=of_floats)
    mixed = _function(
        f"def twin(a, b):\n    if abs(float(a)) >= {EXACT} and abs(float(b)) >= {EXACT}:\n        raise OverflowError\n"
        f"    return a {sign[op.__name__]} b"
    )

    def chosen(a: Any, b: Any) -> Any:
        whole, real = (_is_integer(a), _is_integer(b)), (_is_float(a), _is_float(b))
        if guarded is None:  # a comparison
            return mixed if any(whole) and any(real) else plain
        if all(whole):
            return ints
        numbers = all(w or r for w, r in zip(whole, real, strict=True))
        return floats if op is operator.pow and numbers else plain

    overload(twin)(lambda a, b: chosen(a, b))  # numba takes no annotations here
    return twin


def _identity_twin(op: Any) -> Any:
    """Return the twin of `is` or `is not`, which is compiled where one of the two is None: others may be no objects."""
    twin = _function("def twin(a, b): raise NotImplementedError")
    plain = _function(f"def twin(a, b):\n    return {'a is b' if op is operator.is_ else 'a is not b'}")
    overload(twin)(lambda a, b: plain if types.none in (a, b) else None)
    return twin


def _sign_twin(sign: str, checked: Callable[..., Any] | None) -> Any:
    """Return the twin of an operator of one number. Of a boolean it is an integer in Python, so it is not compiled."""
    twin = _function("def twin(a): raise NotImplementedError")
    plain = _function(f"def twin(a):\n    return {sign}a")
    guarded = numba.njit(checked) if checked else None
    call = _function("def twin(a):\n    return guarded(a)", guarded=guarded) if checked else plain
    overload(twin)(lambda a: None if isinstance(a, types.Boolean) else call if _is_integer(a) else plain)
    return twin


def _twin_of_one(function: str, checked: Callable[..., Any], of: Callable[[Any], bool], scope: Any = math) -> Any:
    """Return the twin of a function of one number: checked of this kind of number, and as it is of others."""
    twin = _function("def twin(a): raise NotImplementedError")
    guarded, plain = numba.njit(checked), _function(f"def twin(a):\n    return {function}", math=scope)
    call = _function("def twin(a):\n    return guarded(a)", guarded=guarded)
    overload(twin)(lambda a: call if of(a) else plain)
    return twin


def _real_twin(name: str, count: int) -> Any:
    """Return the twin of a function of `math` that gives a float: not a finite one may be an error in Python."""
    names = "abc"[:count]
    given = ", ".join(names)
    twin = _function(f"def twin({given}): raise NotImplementedError")
    known = " and ".join(f"{n} == {n}" for n in names)
    checked = _function(
        f"def twin({given}):\n    found = math.{name}({given})\n"
        f"    if not math.isfinite(found) and {known}:\n        raise OverflowError\n    return found",
        math=math,
    )
    overload(twin)(_function(f"def twin({given}):\n    return checked", checked=checked))
    return twin


def _whole_twin(text: str) -> Any:
    """Return the twin of a function that makes a number whole. With a number of digits it is not compiled."""
    twin = _function("def twin(a): raise NotImplementedError")
    checked = _function(
        f"def twin(a):\n    if not abs(a) < {WHOLE}:\n        raise OverflowError\n    return {text}(a)", math=math
    )
    same = _function("def twin(a):\n    return a")
    overload(twin)(lambda a: checked if _is_float(a) else same if _is_integer(a) else None)
    return twin


def _least_or_most_twin(name: str) -> Any:
    """Return the twin of min or max of two numbers: of an integer and a float numba makes two floats."""
    twin = _function("def twin(a, b): raise NotImplementedError")
    plain = _function(f"def twin(a, b):\n    return {name}(a, b)")
    mixed = _function(
        f"def twin(a, b):\n    if abs(float(a)) >= {EXACT} or abs(float(b)) >= {EXACT}:\n        raise OverflowError\n"
        f"    return {name}(a, b)"
    )
    overload(twin)(lambda a, b: mixed if _is_integer(a) != _is_integer(b) else plain)
    return twin


_NOT_COMPILED = (
    *(sum, hash, divmod, math.gcd, math.lcm, math.ldexp),  # integers of any size
    *(str, repr, format, type, isinstance, id),  # texts of numbers, and what a value is in Python
)
_ONE = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "expm1", "gamma", "lgamma",
    "log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
_TWO = ("atan2", "hypot", "pow")
_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def _all_twins() -> dict[Any, Any]:
    found = {op: _operator_twin(op, checked, False) for op, checked in _INTEGERS.items()}
    for op, checked in _INTEGERS.items():
        found[getattr(operator, f"i{op.__name__}")] = _operator_twin(op, checked, True)
    found |= {op: _operator_twin(op, None, False) for op in _COMPARISONS}
    found |= {op: _identity_twin(op) for op in (operator.is_, operator.is_not)}
    found |= {operator.pos: _sign_twin("+", None), operator.invert: _sign_twin("~", None)}
    found[operator.neg] = _sign_twin("-", _negative)
    found[abs] = _twin_of_one("abs(a)", _absolute, _is_integer)
    found[int] = _twin_of_one("int(a)", _whole, _is_float)
    found[pow] = found[operator.pow]
    for function, text in ((round, "round"), *((getattr(math, n), f"math.{n}") for n in ("floor", "ceil", "trunc"))):
        found[function] = _whole_twin(text)
    found |= {function: _least_or_most_twin(function.__name__) for function in (min, max)}
    found |= {function: _function("def twin(*args): raise NotImplementedError") for function in _NOT_COMPILED}
    found |= {getattr(math, name): _real_twin(name, 1) for name in _ONE}
    return found | {getattr(math, name): _real_twin(name, 2) for name in _TWO}


_TWINS = _all_twins()


# --- where they take the places of what they are the twins of


@register_pass(mutates_CFG=False, analysis_only=False)
class _TakeTwins(FunctionPass):
    """Puts calls of twins for operators, and twins for functions."""

    _name = "counterflow_take_twins"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        modules: dict[str, Any] = {}  # variables that stand for the module `math`
        for block in state.func_ir.blocks.values():
            body = []
            for statement in block.body:
                if isinstance(statement, ir.Assign):
                    body += _prepared(statement, modules)
                body.append(statement)
            block.body = body
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


def _prepared(statement: Any, modules: dict[str, Any]) -> list[Any]:
    """Change what a statement assigns to its twin's, and return what has to come before it."""
    value = statement.value
    if isinstance(value, ir.Global | ir.FreeVar):
        if value.value is math:
            modules[statement.target.name] = math
        elif (twin := _twin(value.value)) is not None:
            statement.value = ir.Global(value.name, twin, value.loc)
    elif not isinstance(value, ir.Expr):
        return []
    elif value.op == "getattr" and value.value.name in modules:
        if (twin := _twin(getattr(math, value.attr, None))) is not None:
            statement.value = ir.Global(value.attr, twin, value.loc)
    elif value.op in ("binop", "inplace_binop", "unary") and (twin := _twin(value.fn)) is not None:
        args = [value.value] if value.op == "unary" else [value.lhs, value.rhs]
        called = ir.Var(statement.target.scope, mk_unique_var("$twin"), value.loc)
        statement.value = ir.Expr.call(called, args, (), value.loc)
        return [ir.Assign(ir.Global("twin", twin, value.loc), called, value.loc)]
    return []


def _twin(value: Any) -> Any:
    try:
        return _TWINS.get(value)
    except TypeError:  # it cannot be looked for: an array, for instance
        return None


class _Compiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_TakeTwins, IRProcessing)
        passes.finalize()
        return [passes]
