"""The joins of `counterflow bench predicates`: a predicate each, and rows for it.

However large the window is, a row has about as many matches: values spread over a range that grows with the window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.lab.bench.report import Row
from counterflow.predicate.conditions import condition
from counterflow.predicate.python_expressions import Expr, band
from counterflow.windows.vectors import Array

Columns = dict[str, Array | pa.Array]
Draw = Callable[[np.random.Generator, int, int], tuple[Columns, Columns]]  # rows of a side, window: both sides' columns
MATCHES = 2.0  # of a row in a window, about
NAME_LETTERS = 10


@dataclass(frozen=True)
class PredicateCase:
    """A predicate with its rows. `slow` ones take so long to scan that fewer rows of them are checked."""

    name: str
    where: str | Expr
    draw: Draw
    slow: bool = False

    def row(self) -> Row:
        return {"predicate": self.name, "where": str(self.where)}


def _points(dimensions: int, extra: float) -> Draw:
    """Return points in a cube of which a ball of radius 10 has about MATCHES."""

    def draw(rng: np.random.Generator, n: int, window: int) -> tuple[Columns, Columns]:
        side = 10.0 * (window * extra / MATCHES) ** (1 / dimensions)
        left, right = (
            {name: rng.uniform(0, side, n) for name in "xyz"[:dimensions]} | {"radius": rng.uniform(5, 15, n)}
            for _ in range(2)
        )
        return left, right

    return draw


def _sphere(rng: np.random.Generator, n: int, window: int) -> tuple[Columns, Columns]:
    """Return points in a belt around the equator of which a circle of 10 km has about MATCHES."""
    area = window * np.pi * 10_000.0**2 / MATCHES
    share = min(area / (4 * np.pi * 6_371_008.8**2), 1.0)

    def points() -> Columns:
        return {"lat": np.degrees(np.arcsin(rng.uniform(-share, share, n))), "lon": rng.uniform(-180, 180, n)}

    return points(), points()


def _intervals(length: float, points: bool = False) -> Draw:
    """Return intervals of exponential lengths, of which one overlaps about MATCHES others."""

    def draw(rng: np.random.Generator, n: int, window: int) -> tuple[Columns, Columns]:
        spread = window * length * (1 if points else 2) / MATCHES
        starts = rng.uniform(0, spread, (2, n))
        ends = starts + rng.exponential(length, (2, n))
        left: Columns = {"p": starts[0]} if points else {"s": starts[0], "e": ends[0]}
        return left, {"s": starts[1], "e": ends[1]}

    return draw


def _two_inequalities(rng: np.random.Generator, n: int, window: int) -> tuple[Columns, Columns]:
    least = np.sqrt(4 * MATCHES / window)
    left: Columns = {"a": rng.uniform(0, 1, n), "c": rng.uniform(0, 1, n) * least}
    return left, {"b": rng.uniform(0, 1, n) * least, "d": rng.uniform(0, 1, n)}


def _two_keys(rng: np.random.Generator, n: int, window: int) -> tuple[Columns, Columns]:
    left, right = ({name: rng.integers(0, window, n) for name in "ab"} for _ in range(2))
    return left, right


def _prices(rng: np.random.Generator, n: int, window: int) -> tuple[Columns, Columns]:
    left, right = ({"p": np.exp(rng.uniform(0, 2e-5 * window / MATCHES, n))} for _ in range(2))
    return left, right


def _prefixes(rng: np.random.Generator, n: int, window: int) -> tuple[Columns, Columns]:
    digits = max(int(np.round(np.log10(window / MATCHES))), 1)
    names = rng.integers(0, 10 ** (digits + 3), n)
    prefixes = rng.integers(0, 10**digits, n)
    texts = [f"{v:0{digits + 3}d}" for v in names], [f"{v:0{digits}d}" for v in prefixes]
    return {"s": pa.array(texts[0])}, {"s": pa.array(texts[1])}


def _names(rng: np.random.Generator, n: int, window: int) -> tuple[Columns, Columns]:
    """Return names of 10 letters, most of them with a letter replaced or left out."""
    names = rng.integers(97, 123, (max(int(window / MATCHES), 1), NAME_LETTERS), np.uint8)

    def written() -> pa.Array:
        found, at = names[rng.integers(0, len(names), n)], rng.integers(0, NAME_LETTERS, n)
        rows, kind = np.arange(n), rng.integers(0, 3, n)
        found[rows, at] = np.where(kind == 1, rng.integers(97, 123, n), found[rows, at])
        ends = np.concatenate([found[:, 1:], np.zeros((n, 1), np.uint8)], axis=1)
        found = np.where((kind[:, None] == 2) & (np.arange(NAME_LETTERS) >= at[:, None]), ends, found)
        return pa.array(np.ascontiguousarray(found).view(f"S{NAME_LETTERS}").ravel()).cast(pa.string())

    return {"s": written()}, {"s": written()}


def of_one_parity(x: float, a: float) -> bool:
    return int(x) % 2 == int(a) % 2


CASES = [
    PredicateCase("plain band", "abs(l.x - r.x) <= 10 AND abs(l.y - r.y) <= 10", _points(2, 4.0)),
    PredicateCase("Euclid 2-D", "sqrt(pow(l.x - r.x, 2) + pow(l.y - r.y, 2)) <= 10", _points(2, np.pi)),
    PredicateCase(
        "Euclid 3-D", "sqrt(pow(l.x - r.x, 2) + pow(l.y - r.y, 2) + pow(l.z - r.z, 2)) <= 10", _points(3, 4.19)
    ),
    PredicateCase("haversine", "haversine(l.lat, l.lon, r.lat, r.lon) <= 10000", _sphere, slow=True),
    PredicateCase("Manhattan", "abs(l.x - r.x) + abs(l.y - r.y) <= 10", _points(2, 2.0)),
    PredicateCase("radius by row", "hypot(l.x - r.x, l.y - r.y) <= r.radius", _points(2, 3.4)),
    PredicateCase("overlap", "l.s <= r.e AND r.s <= l.e", _intervals(10.0)),
    PredicateCase("point in interval", "l.p BETWEEN r.s AND r.e", _intervals(10.0, points=True)),
    PredicateCase("two inequalities", "l.a < r.b AND l.c > r.d", _two_inequalities),
    PredicateCase("OR of two equalities", "l.a = r.a OR l.b = r.b", _two_keys),
    PredicateCase("ratio", "l.p / r.p BETWEEN 0.99999 AND 1.00001", _prices),
    PredicateCase("prefix", "startswith(l.s, r.s)", _prefixes, slow=True),
    PredicateCase("levenshtein", "levenshtein(l.s, r.s) <= 2", _names, slow=True),
    PredicateCase(
        "function with a band",
        band("x", "x", 10.0) & condition(of_one_parity, "l.x", "r.x"),
        _points(1, 2.0),
        slow=True,
    ),
]


def table_of(columns: Columns, right: bool) -> pa.Table:
    """Return rows whose times let the sides take turns."""
    n = len(next(iter(columns.values())))
    number = np.arange(n)
    return pa.table({"ts": pa.array(2 * number + right), "i": pa.array(number), **_arrays(columns)})


def _arrays(columns: Columns) -> dict[str, Any]:
    return {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
