"""A predicate as source for the compiler: straight-line code on scalars, without branches.

Integers are computed in 64 bits. Where the types do not rule out an overflow, and for a division by zero, the
code says "unsure" instead of computing something wrong, and the pair is checked by `windows.evaluate`. The
same happens to a condition that has no compiled form, so whatever is left out here costs time, not exactness.
Numbers in the predicate are arguments of the kernel: another threshold does not need another compilation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from counterflow.predicate.casts import EXACT
from counterflow.predicate.expression import (
    COMPARISONS,
    Call,
    Column,
    Expression,
    Literal,
    Side,
    columns_of,
    conjuncts_of,
)
from counterflow.predicate.great_circle import EARTH_RADIUS_M
from counterflow.predicate.ranges import number_of
from counterflow.predicate.types import BOOLEAN, DOUBLE, INTEGER_BITS, integer_range
from counterflow.windows.compiled.source_text import REAL
from counterflow.windows.compiled.text_source import ON_WORDS, alike, begins_with, is_hashed, word_constant
from counterflow.windows.evaluate import INT64_MAX, INT64_MIN
from counterflow.windows.text_words import column_dtype
from counterflow.windows.vectors import kernel_dtype

SLOW = (
    "haversine(",
    *(f"math.{name}(" for name in ("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "exp", "hypot")),
)
ARGUMENT_BITS = 31  # integers of no more bits are arguments; the range of larger ones must be known
NULL_BITS = 64  # columns of a side whose NULLs a kernel tells apart


class NotCompilable(Exception):
    """An expression that has no compiled form."""


@dataclass(frozen=True)
class Value:
    """A subexpression: its name in the source, the name of its validity (None: never NULL), and what it may hold."""

    name: str
    valid: str | None
    kind: str  # int, f4, f8, bool or text (a word)
    low: int = 0
    high: int = 0
    scale: int = 0


@dataclass
class Accept:
    """The compiled part of a predicate."""

    columns: dict[Side, list[Column]]
    lines: list[str]  # they set `accepted` and `unsure`
    constants: list[int | float]
    left_out: list[Expression]  # conditions without a compiled form

    @property
    def complete(self) -> bool:
        return not self.left_out

    @property
    def is_expensive(self) -> bool:
        """Whether it takes longer than to compare a row's keys first."""
        return not self.complete or any(name in line for line in self.lines for name in SLOW)

    @property
    def verdict(self) -> str:
        """The expression for 0 no, 1 yes, 2 unsure."""
        return "uint8(accepted) + uint8(accepted & unsure)" if self.complete else "uint8(accepted) * uint8(2)"

    @property
    def constant_kinds(self) -> list[str]:
        return ["int64" if isinstance(c, int) else "float64" for c in self.constants]


def compile_predicate(predicate: Expression, nullable: bool, narrow: bool = False) -> Accept:
    """Return what can be compiled of a predicate; `nullable` if any of its columns holds a NULL.

    `narrow` leaves out what has a DECIMAL of more than 64 bits, whatever its values are.
    """
    compiled: list[Expression] = []
    left_out: list[Expression] = []
    columns: dict[Side, list[Column]] = {"left": [], "right": []}
    for conjunct in conjuncts_of(predicate):
        found = list(columns_of(conjunct))
        both = {side: list(dict.fromkeys([*known, *_of_side(found, side)])) for side, known in columns.items()}
        try:
            if narrow and any(c.type.is_decimal and c.type.precision > 18 for c in found):
                raise NotCompilable("DECIMAL")
            if nullable and any(len(known) > NULL_BITS for known in both.values()):
                raise NotCompilable("a row's NULLs are one word")
            if is_hashed(conjunct):
                raise NotCompilable("a text's hash says more")
            _Writer({}, nullable).boolean(conjunct)
            compiled.append(conjunct)
            columns = both
        except NotCompilable:
            left_out.append(conjunct)
    names = {c: f"{side[0]}{i}" for side, found in columns.items() for i, c in enumerate(found)}
    writer = _Writer(names, nullable)
    verdicts = []
    for conjunct in compiled:
        writer.doubts = []
        value = writer.boolean(conjunct)
        holds = value.name if value.valid is None else writer.assign(f"{value.name} & {value.valid}")
        if writer.doubts:
            doubt = writer.assign(" | ".join(writer.doubts))
            writer.lines.append(f"unsure |= {doubt}")
            holds = writer.assign(f"{holds} | {doubt}")
        verdicts.append(holds)
    accepted = " & ".join(verdicts) if verdicts else "True"
    lines = ["unsure = False", *writer.lines, f"accepted = {accepted}"]
    return Accept(columns, lines, writer.constants, left_out)


