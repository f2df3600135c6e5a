"""Conditions over the whole grammar, and tables for them with hostile names and extreme values, each from a seed."""

from __future__ import annotations

import datetime as dt
import math
import random
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from counterflow.predicate.forms import FORMS
from counterflow.predicate.functions import FUNCTIONS, INTERNAL

ROWS = 6
LOW, HIGH = -(2**63), 2**63 - 1
FLOATS = [0.0, -0.0, 0.1, 1.0, -1.5, 2.5, 7.0, 1e20, -1e20, 1.7e308, 5e-324, math.inf, -math.inf, math.nan]
MOMENTS = [dt.datetime(1, 1, 2), dt.datetime(1969, 12, 31, 23, 59, 59), dt.datetime(2024, 2, 29, 12)]
MOMENTS += [dt.datetime(2024, 3, 10, 7), dt.datetime(2024, 11, 3, 5, 30), dt.datetime(9999, 12, 30)]
NEAR = MOMENTS[1:5]  # what nanoseconds can hold
TEXTS = [
    "",
    "a",
    "ab",
    "B",
    "7",
    "-1.5",
    "1e20",
    "2024-02-29",
    "it's",
    '"',
    "\\",
    "ß",
    "日本",
    "\0",
    "%_",
    "NaN",
    " x ",
]


def _integers(bits: int) -> list[int]:
    return [-(1 << bits - 1), -7, -1, 0, 1, 2, 7, (1 << bits - 1) - 1]


def _decimals(*texts: str) -> list[Decimal]:
    return [Decimal(text) for text in texts]


@dataclass(frozen=True)
class Kind:
    arrow: pa.DataType
    values: list[Any]
    sort: str  # what a generated expression of it may be used as


