"""Rows of benchmarks as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


def markdown_table(heading: list[str], rows: list[list[str]]) -> str:
    """Return a table with one line for each row."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in line) for line in lines)


def pick(rows: list[Row], **wanted: Any) -> Row | None:
    """Return the first row that has these values, or None."""
    return next(iter(pick_all(rows, **wanted)), None)


def pick_all(rows: list[Row], **wanted: Any) -> list[Row]:
    """Return the rows that have these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def slashed(parts: Iterable[str]) -> str:
    """Return the parts in one cell."""
    return " / ".join(parts)


def milliseconds(row: Row | None, figures: tuple[str, ...]) -> str:
    """Return these figures, which are in microseconds, in one cell; nothing for a row that has none."""
    if row is None or not all(figure in row for figure in figures):
        return ""
    return slashed(short(row[figure] / 1000) for figure in figures)


def short(value: float) -> str:
    """Return a number with two digits that count, or all of those before the point."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def scaled(value: float) -> str:
    """Return a number with its unit: 3,400,000 as 3.4 M."""
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def described(machine: Row) -> str:
    """Return the machine in a few words."""
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB"
