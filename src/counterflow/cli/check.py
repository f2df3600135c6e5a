"""Checking a join's output against `reference` on the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec

COMPARISONS_MAX = 2_000_000  # what the oracle gets through in some 15 seconds


@dataclass(frozen=True)
class CheckedPairs:
    """What a comparison of pairs with the oracle's found."""

    pairs: int
    missing: int
    wrong: int
    doubled: int
    share: float  # of the right rows that were compared with every left row

    @property
    def ok(self) -> bool:
        return not (self.missing or self.wrong or self.doubled)

    def __str__(self) -> str:
        if not self.ok:
            return f"FAILED: {self.missing} pairs missing, {self.wrong} wrong, {self.doubled} doubled"
        if self.share == 1:
            return f"all {self.pairs:,} pairs are those of the reference, none missing, none doubled"
        return f"no pair doubled; the pairs of {self.share:.1%} of the right rows are exactly the reference's"


def check_pairs(
    left: pa.Table, right: pa.Table, pairs: pa.Table, *, ids: tuple[str, str], **options: Any
) -> CheckedPairs:
    """Compare pairs with the oracle's: for every right row, or for as many as it gets through in seconds."""
    sample = min(len(right), max(1, COMPARISONS_MAX // max(len(left), 1)))
    step = max(1, len(right) // sample) if sample < len(right) else 1
    chosen = right.take(pa.array(range(0, len(right), step)))
    spec = build_spec(left.schema, chosen.schema, **options)
    left_ids, right_ids = left[ids[0]].to_pylist(), chosen[ids[1]].to_pylist()
    expected = {(left_ids[le], right_ids[ri]) for le, ri, _ in reference_pairs(spec, left, chosen)}
    all_found = list(zip(pairs[ids[0]].to_pylist(), pairs[ids[1]].to_pylist(), strict=True))
    relevant = pairs.filter(pc.is_in(pairs[ids[1]], chosen[ids[1]]))
    found = set(zip(relevant[ids[0]].to_pylist(), relevant[ids[1]].to_pylist(), strict=True))
    return CheckedPairs(
        pairs=len(all_found),
        missing=len(expected - found),
        wrong=len(found - expected),
        doubled=len(all_found) - len(set(all_found)),
        share=len(chosen) / len(right) if len(right) else 1.0,
    )
