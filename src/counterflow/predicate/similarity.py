"""Conditions that texts of both sides differ by at most a few edits: `levenshtein(l.s, r.s) <= 2`.

A text is cut into one piece more than there may be edits. Whatever the edits are, they leave one piece as it is, and
this piece is then in the other text, at nearly the same place (`windows.compiled.similar_texts`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from counterflow.predicate.expression import Call, Expression, Side, sides_of
from counterflow.predicate.implied import may_fail
from counterflow.predicate.ranges import number_of, without_casts

EDITS_MAX = 3  # with more, a text has so many pieces to look for that its length tells as much


@dataclass(frozen=True)
class Similarity:
    """At most `edits` letters inserted, deleted or replaced make one text of the other."""

    left: Expression
    right: Expression
    edits: int

    def __str__(self) -> str:
        return f"{self.left} and {self.right} differ by at most {self.edits} edits"

    def key(self, side: Side) -> Expression:
        return self.left if side == "left" else self.right


def similarity_of(conjunct: Expression) -> Similarity | None:
    """Return what a condition says of texts, if it bounds their edit distance by a small constant."""
    if not isinstance(conjunct, Call) or conjunct.op not in ("<", "<=", ">", ">=", "=") or may_fail(conjunct):
        return None
    smaller, larger = conjunct.args if conjunct.op in ("<", "<=", "=") else conjunct.args[::-1]
    if conjunct.op == "=" and number_of(without_casts(smaller)) is not None:
        smaller, larger = larger, smaller
    distance, most = without_casts(smaller), number_of(without_casts(larger))
    if most is None or not (isinstance(distance, Call) and distance.op == "levenshtein"):
        return None
    edits = math.ceil(most) - 1 if conjunct.op in ("<", ">") else math.floor(most)
    a, b = distance.args
    if not 0 <= edits <= EDITS_MAX:
        return None
    if sides_of(a) == {"left"} and sides_of(b) == {"right"}:
        return Similarity(a, b, edits)
    return Similarity(b, a, edits) if sides_of(a) == {"right"} and sides_of(b) == {"left"} else None
