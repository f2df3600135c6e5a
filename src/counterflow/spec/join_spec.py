"""JoinSpec: everything that defines a join's result, validated before a row is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import pyarrow as pa

from counterflow.errors import ColumnError, OptionError, TimeError, UnsupportedError, WindowError
from counterflow.predicate.binding import bind
from counterflow.predicate.columns import find_column
from counterflow.predicate.expression import Expression, Side, columns_of
from counterflow.predicate.nulls import required_columns
from counterflow.predicate.python_expressions import Expr
from counterflow.predicate.split import Split, split
from counterflow.predicate.types import from_arrow
from counterflow.spec import window_sizes as windows
from counterflow.spec.window_sizes import Window
from counterflow.suggest import did_you_mean

How = Literal["inner", "left", "right", "full", "semi", "anti"]
PAIR_TIME = "pair_time"

_HOW_ALIASES = {
    "outer": "full",
    "full_outer": "full",
    "fullouter": "full",
    "left_outer": "left",
    "leftouter": "left",
    "right_outer": "right",
    "rightouter": "right",
    "left_semi": "semi",
    "leftsemi": "semi",
    "left_anti": "anti",
    "leftanti": "anti",
}


@dataclass(frozen=True)
class SideSpec:
    """One input: its columns, its time column, how long its tuples live, and its columns' names in the result.

    In a chain of joins the input's own `pair_time` is superseded by the new one: its output name is None. A table
    beside a stream has no time: its rows are before every tuple, and in the window always.
    """

    side: Side
    schema: pa.Schema
    time: str | None
    window: Window
    output_names: tuple[str | None, ...]
    beside_table: bool = False

    @property
    def is_table(self) -> bool:
        return self.time is None

    @property
    def time_column(self) -> str:
        """The time column, where the side cannot be a table."""
        assert self.time is not None, f"the {self.side} side is a table without a time"
        return self.time

    @property
    def time_type(self) -> pa.DataType:
        return self.schema.field(self.time_column).type


@dataclass(frozen=True)
class JoinSpec:
    """A checked join. `where` is its predicate as the user wrote it."""

    where: str
    predicate: Expression
    left: SideSpec
    right: SideSpec
    how: How = "inner"
    ordered: bool = False

    @cached_property
    def parts(self) -> Split:
        """The predicate taken apart, for access paths."""
        return split(self.predicate)

    @cached_property
    def required(self) -> dict[Side, list[str]]:
        """The columns of each side that must not be NULL: a tuple with NULL there matches nothing."""
        found: dict[Side, list[str]] = {"left": [], "right": []}
        for column in required_columns(self.predicate):
            found[column.side].append(column.name)
        return found

    @cached_property
    def has_null_matches(self) -> bool:
        """Whether a tuple may match that has NULL in a column of the predicate."""
        return not set(columns_of(self.predicate)) <= required_columns(self.predicate)

    def side(self, side: Side) -> SideSpec:
        return self.left if side == "left" else self.right

    @property
    def table_side(self) -> Side | None:
        """The side that is a table without a time, if one is."""
        return next((side.side for side in (self.left, self.right) if side.is_table), None)

    @property
    def pads_left(self) -> bool:
        """Whether an unmatched left tuple is a result."""
        return self.how in ("left", "full", "anti")

    @property
    def pads_right(self) -> bool:
        return self.how in ("right", "full")

    @property
    def has_right_columns(self) -> bool:
        return self.how not in ("semi", "anti")

    @property
    def pair_time_type(self) -> pa.DataType:
        """The time columns' own type if they share it, otherwise the type that holds both."""
        timed = [side.time_type for side in (self.left, self.right) if not side.is_table]
        left, right = timed[0], timed[-1]
        if left == right:
            return left
        if pa.types.is_integer(left):
            return pa.int64()
        return pa.timestamp("us", left.tz)

    @property
    def output_schema(self) -> pa.Schema:
        """The result's columns: left, right, `pair_time`. A side that may be padded becomes nullable."""
        fields = _output_fields(self.left, nullable=self.how in ("right", "full"))
        if self.has_right_columns:
            fields += _output_fields(self.right, nullable=self.how in ("left", "full"))
        return pa.schema([*fields, pa.field(PAIR_TIME, self.pair_time_type, nullable=False)])


