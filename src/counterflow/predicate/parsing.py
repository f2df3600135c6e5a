"""From SQL text (or a Python expression) to a syntax tree, and the constants and types that are written in it.

sqlglot parses it, with Spark's syntax.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import partial
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from counterflow.errors import PredicateError
from counterflow.predicate.expression import Literal
from counterflow.predicate.python_expressions import Expr
from counterflow.predicate.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL_PRECISION_MAX,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    SqlType,
    decimal_type,
)

Node = Any  # a sqlglot expression
BINARY_COLLATION = "UTF8_BINARY"


# Functions whose arguments words may part instead of commas, and the words; OVERLAY(a PLACING b FROM 1 FOR 2).
_WORDS = {"POSITION": ("IN",), "OVERLAY": ("PLACING", "FROM", "FOR"), "SUBSTRING": ("FROM", "FOR")}
_WORDS["SUBSTR"] = _WORDS["SUBSTRING"]
_TRIMS = {"BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}


def _with_words(name: str, parser: Any) -> Node:
    """Parse a function's arguments up to its closing parenthesis."""
    args = parser._parse_csv(parser._parse_bitwise)
    for word in _WORDS[name]:
        if parser._match_texts((word,)):
            args.append(parser._parse_bitwise())
    return exp.Anonymous(this=name.lower(), expressions=args)


def _trim(parser: Any) -> Node:
    """Parse trim(s), trim(letters, s) and TRIM(BOTH letters FROM s), where BOTH or the letters may be missing."""
    next_one = parser._next.text if parser._next else ""
    named = _TRIMS.get(parser._curr.text.upper()) if parser._curr and next_one not in (")", ",", ".") else None
    if named is not None:
        parser._advance()
    args = [] if parser._match_texts(("FROM",)) else parser._parse_csv(parser._parse_bitwise)
    if not args or parser._match_texts(("FROM",)):
        args.append(parser._parse_bitwise())
    return exp.Anonymous(this=named or "trim", expressions=args)


