"""How many candidates an index gives, estimated from some rows of both tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from counterflow.predicate.expression import SIDES, Side
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.access import AccessPath, choose_path
from counterflow.windows.evaluate import Columns, matches
from counterflow.windows.keys import as_float, computed, equality_hashes
from counterflow.windows.store import predicate_columns
from counterflow.windows.vectors import Array

SAMPLE = 1000  # rows of each table


@dataclass(frozen=True)
class Estimate:
    """Shares of the pairs in a window: what the index leaves to be looked at, and what matches."""

    candidates: float
    matches: float
    pairs: int  # that were looked at for this

    def __str__(self) -> str:
        return (
            f"the index leaves {100 * self.candidates:.2g} % of a window to be looked at, {100 * self.matches:.2g} % "
            f"match (of {self.pairs:,} pairs)"
        )


def estimate(spec: JoinSpec, left: pa.Table, right: pa.Table) -> Estimate | None:
    """Return an estimate from rows that are spread over both tables; None if one is empty."""
    tables = [table.take(pa.array(_spread(len(table)))) for table in (left, right)]
    counts = [len(table) for table in tables]
    if not all(counts):
        return None
    columns = [predicate_columns(spec.predicate, side, table) for side, table in zip(SIDES, tables, strict=True)]
    pairs = counts[0] * counts[1]
    left_rows, right_rows = (a.ravel() for a in np.indices(counts))
    found = int(matches(spec.predicate, columns[0], columns[1], left_rows, right_rows).sum())
    path = choose_path(spec.parts, "left")
    near = np.zeros(counts, bool)
    for one in [way.path for way in path.ways] or [path]:
        near |= _near(one, columns, counts)
    return Estimate(int(near.sum()) / pairs, found / pairs, pairs)


def _spread(rows: int) -> Array:
    return np.unique(np.linspace(0, max(rows - 1, 0), min(rows, SAMPLE)).astype(np.int64))


def _near(path: AccessPath, columns: list[Columns], counts: list[int]) -> Array:
    """Return which pairs the keys of a path leave."""
    near = np.ones(counts, bool)
    hashed = [equality_hashes(path.equalities, SIDES[i], columns[i], counts[i]) for i in (0, 1)]
    if path.equalities and hashed[0] is not None and hashed[1] is not None:
        near &= hashed[0][0][:, None] == hashed[1][0][None, :]
    for bound in (*path.bands, *(part for overlap in path.overlaps for part in overlap.parts)):
        keys = [_key(bound.key(side), side, columns[i], counts[i]) for i, side in enumerate(SIDES)]
        if keys[0] is None or keys[1] is None:
            continue
        with np.errstate(invalid="ignore"):
            difference = keys[0][:, None] - keys[1][None, :]
            if bound.low is not None:
                near &= ~(difference < float(bound.low))
            if bound.high is not None:
                near &= ~(difference > float(bound.high))
    return near


def _key(expression: object, side: Side, columns: Columns, n: int) -> Array | None:
    key = computed(expression, side, columns, n)  # type: ignore[arg-type]
    return None if key is None else np.where(key.mask(), as_float(key), np.nan)
