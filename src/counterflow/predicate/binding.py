"""From a syntax tree and two schemas to one typed expression.

Here columns are found, types are widened by Spark's rules with explicit casts, and everything that cannot
work is refused, before a row is read, with the place and the way out.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from sqlglot import exp

from counterflow.errors import ColumnError, EvaluationError, PredicateError, WindowError
from counterflow.predicate.casts import cast_value, castable
from counterflow.predicate.columns import QUALIFIERS, Schema, find_column, zone_of
from counterflow.predicate.conditions import FUNCTION, Condition, PythonFunction
from counterflow.predicate.durations import duration_us
from counterflow.predicate.expression import COMPARISONS, Call, Column, Expression, Literal, Side
from counterflow.predicate.forms import AGGREGATES, FORMS, collate
from counterflow.predicate.functions import FUNCTIONS, WALL_CLOCK_FUNCTIONS
from counterflow.predicate.parsing import Node, check_rank, number, parse, sql_type
from counterflow.predicate.python_expressions import Expr
from counterflow.predicate.time_forms import extract
from counterflow.predicate.types import (
    ARRAY,
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    INTERVAL,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    SqlType,
    arithmetic_decimal,
    as_decimal,
    decimal_type,
    wider,
)
from counterflow.predicate.wall_clock import US_PER_DAY, UTC_NAMES
from counterflow.suggest import did_you_mean

_BINARY: dict[Any, str] = {
    exp.EQ: "=",
    exp.NullSafeEQ: "<=>",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
}


def bind(where: str | Expr, left: Schema, right: Schema, zone: str | None = None) -> Expression:
    """Return the typed predicate. `zone` is where its wall clock is read; the columns it uses decide if it is None."""
    node = parse(where)
    try:
        predicate = Binder(left, right, zone or zone_of(node, left, right)).expression(node)
    except RecursionError as error:
        raise PredicateError(
            "where= is nested too deeply: use fewer parentheses, IN lists, or columns of their own"
        ) from error
    if predicate.type not in (BOOLEAN, NULL):
        raise PredicateError(
            f"where= must be a condition, but '{predicate}' is {predicate.type}, not BOOLEAN: compare it with something"
        )
    return convert(predicate, BOOLEAN)


def convert(expression: Expression, target: SqlType) -> Expression:
    """Return the same value as another type: itself, a literal of that type, or an explicit cast."""
    if expression.type == target:
        return expression
    if isinstance(expression, Literal):
        try:
            return Literal(cast_value(expression.value, expression.type, target), target)
        except EvaluationError as error:
            raise PredicateError(str(error)) from error
    return Call("cast", (expression,), target)


class Binder:
    """What binds the nodes of one predicate. `zone` is where all its TIMESTAMPs are read."""

    def __init__(self, left: Schema, right: Schema, zone: str = "UTC") -> None:
        self.schemas: dict[Side, Schema] = {"left": left, "right": right}
        self.zone = zone
        self.takes_arrays = False

    def expression(self, node: Node) -> Expression:
        check_rank(node)
        if type(node) in _BINARY:
            return self.binary(_BINARY[type(node)], self.expression(node.this), self.expression(node.expression))
        method = getattr(self, f"bind_{type(node).__name__.lower()}", None)
        if method is None:
            raise PredicateError(
                f"'{node.sql(dialect='spark')}' ({type(node).__name__}) cannot be used in a join predicate: "
                "a predicate is made of the two sides' columns, constants, operators and functions"
            )
        result: Expression = method(node)
        return result

    def zoned(self, type_: SqlType) -> SqlType:
        return replace(type_, zone=self.zone) if type_.name == "TIMESTAMP" else type_

    # --- leaves

    def bind_column(self, node: Node) -> Expression:
        if node.args.get("db"):
            return self.bind_dot(node)
        if isinstance(node.this, exp.Star):
            raise PredicateError("'*' cannot be used in a join predicate: name the columns to compare")
        if node.table:
            side = QUALIFIERS.get(node.table.lower())
            if side is None:
                raise ColumnError(
                    f"'{node.sql(dialect='spark')}': unknown qualifier '{node.table}'; "
                    "use l. (or left.) and r. (or right.)"
                )
            return self.column(side, node.name)
        sides: tuple[Side, Side] = ("left", "right")
        found = [side for side in sides if find_column(self.schemas[side], node.name) is not None]
        if len(found) == 2:
            raise ColumnError(
                f"column '{node.name}' is in both inputs: write l.{node.name} or r.{node.name} in the predicate"
            )
        if not found:
            names = list(dict.fromkeys([*self.schemas["left"], *self.schemas["right"]]))
            raise ColumnError(f"no column '{node.name}' in either input{did_you_mean(node.name, names)}")
        return self.column(found[0], node.name)

    def column(self, side: Side, name: str) -> Column:
        actual = find_column(self.schemas[side], name)
        if actual is None:
            raise ColumnError(f"no column '{name}' in the {side} input{did_you_mean(name, list(self.schemas[side]))}")
        type_ = self.schemas[side][actual]
        if type_ is None or (type_ == ARRAY and not self.takes_arrays):
            raise ColumnError(
                f"column '{actual}' of the {side} input has a type that a predicate cannot use (nested, a time of day, "
                "or wider than 38 digits); it can be carried along, but not compared; lists of numbers are for "
                "cf.condition"
            )
        return Column(side, actual, self.zoned(type_))

    def bind_dot(self, node: Node) -> Expression:
        raise ColumnError(
            f"'{node.sql(dialect='spark')}': nested fields and elements cannot be used in a predicate; "
            "select the field as a column of its own first"
        )

    bind_bracket = bind_dot

    def bind_literal(self, node: Node) -> Literal:
        return Literal(node.this, STRING) if node.is_string else number(node.this)

    def bind_rawstring(self, node: Node) -> Literal:
        return Literal(node.this, STRING)

    def bind_hexstring(self, node: Node) -> Literal:
        digits = node.this if len(node.this) % 2 == 0 else "0" + node.this
        return Literal(bytes.fromhex(digits), BINARY)

    def bind_boolean(self, node: Node) -> Literal:
        return Literal(bool(node.this), BOOLEAN)

    def bind_null(self, node: Node) -> Literal:
        return Literal(None, NULL)

    def bind_paren(self, node: Node) -> Expression:
        return self.expression(node.this)

    def bind_interval(self, node: Node) -> Literal:
        unit = node.args.get("unit")
        try:
            if not isinstance(node.this, exp.Literal) or not isinstance(unit, exp.Var | None):
                raise WindowError("not a constant with one unit")
            return Literal(duration_us(f"{node.this.this} {unit.name if unit else ''}"), INTERVAL)
        except WindowError as error:
            raise PredicateError(
                f"'{node.sql(dialect='spark')}': {error}. An interval is a constant of a fixed length, in weeks to "
                "microseconds, for example INTERVAL 90 SECONDS; a column times a unit is l.x * INTERVAL 1 SECOND"
            ) from error

    # --- logic

    def bind_and(self, node: Node) -> Expression:
        return Call("and", tuple(self.condition_of(operand) for operand in node.flatten(unnest=False)), BOOLEAN)

    def bind_or(self, node: Node) -> Expression:
        return Call("or", tuple(self.condition_of(operand) for operand in node.flatten(unnest=False)), BOOLEAN)

    def bind_not(self, node: Node) -> Expression:
        return Call("not", (self.condition_of(node.this),), BOOLEAN)

    def condition_of(self, node: Node) -> Expression:
        return self.condition(self.expression(node))

    def condition(self, bound: Expression) -> Expression:
        if bound.type not in (BOOLEAN, NULL):
            raise PredicateError(
                f"'{bound}' is {bound.type}, where a condition (BOOLEAN) is needed: compare it with something"
            )
        return convert(bound, BOOLEAN)

    def bind_is(self, node: Node) -> Expression:
        if isinstance(node.expression, exp.Null):
            return Call("is_null", (self.expression(node.this),), BOOLEAN)
        return Call("<=>", (self.condition_of(node.this), self.condition_of(node.expression)), BOOLEAN)

    def bind_nullsafeneq(self, node: Node) -> Expression:
        """Bind IS DISTINCT FROM."""
        same = self.binary("<=>", self.expression(node.this), self.expression(node.expression))
        return Call("not", (same,), BOOLEAN)

    def bind_between(self, node: Node) -> Expression:
        if node.args.get("symmetric"):
            raise PredicateError("BETWEEN SYMMETRIC is not Spark SQL: write BETWEEN least(a, b) AND greatest(a, b)")
        value = self.expression(node.this)
        low = self.binary(">=", value, self.expression(node.args["low"]))
        high = self.binary("<=", value, self.expression(node.args["high"]))
        return Call("and", (low, high), BOOLEAN)

    def bind_in(self, node: Node) -> Expression:
        if not node.expressions:
            raise PredicateError(f"'{node.sql(dialect='spark')}': IN needs a list of values; a subquery cannot be used")
        values = self.adopt_times([self.expression(n) for n in (node.this, *node.expressions)])
        for option in values[1:]:
            self.comparable("=", values[0], option)  # the error names the two that do not fit
        common = self.common_type("IN", values)
        return Call("in", tuple(v if common.is_exact else convert(v, common) for v in values), BOOLEAN)

    # --- comparison and arithmetic

    def binary(self, op: str, a: Expression, b: Expression) -> Expression:
        if op in COMPARISONS:
            return Call(op, self.comparable(op, a, b), BOOLEAN)
        if op in ("&", "|", "^"):
            return self.bitwise(op, a, b)
        return self.time_arithmetic(op, a, b) or self.number_arithmetic(op, a, b)

    def comparable(self, op: str, a: Expression, b: Expression) -> tuple[Expression, Expression]:
        a, b = self.adopt_times([a, b])
        common = wider(a.type, b.type)
        if common is None:
            advice = "compare values of one kind, or CAST one of them"
            if STRING in (a.type, b.type):
                advice = "a text is only compared with texts; CAST one of them to say which comparison you mean"
            elif a.type.is_timestamp and b.type.is_timestamp:
                advice = "one has a time zone and the other has none; CAST one of them"
            raise PredicateError(f"cannot compare '{a}' ({a.type}) {op} '{b}' ({b.type}): {advice}")
        if common.is_exact:  # exact numbers are compared exactly, whatever their digits
            return a, b
        return convert(a, common), convert(b, common)

    def adopt_times(self, values: list[Expression]) -> list[Expression]:
        """Return the values, with text constants beside a date or timestamp turned into one, as Spark casts them."""
        time = next((v.type for v in values if v.type.is_time), None)
        if time is None:
            return values
        return [convert(v, time) if isinstance(v, Literal) and v.type == STRING else v for v in values]

    def time_arithmetic(self, op: str, a: Expression, b: Expression) -> Expression | None:
        if op == "-":
            a, b = self.adopt_times([a, b])
        if op == "+" and b.type.is_time:
            a, b = b, a
        if op in ("+", "-") and a.type.is_time and b.type == INTERVAL:
            return self.shifted(op, a, b)
        if op in ("+", "-") and a.type == DATE and b.type.is_integer:
            return Call("date_add" if op == "+" else "date_sub", (a, b), DATE)
        if op == "-" and a.type.is_time and b.type.is_time:
            a, b = self.comparable(op, a, b)
            return Call("-", (self.on_wall_clock(a), self.on_wall_clock(b)), INTERVAL)
        if a.type == b.type == INTERVAL and op in ("+", "-"):
            return Call(op, (a, b), INTERVAL)
        if INTERVAL in (a.type, b.type) and (a.type.is_integer or b.type.is_integer) and op == "*":
            return Call("*", (a, b), INTERVAL)
        return None

    def on_wall_clock(self, moment: Expression) -> Expression:
        """Return a moment for a difference: Spark measures between wall clocks, so a change to summer time counts."""
        utc = moment.type.name == "TIMESTAMP" and self.zone in UTC_NAMES  # without such changes no cast is needed
        return moment if utc else convert(moment, TIMESTAMP_NTZ)

    def shifted(self, op: str, moment: Expression, interval: Expression) -> Expression:
        """Return a moment moved by an interval, as in Spark: whole days on the wall clock, the rest as elapsed time."""
        constant = interval.value if isinstance(interval, Literal) and interval.value is not None else None
        if moment.type == DATE and constant is not None and constant % US_PER_DAY == 0:
            return Call("date_add" if op == "+" else "date_sub", (moment, Literal(constant // US_PER_DAY, INT)), DATE)
        if moment.type == DATE:
            moment = convert(moment, self.zoned(TIMESTAMP))
        within_a_day = constant is not None and abs(constant) < US_PER_DAY
        if moment.type == TIMESTAMP_NTZ or self.zone in UTC_NAMES or within_a_day:
            return Call(op, (moment, interval), moment.type)
        rest = Call("%", (interval, Literal(US_PER_DAY, INTERVAL)), INTERVAL)
        days = Call("-", (interval, rest), INTERVAL)
        elapsed = Call(op, (moment, days), moment.type)
        moved = Call(op, (convert(moment, TIMESTAMP_NTZ), days), TIMESTAMP_NTZ)
        same = Call("=", (convert(elapsed, TIMESTAMP_NTZ), moved), BOOLEAN)  # no change of the clock in between
        whole = Call("case", (same, elapsed, convert(moved, self.zoned(TIMESTAMP))), moment.type)
        return Call(op, (whole, rest), moment.type)

    def number_arithmetic(self, op: str, a: Expression, b: Expression) -> Expression:
        common = wider(a.type, b.type)
        common = DOUBLE if common == NULL else common
        if common is None or not common.is_numeric:
            raise PredicateError(
                f"cannot compute '{a}' {op} '{b}': {a.type} and {b.type}; "
                "both must be numbers, or a time and an interval"
            )
        a, b = (convert(v, common) if v.type == NULL else v for v in (a, b))
        if op == "div":
            if not common.is_integer:
                raise PredicateError(f"'{a}' div '{b}': {a.type} and {b.type} are not integers; use floor(a / b)")
            return Call("div", (a, b), BIGINT)
        if common.is_decimal:
            a, b = self.as_decimal_operand(a), self.as_decimal_operand(b)
            return Call(op, (a, b), arithmetic_decimal(op, a.type, b.type))
        if common.is_integer and op != "/":
            return Call(op, (a, b), common)
        common = DOUBLE if op == "/" else common
        return Call(op, (convert(a, common), convert(b, common)), common)

    def as_decimal_operand(self, expression: Expression) -> Expression:
        if isinstance(expression, Literal) and isinstance(expression.value, int):
            return Literal(Decimal(expression.value), decimal_type(len(str(abs(expression.value))), 0))
        return convert(expression, as_decimal(expression.type))

    def bitwise(self, op: str, a: Expression, b: Expression) -> Expression:
        common = wider(a.type, b.type)
        if common is None or not common.is_integer:
            raise PredicateError(f"'{a}' {op} '{b}': bit operations take integers, not {a.type} and {b.type}")
        return Call(op, (a, b), common)

    def bind_bitwisenot(self, node: Node) -> Expression:
        return self.bitwise("^", self.expression(node.this), Literal(-1, SqlType("TINYINT")))

    def bind_neg(self, node: Node) -> Expression:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return number("-" + node.this.this)  # -2147483648 is an INT, though 2147483648 is none
        value = self.expression(node.this)
        if not (value.type.is_numeric or value.type in (INTERVAL, NULL)):
            raise PredicateError(f"cannot negate '{value}' ({value.type}): only numbers and intervals have a sign")
        if isinstance(value, Literal) and isinstance(value.value, int | float):
            return Literal(-value.value, value.type)
        return Call("neg", (value,), value.type)

    # --- casts and conditionals

    def bind_cast(self, node: Node) -> Expression:
        return self.cast_to("cast", self.expression(node.this), sql_type(node.args["to"]))

    def bind_trycast(self, node: Node) -> Expression:
        return self.cast_to("try_cast", self.expression(node.this), sql_type(node.args["to"]))

    def cast_to(self, op: str, value: Expression, target: SqlType) -> Expression:
        if not castable(value.type, target):
            raise PredicateError(f"cannot CAST '{value}' ({value.type}) to {target}: the two have nothing in common")
        if op == "cast" or value.type == target:
            return convert(value, self.zoned(target))
        return Call(op, (value,), self.zoned(target))

    def bind_case(self, node: Node) -> Expression:
        subject = self.expression(node.this) if node.this else None
        branches: list[Expression] = []
        for branch in node.args["ifs"]:
            when = self.expression(branch.this)
            test = self.condition(when) if subject is None else self.binary("=", subject, when)
            branches += [test, self.expression(branch.args["true"])]
        default = node.args.get("default")
        return self.case([*branches, self.expression(default) if default else Literal(None, NULL)])

    def case(self, args: list[Expression]) -> Expression:
        """Return a CASE over (condition, value, condition, value, ..., default)."""
        values = self.same_type("CASE", [*args[1:-1:2], args[-1]])
        flat: list[Expression] = []
        for condition, value in zip(args[0:-1:2], values, strict=False):
            flat += [condition, value]
        return Call("case", (*flat, values[-1]), values[-1].type)

    def same_type(self, what: str, values: list[Expression]) -> list[Expression]:
        values = self.adopt_times(values)
        common = self.common_type(what, values)
        return [convert(v, common) for v in values]

    def common_type(self, what: str, values: list[Expression]) -> SqlType:
        common = NULL
        for value in values:
            merged = wider(common, value.type)
            if merged is None:
                raise PredicateError(
                    f"{what}: {common} and '{value}' ({value.type}) do not fit together; CAST one of them"
                )
            common = merged
        return common

    def bind_if(self, node: Node) -> Expression:
        default = node.args.get("false")
        otherwise = self.expression(default) if default else Literal(None, NULL)
        return self.case([self.condition_of(node.this), self.expression(node.args["true"]), otherwise])

    # --- functions

    def bind_anonymous(self, node: Node) -> Expression:
        if (function := node.args.get(FUNCTION)) is not None:
            return self.python_condition(node, function)
        name = node.name.lower()
        if name in AGGREGATES:
            raise PredicateError(
                f"{name}() is an aggregate, but a join predicate looks at one pair at a time: aggregate an input "
                "before the join, or the result after it"
            )
        args = [self.expression(a) for a in node.expressions]
        return FORMS[name](self, name, args) if name in FORMS else self.function(name, args)

    def python_condition(self, node: Node, function: PythonFunction) -> Expression:
        """Bind `cf.condition`: only its arguments may be columns of lists."""
        args = []
        for arg in node.expressions:
            self.takes_arrays = isinstance(arg, exp.Column)
            args.append(self.expression(arg))
            self.takes_arrays = False
        return Condition("condition", tuple(args), BOOLEAN, function)

    def function(self, name: str, args: list[Expression]) -> Call:
        known = FUNCTIONS.get(name)
        if known is None:
            raise PredicateError(
                f"unknown function {name}(): compute it as a column of its input first, if Counterflow has no such "
                f"function{did_you_mean(name, [*FUNCTIONS, *FORMS])}"
            )
        low, high = known.arity
        typed = known.signature(tuple(a.type for a in args)) if low <= len(args) <= high else None
        if typed is None:
            given = ", ".join(f"{a}: {a.type}" for a in args)
            raise PredicateError(f"{name}({given}) does not fit its usage {name}{known.usage}; CAST what does not fit")
        targets, result = typed
        if name in WALL_CLOCK_FUNCTIONS:
            targets = (TIMESTAMP_NTZ,)
        converted = tuple(convert(a, self.zoned(t)) for a, t in zip(args, targets, strict=True))
        return Call(known.name, converted, self.zoned(result))

    def bind_extract(self, node: Node) -> Expression:
        return extract(self, node.name, self.expression(node.expression))

    def bind_like(self, node: Node, name: str = "like", *escape: Expression) -> Expression:
        matched = self.function(name, [self.expression(node.this), self.expression(node.expression), *escape])
        return Call("not", (matched,), BOOLEAN) if node.args.get("negate") else matched

    def bind_ilike(self, node: Node) -> Expression:
        return self.bind_like(node, "ilike")

    def bind_regexplike(self, node: Node) -> Expression:
        return self.bind_like(node, "rlike")

    def bind_escape(self, node: Node) -> Expression:
        name = "ilike" if isinstance(node.this, exp.ILike) else "like"
        escape = self.expression(node.expression)
        if not isinstance(escape, Literal) or escape.type != STRING or len(escape.value) != 1:
            raise PredicateError(f"ESCAPE {escape}: give one character, for example ESCAPE '!'")
        return self.bind_like(node.this, name, escape)

    def bind_collate(self, node: Node) -> Expression:
        return collate(self, "COLLATE", [self.expression(node.this), Literal(node.expression.name, STRING)])

    def bind_dpipe(self, node: Node) -> Expression:
        return self.function("concat", [self.expression(node.this), self.expression(node.expression)])
