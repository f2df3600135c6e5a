"""From SQL text (or a Python expression) and two schemas to one typed expression.

sqlglot parses, with Spark's syntax. Here columns are found, types are widened by Spark's rules with explicit
casts, and everything that cannot work is refused, before a row is read, with the place and the way out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from counterflow.errors import ColumnError, EvaluationError, PredicateError
from counterflow.spec.casts import cast_value, castable
from counterflow.spec.expression import COMPARISONS, Call, Column, Expression, Literal, Side
from counterflow.spec.functions import FUNCTIONS, WALL_CLOCK_FUNCTIONS
from counterflow.spec.python_expressions import Expr
from counterflow.spec.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
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
from counterflow.suggest import did_you_mean


class _SparkPredicates(Spark):
    """Spark's syntax, but every function stays a plain call by its own name: `functions.py` gives the meaning."""

    class Parser(Spark.Parser):
        FUNCTIONS: dict[str, Any] = {}  # noqa: RUF012
        FUNCTION_PARSERS = {k: Spark.Parser.FUNCTION_PARSERS[k] for k in ("CAST", "TRY_CAST", "EXTRACT")}  # noqa: RUF012
        NO_PAREN_FUNCTIONS: dict[Any, Any] = {}  # noqa: RUF012
        STRICT_CAST = True  # CAST is an error where it fails, TRY_CAST is NULL


_QUALIFIERS: dict[str, Side] = {"l": "left", "left": "left", "r": "right", "right": "right"}

_BINARY = {
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
}
_BITWISE = {exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "^"}

_SQL_TYPES = {
    "BOOLEAN": BOOLEAN,
    "TINYINT": SqlType("TINYINT"),
    "SMALLINT": SqlType("SMALLINT"),
    "INT": INT,
    "BIGINT": BIGINT,
    "FLOAT": FLOAT,
    "DOUBLE": DOUBLE,
    "TEXT": STRING,
    "VARCHAR": STRING,
    "BINARY": BINARY,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMPLTZ": TIMESTAMP,
    "TIMESTAMPNTZ": TIMESTAMP_NTZ,
}

_INTERVAL_US = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
    "WEEK": 7 * 86_400_000_000,
}


def parse(where: str | Expr) -> exp.Expression:
    """The syntax tree of a predicate."""
    if isinstance(where, Expr):
        return where._node
    if not isinstance(where, str):
        raise PredicateError(
            f"where= must be SQL text or a Counterflow expression, not {type(where).__name__}: "
            "for example where=\"l.x BETWEEN r.a - 10 AND r.a + 10\" or where=cf.band('x', 'a', 10)"
        )
    if not where.strip():
        raise PredicateError("where= is empty: give a condition, or where='true' to pair everything in the window")
    try:
        statements = [s for s in sqlglot.parse(where, dialect=_SparkPredicates) if s is not None]
    except sqlglot.errors.SqlglotError as error:
        raise PredicateError(f"cannot parse where={where!r}: {_parser_message(error)}") from error
    if len(statements) != 1:
        raise PredicateError(f"where={where!r} holds {len(statements)} statements: give one boolean expression")
    return statements[0]


def _parser_message(error: Exception) -> str:
    details = getattr(error, "errors", None)
    if details:
        first = details[0]
        near = f"{first.get('start_context') or ''}{first.get('highlight') or ''}"[-40:].strip()
        return f"line {first.get('line')}, column {first.get('col')}, at the end of '{near}'"
    return re.sub(r"\x1b\[\d+m", "", str(error)).splitlines()[0]


def bind(where: str | Expr, left: Mapping[str, SqlType | None], right: Mapping[str, SqlType | None]) -> Expression:
    """The typed predicate. A schema maps a column's name to its type, None where a predicate cannot use it."""
    predicate = _Binder(left, right).expression(parse(where))
    if predicate.type not in (BOOLEAN, NULL):
        raise PredicateError(f"where= must be a condition, but '{predicate}' is {predicate.type}, not BOOLEAN")
    return convert(predicate, BOOLEAN)