class _SparkPredicates(Spark):
    """Spark's syntax, but every function stays a plain call by its own name: `functions.py` gives the meaning."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012  # a doubled quote is one quote

    class Parser(Spark.Parser):  # type: ignore[valid-type, misc]
        FUNCTIONS: dict[str, Any] = {}  # noqa: RUF012
        FUNCTION_PARSERS = {  # noqa: RUF012
            **{k: Spark.Parser.FUNCTION_PARSERS[k] for k in ("CAST", "TRY_CAST", "EXTRACT")},
            "TRIM": _trim,
            **{name: partial(_with_words, name) for name in _WORDS},
        }
        NO_PAREN_FUNCTIONS: dict[Any, Any] = {}  # noqa: RUF012
        STRICT_CAST = True  # CAST is an error where it fails, TRY_CAST is NULL
        # `a = b < c` is `(a = b) < c`: in Spark all comparisons are of one rank.
        COMPARISON = {**Spark.Parser.EQUALITY, **Spark.Parser.COMPARISON}  # noqa: RUF012
        EQUALITY: dict[Any, Any] = {}  # noqa: RUF012


_SQL_TYPES = {
    "BOOLEAN": BOOLEAN,
    "TINYINT": SqlType("TINYINT"),
    "SMALLINT": SqlType("SMALLINT"),
    "INT": INT,
    "BIGINT": BIGINT,
    "FLOAT": FLOAT,
    "DOUBLE": DOUBLE,
    "TEXT": STRING,
    "BINARY": BINARY,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMPLTZ": TIMESTAMP,
    "TIMESTAMPNTZ": TIMESTAMP_NTZ,
}


_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)

# Where sqlglot ranks operators otherwise than Spark, parentheses must say what is meant.
_CONDITIONS = (exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Not)
_BITWISE_RANK = {exp.BitwiseOr: 1, exp.BitwiseXor: 2, exp.BitwiseAnd: 3}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)


def parse(where: str | Expr) -> Node:
    """Return the syntax tree of a predicate."""
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
    except RecursionError as error:
        raise PredicateError(
            "where= is nested too deeply to be parsed: use IN lists, or columns of their own"
        ) from error
    except Exception as error:  # the parser has errors of its own, and ValueError and others for some odd texts
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


def check_rank(node: Node) -> None:
    """Refuse an operator whose operand Spark would take apart differently."""
    operands = [node.args.get("this"), node.args.get("expression")]
    if isinstance(node, _COMPARISONS):
        unclear = [o for o in operands if isinstance(o, _CONDITIONS)]
    elif type(node) in _BITWISE_RANK:
        unclear = [o for o in operands if _BITWISE_RANK.get(type(o), 9) < _BITWISE_RANK[type(node)]]
    else:
        return
    if unclear:
        raise PredicateError(
            f"'{node.sql(dialect='spark')}' can be read in two ways: put parentheses around "
            f"'{unclear[0].sql(dialect='spark')}', or around what should be computed first"
        )


def number(text: str) -> Literal:
    """Return a number as Spark types it: INT, BIGINT or DECIMAL by its size; DOUBLE with an exponent."""
    if not _NUMBER.fullmatch(text):  # the tokenizer takes 1e for one
        raise PredicateError(f"{text} is not a number: digits have to follow the exponent's e, as in 1e5")
    if "e" in text.lower():
        if math.isinf(float(text)):
            raise PredicateError(f"{text} is too large for a DOUBLE; write a DECIMAL, or CAST('inf' AS DOUBLE)")
        return Literal(float(text), DOUBLE)
    if re.fullmatch(r"-?[0-9]{1,40}", text) and -(2**63) <= int(text) < 2**63:
        return Literal(int(text), INT if -(2**31) <= int(text) < 2**31 else BIGINT)
    digits = Decimal(text) if Decimal(text) else Decimal(text.removeprefix("-"))  # a DECIMAL has no negative zero
    scale = max(-int(digits.as_tuple().exponent), 0)
    precision = max(len(digits.as_tuple().digits), scale)
    if precision > DECIMAL_PRECISION_MAX:
        raise PredicateError(f"{text} has more than {DECIMAL_PRECISION_MAX} digits; use a DOUBLE such as 1e40")
    return Literal(digits, decimal_type(precision, scale))


def check_collation(what: str, collation: str) -> None:
    """Refuse a collation that would compare texts otherwise than byte by byte, which is all that predicates do."""
    if collation.upper().removeprefix("SYSTEM.BUILTIN.") != BINARY_COLLATION:
        raise PredicateError(
            f"'{what}' with the collation {collation}: predicates compare texts byte by byte ({BINARY_COLLATION}); to "
            "ignore case write lower(...) on both sides of the comparison"
        )


def sql_type(node: Node) -> SqlType:
    """Return the type that a CAST names."""
    if node.args.get("collate") is not None:
        check_collation(node.sql(dialect="spark"), node.args["collate"].name)
    name = node.this.value if hasattr(node.this, "value") else str(node.this)
    if name == "DECIMAL":
        digits = [p.name for p in node.expressions]
        if len(digits) > 2 or not all(re.fullmatch(r"\d{1,9}", d, re.ASCII) for d in digits):
            raise PredicateError(f"cannot CAST to {node.sql(dialect='spark')}: write DECIMAL(digits, scale)")
        precision, scale = [int(d) for d in digits] + [10, 0][len(digits) :]
        if not 0 <= scale <= precision <= DECIMAL_PRECISION_MAX or precision == 0:
            raise PredicateError(f"DECIMAL({precision},{scale}): at most 38 digits, the scale included")
        return decimal_type(precision, scale)
    if name not in _SQL_TYPES:
        raise PredicateError(f"cannot CAST to {node.sql(dialect='spark')}: not a scalar type that predicates use")
    return _SQL_TYPES[name]
