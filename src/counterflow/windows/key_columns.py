"""What only keys use: numbers that tell where rows lie. They need not be exact, as every candidate is checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice

import numpy as np

from counterflow.predicate.great_circle import ANGLE_MAX, AXES
from counterflow.windows.text_columns import BACKSLASH
from counterflow.windows.text_words import encoded_texts
from counterflow.windows.vectors import Array

PLACE_BYTES = 6  # of a text, which make a number that a DOUBLE holds


def _coordinate(axis: str) -> Callable[[Array, Array], Array]:
    """Return what computes a coordinate of points on the unit sphere; NaN where an angle is too large to tell."""

    def coordinate(latitude: Array, longitude: Array) -> Array:
        with np.errstate(invalid="ignore"):
            found = np.sin(latitude) + 0.0 * longitude if axis == "unit_z" else np.cos(latitude)
            if axis != "unit_z":
                found = found * (np.cos(longitude) if axis == "unit_x" else np.sin(longitude))
            usual = (np.abs(latitude) <= ANGLE_MAX) & (np.abs(longitude) <= ANGLE_MAX)
        return np.where(usual, found, np.nan)

    return coordinate


def _log_size(x: Array) -> Array:
    """Return the logarithms of numbers without their signs; NaN of zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(x == 0, np.nan, np.log(np.abs(x)))


def _text_places(texts: Array, fill: int) -> Array:
    """Return where texts stand in the order of texts, by their first bytes; what is missing there is filled up."""
    letters, ends = encoded_texts(texts)
    letters = letters if len(letters) else np.zeros(1, np.uint8)
    places = np.zeros(len(texts), np.int64)
    for k in range(PLACE_BYTES):
        at = ends[:-1] + k
        byte = letters[np.minimum(at, len(letters) - 1)]
        places = (places << 8) | np.where(at < ends[1:], byte, np.uint8(fill))
    return places


def _like_parts(end: int, patterns: Array, escapes: Array = BACKSLASH) -> Array:
    """Return what stands before the first wildcard of a pattern (end 0), or after its last one (end -1).

    Nothing, if it has an escape character: then a row that ends in an error is among the candidates.
    """
    pairs = zip(patterns, islice(cycle(escapes), len(patterns)), strict=True)
    return np.array([_like_part(pattern, escape, end) for pattern, escape in pairs], object)


def _like_part(pattern: str | None, escape: str | None, end: int) -> str:
    if not pattern or not escape or escape in pattern:
        return ""
    return re.split("[%_]", pattern)[end]


KEY_COLUMNS: dict[str, Callable[..., Array]] = {
    **{axis: _coordinate(axis) for axis in AXES},
    "log_size": _log_size,
    "text_place": partial(_text_places, fill=0),
    "text_place_last": partial(_text_places, fill=255),
    "like_prefix": partial(_like_parts, 0),
    "like_suffix": partial(_like_parts, -1),
}
