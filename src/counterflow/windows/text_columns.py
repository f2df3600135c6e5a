"""Functions of texts on whole columns: Python's own methods mapped over them, with no Python function in between.

Each means what its twin on one row does. Where a row has no value they raise what that raises; such a row may be a
NULL, so the caller goes on row by row. A column of length 1 is a constant.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import partial, reduce
from itertools import repeat
from typing import Any

import numpy as np

from counterflow.predicate.pattern_functions import java_regex, like_part, like_regex
from counterflow.predicate.registry import TEXT_MAX
from counterflow.predicate.text_functions import translation
from counterflow.windows.vectors import Array

LETTERS_MAX = 1 << 40
BLANK = np.array([" "], object)
BACKSLASH = np.array(["\\"], object)


def mapped(function: Callable[..., Any], dtype: Any, *columns: Array) -> Array:
    """Return a function's values on the rows of some columns."""
    n = max(map(len, columns))
    return np.fromiter(map(function, *(_rows(column, n) for column in columns)), dtype, n)


def _rows(column: Array, n: int) -> Iterable[Any]:
    values = column.tolist()
    return values if len(values) == n else repeat(values[0], n)


def _by_text(function: Callable[..., Any], dtype: Any = object) -> Callable[..., Array]:
    return partial(mapped, function, dtype)


# --- parts of texts


def _sliced(texts: Array, begin: Array, end: Array) -> Array:
    """Return texts from a letter to before another one; neither is negative."""
    if len(begin) == len(end) == 1:
        return mapped(operator.itemgetter(slice(int(begin[0]), int(end[0]))), object, texts)
    n = max(map(len, (texts, begin, end)))
    rows = zip(*(_rows(column, n) for column in (texts, begin, end)), strict=True)
    return np.fromiter((text[i:j] for text, i, j in rows), object, n)


def _held(numbers: Array) -> Array:
    """Return numbers of letters, held within what no text is longer than, so that sums do not overflow."""
    return np.minimum(np.maximum(numbers, -LETTERS_MAX), LETTERS_MAX).astype(np.int64)


def _substring(texts: Array, start: Array, length: Array | None = None) -> Array:
    start, size = _held(start), np.array([2**31 - 1]) if length is None else _held(np.maximum(length, 0))
    before = np.maximum(start - 1, 0)
    if (start < 0).any():
        before = np.where(start < 0, mapped(len, np.int64, texts) + start, before)
    return _sliced(texts, np.maximum(before, 0), np.maximum(before + size, 0))


def _left(texts: Array, n: Array) -> Array:
    return _sliced(texts, np.zeros(1, np.int64), _held(np.maximum(n, 0)))


def _right(texts: Array, n: Array) -> Array:
    n = _held(n)
    if len(n) == 1:
        part = slice(-int(n[0]), None) if n[0] > 0 else slice(0, 0)
        return mapped(operator.itemgetter(part), object, texts)
    size = mapped(len, np.int64, texts)
    return _sliced(texts, np.maximum(size - np.maximum(n, 0), 0), size)


def _trim(strip: Callable[..., str], *args: Array) -> Array:
    return mapped(strip, object, args[-1], BLANK if len(args) == 1 else args[0])


# --- other texts


def _replace(texts: Array, old: Array, new: Array | None = None) -> Array:
    if not all(old.tolist()):
        raise ValueError("nothing is replaced: an empty text is found everywhere")
    return mapped(str.replace, object, texts, old, np.array([""], object) if new is None else new)


def _repeat(texts: Array, times: Array) -> Array:
    if (mapped(len, np.int64, texts) * _held(times)).max(initial=0) > TEXT_MAX:
        raise ValueError("too long")
    return mapped(operator.mul, object, texts, _held(times))


def _pad(justify: Callable[..., str], texts: Array, width: Array, fill: Array = BLANK) -> Array:
    if len(width) != 1 or len(fill) != 1 or len(fill[0]) != 1 or not 0 <= width[0] <= TEXT_MAX:
        raise ValueError("not as Python justifies texts")
    return _left(mapped(justify, object, texts, width, fill), width)


