"""A predicate taken apart into what access paths can use.

The conjunction is split into equalities (`f(left) = g(right)`), inequalities (`f(left) - g(right) <= c`; two
of them make a band), filters on one side, and the rest. What the rest implies for a difference of the two sides
(`predicate.implied`) is used as well. The split only finds candidates: every path checks the whole predicate, so the
split may be generous, but it must never reject a pair that the predicate accepts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from counterflow.predicate.differences import Inequality, as_inequality, merge
from counterflow.predicate.expression import Call, Expression, Literal, Side, conjuncts_of, sides_of
from counterflow.predicate.implied import implied_by, known_from
from counterflow.predicate.overlaps import overlaps_in
from counterflow.predicate.similarity import Similarity, similarity_of
from counterflow.predicate.types import BOOLEAN

ALTERNATIVES_MAX = 8  # indexes over one window


@dataclass(frozen=True)
class Equality:
    """`left = right`; `null_safe` if two NULLs are equal too."""

    left: Expression
    right: Expression
    null_safe: bool = False

    def __str__(self) -> str:
        return f"{self.left} {'<=>' if self.null_safe else '='} {self.right}"

    def key(self, side: Side) -> Expression:
        return self.left if side == "left" else self.right


@dataclass(frozen=True)
class Alternative:
    """One operand of an OR with the rest of the predicate, where no operand before it is true: no pair has two."""

    predicate: Expression
    parts: Split


@dataclass(frozen=True)
class Split:
    """The conjuncts of a predicate, by what they are good for."""

    equalities: list[Equality] = field(default_factory=list)
    inequalities: list[Inequality] = field(default_factory=list)
    implied: list[Inequality] = field(default_factory=list)  # by the residual
    left_filters: list[Expression] = field(default_factory=list)
    right_filters: list[Expression] = field(default_factory=list)
    residual: list[Expression] = field(default_factory=list)
    similarities: list[Similarity] = field(default_factory=list)  # of texts, in the residual
    alternatives: list[Alternative] = field(default_factory=list)  # of an OR, where nothing else finds candidates
    uses: list[tuple[Expression, list[Equality | Inequality]]] = field(default_factory=list)  # of each conjunct

    def filters(self, side: Side) -> list[Expression]:
        return self.left_filters if side == "left" else self.right_filters

    @property
    def bands(self) -> list[Inequality]:
        return [i for i in self.inequalities if i.is_band]

    @property
    def bounds(self) -> list[Inequality]:
        """All inequalities: those that stand there, and then the implied ones."""
        return [*self.inequalities, *self.implied]

    @property
    def narrows(self) -> bool:
        """Whether an index finds candidates by it."""
        return bool(self.equalities or any(i.is_band for i in self.bounds) or overlaps_in(self.bounds))


def split(predicate: Expression) -> Split:
    """Return a predicate taken apart."""
    result, conjuncts = Split(), conjuncts_of(predicate)
    known = known_from(conjuncts)
    for conjunct in conjuncts:
        sides, used = sides_of(conjunct), list[Equality | Inequality]()
        result.uses.append((conjunct, used))
        if sides == {"left"}:
            result.left_filters.append(conjunct)
        elif sides == {"right"}:
            result.right_filters.append(conjunct)
        elif equality := _as_equality(conjunct):
            result.equalities.append(equality)
            used.append(equality)
        elif inequality := as_inequality(conjunct):
            _add(result.inequalities, inequality)
            used.append(inequality)
        else:
            result.residual.append(conjunct)
            if similarity := similarity_of(conjunct):
                result.similarities.append(similarity)
            used += (found := implied_by(conjunct, known))
            for implied in found:
                _add(result.implied, implied)
    if not result.narrows:
        result.alternatives.extend(_alternatives(conjuncts))
    return result


def _alternatives(conjuncts: list[Expression]) -> list[Alternative]:
    """Return the alternatives of the first OR of which each has an index of its own; none, if there is no such OR.

    What guards against an error goes on to do so: conditions stay in their order, each operand after those before it.
    """
    for at, conjunct in enumerate(conjuncts):
        found, before, operands = list[Alternative](), list[Expression](), _operands(conjunct)
        if not 1 < len(operands) <= ALTERNATIVES_MAX:
            continue
        for operand in operands:
            predicate = Call("and", (*conjuncts[:at], *before, operand, *conjuncts[at + 1 :]), BOOLEAN)
            found.append(Alternative(predicate, split(predicate)))
            if not found[-1].parts.narrows:
                break
            before.append(Call("not", (Call("<=>", (operand, Literal(True, BOOLEAN)), BOOLEAN),), BOOLEAN))
        else:
            return found
    return []


def _operands(conjunct: Expression) -> list[Expression]:
    """Return what OR or IN choose among."""
    if isinstance(conjunct, Call) and conjunct.op == "or":
        return [operand for arg in conjunct.args for operand in (_operands(arg) or [arg])]
    if isinstance(conjunct, Call) and conjunct.op == "in":
        return [Call("=", (conjunct.args[0], option), BOOLEAN) for option in conjunct.args[1:]]
    return []


def _add(inequalities: list[Inequality], new: Inequality) -> None:
    """Add an inequality. Two over the same expressions become one band."""
    for i, old in enumerate(inequalities):
        if (old.left, old.right) == (new.left, new.right):
            inequalities[i] = merge(old, new)
            return
    inequalities.append(new)


def _as_equality(conjunct: Expression) -> Equality | None:
    if not (isinstance(conjunct, Call) and conjunct.op in ("=", "<=>")):
        return None
    a, b = conjunct.args
    null_safe = conjunct.op == "<=>"
    if sides_of(a) == {"left"} and sides_of(b) == {"right"}:
        return Equality(a, b, null_safe)
    if sides_of(a) == {"right"} and sides_of(b) == {"left"}:
        return Equality(b, a, null_safe)
    return None
