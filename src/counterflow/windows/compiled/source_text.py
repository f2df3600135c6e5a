"""Pieces of generated source: functions and tuples as text."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def function_text(signature: str, lines: list[str], options: str = "OPTIONS") -> str:
    """Return a compiled function with these lines as its body."""
    return "\n".join([f"@njit(**{options})", f"def {signature}:", *(f"    {line}" for line in lines)])


def tuple_text(values: Iterable[str]) -> str:
    return f"({''.join(f'{value}, ' for value in values)})"


def numba_name(dtype: str) -> str:
    """Return what numba calls a dtype such as "i4"."""
    return np.dtype(dtype).name