def _output_fields(side: SideSpec, *, nullable: bool) -> list[pa.Field]:
    fields = [f.with_name(name) for f, name in zip(side.schema, side.output_names, strict=True) if name is not None]
    return [f.with_nullable(True) for f in fields] if nullable else fields


def build_spec(
    left: pa.Schema,
    right: pa.Schema,
    *,
    where: str | Expr,
    time: str | tuple[str | None, str | None] | None = None,
    window: Any = None,
    how: str = "inner",
    suffix: str = "_right",
    ordered: bool = False,
    streaming: bool = False,
    zone: str | None = None,
) -> JoinSpec:
    """Check a join's options against its inputs' schemas. Raises a `CounterflowError` that says what to change.

    `zone` is where the predicate reads wall clocks, if the engine has one zone for all; otherwise its columns decide.
    """
    checked_how = _check_how(how)
    for side, schema in (("left", left), ("right", right)):
        _check_unique(side, schema)
    left_time, right_time = _time_columns(time, left, right)
    some_time = left.field(left_time) if left_time is not None else right.field(right_time)
    left_window, right_window = windows.resolve(window, integer_time=pa.types.is_integer(some_time.type))
    if left_time is None or right_time is None:
        _check_keeps_stream(checked_how, "left" if left_time is None else "right")
        # The table comes first, so nothing ever looks back for a row of the stream.
        left_window = windows.UNBOUNDED if left_time is None else windows.AT_ONCE
        right_window = windows.UNBOUNDED if right_time is None else windows.AT_ONCE
    elif streaming:
        _check_bounded(left_window, right_window)
    predicate = bind(where, _types(left), _types(right), zone)
    left_names = _superseded("left", left.names, left_time)
    right_names: list[str | None] = list(right.names)
    if checked_how not in ("semi", "anti"):
        right_names = _with_suffix(left_names, _superseded("right", right.names, right_time), suffix)
    if not isinstance(ordered, bool):
        raise OptionError(f"ordered={ordered!r}: use True or False")
    return JoinSpec(
        where=str(where),
        predicate=predicate,
        left=SideSpec("left", left, left_time, left_window, tuple(left_names), right_time is None),
        right=SideSpec("right", right, right_time, right_window, tuple(right_names), left_time is None),
        how=checked_how,
        ordered=ordered,
    )


def _check_how(how: str) -> How:
    name = _HOW_ALIASES.get(how.lower(), how.lower()) if isinstance(how, str) else how
    if name not in get_args(How):
        raise OptionError(f"unknown how={how!r}{did_you_mean(str(how), get_args(How))}")
    return name  # type: ignore[return-value]


def _check_unique(side: str, schema: pa.Schema) -> None:
    seen: set[str] = set()
    for name in schema.names:
        if name.lower() in seen:
            raise ColumnError(f"the {side} input has two columns named '{name}' (case is ignored): rename one of them")
        seen.add(name.lower())


def _types(schema: pa.Schema) -> dict[str, Any]:
    return {field.name: from_arrow(field.type) for field in schema}


