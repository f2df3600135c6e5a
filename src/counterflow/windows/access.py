"""Access paths: which stored rows a probe has to look at.

A path only narrows the candidates; the whole predicate is checked on each of them. `choose_path` says which keys
of the predicate are used. Compiled windows (`windows.compiled`) index all of them; before a join is large enough
to be compiled, one sorted index over the window serves, by the hashes or by one bounded key. Either way a probe
that an index would not help scans its window range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from counterflow.predicate.differences import Inequality
from counterflow.predicate.expression import Expression, Side, opposite
from counterflow.predicate.overlaps import Overlap, overlaps_in
from counterflow.predicate.similarity import Similarity
from counterflow.predicate.split import Equality, Split
from counterflow.windows.evaluate import Columns
from counterflow.windows.keys import as_float, computed, equality_hashes, key_bounds
from counterflow.windows.vectors import Array

DIMENSIONS_MAX = 3  # bands that an index combines
WITH_OVERLAPS_MAX = 2  # the same where intervals are among them: each is looked for in several classes of length


@dataclass(frozen=True)
class SortedIndex:
    """Row numbers in the order of their keys; rows whose key is NULL are left out."""

    keys: Array
    rows: Array


@dataclass(frozen=True)
class Way:
    """The path of one alternative, and its part of the predicate; no pair satisfies two of them."""

    path: AccessPath
    predicate: Expression


@dataclass(frozen=True)
class AccessPath:
    """The keys by which rows of the stored side are found."""

    stored: Side
    equalities: tuple[Equality, ...] = ()
    bands: tuple[Inequality, ...] = ()  # each of another key
    overlaps: tuple[Overlap, ...] = ()
    inequalities: tuple[Inequality, ...] = ()  # all that bound a key, the bands among them
    ways: tuple[Way, ...] = ()  # where nothing else finds candidates: one index for each alternative
    similar: Similarity | None = None  # texts that are found by their pieces; others take their length, a band

    @property
    def has_index(self) -> bool:
        """Whether one index finds candidates."""
        return bool(self.equalities or self.bands or self.overlaps)

    @cached_property
    def keyed_by(self) -> tuple[object, ...]:
        """What rows are keyed by: where it is equal for both sides, so are a batch's keys."""
        texts = self.similar and (self.similar, self.stored)  # stored ones are cut otherwise than those looked for
        return self.equalities, self.bands, self.overlaps, texts, tuple(way.path.keyed_by for way in self.ways)

    @property
    def narrows(self) -> bool:
        """Whether a compiled window finds its rows by an index, or by several."""
        return self.has_index or bool(self.ways)

    def keys(self, side: Side) -> list[Expression]:
        """Return the keys of the index's dimensions: one of each band, start and end of each interval."""
        spans = [end for overlap in self.overlaps for end in (overlap.start(side), overlap.end(side))]
        return [*(band.key(side) for band in self.bands), *spans]

    @property
    def name(self) -> str:
        if self.ways:
            return "; or ".join(way.path.name for way in self.ways)
        if self.similar:
            return f"pieces of {self.similar.key(self.stored)}"
        parts = []
        if self.equalities:
            parts.append(f"hash on {', '.join(str(e.key(self.stored)) for e in self.equalities)}")
        if self.bands:
            parts.append(f"band on {', '.join(str(b.key(self.stored)) for b in self.bands)}")
        for overlap in self.overlaps:
            start, end = overlap.start(self.stored), overlap.end(self.stored)
            parts.append(f"overlap on {start}" + (f" to {end}" if end != start else ""))
        if not parts and self.inequalities:
            parts.append(f"range on {self.bounded_key}")
        return ", then ".join(parts) or "scan"

    # --- the sorted index of a window that is not compiled: by hash, or by the key that has most bounds

    @property
    def bounded_key(self) -> Expression:
        by_key = self._by_key()
        return max(by_key, key=lambda k: _bound_count(by_key[k]))

    def _by_key(self) -> dict[Expression, list[Inequality]]:
        by_key: dict[Expression, list[Inequality]] = {}
        for inequality in self.inequalities:
            by_key.setdefault(inequality.key(self.stored), []).append(inequality)
        return by_key

    def sorted_index(self, columns: Columns, n: int) -> SortedIndex | None:
        """Return the index over rows of the stored side; None where there is no key, or a row has no value for it."""
        if self.equalities:
            hashed = equality_hashes(self.equalities, self.stored, columns, n)
            return None if hashed is None else _sorted_index(*hashed)
        if not self.inequalities:
            return None
        key, bounds = computed(self.bounded_key, self.stored, columns, n), self._by_key()[self.bounded_key]
        if key is None or (key.valid is not None and not key.valid.all() and all(i.nulls_meet for i in bounds)):
            return None
        rounds = any(i.rounds != "exact" for i in bounds)
        return _sorted_index(as_float(key) if rounds or key.values.dtype == object else key.values, key.mask())

    def ranges(self, index: SortedIndex, columns: Columns, n: int) -> tuple[Array, Array] | None:
        """Return, for each probing row, the range of the index that holds its candidates."""
        probing = opposite(self.stored)
        if self.equalities:
            hashed = equality_hashes(self.equalities, probing, columns, n)
            if hashed is None:
                return None
            begin, end = (np.searchsorted(index.keys, hashed[0], side) for side in ("left", "right"))
            return begin, np.where(hashed[1], end, begin)
        begin, end = np.zeros(n, np.int64), np.full(n, len(index.keys), np.int64)
        in_float = index.keys.dtype == np.float64
        has_nan = bool(in_float and len(index.keys) and np.isnan(index.keys[-1]))
        for inequality in self._by_key()[self.bounded_key]:
            key = computed(inequality.key(probing), probing, columns, n)
            if key is None:
                return None
            low, high = key_bounds(inequality, self.stored, key, probing in inequality.nan_sides, in_float)
            if has_nan and self.stored in inequality.nan_sides:
                low = high = None
            known = key.mask()
            if low is not None:
                begin = np.maximum(begin, np.where(known, np.searchsorted(index.keys, low, "left"), 0))
            if high is not None:
                end = np.minimum(end, np.where(known, np.searchsorted(index.keys, high, "right"), end))
            if not inequality.nulls_meet:
                end = np.where(known, end, begin)
        return begin, np.maximum(begin, end)


