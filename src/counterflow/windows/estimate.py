"""How many candidates an index gives, estimated from some rows of both tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from counterflow.predicate.differences import Inequality
from counterflow.predicate.expression import SIDES, Expression
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.access import AccessPath, choose_path
from counterflow.windows.compiled.forking import compiled_module
from counterflow.windows.compiled.predicate_source import NotCompilable
from counterflow.windows.crew import Crew
from counterflow.windows.evaluate import Columns, matches
from counterflow.windows.keys import as_float, computed, equality_hashes
from counterflow.windows.row_ring import Ring
from counterflow.windows.store import predicate_columns
from counterflow.windows.vectors import Array, Vector

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
        near |= _alike(one, spec.predicate, columns, counts) if one.similar else _near(one, columns, counts)
    return Estimate(int(near.sum()) / pairs, found / pairs, pairs)


def _spread(rows: int) -> Array:
    return np.unique(np.linspace(0, max(rows - 1, 0), min(rows, SAMPLE)).astype(np.int64))


def _near(path: AccessPath, columns: list[Columns], counts: list[int]) -> Array:
    """Return which pairs the keys of a path leave."""
    near = np.ones(counts, bool)
    hashed = [equality_hashes(path.equalities, SIDES[i], columns[i], counts[i]) for i in (0, 1)]
    if hashed[0] is not None and hashed[1] is not None:
        (left, left_usable), (right, right_usable) = hashed[0], hashed[1]
        near &= (left[:, None] == right[None, :]) & left_usable[:, None] & right_usable[None, :]
    for bound in (*path.bands, *(part for overlap in path.overlaps for part in overlap.parts)):
        keys = [computed(bound.key(side), side, columns[i], counts[i]) for i, side in enumerate(SIDES)]
        if keys[0] is not None and keys[1] is not None:
            near &= _within(bound, keys[0], keys[1])
    return near


def _alike(path: AccessPath, predicate: Expression, columns: list[Columns], counts: list[int]) -> Array:
    """Return which pairs of texts the index of their pieces leaves: it is asked itself."""
    ring = Ring(counts[0])
    index = compiled_module("similar_texts").SimilarTexts(ring, path, predicate, True, Crew())
    try:
        stored, probes = (index.keyed(side, columns[i], {}, counts[i]) for i, side in enumerate(SIDES))
    except NotCompilable:  # a text has no value on some row: such a window is scanned
        return np.ones(counts, bool)
    index.append(stored, 0)
    near = np.zeros(counts, bool)
    oldest, newest = np.zeros(counts[1], np.int64), np.full(counts[1], counts[0] - 1)
    for found in index.probe(probes, columns[1], oldest, newest, newest):
        near[found.pairs.rows, found.pairs.probes] = True
    return near


def _within(bound: Inequality, left: Vector, right: Vector) -> Array:
    """Return which pairs of keys a bound leaves, NaN and NULL as the index has them."""
    a, b = as_float(left), as_float(right)
    with np.errstate(invalid="ignore"):
        difference = a[:, None] - b[None, :]
    low, high = (
        (-np.inf if bound.low is None else float(bound.low)),
        (np.inf if bound.high is None else float(bound.high)),
    )
    found = ((difference >= low) & (difference <= high)) | (a[:, None] == b[None, :])  # of infinities there is none
    found |= np.isnan(a)[:, None] & (np.isnan(b) | ("left" in bound.nan_sides))[None, :]
    if "right" in bound.nan_sides:
        found |= np.isnan(b)[None, :]
    known = left.mask()[:, None] & right.mask()[None, :]
    return found | ~known if bound.nulls_meet else found & known