def _time_columns(time: Any, left: pa.Schema, right: pa.Schema) -> tuple[str | None, str | None]:
    """Return the time columns of both sides; None for a table without a time, which a pair says."""
    names = (time, time) if time is None or isinstance(time, str) else time
    if not isinstance(names, tuple | list) or len(names) != 2 or not all(isinstance(n, str | None) for n in names):
        raise TimeError(f"time={time!r}: give one column name, or a pair (left_column, right_column)")
    may_be_table = any(name is not None for name in names)
    left_name = _time_column("left", left, names[0], may_be_table)
    right_name = _time_column("right", right, names[1], may_be_table)
    if left_name is None or right_name is None:
        return left_name, right_name
    a, b = left.field(left_name).type, right.field(right_name).type
    mixed = pa.types.is_integer(a) != pa.types.is_integer(b)
    if mixed or (pa.types.is_timestamp(a) and (a.tz is None) != (b.tz is None)):
        raise TimeError(
            f"the time columns differ in kind: left '{left_name}' is {a}, right '{right_name}' is {b}; "
            "make both integers of one unit, both timestamps with a zone, or both without"
        )
    return left_name, right_name


def _time_column(side: str, schema: pa.Schema, name: str | None, may_be_table: bool) -> str | None:
    if name is None:
        if PAIR_TIME in schema.names:
            return PAIR_TIME  # a chain of joins
        if may_be_table:
            return None
        raise TimeError(
            f"time= is missing for the {side} input: name its time column ({', '.join(schema.names)}); for a table "
            "that has none, name the other side's alone, as in time=('ts', None)"
        )
    actual = find_column(dict.fromkeys(schema.names), name)
    if actual is None:
        raise ColumnError(f"no time column '{name}' in the {side} input{did_you_mean(name, schema.names)}")
    kind = schema.field(actual).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
        raise TimeError(
            f"time column '{actual}' of the {side} input is {kind}: it must be a timestamp or an integer; convert it"
        )
    return actual


def _check_keeps_stream(how: How, table: Side) -> None:
    """Refuse results that are rows of the table alone: when could they be emitted?"""
    keeping = ("inner", "left", "semi", "anti") if table == "right" else ("inner", "right")
    if how not in keeping:
        raise UnsupportedError(
            f"how={how!r} keeps rows of the {table} side, which is a table without a time: they have no pair_time, and "
            "whether one of them stays unmatched is never final while the stream goes on. Use "
            f"how={' or '.join(map(repr, keeping))}, or give the table's rows a time"
        )


def _check_bounded(left: Window, right: Window) -> None:
    for side, window in (("left", left), ("right", right)):
        if window.kind == "unbounded":
            raise WindowError(
                f"the {side} window is missing or None, which means unbounded: a stream would be kept for ever. "
                "Give window='15 minutes', cf.window(before=..., after=...) or a pair"
            )


def _superseded(side: str, names: list[str], time: str | None) -> list[str | None]:
    """Return the names with None for `pair_time`: in a chain of joins the result's own takes its place.

    Raises a ColumnError if the input's `pair_time` is not its time column.
    """
    if (time is None or time.lower() != PAIR_TIME) and PAIR_TIME in (name.lower() for name in names):
        raise ColumnError(
            f"the {side} input has a column '{PAIR_TIME}', which clashes with the result's own: rename it, or use it "
            f"as the time column (time='{PAIR_TIME}')"
        )
    return [None if name.lower() == PAIR_TIME else name for name in names]


def _with_suffix(left: list[str | None], right: list[str | None], suffix: str) -> list[str | None]:
    if not isinstance(suffix, str) or not suffix or any("\ud800" <= c <= "\udfff" for c in suffix):
        raise OptionError(f"suffix={suffix!r}: give a text such as '_right'")  # half a character is no text
    taken = {name.lower() for name in left if name is not None}
    names = [f"{name}{suffix}" if name is not None and name.lower() in taken else name for name in right]
    folded = [name.lower() for name in names if name is not None]
    for original, name in zip(right, names, strict=True):
        if name is None or (name == original and folded.count(name.lower()) == 1):
            continue
        if name.lower() in taken or name.lower() == PAIR_TIME or folded.count(name.lower()) > 1:
            raise ColumnError(
                f"column '{original}' is in both inputs and becomes '{name}' on the right, which is taken too: "
                "choose another suffix= or rename a column"
            )
    return names
