"""The holes of the functions that compiled protocols call by address: of `templates/entries.py` and what follows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from counterflow.windows.compiled import block
from counterflow.windows.compiled.source_text import function_text, tuple_text

if TYPE_CHECKING:
    from counterflow.windows.compiled.build import Shape


def entry_constants(shape: Shape) -> str:
    """Return what the entries' templates import and the constants they use.

    The block's positions are part of the text, so another layout of the block is another module.
    """
    widths = len(shape.dtypes(shape.stored_columns)), len(shape.dtypes(shape.probe_columns)), len(shape.scan_keys)
    return "\n".join(
        [
            "from counterflow.jit import cfunc",
            "from counterflow.windows.compiled.intrinsics import viewer",
            *(f"{name} = {value}" for name, value in vars(block).items() if name.isupper()),
            f"STORED_WIDTH, PROBE_WIDTH, SCAN_KEYS = {', '.join(map(str, widths))}",
        ]
    )


def entry_holes(shape: Shape, constant_kinds: list[str]) -> list[str]:
    """Return the functions that all entries need; `constant_kinds` are the types of the predicate's numbers."""
    stored, probing = shape.dtypes(shape.stored_columns), shape.dtypes(shape.probe_columns)
    constants = [
        f"{'view_i8' if kind == 'int64' else 'view_f8'}(address + 8 * {i}, 1)[0]"
        for i, kind in enumerate(constant_kinds)
    ]
    arguments = "start, stride, mask, first, ring_mask, count"
    take = [f"take_column(b, source[{k}], staged[{k}], kept[{k}], {arguments})" for k in range(len(stored))]
    return [
        _spliced("stored_columns(descriptor, position, at, count)", _views(enumerate(stored), "position")),
        _spliced("probe_columns(descriptor, at, count)", _views(enumerate(probing), "ARENA_COLUMNS")),
        _spliced("predicate_constants(address)", [f"return {tuple_text(constants)}"]),
        _spliced(f"take_columns(b, source, staged, kept, {arguments})", take or ["pass"]),
    ]


def scan_holes(shape: Shape) -> list[str]:
    """Return what `scan` needs besides."""
    stored, bounds = shape.dtypes(shape.stored_columns), [dtype for dtype, _ in shape.scan_keys]
    keys = [(k, stored[k]) for k in map(shape.stored_columns.index, shape.scan_columns)]
    return [
        _spliced("bound_columns(descriptor, position, at, count)", _views(enumerate(bounds), "position")),
        _spliced("key_columns(descriptor, at, count)", _views(keys, "RING_COLUMNS")),
    ]


def _spliced(signature: str, lines: list[str]) -> str:
    return function_text(signature, lines, "SPLICED")


def _views(columns: Iterable[tuple[int, str]], position: str) -> list[str]:
    """Return the body of a function that gives columns, by number and dtype, from slot `at` on."""
    views = (f"view_{d}(descriptor[{position} + {k}] + {np.dtype(d).itemsize} * at, count)" for k, d in columns)
    return [f"return {tuple_text(views)}"]
