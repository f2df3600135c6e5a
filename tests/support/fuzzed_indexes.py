"""Conditions that find an index, by distances, overlaps, ratios, prefixes and alternatives; and tables for them.

The values of both tables are near each other, so that pairs match, apart from a few at the ends of their types.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

ROWS = 10
SECOND = dt.datetime(2024, 3, 10, 6, 59, 58, tzinfo=dt.UTC)
# A column's type, its usual values, and some that are at the ends of what it holds.
COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "x": (pa.float64(), [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -1.0], [-0.0, math.nan, math.inf, -math.inf, 1e300, 5e-324]),
    "y": (pa.float64(), [0.0, 0.1, 0.3, 2.0, 2.5, -2.0], [math.nan, math.inf, -1e300, 2.0**53]),
    "f": (pa.float32(), [0.0, 0.1, 0.35, 1.5, 2.5], [math.nan, -math.inf, 3e38, 1e-40]),
    "n": (pa.int32(), [-2, -1, 0, 1, 2, 3, 5], [2**31 - 1, -(2**31)]),
    "k": (pa.int8(), [0, 1, 2, 3], [127, -128]),
    "m": (pa.int64(), [-1, 0, 1, 2, 4], [2**53 + 1, 2**63 - 1, -(2**63)]),
    "d": (pa.decimal128(9, 2), [Decimal(v) for v in ("0", "0.50", "1.25", "2.00", "-1.10")], [Decimal("9999999.99")]),
    "w": (pa.float64(), [0.0, 0.5, 1.0, 2.5], [-1.0, math.nan, math.inf, 1e300, 1e-300]),
    "lat": (pa.float64(), [0.0, 45.0, 45.001, 89.9999, -90.0, 90.0], [math.nan, 500.0, 1e9]),
    "lon": (pa.float64(), [0.0, 179.9999, -179.9999, 180.0, 0.01], [math.inf, -540.0]),
    "s": (pa.string(), ["a", "ab", "abc", "b", "", "ä"], ["a%", "\U0001f986b", "abcdefgh", "abcdefgi", "a\0"]),
    "at": (pa.timestamp("us", "UTC"), [SECOND + dt.timedelta(seconds=i) for i in range(5)], [dt.datetime(1, 1, 2)]),
    "day": (pa.date32(), [dt.date(2024, 2, 27) + dt.timedelta(days=i) for i in range(5)], [dt.date(9999, 12, 30)]),
}
FLOATS, INTEGERS = ["x", "y", "f", "w"], ["n", "k", "m"]
NUMBERS = [*FLOATS, *INTEGERS, "d"]
SIZES = ["0", "1", "0.5", "1.5D", "2", "3", "1e-3", "0.1F", "1e300", "-1", "double('NaN')", "double('inf')"]
# Errors for some rows, unless another condition keeps them from being looked at.
GUARDED = [
    "1 / (length(l.s) - length(r.s)) > -0.5",
    "l.n % (l.k - r.k) = 0",
    "CAST(concat(l.s, string(r.k)) AS INT) > 0",
]


class Generator:
    """Two tables and a condition over them, from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.strange = self.rng.choice([0.0, 0.1, 0.3])
        self.nulls = self.rng.choice([0.0, 0.0, 0.15])

    def pick(self, options: Any) -> Any:
        return self.rng.choice(list(options))

    def made(self, makers: list[Callable[..., str]], *args: Any) -> str:
        return str(self.pick(makers)(*args))

    def table(self, side: str) -> pa.Table:
        columns = {name: pa.array(self.values(name), kind) for name, (kind, _, _) in COLUMNS.items()}
        times = [self.rng.randrange(6) for _ in range(ROWS)]
        return pa.table({"id": range(ROWS), "t": pa.array(times, pa.int64()), **columns})

    def values(self, name: str) -> list[Any]:
        _, usual, strange = COLUMNS[name]
        found = [self.pick(strange if self.rng.random() < self.strange else usual) for _ in range(ROWS)]
        return [None if self.rng.random() < self.nulls else value for value in found]

    # --- values

    def number(self, side: str, depth: int = 1, of: list[str] = NUMBERS) -> str:
        column = f"{side}.{self.pick(of)}"
        if depth <= 0 or self.rng.random() < 0.6:
            return column
        inner, other, small = self.number(side, depth - 1, of), f"{side}.{self.pick(of)}", self.pick(SIZES[:5])
        return str(
            self.pick(
                [
                    f"({inner} + {small})",
                    f"({inner} - {other})",
                    f"({small} * double({inner}))",
                    f"(-{inner})",
                    f"abs({inner})",
                    f"CAST({inner} AS DOUBLE)",
                    f"coalesce({inner}, {small})",
                    f"CASE WHEN {side}.k > 1 THEN {inner} ELSE {other} END",
                    f"least({inner}, {other})",
                    f"sqrt(abs({inner}))",
                ]
            )
        )

    def difference(self) -> str:
        sides = self.pick(["lr", "rl"])
        of = self.pick([NUMBERS, FLOATS, INTEGERS, ["x"], ["n"]])
        a, b = (self.number(side, self.pick([0, 0, 1]), of) for side in sides)
        return str(
            self.pick([f"{a} - {b}"] * 6 + [f"{a} - {b} + 1", f"radians({a}) - radians({b})", f"1 + ({a} - {b})"])
        )

    def distance(self, depth: int = 2) -> str:
        """A value that is zero or more, mostly."""
        if depth > 0 and self.rng.random() < 0.4:
            a, b, factor = self.distance(depth - 1), self.distance(depth - 1), self.pick(["2", "0.5D", "1.5", "l.w"])
            branch = f"CASE WHEN {self.equality()} THEN {a} ELSE {b} END"
            shapes = [f"sqrt({a})", f"{factor} * ({a})", f"({a}) / 2", f"exp({a})", f"cbrt({a})", f"({a}) + ({b})"]
            shapes += [f"greatest({a}, {b})", f"least({a}, {b})", branch, f"coalesce({a}, {b})", f"pow({a}, 2)"]
            shapes += [
                f"hypot({a}, {b})",
                f"degrees(radians({a}))",
                f"atan({a})",
                f"({a}) - cos(l.y)",
                f"ln(1 + ({a}))",
            ]
            return str(self.pick(shapes))
        one, two, three = (self.difference() for _ in range(3))
        squares = f"pow({one}, 2) + pow({two}, 2)"
        return str(
            self.pick(
                [
                    f"abs({one})",
                    f"abs({one}) + abs({two})",
                    f"sqrt({squares})",
                    f"sqrt({squares} + pow({three}, 2))",
                    f"sqrt(({one}) * ({one}) + ({two}) * ({two}))",
                    squares,
                    f"hypot({one}, {two})",
                    f"greatest(abs({one}), abs({two}))",
                    "levenshtein(l.s, r.s)",
                ]
            )
        )

    def width(self) -> str:
        of_row = f"{self.pick('lr')}.{self.pick(['w', 'n', 'k', 'f', 'w'])}"
        return str(
            self.pick([*SIZES, *[of_row] * 3, f"{of_row} / 2", f"0.5 * {of_row}", f"abs({of_row}) + 1", "r.w + l.w"])
        )

    # --- conditions

    def near(self) -> str:
        distance, width, sign = self.distance(), self.width(), self.pick(["<=", "<=", "<", "=", "<=>"])
        turned = {"<=": ">=", "<": ">", "=": "=", "<=>": "<=>"}[sign]
        shapes = [f"{distance} {sign} {width}"] * 4 + [f"{width} {turned} {distance}", f"NOT ({distance} > {width})"]
        shapes += [
            f"{distance} BETWEEN {self.pick(SIZES)} AND {width}",
            f"{distance} IN ({width}, 1, {self.pick(SIZES)})",
        ]
        return str(self.pick(shapes))

    def on_sphere(self) -> str:
        points = self.pick(
            ["l.lat, l.lon, r.lat, r.lon", "l.lat, r.lon, r.lat, l.lon", "r.lat, l.lon + 360, l.lat, r.lon"]
        )
        metres = self.pick(["0", "10", "1000", "200000", "1e7", "2.1e7", "r.w * 100000", "-1"])
        return f"haversine({points}) {self.pick(['<=', '<'])} {metres}"

    def overlap(self) -> str:
        a, b = self.pick(["<=", "<"]), self.pick(["<=", "<"])
        if self.rng.random() < 0.4:
            kind, pad = self.pick(
                [("at", " + INTERVAL 1 SECOND"), ("at", ""), ("day", ""), ("day", " + INTERVAL 1 DAY")]
            )
            return f"l.{kind} {a} r.{kind}{pad} AND r.{kind} {b} l.{kind}{pad}"
        starts, ends = [self.number(side, 1) for side in "lr"], [self.number(side, 1) for side in "lr"]
        if self.rng.random() < 0.6:  # the end comes after the start
            ends = [f"{start} + {side}.{self.pick(['w', 'k'])}" for side, start in zip("lr", starts, strict=True)]
        pad = self.pick(["", "", " + 1", " - 0.5"])
        return f"{starts[0]} {a} {ends[1]}{pad} AND {starts[1]}{pad} {b} {ends[0]}"

    def point_in_interval(self) -> str:
        one, other = self.pick(["lr", "rl"])
        low = self.number(other)
        return f"{self.number(one)} BETWEEN {low} AND {self.pick([f'{low} + {other}.w', self.number(other)])}"

    def ratio(self) -> str:
        sides, of = self.pick(["lr", "rl"]), self.pick([FLOATS, NUMBERS])
        a, b = (self.number(side, 1, of) for side in sides)
        divisor = b if self.rng.random() < 0.15 else f"nullif({b}, 0)"
        bounds = self.pick(
            ["BETWEEN 0.5D AND 2", "BETWEEN 0.9 AND 1.1", "> 0.5D", "BETWEEN 1 AND double('inf')", ">= 1e-300"]
        )
        return f"{a} / {divisor} {bounds}"

    def of_texts(self) -> str:
        a, b = self.pick([("l.s", "r.s"), ("r.s", "l.s"), ("upper(l.s)", "upper(r.s)"), ("l.s", "left(r.s, 1)")])
        return str(
            self.pick(
                [
                    f"startswith({a}, {b})",
                    f"endswith({a}, {b})",
                    f"{a} LIKE concat({b}, '%')",
                    f"{a} LIKE {b}",
                    f"{a} LIKE concat({b}, '!%') ESCAPE '!'",
                    f"levenshtein({a}, {b}) <= {self.pick(['0', '1', '2', 'l.k', '-1', '1.5'])}",
                    f"{a} = {b}",
                ]
            )
        )

    def equality(self) -> str:
        a, b, c = self.number("l"), self.number("r"), self.number(self.pick("lr"), 0)
        return str(self.pick([f"{a} = {b}", f"{b} <=> {a}", f"{a} IN ({b}, {c}, 2)", "l.s = r.s", "l.k = r.k"]))

    def alternatives(self) -> str:
        operands = [self.one(0) for _ in range(self.pick([2, 2, 3]))]
        if self.rng.random() < 0.2:  # those before it guard it
            operands[-1] += f" AND {self.pick(GUARDED)}"
        return " OR ".join(f"({operand})" for operand in operands)

    def by_case(self) -> str:
        a, b = self.one(0), self.one(0)
        return str(
            self.pick(
                [
                    f"CASE WHEN {self.equality()} THEN {a} ELSE {b} END",
                    f"CASE WHEN l.k > 1 THEN {a} WHEN r.k > 2 THEN {b} END",
                    f"NOT (NOT ({a}) OR NOT ({b}))",
                ]
            )
        )

    def one(self, depth: int = 1) -> str:
        simple = [self.near, self.near, self.near, self.on_sphere, self.overlap, self.point_in_interval]
        simple += [self.ratio, self.of_texts, self.equality]
        return self.made(simple + [self.alternatives, self.alternatives, self.by_case] * depth)

    def where(self) -> str:
        parts = [f"({self.one()})" for _ in range(self.pick([1, 1, 1, 2, 2, 3]))]
        if self.rng.random() < 0.3:
            parts.append(self.pick(["l.n * r.n % 3 <> 1", "l.k IS NOT NULL", "r.x > 0", "NOT isnan(l.x)", "l.x < r.y"]))
        elif self.rng.random() < 0.1:
            parts.append(self.pick(GUARDED))
        self.rng.shuffle(parts)
        return " AND ".join(parts)
