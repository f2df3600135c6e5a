"""What benchmarks join: the field's benchmark join (a band on two columns) and an equality with one match a probe."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from counterflow.predicate.expression import Side, opposite
from counterflow.spec.join_spec import JoinSpec, build_spec
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array, Vector, from_arrow_column

Kind = Literal["hash", "band"]
BAND = 10
DOMAIN = 10_000  # of x, y, a and b: 1 hit in 250,000 comparisons
WHERE: dict[Kind, str] = {
    "hash": "l.k = r.k",
    "band": f"l.x BETWEEN r.a - {BAND} AND r.a + {BAND} AND abs(l.y - r.b) <= {BAND}",
}


@dataclass(frozen=True)
class Inputs:
    """Two streams of equally many rows; the left ones are stored, the right ones probe. Row i is number i."""

    kind: Kind
    left: tuple[Array, ...]  # the columns of the predicate
    right: tuple[Array, ...]
    vectors: dict[Side, dict[str, Vector]] = field(default_factory=dict)
    known: dict[tuple[Any, ...], tuple[int, int]] = field(default_factory=dict)  # expected pairs and sums

    @cached_property
    def spec(self) -> JoinSpec:
        schemas = []
        for side in ("left", "right"):
            columns = [(name, pa.from_numpy_dtype(array.dtype)) for name, array in self.named(side).items()]
            schemas.append(pa.schema([("ts", pa.int64()), *columns]))
        return build_spec(*schemas, where=WHERE[self.kind], time="ts", window=1)

    def named(self, side: Side) -> dict[str, Array]:
        names = {"hash": ("k",), "band": ("x", "y") if side == "left" else ("a", "b")}[self.kind]
        return dict(zip(names, self.left if side == "left" else self.right, strict=True))

    def columns(self, side: Side) -> dict[str, Vector]:
        if side not in self.vectors:
            named = self.named(side)
            self.vectors[side] = {name: from_arrow_column(name, pa.array(array)) for name, array in named.items()}
        return self.vectors[side]

    def batch(self, side: Side, begin: int, end: int, low: Array | int = 0, high: Array | int = 0) -> Batch:
        """Return the rows from `begin` to `end`; as probes they look at the rows from `low` to `high`."""
        columns = {name: vector.take(slice(begin, end)) for name, vector in self.columns(side).items()}
        at, n = np.arange(begin, end), end - begin
        return Batch(side, columns, at, at, np.broadcast_to(low, n), np.broadcast_to(high, n))

    def sliding(self, begin: int, end: int, window: int) -> Batch:
        """Return probes that each look at the last `window` rows before them."""
        at = np.arange(begin, end)
        return self.batch("right", begin, end, np.maximum(at - window, 0), at - 1)

    def expected(self, begin: int, end: int, oldest: Array, newest: Array) -> tuple[Array, Array]:
        """Return the pairs (probe, row) of the probes from `begin` to `end`, found with numpy, in order.

        All rows whose first column is near enough are looked at, one probe after the other.
        """
        first_row, end_row = int(oldest.min()), int(newest.max()) + 1
        stored, probing = [c[first_row:end_row] for c in self.left], [c[begin:end] for c in self.right]
        width = BAND if self.kind == "band" else 0
        order = np.argsort(stored[0], kind="stable")
        ordered = stored[0][order]
        lower = np.searchsorted(ordered, probing[0] - width, "left")
        upper = np.searchsorted(ordered, probing[0] + width, "right")
        probes, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for i in range(end - begin):
            near = order[lower[i] : upper[i]]
            if self.kind == "band":
                near = near[np.abs(stored[1][near] - probing[1][i]) <= np.float32(BAND)]
            near = near + first_row
            near = np.sort(near[(near >= oldest[i]) & (near <= newest[i])])
            probes.append(np.full(len(near), begin + i))
            rows.append(near)
        return np.concatenate(probes), np.concatenate(rows)


def same_pairs(found: tuple[Array, Array], expected: tuple[Array, Array]) -> bool:
    """Say whether these are the expected pairs, which are in order."""
    order = np.lexsort((found[1], found[0]))
    return np.array_equal(found[0][order], expected[0]) and np.array_equal(found[1][order], expected[1])


def checksum(some: Array, others: Array) -> int:
    """Return the sum over pairs that the template `stream` and `lab.replay.watching` make, too."""
    return int(((some * 31 + others * 17) & 0xFFFFFF).sum())


def band_inputs(rows: int, seed: int = 1, domain: float = DOMAIN) -> Inputs:
    rng = np.random.default_rng(seed)

    def side() -> tuple[Array, ...]:
        whole = rng.integers(1, int(domain) + 1, rows, dtype=np.int32)
        return whole, rng.uniform(1, domain, rows).astype(np.float32)

    return Inputs("band", side(), side())


def hash_inputs(rows: int, window: int, seed: int = 1, part: int = 0, parts: int = 1) -> Inputs:
    """Return keys uniform in [0, window), so that a probe has one match; only those of one `part` of several."""
    rng = np.random.default_rng((seed, part))

    def side() -> tuple[Array, ...]:
        return (rng.integers(0, max(window // parts, 1), rows) * parts + part,)

    return Inputs("hash", side(), side())


def make_inputs(kind: Kind, rows: int, window: int) -> Inputs:
    return band_inputs(rows) if kind == "band" else hash_inputs(rows, window)


STORED: Side = "left"
PROBING: Side = opposite(STORED)