def _concat(*texts: Array) -> Array:
    if not texts:
        return np.array([""], object)
    return np.asarray(reduce(np.add, texts), object)


def _translate(texts: Array, letters: Array, replacements: Array) -> Array:
    return mapped(str.translate, object, texts, mapped(translation, object, letters, replacements))


# --- patterns

_FIND: dict[str, Callable[..., bool]] = {
    "startswith": str.startswith,
    "endswith": str.endswith,
    "contains": operator.contains,
}


def _like(texts: Array, patterns: Array, escapes: Array = BACKSLASH) -> Array:
    if len(escapes) != 1:
        raise ValueError("each row has an escape character of its own")
    if len(patterns) != 1:
        how, parts = _common_shape(patterns, escapes[0])
        return mapped(_FIND[how], bool, texts, parts)
    found = like_part(patterns[0], escapes[0])
    if found is None:
        return mapped(like_regex(patterns[0], escapes[0]).fullmatch, bool, texts)
    how, part = found
    constant = np.array([part], object)
    return np.equal(texts, constant).astype(bool) if how == "equal" else mapped(_FIND[how], bool, texts, constant)


def _common_shape(patterns: Array, escape: str) -> tuple[str, Array]:
    """Return what patterns ask for that have % at the same ends, and nothing else of a pattern."""
    if not all(patterns.tolist()):
        raise ValueError("a pattern is empty")
    first, last = (set(mapped(operator.itemgetter(i), object, patterns).tolist()) == {"%"} for i in (0, -1))
    parts = mapped(operator.itemgetter(slice(int(first), -1 if last else None)), object, patterns)
    plain = not any(letter in "".join(parts.tolist()) for letter in ("%", "_", escape))
    if not plain or not (first or last):
        raise ValueError("patterns of several kinds")
    return "contains" if first and last else "startswith" if last else "endswith", parts


def _ilike(texts: Array, patterns: Array, escapes: Array = BACKSLASH) -> Array:
    return _like(mapped(str.lower, object, texts), mapped(str.lower, object, patterns), escapes)


def _rlike(texts: Array, patterns: Array) -> Array:
    if len(patterns) != 1:
        raise ValueError("each row has a pattern of its own")
    return mapped(java_regex(patterns[0]).search, bool, texts)


def levenshtein(a: Array, b: Array, limit: int = TEXT_MAX) -> Array:
    """Return edit distances, as far as a limit and one more."""
    from counterflow.windows.compiled.forking import compiled_module

    a, b = np.broadcast_arrays(a, b)
    found: Array = compiled_module("texts").levenshtein(a, b, np.ones(len(a), bool), limit)
    return found


TEXT_COLUMNS: dict[str, Callable[..., Array]] = {
    "startswith": _by_text(str.startswith, bool),
    "endswith": _by_text(str.endswith, bool),
    "contains": _by_text(operator.contains, bool),
    "length": _by_text(len, np.int64),
    "upper": _by_text(str.upper),
    "lower": _by_text(str.lower),
    "reverse": _by_text(operator.itemgetter(slice(None, None, -1))),
    "instr": lambda texts, parts: mapped(str.find, np.int64, texts, parts) + 1,
    "trim": partial(_trim, str.strip),
    "ltrim": partial(_trim, str.lstrip),
    "rtrim": partial(_trim, str.rstrip),
    "btrim": lambda texts, letters=BLANK: mapped(str.strip, object, texts, letters),
    "substring": _substring,
    "left": _left,
    "right": _right,
    "replace": _replace,
    "repeat": _repeat,
    "lpad": partial(_pad, str.rjust),
    "rpad": partial(_pad, str.ljust),
    "concat": _concat,
    "translate": _translate,
    "like": _like,
    "ilike": _ilike,
    "rlike": _rlike,
    "levenshtein": levenshtein,
}
