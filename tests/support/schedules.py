"""Checks of an algorithm under any schedule."""

from __future__ import annotations

from hypothesis import Phase

from counterflow.protocols.design import Design
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec

EXPLORED = [Phase.explicit, Phase.reuse, Phase.generate]  # a schedule does not become simpler with its seed


def check(join, design, left, right, options, seed):
    spec = build_spec(left.schema, right.schema, **options)
    design = Design(**{**vars(design), "nullable": spec.has_null_matches})
    expected = sorted((le, ri) for le, ri, _ in reference_pairs(spec, left, right))
    assert join(spec, left, right, design, seed) == expected