KINDS = [
    Kind(pa.int8(), _integers(8), "integer"),
    Kind(pa.int16(), _integers(16), "integer"),
    Kind(pa.int32(), _integers(32), "integer"),
    Kind(pa.int64(), [*_integers(64), 2**53 + 1], "integer"),
    Kind(pa.uint8(), [0, 1, 7, 255], "integer"),
    Kind(pa.uint32(), [0, 1, 2**32 - 1], "integer"),
    Kind(pa.uint64(), [0, 1, 7, 2**63, 2**64 - 1], "decimal"),
    Kind(pa.float32(), [f for f in FLOATS if not 1e300 < abs(f) < math.inf], "float"),
    Kind(pa.float64(), FLOATS, "float"),
    Kind(pa.decimal128(10, 2), _decimals("0", "0.01", "1.50", "-1.50", "7", "99999999.99"), "decimal"),
    Kind(pa.decimal128(18, 0), _decimals("0", "1", "-7", "9" * 18), "decimal"),
    Kind(pa.decimal128(38, 5), _decimals("0", "1.50001", "-7", "9" * 33 + ".00001"), "decimal"),
    Kind(pa.decimal128(38, 38), _decimals("0", "0.1", "0." + "9" * 38), "decimal"),
    Kind(pa.bool_(), [True, False], "boolean"),
    Kind(pa.string(), TEXTS, "text"),
    Kind(pa.large_string(), TEXTS, "text"),
    Kind(pa.dictionary(pa.int32(), pa.string()), TEXTS, "text"),
    Kind(pa.binary(), [b"", b"a", b"\xff\x00"], "binary"),
    Kind(pa.date32(), [m.date() for m in MOMENTS], "date"),
    Kind(pa.date64(), [m.date() for m in MOMENTS], "date"),
    Kind(pa.timestamp("us", "UTC"), [m.replace(tzinfo=dt.UTC) for m in MOMENTS], "timestamp"),
    Kind(pa.timestamp("ms", "Europe/Berlin"), [m.replace(tzinfo=dt.UTC) for m in MOMENTS], "timestamp"),
    Kind(pa.timestamp("ns", "America/New_York"), [m.replace(tzinfo=dt.UTC) for m in NEAR], "timestamp"),
    Kind(pa.timestamp("us"), MOMENTS, "ntz"),
    Kind(pa.timestamp("s"), MOMENTS, "ntz"),
    Kind(pa.duration("us"), [dt.timedelta(0), dt.timedelta(days=-3), dt.timedelta(microseconds=1)], "interval"),
    Kind(pa.null(), [], "null"),
]
NUMBERS = ["integer", "float", "decimal"]
SORTS = [*NUMBERS, "boolean", "text", "binary", "date", "timestamp", "ntz", "interval"]
PLAIN = [*NUMBERS, "boolean", "date", "timestamp", "ntz", "interval"]  # what kernels hold
NAMES = [
    *("x", "X1", "select", "AND", "null", "true", "l", "r", "left", "def", "lambda", "import", "None", "self", "c0"),
    *("accepted", "unsure", "l0", "r_nulls", "v1", "constants", "row", "at", "float64", "OPTIONS", "__class__", "_"),
    *("a b", "a.b", "l.x", "it's", '"', "``", "`", "a`b", "\\", "\n", "\t", "x--y", "/*", ";", "%s", "{x}", "$1", "-1"),
    *("ä", "日本", "\u200b", "🦆", "İ", "ﬁ", "x" * 300, "0", "1e5", "interval", "date", "case", "end", "current_date"),
]
TYPES = ["TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,10)", "DECIMAL(1,1)"]
TYPES += ["STRING", "BINARY", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL"]
LITERALS = {
    "integer": ["0", "1", "-7", "127", "-128", "3Y", "4S", "5L", "2147483647", "-2147483648", "2147483648", str(HIGH)],
    "float": ["0e0", "-0e0", "1e308", "-1.7e308", "5e-324", "1e-400", "0.1D", "1.5F", "3e38", "1e20", "double('NaN')"],
    "decimal": ["0.1", "1.50", "0.0", "-0.0", ".5", "7BD", "9" * 38, "0." + "0" * 37 + "1", "99999999.99"],
    "boolean": ["true", "false"],
    "text": ["''", "'a'", "'it''s'", '"q"', r"'\\'", r"'\''", "'日本'", "'🦆'", r"'\u0041'", r"r'\d'", "'a%'", "'-- '"],
    "binary": ["X''", "X'0aFF'", "X'F'"],
    "date": ["DATE '2024-02-29'", "DATE '0001-01-01'", "DATE '9999-12-31'"],
    "timestamp": ["TIMESTAMP '2024-11-03 01:30:00'", "TIMESTAMP '2024-02-29 12:00:00.000001+01:00'"],
    "ntz": ["TIMESTAMP_NTZ '2024-02-29 12:00:00'"],
    "interval": ["INTERVAL 1 DAY", "INTERVAL -36 HOURS", "INTERVAL 1 MICROSECOND", "INTERVAL 1000000 WEEKS"],
}
LITERALS["float"] += ["double('inf')", "float('-inf')", "1e19"]
LITERALS["integer"] += [str(LOW), "9223372036854775806"]
RESULTS = {"STRING": "text", "INT": "integer", "BIGINT": "integer", "DOUBLE": "float", "BOOLEAN": "boolean"}
RESULTS |= {"BINARY": "binary", "TINYINT": "integer"}
RESULTS |= {"DATE": "date", "TIMESTAMP": "timestamp", "DECIMAL(8,6)": "decimal", "number": "float"}
ARGUMENTS = {
    "STRING": ["text"],
    "INT": ["integer"],
    "BIGINT": ["integer"],
    "DOUBLE": NUMBERS,
    "DATE": ["date", "timestamp"],
}
ARGUMENTS |= {"STRING|BINARY": ["text", "binary"], "STRING|BINARY|BIGINT": ["text", "binary", "integer"]}
ARGUMENTS |= {"BOOLEAN": ["boolean"]}
ARGUMENTS |= {"TIMESTAMP": ["timestamp", "date", "ntz"], "number": NUMBERS, "places": ["integer"], "...": ["text"]}
PATTERNS = ["'a%'", "'_b'", "'%'", r"'\\%'", "'%日%'", "''"]
REGEXES = ["'a'", "'^[a-b]+$'", "r'^\\w*$'", "'(?i)b'", "''", "'('", "'\\\\p{L}'", "'.'"]
INTRUDERS = [
    "",
    "(",
    ")",
    "'",
    "`",
    "``",
    "\0",
    " AND ",
    "\\",
    ";",
    "é",
    "1e",
    "::",
    "x",
    "(1,2)",
    "DECIMAL(",
    "INTERVAL ",
]
INTRUDERS += ["9" * 400, "--", "/*", "e5", ".", "[0]", "*", "SELECT ", "\ud800"]
UNITS = ["'year'", "'QUARTER'", "'mon'", "'week'", "'dd'", "'hour'", "'minute'", "'second'", "'x'", "NULL"]
# What an argument of a function, by its place, is taken from instead of the values that fit: most would be errors.
CHOSEN = {
    **{name: (1, PATTERNS) for name in ("like", "ilike")},
    **{name: (1, REGEXES) for name in ("rlike", "regexp", "regexp_like")},
    **{
        name: (1, REGEXES)
        for name in ("regexp_replace", "regexp_extract", "regexp_substr", "regexp_count", "regexp_instr")
    },
    **{name: (1, ["0", "1", "-1", "400", "-400", "2147483647"]) for name in ("round", "bround")},
    **{name: (1, ["3", "-1", "0", "2147483647", "length('abc')"]) for name in ("repeat", "lpad", "rpad")},
    "space": (0, ["3", "-1", "0", "2147483647", "length('abc')"]),
    "date_trunc": (0, UNITS),
    "trunc": (1, UNITS),
    "next_day": (1, ["'MO'", "'friday'", "'x'"]),
    "sha2": (1, ["256", "0", "7"]),
    "elt": (0, ["1", "2", "3", "0"]),
    "split_part": (2, ["1", "-1", "0"]),
}


def _signature(usage: str) -> tuple[list[str], str]:
    """The parameters' types and the result's, from `(STRING, INT[, STRING]) -> STRING`."""
    inside, result = re.fullmatch(r"\((.*)\) -> (.*)", usage).groups()  # type: ignore[union-attr]
    return re.findall(r"DECIMAL\(\d+,\d+\)|[\w.|]+", inside), result


class Generator:
    """Two tables and a condition over them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        names = {"id", "t"}
        self.columns: dict[str, list[tuple[str, Kind]]] = {"l": [], "r": []}
        self.side: str | None = None  # whose columns are preferred
        plain = [kind for kind in KINDS if kind.sort in PLAIN]
        shared = [
            self.rng.choice(kinds) for kinds in (plain, plain, KINDS, KINDS)
        ]  # so that both sides can be compared
        for found in self.columns.values():
            taken = set(names)
            for kind in [*shared, *(self.rng.choice(KINDS) for _ in range(self.rng.randint(0, 4)))]:
                name = self.rng.choice(NAMES)
                if name.lower() not in taken:
                    taken.add(name.lower())
                    found.append((name, kind))

    def pick(self, options: list[Any]) -> Any:
        return self.rng.choice(options)

    def table(self, side: str) -> pa.Table:
        """Left rows come first, so that one of the two windows is searched."""
        nulls = self.pick([0.0, 0.2])
        columns = {}
        for name, kind in self.columns[side]:
            values = [
                self.pick(kind.values) if kind.values and self.rng.random() >= nulls else None for _ in range(ROWS)
            ]
            columns[name] = pa.array(values, kind.arrow)
        return pa.table({"id": range(ROWS), "t": pa.array([int(side == "r")] * ROWS, pa.int64()), **columns})

    # --- expressions

    def column(self, sort: str) -> str | None:
        fitting = [
            (side, name) for side, cs in self.columns.items() for name, kind in cs if kind.sort in (sort, "null")
        ]
        found = [(side, name) for side, name in fitting if side == self.side] or fitting
        if not found:
            return None
        side, name = self.pick(found)
        plain = name.isidentifier() and name.isascii() and name not in ("select", "case") and self.rng.random() < 0.3
        return f"{side}.{name}" if plain else f"{side}.`{name.replace('`', '``')}`"

    def value(self, sort: str, depth: int) -> str:
        if self.rng.random() < 0.01:
            sort = self.pick(SORTS)  # that may not fit
        roll = self.rng.random()
        if depth <= 0 or roll < 0.2:
            column = self.column(sort)
            return column if column is not None and self.rng.random() < 0.85 else self.literal(sort)
        if roll < 0.3:
            return self.conditional(sort, depth)
        if roll < 0.4:
            return self.cast(sort, depth)
        makers = [getattr(self, f"{sort}_operator", None), self.function, self.function]
        return self.pick([m for m in makers if m is not None])(sort, depth)

    def of_side(self, side: str, sort: str, depth: int) -> str:
        """Most comparisons are of the one side with the other."""
        before, self.side = self.side, side if self.rng.random() < 0.7 else None
        text = self.value(sort, depth)
        self.side = before
        return text

    def literal(self, sort: str) -> str:
        return "NULL" if self.rng.random() < 0.05 else self.pick(LITERALS[sort])

    def conditional(self, sort: str, depth: int) -> str:
        a, b, condition = self.value(sort, depth - 1), self.value(sort, depth - 1), self.condition(depth - 1)
        return self.pick(
            [
                f"CASE WHEN {condition} THEN {a} ELSE {b} END",
                f"CASE WHEN {condition} THEN {a} END",
                f"CASE {a} WHEN {b} THEN {a} WHEN {self.literal(sort)} THEN {b} END",
                f"if({condition}, {a}, {b})",
                *(f"{name}({a}, {b})" for name in ("coalesce", "nvl", "ifnull", "nullif", "least", "greatest")),
                f"nvl2({self.value(self.pick(SORTS), depth - 1)}, {a}, {b})",
            ]
        )

    def cast(self, sort: str, depth: int) -> str:
        """To a type of this sort, from any."""
        of_sort = {
            "integer": TYPES[:4],
            "float": TYPES[4:6],
            "decimal": TYPES[6:9],
            "text": ["STRING"],
            "ntz": ["TIMESTAMP_NTZ"],
        }.get(sort, [sort.upper()])
        if sort == "interval":
            return self.literal(sort)
        inner, target = self.value(self.pick(SORTS), depth - 1), self.pick(of_sort)
        how = self.pick(["CAST({} AS {})", "TRY_CAST({} AS {})", "TRY_CAST({} AS {})", "({})::{}", "form"])
        if how == "form":
            form = target.partition("(")[0].lower()
            names = [name for name in (form, f"to_{form}") if name in FORMS]
            return f"{self.pick(names)}({inner})" if names else inner
        return str(how.format(inner, target))

    def function(self, sort: str, depth: int) -> str:
        found = [n for n, f in FUNCTIONS.items() if RESULTS.get(_signature(f.usage)[1]) == sort and n not in INTERNAL]
        if sort == "decimal":
            found += ["abs", "round", "floor", "ceil"]
        if not found:
            return self.value(sort, 0)
        name = self.pick(found)
        known = FUNCTIONS[name]
        parameters = _signature(known.usage)[0]
        if "..." in parameters:
            parameters = [*parameters[:-1], "STRING", "STRING"]
        else:
            parameters = parameters[: self.rng.randint(*known.arity)]
        if sort == "decimal":
            return f"{name}({self.value('decimal', depth - 1)})"
        args = [self.value(self.pick(ARGUMENTS[p]), depth - 1) for p in parameters]
        place, options = CHOSEN.get(name, (len(args), []))
        if place < len(args):
            args[place] = self.pick(options)
        return f"{name}({', '.join(args)})"

    def integer_operator(self, sort: str, depth: int) -> str:
        a, b = self.value(sort, depth - 1), self.value(sort, depth - 1)
        moment = self.value(self.pick(["date", "timestamp", "ntz"]), depth - 1)
        field = self.pick(["YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DOW", "DOY", "HOUR", "MINUTE"])
        return self.pick(
            [
                *(f"({a} {op} {b})" for op in ("+", "-", "*", "%", "div", "&", "|", "^")),
                *(f"-({a})", f"~({a})", f"abs({a})", f"round({a}, -1)", f"mod({a}, nullif({b}, 0))", f"pmod({a}, {b})"),
                *(f"EXTRACT({field} FROM {moment})", f"date_part('{field}', {moment})"),
                f"datepart('{field}', {moment})",
                f"datediff({self.value('date', depth - 1)}, {self.value('date', depth - 1)})",
                *(f"{name}({a}, {b})" for name in ("try_add", "try_subtract", "try_multiply", "try_mod")),
                *(f"nullifzero({a})", f"zeroifnull({b})"),
            ]
        )

    def float_operator(self, sort: str, depth: int) -> str:
        a, b = self.value(self.pick(NUMBERS), depth - 1), self.value(sort, depth - 1)
        return self.pick([*(f"({a} {op} {b})" for op in "+-*/%"), f"-({b})", f"pow({a}, 2)", f"try_divide({a}, {b})"])

    def decimal_operator(self, sort: str, depth: int) -> str:
        a, b = self.value(sort, depth - 1), self.value(self.pick(["decimal", "integer"]), depth - 1)
        moment = self.value(self.pick(["timestamp", "ntz"]), depth - 1)
        return self.pick(
            [
                *(f"({a} {op} {b})" for op in "+-*/%"),
                f"-({a})",
                *(f"{name}({a}, {b})" for name in ("try_divide", "try_add", "try_subtract", "try_multiply", "try_mod")),
                f"EXTRACT(SECOND FROM {moment})",
            ]
        )

    def text_operator(self, sort: str, depth: int) -> str:
        a, b = self.value(sort, depth - 1), self.value(sort, depth - 1)
        how = self.pick(["BOTH", "LEADING", "TRAILING"])
        return self.pick(
            [
                *(f"({a} || {b})", f"collate({a}, 'UTF8_BINARY')", f"({b} COLLATE UTF8_LCASE)"),
                *(f"concat_ws({a}, {b}, NULL, {a})", f"TRIM({how} {a} FROM {b})", f"SUBSTRING({a} FROM 2 FOR 3)"),
                f"concat({a}, {self.value(self.pick(SORTS), depth - 1)})",
                f"OVERLAY({a} PLACING {b} FROM {self.value('integer', 0)})",
            ]
        )

    def moved(self, sort: str, depth: int) -> str:
        return f"({self.value(sort, depth - 1)} {self.pick('+-')} {self.value('interval', depth - 1)})"

    timestamp_operator = ntz_operator = moved

    def date_operator(self, sort: str, depth: int) -> str:
        days = self.value("integer", depth - 1)
        return self.pick([f"({self.value(sort, depth - 1)} {self.pick('+-')} {days})", self.moved(sort, depth)])

    def interval_operator(self, sort: str, depth: int) -> str:
        a, moments = self.value(sort, depth - 1), self.pick(["date", "timestamp", "ntz"])
        between = f"({self.value(moments, depth - 1)} - {self.value(moments, depth - 1)})"
        return self.pick([between, f"({a} + {between})", f"-({a})", f"({a} * {self.value('integer', 0)})", f"abs({a})"])

    def boolean_operator(self, sort: str, depth: int) -> str:
        return f"({self.condition(depth - 1)})"

    # --- conditions

    def condition(self, depth: int) -> str:
        if depth <= 0:
            return self.value("boolean", 0)
        sort = self.pick(SORTS)
        other = self.pick(NUMBERS) if sort in NUMBERS else sort
        a = self.of_side("l", sort, depth - 1)
        b, c = (self.of_side("r", other, depth - 1) for _ in range(2))
        p, q = self.condition(depth - 1), self.condition(depth - 1)
        text, negated = self.value("text", depth - 1), self.pick(["", "NOT "])
        return self.pick(
            [
                *(f"({a} {op} {b})" for op in ("=", "<>", "<", "<=", ">", ">=", "<=>", "==", "!=")),
                *(f"({a} = {b})", f"({a} <= {b})", f"({p} AND {q})", f"({p} OR {q})", f"(NOT {p})"),
                f"({a} {negated}BETWEEN {b} AND {c})",
                f"({a} {negated}IN ({b}, {c}, {self.literal(sort)}))",
                *(f"({a} IS {negated}NULL)", f"({p} IS {negated}TRUE)", f"({a} IS {negated}DISTINCT FROM {b})"),
                f"({text} {negated}LIKE {self.pick(PATTERNS)})",
                f"({text} {negated}ILIKE {text})",
                f"({text} {negated}RLIKE {self.pick(REGEXES)})",
                f"({text} LIKE 'a!%' ESCAPE '!')",
                f"(abs({self.value('float', depth - 1)} - {self.value('integer', 0)}) <= {self.literal('float')})",
                f"isnan({self.value('float', depth - 1)})",
                *(f"isnull({a})", f"isnotnull({b})", f"equal_null({a}, {b})"),
                self.function("boolean", depth),
            ]
        )

    # --- of what has a compiled form

    def plain(self, side: str, sort: str, depth: int) -> str:
        self.side = side
        leaf = self.column(sort) if self.rng.random() < 0.85 else None
        self.side = None
        if depth <= 0 or self.rng.random() < 0.3 or sort == "boolean":
            return leaf or self.pick(LITERALS[sort])
        a = self.plain(side, sort, depth - 1)
        if sort not in NUMBERS:
            return a if sort in ("date", "interval") else f"({a} {self.pick('+-')} {self.pick(LITERALS['interval'])})"
        b = self.plain(self.pick("lr"), self.pick(NUMBERS) if sort != "integer" else sort, depth - 1)
        operators = [f"({a} {op} {b})" for op in "+-*"] + [f"-({a})", f"abs({a})"]
        if sort == "float":
            real = self.pick(["sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "exp", "radians"])
            operators += [
                f"({a} / {b})",
                f"{real}({a})",
                f"atan2({a}, {b})",
                f"pow({a}, 2)",
                f"double({b})",
                f"float({a})",
            ]
        if sort == "integer":
            operators += [f"bigint({a})", f"CAST({a} AS DECIMAL(38,0))", f"CAST({a} AS DOUBLE)"]
        return str(self.pick(operators))

    def plain_condition(self, depth: int) -> str:
        sort = self.pick(sorted({kind.sort for _, kind in self.columns["l"] if kind.sort in PLAIN}))
        other = self.pick(NUMBERS) if sort in NUMBERS and self.rng.random() < 0.5 else sort
        a, b = self.plain("l", sort, depth), self.plain("r", other, depth)
        options = [f"({a} {self.pick(['=', '<>', '<', '<=', '>', '>=', '<=>'])} {b})" for _ in range(4)]
        if sort in NUMBERS:
            near = self.pick(LITERALS[self.pick(NUMBERS)])
            options += [f"(abs({a} - {b}) <= {near})", f"({a} BETWEEN {b} - {near} AND {b} + {near})"]
        if depth > 0:
            p, q = self.plain_condition(depth - 1), self.plain_condition(depth - 1)
            options += [f"({p} AND {q})", f"({p} OR {q})", f"(NOT {p})", f"({p} <=> {q})", f"({a} IS NOT NULL)"]
        return str(self.pick(options))

    def where(self) -> str:
        depth = self.pick([1, 2, 2, 3])
        parts = [self.condition(depth) for _ in range(self.pick([0, 1, 1, 2]))]
        if self.rng.random() < 0.7 or not parts:
            parts += [self.plain_condition(self.pick([0, 1, 1, 2])) for _ in range(self.pick([1, 1, 2]))]
        self.rng.shuffle(parts)
        return " AND ".join(parts) if self.rng.random() < 0.96 else self.broken(" AND ".join(parts))

    def broken(self, text: str) -> str:
        """Put something in the place of some characters that hardly belongs there."""
        at, cut = self.rng.randrange(len(text)), self.rng.randint(0, 6)
        return str(text[:at] + self.pick(INTRUDERS) + text[at + cut :])