class SortedRuns:
    """A sorted index of a window in runs: new rows are a run, and runs of about the same size become one.

    So a row is sorted again once for each doubling, and there are few runs. `usable` is False once a row has no
    value for the key: then every row in the window is a candidate.
    """

    def __init__(self, path: AccessPath) -> None:
        self.path = path
        self.runs: list[SortedIndex] = []  # with the rows' numbers in the window
        self.next = 0
        self.usable = bool(path.equalities or path.inequalities)

    def append(self, columns: Columns, first: int, begin: int, end: int) -> None:
        """Add the rows with the numbers from `begin` to `end`; those before `first` have expired."""
        index = self.path.sorted_index(columns, end - begin)
        self.next = end
        if index is None:
            self.usable, self.runs = False, []
            return
        self.runs.append(SortedIndex(index.keys, index.rows + begin))
        while len(self.runs) > 1 and len(self.runs[-2].rows) <= 2 * len(self.runs[-1].rows):
            self.runs[-2:] = [_merged(self.runs[-2], self.runs[-1], first)]

    def ranges(self, columns: Columns, n: int) -> list[tuple[SortedIndex, Array, Array]] | None:
        """Return, for each run, where each probing row's candidates are; None if that cannot be told."""
        found = []
        for run in self.runs:
            ranges = self.path.ranges(run, columns, n)
            if ranges is None:
                return None
            found.append((run, *ranges))
        return found if self.usable else None


def _merged(a: SortedIndex, b: SortedIndex, first: int) -> SortedIndex:
    keys, rows = np.concatenate([a.keys, b.keys]), np.concatenate([a.rows, b.rows])
    alive = rows >= first
    keys, rows = keys[alive], rows[alive]
    order = np.argsort(keys, kind="stable")
    return SortedIndex(keys[order], rows[order])


def _sorted_index(keys: Array, usable: Array) -> SortedIndex:
    rows = np.flatnonzero(usable)
    order = np.argsort(keys[rows], kind="stable")
    return SortedIndex(keys[rows][order], rows[order])


def choose_path(split: Split, stored: Side) -> AccessPath:
    """Return the path of all equalities, the first bands and intervals with keys of their own, and every inequality.

    What stands in the predicate comes before what it implies.
    """
    bands: list[Inequality] = []
    for bound in split.bounds:
        if bound.is_band and bound.key(stored) not in [band.key(stored) for band in bands]:
            bands.append(bound)
    overlaps = overlaps_in([bound for bound in split.bounds if not bound.is_band])
    overlaps = overlaps[: max(WITH_OVERLAPS_MAX - len(bands), 0)]
    ways = [  # each by numbers: texts are found by their pieces only where that is the only way
        Way(replace(choose_path(alternative.parts, stored), similar=None), alternative.predicate)
        for alternative in split.alternatives
    ]
    # Each similarity implies a band of lengths; anything else that there is finds rows with less effort.
    alone = not split.equalities and len(bands) <= len(split.similarities)
    similar = min(split.similarities, key=lambda one: one.edits, default=None) if alone else None
    return AccessPath(
        stored,
        tuple(split.equalities),
        tuple(bands[:DIMENSIONS_MAX]),
        tuple(overlaps),
        tuple(split.bounds),
        tuple(ways),
        similar,
    )


def _bound_count(inequalities: Sequence[Inequality]) -> int:
    return any(i.low is not None for i in inequalities) + any(i.high is not None for i in inequalities)