def _of_side(columns: list[Column], side: Side) -> list[Column]:
    return [c for c in columns if c.side == side]


@dataclass
class _Writer:
    names: dict[Column, str]
    nullable: bool
    lines: list[str] = field(default_factory=list)
    constants: list[int | float] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)  # conditions under which the code does not know
    written: dict[Expression, tuple[Value, list[str]]] = field(default_factory=dict)  # with the doubts it raises

    def assign(self, code: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {code}")
        return name

    def boolean(self, expression: Expression) -> Value:
        value = self.value(expression)
        if value.kind != "bool":
            raise NotCompilable(str(expression))
        return value

    def value(self, expression: Expression) -> Value:
        """Write an expression once; but whoever uses it again has its doubts too."""
        if expression in self.written:
            value, doubts = self.written[expression]
            self.doubts += doubts
            return value
        before = len(self.doubts)
        if isinstance(expression, Column):
            value = self._column(expression)
        elif isinstance(expression, Literal):
            value = self._literal(expression)
        else:
            value = self._call(expression)
        self.written[expression] = value, self.doubts[before:]
        return value

    def _column(self, column: Column) -> Value:
        if column_dtype(column.type) is None:
            raise NotCompilable(str(column))
        name = self.names.get(column, "c")
        valid = None
        if self.nullable and name != "c":
            valid = self.assign(f"({name[0]}_nulls & uint64({1 << int(name[1:])})) == uint64(0)")
        elif self.nullable:
            valid = "c_valid"
        if column.type.name == "STRING":
            return Value(name, valid, "text")
        if column.type.is_float:
            return Value(name, valid, "f4" if column.type.name == "FLOAT" else "f8")
        if column.type.name == "BOOLEAN":
            return Value(self.assign(f"{name} != uint8(0)"), valid, "bool")
        low, high = integer_range(column.type) if column.type.name in INTEGER_BITS else (INT64_MIN, INT64_MAX)
        if column.type.name == "DATE":
            low, high = -(1 << 31), (1 << 31) - 1
        if column.type.is_decimal and column.type.precision <= 18:
            high = 10**column.type.precision - 1
            low = -high
        return Value(self.assign(f"int64({name})"), valid, "int", low, high, column.type.scale)

    def _literal(self, literal: Literal) -> Value:
        value, type_ = literal.value, literal.type
        if type_.name == "STRING" and value is not None:
            return Value(self._argument(word_constant(value), "uint64"), None, "text")
        if value is None or kernel_dtype(type_) is None:
            raise NotCompilable(str(literal))
        if type_.name == "BOOLEAN":
            return Value(str(bool(value)), None, "bool")
        if type_.is_float:
            kind = "f4" if type_.name == "FLOAT" else "f8"
            return Value(self._argument(float(value), "float32" if kind == "f4" else "float64"), None, kind)
        number = int(EXACT.scaleb(value, type_.scale)) if type_.is_decimal else int(value)
        if abs(number) < 1 << ARGUMENT_BITS:
            bound = 1 << ARGUMENT_BITS
            return Value(self._argument(number, "int64"), None, "int", -bound, bound, type_.scale)
        if not INT64_MIN < number <= INT64_MAX:
            raise NotCompilable(str(literal))
        return Value(self.assign(f"int64({number})"), None, "int", number, number, type_.scale)

    def _argument(self, value: int | float, kind: str) -> str:
        self.constants.append(value)
        return self.assign(f"{kind}(constants[{len(self.constants) - 1}])")

    def _call(self, call: Call) -> Value:
        if call.op in ("and", "or"):
            return self._and_or(call)
        if call.op == "in":
            tests = (Call("=", (call.args[0], option), BOOLEAN) for option in call.args[1:])
            return self._and_or(Call("or", tuple(tests), BOOLEAN))
        if call.op in _CHOOSERS:
            return _CHOOSERS[call.op](self, call)
        write = _WRITERS.get(call.op)
        if write is not None:
            args = [self.value(arg) for arg in call.args]
            if call.op not in ON_WORDS and any(arg.kind == "text" for arg in args):
                raise NotCompilable(str(call))
            return write(self, call, args)
        if call.op in COMPARISONS:
            a, b = self._nearby(call) or map(self.value, call.args)
            return Value(self._compare(call.op, a, b), self._both(a, b), "bool")
        raise NotCompilable(str(call))

    def _nearby(self, call: Call) -> tuple[Value, Value] | None:
        """Write the operands of `haversine(...) <= metres`, infinite at once where latitudes alone are too far apart.

        So most candidates that are no pairs cost no sine. Beyond the poles a difference of latitudes says nothing.
        """
        if call.op not in ("<", "<=", ">", ">="):
            return None
        near, limit = call.args if call.op in ("<", "<=") else call.args[::-1]
        metres = number_of(limit)
        if not (isinstance(near, Call) and near.op == "haversine" and limit.type == DOUBLE and metres is not None):
            return None
        args = [self.value(arg) for arg in near.args]
        degrees = self._argument(math.degrees(max(metres, 0.0) / EARTH_RADIUS_M) * (1 + 1e-9) + 1e-9, "float64")
        a, b = args[0].name, args[2].name
        far = self.assign(f"(abs({a} - {b}) > {degrees}) & (abs({a}) <= 90.0) & (abs({b}) <= 90.0)")
        found = self.on_sphere(near, args, far)
        return (found, self.value(limit)) if near is call.args[0] else (self.value(limit), found)

    def _both(self, *values: Value) -> str | None:
        """Return the validity of what is NULL if any of these is."""
        names = list(dict.fromkeys(v.valid for v in values if v.valid is not None))
        return None if not names else names[0] if len(names) == 1 else self.assign(" & ".join(names))

    def _and_or(self, call: Call) -> Value:
        """Write AND or OR of three values: a false (or, for OR, true) operand decides, whatever the others are."""
        operands = [self.boolean(arg) for arg in call.args]
        joint, decisive = ("&", "not {0}") if call.op == "and" else ("|", "{0}")
        name = self.assign(f" {joint} ".join(v.name for v in operands))
        if all(v.valid is None for v in operands):
            return Value(name, None, "bool")
        known = [v.valid or "True" for v in operands]
        decided = [f"({known_} & ({decisive.format(v.name)}))" for v, known_ in zip(operands, known, strict=True)]
        valid = self.assign(f"({' & '.join(known)}) | {' | '.join(decided)}")
        if call.op == "or":  # true only if a known operand is
            name = self.assign(" | ".join(f"({v.name} & {k})" for v, k in zip(operands, known, strict=True)))
        return Value(name, valid, "bool")

    # --- what chooses one of its arguments

    def _optional(self, expression: Expression) -> Value:
        """Write an argument that may be the constant NULL."""
        if not (isinstance(expression, Literal) and expression.value is None):
            return self.value(expression)
        kind = {"FLOAT": "f4", "DOUBLE": "f8", "BOOLEAN": "bool"}.get(expression.type.name, "int")
        if kernel_dtype(expression.type) is None:
            raise NotCompilable(str(expression))
        filler = {"f4": "float32(0)", "f8": "float64(0)", "bool": "False", "int": "int64(0)"}[kind]
        return Value(self.assign(filler), "False", kind, scale=expression.type.scale)

    def _chosen(self, condition: str, a: Value, b: Value, valid: str | None) -> Value:
        """Return the one value where the condition holds, and the other one elsewhere."""
        if a.kind != b.kind or a.scale != b.scale:
            raise NotCompilable("values of two kinds")
        name = self.assign(f"{a.name} if {condition} else {b.name}")
        return Value(name, valid, a.kind, min(a.low, b.low), max(a.high, b.high), a.scale)

    def extreme(self, call: Call) -> Value:
        """Write `least` or `greatest`, which skip NULLs."""
        best, *others = map(self._optional, call.args)
        for other in others:
            better = self._compare("<" if call.op == "least" else ">", other, best)
            if best.valid is not None or other.valid is not None:
                known, also = best.valid or "True", other.valid or "True"
                better = self.assign(f"{also} & ((not {known}) | {better})")
                best = self._chosen(better, other, best, self.assign(f"{known} | {also}"))
            else:
                best = self._chosen(better, other, best, None)
        return best

    def case(self, call: Call) -> Value:
        """Write CASE: all branches are computed, and the first one taken whose condition is true."""
        *branches, default = call.args
        found = self._optional(default)
        for condition, value in list(zip(branches[::2], branches[1::2], strict=True))[::-1]:
            test, taken = self.boolean(condition), self._optional(value)
            holds = test.name if test.valid is None else self.assign(f"{test.name} & {test.valid}")
            valid = None
            if taken.valid is not None or found.valid is not None:
                valid = self.assign(f"{taken.valid or 'True'} if {holds} else {found.valid or 'True'}")
            found = self._chosen(holds, taken, found, valid)
        return found

    def coalesce(self, call: Call) -> Value:
        found, *others = map(self._optional, call.args)
        for other in others:
            if found.valid is None:
                break
            valid = None if other.valid is None else self.assign(f"{found.valid} | {other.valid}")
            found = self._chosen(found.valid, found, other, valid)
        return found

    def _compare(self, op: str, a: Value, b: Value) -> str:
        """Compare values, whatever the validity. NaN equals itself and is larger than any number."""
        if a.kind != b.kind:
            raise NotCompilable(op)
        if a.kind == "int" and a.scale != b.scale:
            scale = max(a.scale, b.scale)
            a, b = self._rescaled(a, scale), self._rescaled(b, scale)
        if op in (">", ">="):
            op, a, b = {">": "<", ">=": "<="}[op], b, a
        x, y = a.name, b.name
        if a.kind == "text":
            self.doubts.append(self.assign(alike(x, y)))
        if a.kind in ("int", "bool", "text"):
            return self.assign(f"{x} {({'=': '==', '<>': '!=', '<=>': '=='}).get(op, op)} {y}")
        if op in ("=", "<=>", "<>"):
            same = f"(({x} == {y}) | (({x} != {x}) & ({y} != {y})))"
            return self.assign(f"not {same}" if op == "<>" else same)
        if op == "<=":  # all but y < x; the second part is y < x where x is NaN
            return self.assign(f"({x} <= {y}) | ({y} != {y})")
        return self.assign(f"({x} < {y}) | (({y} != {y}) & ({x} == {x}))")

    def _rescaled(self, value: Value, scale: int) -> Value:
        if scale == value.scale:
            return value
        factor = 10 ** (scale - value.scale)
        if factor > INT64_MAX:
            raise NotCompilable("scale")
        return replace(self._integer("*", value, Value(f"int64({factor})", None, "int", factor, factor)), scale=scale)

    def _integer(self, op: str, a: Value, b: Value) -> Value:
        """Compute exactly: where the operands' ranges allow an overflow, an estimate in floating point tells."""
        corners = [{"+": x + y, "-": x - y, "*": x * y}[op] for x in (a.low, a.high) for y in (b.low, b.high)]
        low, high = min(corners), max(corners)
        if low <= INT64_MIN or high > INT64_MAX:
            self.doubts.append(self.assign(f"abs(float64({a.name}) {op} float64({b.name})) >= 9.2e18"))
            low, high = INT64_MIN + 1, INT64_MAX
        return Value(self.assign(f"{a.name} {op} {b.name}"), self._both(a, b), "int", low, high)

    # --- one method an operator: the operands are written already

    def add(self, call: Call, args: Sequence[Value]) -> Value:
        a, b = args
        if a.kind == b.kind == "int" and not call.type.is_float:
            if call.type.is_decimal:
                return self._decimal(call, a, b)
            return self._integer(call.op, a, b)
        if a.kind != b.kind or a.kind == "bool":
            raise NotCompilable(str(call))
        return Value(self.assign(f"{a.name} {call.op} {b.name}"), self._both(a, b), a.kind)

    def _decimal(self, call: Call, a: Value, b: Value) -> Value:
        if call.op == "*":
            scale = a.scale + b.scale
        else:
            scale = max(a.scale, b.scale)
            a, b = self._rescaled(a, scale), self._rescaled(b, scale)
        if scale != call.type.scale:
            raise NotCompilable(str(call))
        return replace(self._integer(call.op, a, b), scale=scale)

    def divide(self, call: Call, args: Sequence[Value]) -> Value:
        a, b = args
        if not (a.kind == b.kind and a.kind in ("f4", "f8")):
            raise NotCompilable(str(call))
        known = self._both(a, b)
        self.doubts.append(self.assign(f"({b.name} == 0)" + (f" & {known}" if known else "")))
        return Value(self.assign(f"{a.name} / {b.name}"), known, a.kind)

    def negate(self, call: Call, args: Sequence[Value]) -> Value:
        (a,) = args
        if a.kind == "int":
            return replace(self._integer("-", Value("int64(0)", None, "int"), a), scale=a.scale)
        return Value(self.assign(f"-{a.name}"), a.valid, a.kind)

    def absolute(self, call: Call, args: Sequence[Value]) -> Value:
        (a,) = args
        if a.kind == "int":
            if a.low == INT64_MIN:
                self.doubts.append(self.assign(f"{a.name} == int64({INT64_MIN})"))
            return replace(a, name=self.assign(f"abs({a.name})"), low=0, high=min(max(-a.low, a.high), INT64_MAX))
        return Value(self.assign(f"abs({a.name})"), a.valid, a.kind)

    def invert(self, call: Call, args: Sequence[Value]) -> Value:
        return Value(self.assign(f"not {args[0].name}"), args[0].valid, "bool")

    def is_null(self, call: Call, args: Sequence[Value]) -> Value:
        return Value("False" if args[0].valid is None else self.assign(f"not {args[0].valid}"), None, "bool")

    def null_safe_equal(self, call: Call, args: Sequence[Value]) -> Value:
        a, b = args
        equal = self._compare("=", a, b)
        if a.valid is None and b.valid is None:
            return Value(equal, None, "bool")
        known_a, known_b = a.valid or "True", b.valid or "True"
        both, neither = f"({equal} & {known_a} & {known_b})", f"((not {known_a}) & (not {known_b}))"
        return Value(self.assign(f"{both} | {neither}"), None, "bool")

    def starts_with(self, call: Call, args: Sequence[Value]) -> Value:
        text, prefix = args
        if text.kind != "text" or prefix.kind != "text":
            raise NotCompilable(str(call))
        found, longer = begins_with(text.name, prefix.name)
        name = self.assign(found)
        self.doubts.append(self.assign(f"{name} & {longer}"))
        return Value(name, self._both(text, prefix), "bool")

    def convert(self, call: Call, args: Sequence[Value]) -> Value:
        (a,), source, target = args, call.args[0].type, call.type
        if target.is_float and a.kind in ("f4", "f8", "int") and not source.is_decimal and source.is_numeric:
            name = "float32" if target.name == "FLOAT" else "float64"
            return Value(self.assign(f"{name}({a.name})"), a.valid, "f4" if target.name == "FLOAT" else "f8")
        if source.is_decimal and target.name == "DOUBLE" and max(-a.low, a.high) < 2**53 and a.scale <= 22:
            return Value(self.assign(f"float64({a.name}) / float64({10**a.scale})"), a.valid, "f8")
        if source.is_integer and target.is_integer:
            low, high = integer_range(target)
            if low <= a.low and a.high <= high:
                return a
        if source.is_integer and target.is_decimal:
            limit = 10 ** (target.precision - target.scale)
            if -limit < a.low and a.high < limit:
                return self._rescaled(a, target.scale)
        raise NotCompilable(str(call))

    def real(self, call: Call, args: Sequence[Value]) -> Value:
        """Write a function of DOUBLEs, by the C library that the reference uses."""
        if any(a.kind != "f8" for a in args):
            raise NotCompilable(str(call))
        zero = " + 0.0" if call.op == "atan2" else ""  # it makes 0.0 of -0.0
        operands = ", ".join(a.name + zero for a in args)
        return Value(self.assign(f"{REAL[call.op]}({operands})"), self._both(*args), "f8")

    def power(self, call: Call, args: Sequence[Value]) -> Value:
        exponent = call.args[1]
        while isinstance(exponent, Call) and exponent.op == "cast":
            exponent = exponent.args[0]
        if not (isinstance(exponent, Literal) and exponent.value == 2 and args[0].kind == "f8"):
            raise NotCompilable(str(call))
        return Value(self.assign(f"{args[0].name} * {args[0].name}"), args[0].valid, "f8")

    def on_sphere(self, call: Call, args: Sequence[Value], far: str = "False") -> Value:
        """Write a distance, which is infinite where they are `far`."""
        if any(a.kind != "f8" for a in args):
            raise NotCompilable(str(call))
        known = self._both(*args)
        distance = f"haversine({', '.join(a.name for a in args)})"
        return Value(self.assign(f"np.inf if {far} else {distance}"), known, "f8")


_WRITERS: dict[str, Callable[[_Writer, Call, list[Value]], Value]] = {
    "+": _Writer.add,
    "-": _Writer.add,
    "*": _Writer.add,
    "/": _Writer.divide,
    "neg": _Writer.negate,
    "abs": _Writer.absolute,
    "not": _Writer.invert,
    "is_null": _Writer.is_null,
    "<=>": _Writer.null_safe_equal,
    "cast": _Writer.convert,
    "startswith": _Writer.starts_with,
    "pow": _Writer.power,
    "power": _Writer.power,
    "haversine": _Writer.on_sphere,
    **dict.fromkeys(REAL, _Writer.real),
}
_CHOOSERS: dict[str, Callable[[_Writer, Call], Value]] = {
    "least": _Writer.extreme,
    "greatest": _Writer.extreme,
    "case": _Writer.case,
    "coalesce": _Writer.coalesce,
}
assert all(hasattr(math, name.removeprefix("math.")) for name in REAL.values())
