"""Predicates that nobody would write: a seed makes two tables and a condition over the whole grammar.

Each is joined with numpy, with kernels as plain Python, and with kernels that are really compiled. The answer is the
reference's, or one `CounterflowError`; anything else is a defect. One seed again, of the whole grammar or of what finds
an index:

    ./dev run python tests/support/fuzzed.py SEED [indexes]
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import counterflow as cf
import fuzzed_grammar
import fuzzed_indexes
from counterflow.predicate.expression import conjuncts_of
from counterflow.reference.one_pair import evaluate
from counterflow.reference.table_rows import tuples_of
from counterflow.spec.join_spec import JoinSpec, build_spec
from counterflow.windows.compiled import build
from counterflow.windows.store import Batch, WindowStore, predicate_columns
from interpreted import load

GENERATORS: dict[str, Any] = {"grammar": fuzzed_grammar.Generator, "indexes": fuzzed_indexes.Generator}


@contextmanager
def kernels(how: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUNTERFLOW_COMPILE", "never" if how == "numpy" else "always")
        if how == "interpreted":
            patch.setattr(build, "load", load)
        yield


def joined(spec: JoinSpec, left: pa.Table, right: pa.Table) -> set[tuple[int, int]]:
    table = cf.window_join(left, right, where=spec.where, time="t", window=None, engine=cf.Local(batch_rows=4))
    pairs = list(zip(table["id"].to_pylist(), table["id_right"].to_pylist(), strict=True))
    assert len(pairs) == len(set(pairs)), "a pair was found twice"
    return set(pairs)


def scanned(spec: JoinSpec, left: pa.Table, right: pa.Table) -> set[tuple[int, int]]:
    """By the compiled scan of a window, the kernel that compiles fastest."""
    store = WindowStore("left", spec.predicate, spec.parts, access="scan", compile_after=0)
    n = len(left)
    rows, low, high = np.arange(n), np.zeros(n, np.int64), np.full(n, n)
    store.append(Batch("left", predicate_columns(spec.predicate, "left", left), rows, rows, low, high))
    probing = Batch("right", predicate_columns(spec.predicate, "right", right), rows, rows, low, high)
    return {(int(i), int(p)) for ps, ids in store.probe(probing) for p, i in zip(ps, ids, strict=True)}


def meaning(spec: JoinSpec, left: pa.Table, right: pa.Table) -> tuple[set[tuple[int, int]], bool, bool]:
    """The pairs that match; whether some pair may end in an error; and whether it must.

    It need not where another condition rejects the pair, or where a NULL may do so before the error is met.
    """
    sides = [tuples_of(spec, side, table) for side, table in ((spec.left, left), (spec.right, right))]
    found, may, must = set(), False, False
    for le in sides[0]:
        for ri in sides[1]:
            try:
                if evaluate(spec.predicate, le.row, ri.row) is True:
                    found.add((le.position, ri.position))
            except cf.EvaluationError:
                may = True
                values = [_value(c, le.row, ri.row) for c in conjuncts_of(spec.predicate)]
                has_null = None in le.row.values() or None in ri.row.values()
                must |= not has_null and all(v is True or v == "error" for v in values)
    return found, may, must


def _value(condition: Any, left: Any, right: Any) -> Any:
    try:
        return evaluate(condition, left, right)
    except cf.EvaluationError:
        return "error"


def check(seed: int, ways: tuple[str, ...] = ("numpy", "interpreted", "compiled"), kind: str = "grammar") -> str:
    """Return how it ended: refused, an error, pairs or none. Anything else is raised."""
    generator = GENERATORS[kind](seed)
    where, left, right = generator.where(), generator.table("l"), generator.table("r")
    try:
        spec = build_spec(left.schema, right.schema, where=where, time="t", window=None)
    except cf.CounterflowError as error:
        assert str(error), "an error without a message"
        return "refused"
    pairs, may, must = meaning(spec, left, right)
    for way in ways:
        run: Callable[..., set[tuple[int, int]]] = scanned if way == "compiled" else joined
        with kernels("compiled" if way == "whole" else way):
            try:
                got = run(spec, left, right)
            except cf.EvaluationError as error:
                assert may, f"{way}: {error}"
                continue
        assert not must, f"{way}: no error, but {sorted(got)}"
        assert got == pairs, f"{way}: missing {sorted(pairs - got)}, too many {sorted(got - pairs)}"
    return "error" if may else "pairs" if pairs else "no pairs"


def failures(seeds: range, ways: tuple[str, ...], kind: str = "grammar") -> tuple[list[str], Counter[str]]:
    """What went wrong with these seeds, each with its replay, and how often each ending came."""
    wrong: list[str] = []
    endings: Counter[str] = Counter()
    for seed in seeds:
        try:
            endings[check(seed, ways, kind)] += 1
        except Exception as error:
            where, again = GENERATORS[kind](seed).where(), f"./dev run python tests/support/fuzzed.py {seed} {kind}"
            wrong.append(f"{type(error).__name__}: {error}\n  where {where!r}\n  {again}")
    return wrong, endings


if __name__ == "__main__":
    asked = sys.argv[2] if len(sys.argv) > 2 else "grammar"
    made = GENERATORS[asked](int(sys.argv[1]))
    print(made.where(), made.table("l"), made.table("r"), sep="\n")
    print(check(int(sys.argv[1]), kind=asked))
