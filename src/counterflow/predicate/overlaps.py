"""Two inequalities that say together that two intervals overlap.

    l.start <= r.end  AND  r.start <= l.end          intervals that have a moment in common
    l.x <= r.a + r.radius  AND  r.a - r.radius <= l.x    a point within a distance that the row says
    l.a < r.b  AND  r.d < l.c                        any two, of opposite directions

Each side has an interval then, from `start` to `end`; a point is one without length, and one whose end comes first has
a negative length. Nothing is lost by looking at two inequalities that way: whoever satisfies both is a candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from counterflow.predicate.differences import Inequality
from counterflow.predicate.expression import Expression, Side


@dataclass(frozen=True)
class Overlap:
    """`starts`: left start - right end <= high. `ends`: low <= left end - right start."""

    starts: Inequality
    ends: Inequality

    def __str__(self) -> str:
        return f"{self.starts} and {self.ends}"

    def start(self, side: Side) -> Expression:
        return self.starts.left if side == "left" else self.ends.right

    def end(self, side: Side) -> Expression:
        return self.ends.left if side == "left" else self.starts.right

    @property
    def nulls_meet(self) -> bool:
        """Whether a NULL among the keys says nothing, instead of that there is no match."""
        return self.starts.nulls_meet or self.ends.nulls_meet

    @property
    def magnitude(self) -> float:
        return max(self.starts.magnitude, self.ends.magnitude)

    @property
    def parts(self) -> tuple[Inequality, Inequality]:
        return self.starts, self.ends

    def stored_range(self, stored: Side) -> tuple[Fraction, Fraction]:
        """Return the bounds of the stored interval: end >= the probe's start + low, start <= its end + high."""
        high, low = self.starts.high or Fraction(0), self.ends.low or Fraction(0)
        return (low, high) if stored == "left" else (-high, -low)


def overlaps_in(bounds: list[Inequality]) -> list[Overlap]:
    """Return pairs of inequalities of opposite directions, those first that have a key in common."""
    starts = [i for i in bounds if i.low is None]
    ends = [i for i in bounds if i.high is None]
    found: list[Overlap] = []
    for same in (True, False):
        for first in list(starts):
            second = next((i for i in ends if not same or _share_a_key(first, i)), None)
            if second is not None:
                found.append(Overlap(first, second))
                starts.remove(first)
                ends.remove(second)
    return found


def _share_a_key(a: Inequality, b: Inequality) -> bool:
    return a.left == b.left or a.right == b.right
