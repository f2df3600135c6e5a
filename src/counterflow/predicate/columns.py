"""Which column a name means, and in which zone the columns of a predicate are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlglot import exp

from counterflow.predicate.expression import Side
from counterflow.predicate.parsing import Node
from counterflow.predicate.types import SqlType

QUALIFIERS: dict[str, Side] = {"l": "left", "left": "left", "r": "right", "right": "right"}
Schema = Mapping[str, SqlType | None]  # a column's type, None where a predicate cannot use it


def find_column(schema: Mapping[str, Any], name: str) -> str | None:
    """Return the column with this name, else its only match if case is ignored (as Spark resolves names), or None."""
    if name in schema:
        return name
    folded = [column for column in schema if column.lower() == name.lower()]
    return folded[0] if len(folded) == 1 else None


def zone_of(node: Node, left: Schema, right: Schema) -> str:
    """Return the zone in which a predicate reads wall clocks: that of its TIMESTAMP columns, UTC where they differ.

    One zone serves the whole predicate, as one session zone does in Spark, so that a comparison of two wall clocks does
    not depend on which side a row is on.
    """
    schemas: dict[Side, Schema] = {"left": left, "right": right}
    zones = set()
    for column in node.find_all(exp.Column):
        named = QUALIFIERS.get(column.table.lower())
        for schema in [schemas[named]] if named else [] if column.table else [left, right]:
            type_ = schema[name] if (name := find_column(schema, column.name)) is not None else None
            if type_ is not None and type_.name == "TIMESTAMP":
                zones.add(type_.zone)
    return (zones.pop() or "UTC") if len(zones) == 1 else "UTC"
