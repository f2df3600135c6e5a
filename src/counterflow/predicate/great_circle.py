"""Distances on a sphere, and how the coordinates of two points on it bound them.

A point is a unit vector; the straight line between two points is the chord. For *any* latitudes and longitudes

    chord^2 / 4  =  sin^2((lat1 - lat2) / 2)  +  cos(lat1) * cos(lat2) * sin^2((lon1 - lon2) / 2)

so whatever bounds the right side (the haversine of the angle) bounds the chord, and the chord bounds each of the three
coordinates' differences: at the poles and across the date line as anywhere else. `haversine` is recognised, and so are
the formula written out and the spherical law of cosines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from counterflow.predicate.expression import Call, Expression, Literal, sides_of
from counterflow.predicate.ranges import Range, number_of, without_casts
from counterflow.predicate.types import DOUBLE

EARTH_RADIUS_M = 6_371_008.8
AXES = ("unit_x", "unit_y", "unit_z")
ANGLE_MAX = 100.0  # radians; beyond it the coordinates are too rough to tell anything
SAME = 1e-12  # relative difference of two factors that are the same one
COSINE_SPARE = 1e-13  # what rounding can do to a cosine near 1, where it says little about the angle


@dataclass(frozen=True)
class Point:
    """Latitude and longitude of one side, in radians."""

    latitude: Expression
    longitude: Expression

    def coordinate(self, axis: str) -> Expression:
        return Call(axis, (self.latitude, self.longitude), DOUBLE)


Points = tuple[Point, Point]  # of the left side, and of the right one
Linear = dict[Expression, float]  # a sum: values, each with its factor


def haversine(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """Return the metres between two points given in degrees, on a sphere."""
    if not all(map(math.isfinite, (lat1, lon1, lat2, lon2))):
        return math.nan
    a = math.sin(math.radians(lat1 - lat2) / 2.0)
    b = math.sin(math.radians(lon1 - lon2) / 2.0)
    h = a * a + math.cos(math.radians(lat1)) * math.cos(math.radians(lat2)) * (b * b)
    return 2.0 * EARTH_RADIUS_M * math.asin(math.sqrt(0.0 if h < 0.0 else min(h, 1.0)))


def chord_within(metres: float) -> float:
    """Return the greatest chord, on a sphere of radius 1, between points that are so far apart."""
    return 2.0 * math.sin(min(metres / (2.0 * EARTH_RADIUS_M), math.pi / 2))


def points_of_call(call: Call) -> Points | None:
    """Return the points of `haversine(lat1, lon1, lat2, lon2)` that are on two sides."""
    lat1, lon1, lat2, lon2 = (Call("radians", (arg,), DOUBLE) for arg in call.args)
    return _by_side(Point(lat1, lon1), Point(lat2, lon2))


def chord_of_sum(call: Call, values: Range) -> tuple[Points, float] | None:
    """Return points, and the greatest chord between them, if a sum with such values is one of the two formulas."""
    terms = list(_parts(call, "+"))
    if len(terms) != 2 or _is_rough(call):
        return None
    for a, b in (terms, terms[::-1]):
        points = _haversine_of(a, b)
        if points is not None:
            return points, 2.0 * math.sqrt(max(values.high, 0.0))
        points = _cosine_of(a, b)
        if points is not None:
            return points, math.sqrt(max(2.0 - 2.0 * values.low, 0.0) + COSINE_SPARE)
    return None


def _is_rough(expression: Expression) -> bool:
    """Return whether the two sides meet in a FLOAT: its digits are too few for an angle that goes round the globe."""
    if not isinstance(expression, Call) or len(sides_of(expression)) < 2:
        return False
    return expression.type.name == "FLOAT" or any(map(_is_rough, expression.args))


def _haversine_of(a: Expression, b: Expression) -> Points | None:
    """Return the points of a = sin^2(half the latitudes' difference), b = cos * cos * sin^2(half the longitudes')."""
    latitudes, factors = _squared_sine(a), list(_parts(b, "*"))
    cosines = [f.args[0] for f in factors if isinstance(f, Call) and f.op == "cos"]
    rest = [f for f in factors if not (isinstance(f, Call) and f.op == "cos")]
    if latitudes is None or len(cosines) != 2 or len(rest) not in (1, 2) or rest[0] != rest[-1]:
        return None
    longitudes = _squared_sine(rest[0]) if len(rest) == 1 else _sine(rest[0])
    first, second = (_linear(angle) for angle in cosines)
    if first is None or second is None or set(first) & set(second):
        return None
    halves = {**_times(first, 0.5), **_times(second, -0.5)}
    if not (_same(latitudes, halves) or _same(latitudes, _times(halves, -1.0))):
        return None
    return None if longitudes is None else _points(cosines, _times(longitudes, 2.0))


def _cosine_of(a: Expression, b: Expression) -> Points | None:
    """Return the points of a = sin * sin of the latitudes, b = cos * cos of them, * cos(the longitudes' difference)."""
    sines, factors = [_sine(f) for f in _parts(a, "*")], list(_parts(b, "*"))
    angles = [f.args[0] for f in factors if isinstance(f, Call) and f.op == "cos"]
    if len(sines) != 2 or len(factors) != 3 or len(angles) != 3:
        return None
    for k, difference in enumerate(angles):
        latitudes, longitudes = angles[:k] + angles[k + 1 :], _linear(difference)
        first, second = map(_linear, latitudes)
        same = _same(first, sines[0]) and _same(second, sines[1])
        if longitudes is not None and (same or (_same(first, sines[1]) and _same(second, sines[0]))):
            points = _points(latitudes, longitudes)
            if points is not None:
                return points
    return None


def _points(latitudes: list[Expression], longitudes: Linear) -> Points | None:
    """Return the points with these latitudes, given the difference of their longitudes."""
    by_side = {side: _scaled(atom, abs(factor)) for atom, factor in longitudes.items() for side in sides_of(atom)}
    factors = list(longitudes.values())
    if len(factors) != 2 or len(by_side) != 2 or not abs(factors[0] + factors[1]) <= SAME * abs(factors[0]):
        return None
    sides = [next(iter(sides_of(latitude)), None) for latitude in latitudes]
    if set(sides) != set(by_side):
        return None
    return _by_side(*(Point(lat, by_side[side]) for lat, side in zip(latitudes, sides, strict=True) if side))


def _by_side(a: Point, b: Point) -> Points | None:
    sides = [sides_of(p.latitude) | sides_of(p.longitude) for p in (a, b)]
    if sides == [{"left"}, {"right"}]:
        return a, b
    return (b, a) if sides == [{"right"}, {"left"}] else None


def _scaled(angle: Expression, factor: float) -> Expression:
    wide = angle if angle.type == DOUBLE else Call("cast", (angle,), DOUBLE)
    return Call("*", (wide, Literal(factor, DOUBLE)), DOUBLE)


def _parts(expression: Expression, op: str) -> Iterator[Expression]:
    """Yield the terms of a sum, or the factors of a product."""
    inner = without_casts(expression)
    if isinstance(inner, Call) and inner.op == op:
        for arg in inner.args:
            yield from _parts(arg, op)
    else:
        yield inner


def _sine(expression: Expression) -> Linear | None:
    return _linear(expression.args[0]) if isinstance(expression, Call) and expression.op == "sin" else None


def _squared_sine(expression: Expression) -> Linear | None:
    inner = without_casts(expression)
    if not isinstance(inner, Call):
        return None
    if inner.op in ("pow", "power") and number_of(without_casts(inner.args[1])) == 2:
        return _sine(without_casts(inner.args[0]))
    return _sine(inner.args[0]) if inner.op == "*" and inner.args[0] == inner.args[1] else None


def _linear(expression: Expression) -> Linear | None:
    """Return what an angle is made of: some values, each with its factor; None if it is not a sum of that kind."""
    inner = without_casts(expression)
    if not isinstance(inner, Call):
        return None if number_of(inner) is not None else {inner: 1.0}
    if inner.op in ("radians", "degrees"):
        return _scaled_linear(inner.args[0], math.pi / 180 if inner.op == "radians" else 180 / math.pi)
    if inner.op in ("+", "-"):
        a, b = (_linear(arg) for arg in inner.args)
        if a is None or b is None or set(a) & set(b):
            return None
        return {**a, **_times(b, -1.0 if inner.op == "-" else 1.0)}
    if inner.op == "neg":
        return _scaled_linear(inner.args[0], -1.0)
    if inner.op in ("*", "/"):
        for factor, other in ((inner.args[1], inner.args[0]), (inner.args[0], inner.args[1])):
            number = number_of(without_casts(factor))
            if number and (inner.op == "*" or factor is inner.args[1]):
                return _scaled_linear(other, number if inner.op == "*" else 1 / number)
    return {inner: 1.0}


def _scaled_linear(expression: Expression, factor: float) -> Linear | None:
    linear = _linear(expression)
    return None if linear is None else _times(linear, factor)


def _times(linear: Linear, factor: float) -> Linear:
    return {atom: c * factor for atom, c in linear.items()}


def _same(a: Linear | None, b: Linear | None) -> bool:
    if a is None or b is None or set(a) != set(b):
        return False
    return all(abs(a[atom] - b[atom]) <= SAME * abs(b[atom]) for atom in a)
