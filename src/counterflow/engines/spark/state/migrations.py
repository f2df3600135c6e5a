"""Directories of earlier formats: each function makes one of the next format from one of its own.

    digest {"format": 4, "counterflow": "0.1.0", ...}

This much is the same in all formats from 3 on, so that any version can tell a damaged directory from one that a newer
version has written. A format is new whenever an older reader would not understand it. What else a checkpoint relies on
must stay as it is, and golden ones in the tests hold it fast: how chunks are encoded and named, which lane a row is
sent to, which number stands for a cell, and the text of a predicate.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from counterflow.engines.spark.state.identity import COLUMNS, unzoned, zone_of
from counterflow.errors import StateError
from counterflow.predicate.expression import SIDES, Side
from counterflow.version import __version__

FORMAT = 4
FIRST_FORMAT = 3  # earlier ones were of no release

TOKENS = re.compile(r"'(?:\\.|[^'\\])*'|`(?:``|[^`])*`|.", re.DOTALL)  # texts and names in one piece
SIDE = re.compile(r"(`(?:``|[^`])*`|[^`,]+), window (\w+) (.*?), of \((.*)\)", re.DOTALL)


def migrated(data: dict[str, Any]) -> dict[str, Any]:
    """Return what a directory holds in the present format. `data` says its own."""
    found = data["format"]
    if type(found) is not int:
        raise ValueError("its format is no number")
    if found > FORMAT:
        raise StateError(
            f"the checkpoint's join state has format {found}, written by Counterflow {data['counterflow']}; this is "
            f"Counterflow {__version__}, which reads formats {FIRST_FORMAT} to {FORMAT}: use Counterflow "
            f"{data['counterflow']} or newer"
        )
    if found < FIRST_FORMAT:
        refuse_unreleased(found)
    for number in range(found, FORMAT):
        data = MIGRATIONS[number](data)
    return data


def refuse_unreleased(found: int) -> NoReturn:
    """Refuse a format that no release has written."""
    raise StateError(
        f"the checkpoint's join state has format {found}, of a version before the first release; Counterflow "
        f"{__version__} reads formats {FIRST_FORMAT} to {FORMAT}: start with a new checkpointLocation"
    )


def _from_3(data: dict[str, Any]) -> dict[str, Any]:
    """Take a join's text apart: format 4 has its parts by name."""
    text = data.pop("fingerprint")
    parts = zip(_split(text, "; "), ("layout", "how", "where", *SIDES), strict=True)
    layout, how, where, *sides = (part.removeprefix(f"{name} ") for part, name in parts)
    identity: dict[str, Any] = {
        "layout": layout,
        "how": how.removesuffix(" ordered"),
        "ordered": "yes" if how.endswith(" ordered") else "no",
        "where": where,
        "session time zone": "",
    }
    types: dict[Side, dict[str, str]] = {}
    for side, part in zip(SIDES, sides, strict=True):
        found = SIDE.fullmatch(part)
        if found is None:
            raise ValueError(f"what it says of the {side} input has another form")
        time, kind, window, listed = found.groups()
        types[side] = dict(_column_of_3(column) for column in _split(listed, ", ", nested=True))
        identity[f"{side} time"] = time
        identity[f"{side} window"] = f"{window} microseconds" if kind == "duration" else window
        identity["session time zone"] = identity["session time zone"] or zone_of(types[side][_unquoted(time)])
    for side, columns in types.items():
        zone = identity["session time zone"]
        identity[COLUMNS[side]] = {name: [unzoned(type_, zone), None] for name, type_ in columns.items()}
    return data | {"format": 4, "identity": identity, "origin": text}


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {3: _from_3}


def _column_of_3(text: str) -> tuple[str, str]:
    """Return a column's name and the text of its type."""
    name, *rest = _split(text, " ")
    return _unquoted(name), " ".join(rest)


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _split(text: str, separator: str, nested: bool = False) -> list[str]:
    """Split a text where the separator is outside of quotes and, if brackets are `nested`, outside of these."""
    parts, depth = [""], 0
    for token in TOKENS.findall(text):
        parts[-1] += token
        if nested:
            depth += (token in "<([") - (token in ">)]")
        if not depth and parts[-1].endswith(separator) and token == separator[-1]:
            parts[-1] = parts[-1].removesuffix(separator)
            parts.append("")
    return parts