def convert(expression: Expression, target: SqlType) -> Expression:
    """The same value as another type: nothing, a folded literal, or an explicit cast."""
    if expression.type == target:
        return expression
    if isinstance(expression, Literal):
        return Literal(cast_value(expression.value, expression.type, target), target)
    return Call("cast", (expression,), target)


class _Binder:
    def __init__(self, left: Mapping[str, SqlType | None], right: Mapping[str, SqlType | None]) -> None:
        self.schemas: dict[Side, Mapping[str, SqlType | None]] = {"left": left, "right": right}

    def expression(self, node: exp.Expression) -> Expression:
        if type(node) in _BINARY:
            op = _BINARY[type(node)]
            return self.binary(op, self.expression(node.this), self.expression(node.expression))
        if type(node) in _BITWISE:
            return self.bitwise(_BITWISE[type(node)], node)
        method = getattr(self, f"bind_{type(node).__name__.lower()}", None)
        if method is None:
            raise PredicateError(
                f"'{node.sql(dialect='spark')}' ({type(node).__name__}) cannot be used in a join predicate: "
                "a predicate is made of the two sides' columns, constants, operators and functions"
            )
        result: Expression = method(node)
        return result

    # --- leaves

    def bind_column(self, node: exp.Column) -> Expression:
        if node.args.get("db"):
            raise ColumnError(
                f"'{node.sql(dialect='spark')}': nested fields cannot be used in a predicate yet; "
                "select the field as a column of its own first"
            )
        if isinstance(node.this, exp.Star):
            raise PredicateError("'*' cannot be used in a join predicate")
        if node.table:
            side = _QUALIFIERS.get(node.table.lower())
            if side is None:
                raise ColumnError(
                    f"'{node.sql(dialect='spark')}': unknown qualifier '{node.table}'; use l. (or left.) and r. (or right.)"
                )
            return self.column(side, node.name)
        found = [side for side in ("left", "right") if find_column(self.schemas[side], node.name) is not None]
        if len(found) == 2:
            raise ColumnError(
                f"column '{node.name}' is in both inputs: write l.{node.name} or r.{node.name} in the predicate"
            )
        if not found:
            names = [*self.schemas["left"], *self.schemas["right"]]
            raise ColumnError(f"no column '{node.name}' in either input{did_you_mean(node.name, names)}")
        return self.column(found[0], node.name)  # type: ignore[arg-type]

    def column(self, side: Side, name: str) -> Column:
        actual = find_column(self.schemas[side], name)
        if actual is None:
            raise ColumnError(f"no column '{name}' in the {side} input{did_you_mean(name, list(self.schemas[side]))}")
        type_ = self.schemas[side][actual]
        if type_ is None:
            raise ColumnError(
                f"column '{actual}' of the {side} input has a type that a predicate cannot use (nested, or wider than "
                "38 digits); it can be carried along, but not compared"
            )
        return Column(side, actual, type_)

    def bind_literal(self, node: exp.Literal) -> Literal:
        if node.is_string:
            return Literal(node.this, STRING)
        text = node.this
        if re.fullmatch(r"\d+", text):
            number = int(text)
            if number <= 2**31 - 1:
                return Literal(number, INT)
            return Literal(number, BIGINT) if number <= 2**63 - 1 else Literal(Decimal(number), decimal_type(len(text), 0))
        if "e" in text.lower():
            return Literal(float(text), DOUBLE)
        digits = Decimal(text)
        scale = max(-int(digits.as_tuple().exponent), 0)
        return Literal(digits, decimal_type(max(len(digits.as_tuple().digits), scale), scale))

    def bind_boolean(self, node: exp.Boolean) -> Literal:
        return Literal(bool(node.this), BOOLEAN)

    def bind_null(self, node: exp.Null) -> Literal:
        return Literal(None, NULL)

    def bind_paren(self, node: exp.Paren) -> Expression:
        return self.expression(node.this)

    def bind_interval(self, node: exp.Interval) -> Literal:
        unit = node.args.get("unit")
        name = unit.name.upper().rstrip("S") if isinstance(unit, exp.Var) else ""
        if name not in _INTERVAL_US or not isinstance(node.this, exp.Literal):
            raise PredicateError(
                f"'{node.sql(dialect='spark')}': only intervals of a fixed length can be used, each with one unit from "
                "weeks to microseconds, for example INTERVAL 90 SECONDS"
            )
        return Literal(int(Decimal(node.this.this) * _INTERVAL_US[name]), INTERVAL)

    # --- logic

    def bind_and(self, node: exp.And) -> Expression:
        return Call("and", (self.condition(node.this), self.condition(node.expression)), BOOLEAN)

    def bind_or(self, node: exp.Or) -> Expression:
        return Call("or", (self.condition(node.this), self.condition(node.expression)), BOOLEAN)

    def bind_not(self, node: exp.Not) -> Expression:
        return Call("not", (self.condition(node.this),), BOOLEAN)

    def condition(self, node: exp.Expression) -> Expression:
        bound = self.expression(node)
        if bound.type not in (BOOLEAN, NULL):
            raise PredicateError(f"'{bound}' is {bound.type}, where a condition (BOOLEAN) is needed")
        return convert(bound, BOOLEAN)

    def bind_is(self, node: exp.Is) -> Expression:
        value = self.expression(node.this)
        if isinstance(node.expression, exp.Null):
            return Call("is_null", (value,), BOOLEAN)
        return Call("<=>", (self.condition(node.this), self.condition(node.expression)), BOOLEAN)

    def bind_between(self, node: exp.Between) -> Expression:
        if node.args.get("symmetric"):
            raise PredicateError("BETWEEN SYMMETRIC is not Spark SQL: write BETWEEN least(a, b) AND greatest(a, b)")
        value = self.expression(node.this)
        low = self.binary(">=", value, self.expression(node.args["low"]))
        high = self.binary("<=", value, self.expression(node.args["high"]))
        return Call("and", (low, high), BOOLEAN)

    def bind_in(self, node: exp.In) -> Expression:
        if not node.expressions:
            raise PredicateError(f"'{node.sql(dialect='spark')}': IN needs a list of values; a subquery cannot be used")
        value, options = self.expression(node.this), [self.expression(o) for o in node.expressions]
        common = value.type
        for option in options:
            self.binary("=", value, option)  # the error names the two that do not fit
            common = wider(common, option.type) or common
        return Call("in", tuple(convert(v, common) for v in (value, *options)), BOOLEAN)

    # --- comparison and arithmetic

    def binary(self, op: str, a: Expression, b: Expression) -> Expression:
        if op in COMPARISONS:
            a, b = self.comparable(op, a, b)
            return Call(op, (a, b), BOOLEAN)
        return self.time_arithmetic(op, a, b) or self.number_arithmetic(op, a, b)

    def comparable(self, op: str, a: Expression, b: Expression) -> tuple[Expression, Expression]:
        if STRING in (a.type, b.type) and a.type != b.type:
            a, b = self.literal_as_time(a, b.type), self.literal_as_time(b, a.type)
        common = wider(a.type, b.type)
        if common is None:
            advice = "compare values of one kind, or CAST one of them"
            if STRING in (a.type, b.type):
                advice = "a text is never compared with a number silently; CAST one of them to say which comparison you mean"
            elif a.type.is_timestamp and b.type.is_timestamp:
                advice = "one has a time zone and the other has none; CAST one of them"
            raise PredicateError(f"cannot compare '{a}' ({a.type}) {op} '{b}' ({b.type}): {advice}")
        if common.is_decimal:  # exact numbers are compared exactly, whatever their digits
            return a, b
        return convert(a, common), convert(b, common)

    def literal_as_time(self, expression: Expression, target: SqlType) -> Expression:
        """A string constant beside a date or timestamp is one (Spark casts it)."""
        if isinstance(expression, Literal) and expression.type == STRING and (target.is_timestamp or target == DATE):
            try:
                return convert(expression, target)
            except EvaluationError as error:
                raise PredicateError(f"{expression} is not a {target}: {error}") from error
        return expression

    def time_arithmetic(self, op: str, a: Expression, b: Expression) -> Expression | None:
        def is_time(t: SqlType) -> bool:
            return t.is_timestamp or t == DATE

        if is_time(a.type) and is_time(b.type) and op == "-":
            if a.type == b.type == DATE:
                days = Call("datediff", (a, b), INT)
                return Call("*", (convert(days, BIGINT), Literal(86_400_000_000, BIGINT)), INTERVAL)
            a, b = self.comparable(op, a, b)
            return Call("-", (a, b), INTERVAL)
        if op == "+" and a.type == INTERVAL and is_time(b.type):
            a, b = b, a
        if is_time(a.type) and b.type == INTERVAL and op in ("+", "-"):
            moment = convert(a, TIMESTAMP_NTZ) if a.type == DATE else a
            return Call(op, (moment, b), moment.type)
        if a.type == DATE and b.type.is_integer and op in ("+", "-"):
            return Call("date_add" if op == "+" else "date_sub", (a, b), DATE)
        if a.type == b.type == INTERVAL and op in ("+", "-"):
            return Call(op, (a, b), INTERVAL)
        if INTERVAL in (a.type, b.type) and (a.type.is_integer or b.type.is_integer) and op == "*":
            return Call("*", (a, b), INTERVAL)
        return None

    def number_arithmetic(self, op: str, a: Expression, b: Expression) -> Expression:
        if NULL in (a.type, b.type):
            a, b = (convert(a, b.type), b) if a.type == NULL else (a, convert(b, a.type))
        if not (a.type.is_numeric and b.type.is_numeric):
            raise PredicateError(
                f"cannot compute '{a}' {op} '{b}': {a.type} and {b.type}; both must be numbers, or a time and an interval"
            )
        if op == "div":
            if not (a.type.is_integer and b.type.is_integer):
                raise PredicateError(f"'{a}' div '{b}': div divides integers, not {a.type} and {b.type}; use floor(a / b)")
            return Call("div", (a, b), BIGINT)
        if a.type.is_exact and b.type.is_exact and (a.type.is_decimal or b.type.is_decimal):
            a, b = self.as_decimal_operand(a), self.as_decimal_operand(b)
            return Call(op, (a, b), arithmetic_decimal(op, a.type, b.type))
        common = wider(a.type, b.type)
        assert common is not None
        if op == "/" and common.is_integer:
            common = DOUBLE
        elif op == "/" and common == FLOAT:
            common = DOUBLE  # Spark divides in DOUBLE
        return Call(op, (convert(a, common), convert(b, common)), common)

    def as_decimal_operand(self, expression: Expression) -> Expression:
        if isinstance(expression, Literal) and isinstance(expression.value, int):
            return Literal(Decimal(expression.value), decimal_type(len(str(abs(expression.value))), 0))
        return convert(expression, as_decimal(expression.type))

    def bitwise(self, op: str, node: exp.Binary) -> Expression:
        a, b = self.expression(node.this), self.expression(node.expression)
        common = wider(a.type, b.type)
        if common is None or not common.is_integer:
            raise PredicateError(f"'{a}' {op} '{b}': bit operations take integers, not {a.type} and {b.type}")
        return Call(op, (a, b), common)

    def bind_neg(self, node: exp.Neg) -> Expression:
        value = self.expression(node.this)
        if isinstance(value, Literal) and value.value is not None and (value.type.is_numeric or value.type == INTERVAL):
            return Literal(-value.value, value.type)
        if not (value.type.is_numeric or value.type == INTERVAL):
            raise PredicateError(f"cannot negate '{value}' ({value.type})")
        return Call("neg", (value,), value.type)

    # --- casts and conditionals

    def bind_cast(self, node: exp.Cast) -> Expression:
        return self.cast("cast", node)

    def bind_trycast(self, node: exp.TryCast) -> Expression:
        return self.cast("try_cast", node)

    def cast(self, op: str, node: exp.Cast) -> Expression:
        value, target = self.expression(node.this), self.sql_type(node.args["to"])
        if target.name == "TIMESTAMP" and value.type.name == "TIMESTAMP":
            return value
        if not castable(value.type, target):
            raise PredicateError(f"cannot CAST '{value}' ({value.type}) to {target}")
        if isinstance(value, Literal) and op == "cast":
            try:
                return convert(value, target)
            except EvaluationError as error:
                raise PredicateError(str(error)) from error
        return Call(op, (value,), target)

    def sql_type(self, node: exp.DataType) -> SqlType:
        name = node.this.value if hasattr(node.this, "value") else str(node.this)
        if name == "DECIMAL":
            params = [int(p.name) for p in node.expressions] + [10, 0][len(node.expressions) :]
            return decimal_type(params[0], params[1])
        if name not in _SQL_TYPES:
            raise PredicateError(f"cannot CAST to {node.sql(dialect='spark')}: not a scalar type that predicates use")
        return _SQL_TYPES[name]

    def bind_case(self, node: exp.Case) -> Expression:
        subject = self.expression(node.this) if node.this else None
        branches: list[Expression] = []
        for branch in node.args["ifs"]:
            when = self.expression(branch.this)
            branches += [
                self.binary("=", subject, when) if subject is not None else self.condition(branch.this),
                self.expression(branch.args["true"]),
            ]
        default = node.args.get("default")
        return self.case([*branches, self.expression(default) if default else Literal(None, NULL)])

    def case(self, args: list[Expression]) -> Expression:
        """CASE as (condition, value, condition, value, ..., default)."""
        values = self.same_type("CASE", [*args[1:-1:2], args[-1]])
        flat: list[Expression] = []
        for condition, value in zip(args[0:-1:2], values, strict=False):
            flat += [condition, value]
        return Call("case", (*flat, values[-1]), values[-1].type)

    def same_type(self, what: str, values: list[Expression]) -> list[Expression]:
        common = NULL
        for value in values:
            merged = wider(common, value.type)
            if merged is None:
                raise PredicateError(f"{what}: {common} and {value.type} ('{value}') have no common type; CAST one of them")
            common = merged
        return [convert(v, common) for v in values]

    def bind_if(self, node: exp.If) -> Expression:
        default = node.args.get("false")
        otherwise = self.expression(default) if default else Literal(None, NULL)
        return self.case([self.condition(node.this), self.expression(node.args["true"]), otherwise])

    # --- functions

    def bind_anonymous(self, node: exp.Anonymous) -> Expression:
        return self.call(node.name.lower(), [self.expression(a) for a in node.expressions])

    def call(self, name: str, args: list[Expression]) -> Expression:
        if name in SPECIAL_FORMS:
            return SPECIAL_FORMS[name](self, name, args)
        known = FUNCTIONS.get(name)
        if known is None:
            raise PredicateError(
                f"unknown function {name}(){did_you_mean(name, [*FUNCTIONS, *SPECIAL_FORMS])}; "
                "compute it as a column of its input first if Counterflow has no such function"
            )
        low, high = known.arity
        typed = known.signature(tuple(a.type for a in args)) if low <= len(args) <= high else None
        if typed is None:
            given = ", ".join(f"'{a}' {a.type}" for a in args)
            raise PredicateError(f"{name}({given}) does not fit {name}{known.usage}")
        targets, result = typed
        if name in WALL_CLOCK_FUNCTIONS:
            targets = (TIMESTAMP_NTZ,)
        if name == "round" and len(args) == 2 and not isinstance(args[1], Literal):
            raise PredicateError(f"round({args[0]}, {args[1]}): the number of places must be a constant")
        return Call(name, tuple(convert(a, t) for a, t in zip(args, targets, strict=True)), result)

    def bind_extract(self, node: exp.Extract) -> Expression:
        return self.call(node.name.lower(), [self.expression(node.expression)])

    def bind_like(self, node: exp.Like, name: str = "like", *escape: Expression) -> Expression:
        matched = self.call(name, [self.expression(node.this), self.expression(node.expression), *escape])
        return Call("not", (matched,), BOOLEAN) if node.args.get("negate") else matched

    def bind_ilike(self, node: exp.ILike) -> Expression:
        return self.bind_like(node, "ilike")

    def bind_regexplike(self, node: exp.RegexpLike) -> Expression:
        return self.bind_like(node, "rlike")

    def bind_escape(self, node: exp.Escape) -> Expression:
        name = "ilike" if isinstance(node.this, exp.ILike) else "like"
        return self.bind_like(node.this, name, self.expression(node.expression))

    def bind_dpipe(self, node: exp.DPipe) -> Expression:
        return self.call("concat", [self.expression(node.this), self.expression(node.expression)])


