"""Which join a checkpoint belongs to: what its results depend on, part by part, and what of it may change.

A suffix, `late_rows`, `null_times`, the number of partitions and whatever else only says how a join runs are no part of
it. A new column that may be NULL, and is not in the predicate, may come: rows from before have NULL there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from counterflow.errors import StateError
from counterflow.predicate.expression import SIDES, Side, quoted
from counterflow.spec.join_spec import JoinSpec
from counterflow.spec.window_sizes import Window

# Texts by the names of PARTS; columns as {name: [type, whether it may be NULL]}, where None means that nobody noted it.
Identity = dict[str, Any]

COLUMNS: dict[Side, str] = {"left": "left columns", "right": "right columns"}
TEXTS = (
    "layout",
    "how",
    "ordered",
    "where",
    "session time zone",
    *(f"{side} {what}" for side in SIDES for what in ("time", "window")),
)
PARTS = {*TEXTS, *COLUMNS.values()}
ZONED = re.compile(r"\[us, tz=([^\]]*)\]")  # a timestamp's type in Arrow


def identity_of(spec: JoinSpec, layout: object) -> Identity:
    """Return what must not change between restarts, readable in the error that says it has.

    Two joins that differ have two identities: names are quoted, and constants are written to the last digit.
    """
    zones = [zone_of(str(side.schema.field(side.time).type)) for side in (spec.left, spec.right)]
    found: Identity = {
        "layout": str(layout),
        "how": spec.how,
        "ordered": "yes" if spec.ordered else "no",
        "where": str(spec.predicate),
        "session time zone": zones[0] or zones[1],
    }
    for side in (spec.left, spec.right):
        found[f"{side.side} time"] = quoted(side.time_column)
        found[f"{side.side} window"] = _window_text(side.window)
        types = [unzoned(_type_text(f.type), found["session time zone"]) for f in side.schema]
        found[COLUMNS[side.side]] = {f.name: [type_, f.nullable] for f, type_ in zip(side.schema, types, strict=True)}
    return found


def _window_text(window: Window) -> str:
    return f"{window} microseconds" if window.kind == "duration" else str(window)


def _type_text(type_: pa.DataType) -> str:
    """Return the text of a type, without names of no meaning and without what may be NULL inside."""
    if pa.types.is_struct(type_):
        return f"struct<{', '.join(f'{quoted(field.name)}: {_type_text(field.type)}' for field in type_)}>"
    if pa.types.is_map(type_):
        return f"map<{_type_text(type_.key_type)}, {_type_text(type_.item_type)}>"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"list<{_type_text(type_.value_type)}>"
    return str(type_)


def zone_of(type_: str) -> str:
    """Return the zone in the text of a type, or an empty text."""
    found = ZONED.search(type_)
    return found[1] if found else ""


def unzoned(type_: str, zone: str) -> str:
    """Return the text of a type without the session's zone, which is a part of its own."""
    return type_.replace(f"[us, tz={zone}]", "[us, zoned]")


def origin_of(identity: Identity) -> str:
    """Return a short name of a join, which it keeps when a column comes."""
    return hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()


def check_identity(identity: Any) -> None:
    """Raise a ValueError if it was not written here."""
    texts = isinstance(identity, dict) and identity.keys() == PARTS and all(type(identity[n]) is str for n in TEXTS)
    if not texts or not all(_are_columns(identity[name]) for name in COLUMNS.values()):
        raise ValueError("it does not say which join it belongs to")


def _are_columns(columns: Any) -> bool:
    return isinstance(columns, dict) and all(
        isinstance(c, list) and len(c) == 2 and type(c[0]) is str and c[1] in (True, False, None)
        for c in columns.values()
    )


# --- what differs


def check_same_join(before: Identity, now: Identity) -> None:
    """Refuse another join than the one that wrote a checkpoint, and say in what it differs."""
    differing = list(_differences(before, now))
    if differing:
        raise StateError(
            "the checkpoint belongs to another join:\n  "
            + "\n  ".join(differing)
            + "\nMake the same join again, or start with a new checkpointLocation"
        )


def _differences(before: Identity, now: Identity) -> Iterator[str]:
    for name in TEXTS:
        if before[name] != now[name]:
            yield f"its {name} was {before[name]!r} and is {now[name]!r} now{_advice(name, before[name])}"
    for side, name in COLUMNS.items():
        yield from _column_differences(side, before[name], now[name])


def _advice(name: str, value: str) -> str:
    if name == "layout":  # '2x1', 'hash 4', 'band 16 on ...', or the two matrices of a full join, which follow from one
        kind, *words = value.split()
        given = kind if "x" in kind else f"{kind}:{words[0]}"
        same = " with the same sample= and rates=" if kind == "band" else ""
        return f": engine=cf.Spark(layout='{given}'){same} keeps it"
    return f": set spark.sql.session.timeZone to {value}" if name == "session time zone" else ""


def _column_differences(side: Side, before: dict[str, list[Any]], now: dict[str, list[Any]]) -> Iterator[str]:
    for name, (type_, nullable) in before.items():
        column = f"column {quoted(name)} of the {side} input"
        if name not in now:
            yield f"{column} ({type_}) is gone"
        elif now[name][0] != type_:
            yield f"{column} was {type_} and is {now[name][0]} now"
        elif nullable and not now[name][1]:
            yield f"{column} could be NULL and is NOT NULL now"
    for name, (type_, nullable) in now.items():
        if name not in before and not nullable:
            yield f"column {quoted(name)} ({type_}) of the {side} input is new and NOT NULL, and older rows lack it"
