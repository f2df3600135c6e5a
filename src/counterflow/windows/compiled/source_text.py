"""Pieces of generated source: functions and tuples as text."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from counterflow.predicate.great_circle import EARTH_RADIUS_M

# `great_circle.haversine`, operation by operation; it is part of a kernel whose predicate calls it
HAVERSINE = f"""
a = math.sin(math.radians(lat1 - lat2) / 2.0)
b = math.sin(math.radians(lon1 - lon2) / 2.0)
h = a * a + math.cos(math.radians(lat1)) * math.cos(math.radians(lat2)) * (b * b)
h = 0.0 if h < 0.0 else (1.0 if h > 1.0 else h)
return {2.0 * EARTH_RADIUS_M!r} * math.asin(math.sqrt(h))
"""

# functions of DOUBLEs that the C library has
REAL = {
    "sqrt": "math.sqrt",
    "sin": "math.sin",
    "cos": "math.cos",
    "tan": "math.tan",
    "asin": "math.asin",
    "acos": "math.acos",
    "atan": "math.atan",
    "atan2": "math.atan2",
    "exp": "math.exp",
    "hypot": "math.hypot",
    "radians": "math.radians",
    "degrees": "math.degrees",
}


def function_text(signature: str, lines: list[str], options: str = "OPTIONS") -> str:
    """Return a compiled function with these lines as its body."""
    return "\n".join([f"@njit(**{options})", f"def {signature}:", *(f"    {line}" for line in lines)])


def tuple_text(values: Iterable[str]) -> str:
    return f"({''.join(f'{value}, ' for value in values)})"


def numba_name(dtype: str) -> str:
    """Return what numba calls a dtype such as "i4"."""
    return np.dtype(dtype).name