def find_column(schema: Mapping[str, Any], name: str) -> str | None:
    """The column by its exact name, else by its only case-insensitive match (as Spark resolves names)."""
    if name in schema:
        return name
    folded = [column for column in schema if column.lower() == name.lower()]
    return folded[0] if len(folded) == 1 else None


# --- forms that are not functions: they see NULL, or rewrite themselves


def _coalesce(binder: _Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 1, 99)
    values = binder.same_type(name, args)
    return Call("coalesce", tuple(values), values[0].type)


def _extreme(binder: _Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 2, 99)
    values = binder.same_type(name, args)
    return Call(name, tuple(values), values[0].type)


def _nullif(binder: _Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 2, 2)
    return binder.case([binder.binary("=", args[0], args[1]), Literal(None, NULL), args[0]])


def _nvl2(binder: _Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 3, 3)
    return binder.case([Call("is_null", (args[0],), BOOLEAN), args[2], args[1]])


def _is_null(binder: _Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 1, 1)
    test = Call("is_null", (args[0],), BOOLEAN)
    return test if name == "isnull" else Call("not", (test,), BOOLEAN)


def _try_divide(binder: _Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 2, 2)
    divisor = _nullif(binder, name, [args[1], Literal(0, INT)])
    return binder.binary("/", args[0], divisor)


