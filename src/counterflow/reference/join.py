"""The definition of a window join: every other implementation must return what this returns.

It reads the two inputs completely, puts all tuples in order, and looks at every pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from counterflow.predicate.expression import Side
from counterflow.reference.one_pair import Row, evaluate
from counterflow.spec.join_spec import JoinSpec
from counterflow.spec.window_sizes import Window

SIDE_RANK: dict[Side, int] = {"left": 0, "right": 1}


@dataclass(frozen=True)
class Tuple:
    """A row of an input. `source` is the physical stream it came on, `position` its place there.

    A row of a table without a time has None, and comes before all tuples that have one.
    """

    side: Side
    time: int | None
    position: int
    row: Row
    source: int = 0

    @property
    def order(self) -> tuple[float, int, int, int]:
        time = -inf if self.time is None else self.time
        return (time, SIDE_RANK[self.side], self.source, self.position)


@dataclass(frozen=True)
class Result:
    """A pair, or (with one side None) an unmatched tuple; for `semi`, the left tuple of its first pair."""

    left: Tuple | None
    right: Tuple | None
    pair_time: int

    @property
    def order(self) -> tuple[Any, ...]:
        """Ascending (pair_time, later tuple, earlier tuple); an unmatched tuple is later than nothing."""
        tuples = sorted(t.order for t in (self.left, self.right) if t is not None)
        return (self.pair_time, tuples[-1], tuples[0] if len(tuples) == 2 else ())


def window_join(spec: JoinSpec, left: list[Tuple], right: list[Tuple]) -> list[Result]:
    """Return all results, in the order that `ordered=True` promises."""
    pairs = list(_pairs(spec, left, right))
    matched = {id(t) for left_tuple, right_tuple in pairs for t in (left_tuple, right_tuple)}
    results = []
    if spec.how == "semi":
        for tuple_ in left:
            times = [_pair_time(le, ri) for le, ri in pairs if le is tuple_]
            if times:
                results.append(Result(tuple_, None, min(times)))
    elif spec.how != "anti":
        results += [Result(le, ri, _pair_time(le, ri)) for le, ri in pairs]
    if spec.pads_left:
        results += [Result(t, None, _timed(t)) for t in left if id(t) not in matched]
    if spec.pads_right:
        results += [Result(None, t, _timed(t)) for t in right if id(t) not in matched]
    return sorted(results, key=lambda r: r.order)


def _pair_time(le: Tuple, ri: Tuple) -> int:
    """Return the later tuple's time; beside a table without a time that is the stream's."""
    return _timed(max(le, ri, key=lambda t: t.order))


def _timed(tuple_: Tuple) -> int:
    assert tuple_.time is not None, "only a stream's rows are later, or results by themselves"
    return tuple_.time


def _pairs(spec: JoinSpec, left: list[Tuple], right: list[Tuple]) -> Iterator[tuple[Tuple, Tuple]]:
    rank = {id(t): i for side in (left, right) for i, t in enumerate(sorted(side, key=lambda t: t.order))}
    for le in left:
        for ri in right:
            if _in_window(spec, le, ri, left, right, rank) and evaluate(spec.predicate, le.row, ri.row) is True:
                yield le, ri


def _in_window(
    spec: JoinSpec, le: Tuple, ri: Tuple, left: list[Tuple], right: list[Tuple], rank: dict[int, int]
) -> bool:
    """Return whether the earlier tuple is still in its side's window when the later one arrives."""
    if le.order < ri.order:
        earlier, later, window, own_side = le, ri, spec.left.window, left
    else:
        earlier, later, window, own_side = ri, le, spec.right.window, right
    if window.kind == "rows":
        before = sum(t.order < later.order for t in own_side)  # tuples of the earlier one's side
        return rank[id(earlier)] >= before - window.size
    return earlier.time is None or _in_duration(window, _timed(later) - earlier.time)


def _in_duration(window: Window, distance: int) -> bool:
    if window.kind == "unbounded":
        return True
    return distance <= window.size if window.closed else distance < window.size