def _operator(binder: _Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 2, 2)
    return binder.binary({"equal_null": "<=>", "mod": "%"}[name], args[0], args[1])


def _pmod(binder: _Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 2, 2)
    a, b = args
    remainder = binder.binary("%", a, b)
    return binder.case(
        [binder.binary("<", remainder, Literal(0, INT)), binder.binary("%", binder.binary("+", remainder, b), b), remainder]
    )


def _to_date(binder: _Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 1, 1)
    if not castable(args[0].type, DATE):
        raise PredicateError(f"{name}('{args[0]}'): {args[0].type} is not a date")
    return convert(args[0], DATE)


def _need(name: str, args: list[Expression], low: int, high: int) -> None:
    if not low <= len(args) <= high:
        raise PredicateError(f"{name}() takes {low if low == high else f'{low} or more'} arguments, not {len(args)}")


SPECIAL_FORMS: dict[str, Any] = {
    "coalesce": _coalesce,
    "nvl": _coalesce,
    "ifnull": _coalesce,
    "least": _extreme,
    "greatest": _extreme,
    "nullif": _nullif,
    "nvl2": _nvl2,
    "isnull": _is_null,
    "isnotnull": _is_null,
    "equal_null": _operator,
    "mod": _operator,
    "pmod": _pmod,
    "try_divide": _try_divide,
    "to_date": _to_date,
    "date": _to_date,
}
