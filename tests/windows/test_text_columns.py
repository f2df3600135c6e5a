"""Oracle tests: functions of texts on whole columns, and edit distances in bands, beside the same on one row."""

from __future__ import annotations

from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.predicate.expression import Call, Column, Literal
from counterflow.predicate.functions import FUNCTIONS, call_function
from counterflow.predicate.text_functions import levenshtein
from counterflow.predicate.types import BIGINT, STRING
from counterflow.windows.compiled import texts as kernel
from counterflow.windows.evaluate import Frame, evaluate
from counterflow.windows.text_columns import TEXT_COLUMNS
from counterflow.windows.vectors import from_python, to_python
from effort import examples

LETTERS = "aAbß%_\\İΣ日🦆\ud800\n "
TEXTS = st.text(LETTERS, max_size=6)
COUNTS = st.sampled_from([-(2**63), -(2**31), -7, -3, -1, 0, 1, 2, 3, 5, 8, 2**31 - 1, 2**63 - 1])
WIDTHS = st.sampled_from([-(2**63), -1, 0, 1, 3, 9, 2**31, 2**63 - 1])
PATTERNS = st.text("aAß%_\\🦆", max_size=5)
REGEXES = st.sampled_from(["a", "^a", "[^a]+$", ".", "", "(", "(?i)ß", "a|🦆"])
ESCAPES = st.sampled_from(["\\", "!", "", "ab", "_"])
WITH_PERCENT = st.sampled_from(["{}%", "%{}", "%{}%"])

# The arguments of each; those that are all of one shape are patterns with a wildcard at the same ends.
ARGUMENTS = {
    **dict.fromkeys(("upper", "lower", "reverse", "length", "btrim"), (TEXTS,)),
    **dict.fromkeys(("startswith", "endswith", "contains", "instr", "btrim", "trim", "ltrim", "rtrim"), (TEXTS, TEXTS)),
    **dict.fromkeys(("left", "right"), (TEXTS, COUNTS)),
    "substring": (TEXTS, COUNTS, COUNTS),
    "replace": (TEXTS, TEXTS, TEXTS),
    "translate": (TEXTS, TEXTS, TEXTS),
    "repeat": (TEXTS, WIDTHS),
    **dict.fromkeys(("lpad", "rpad"), (TEXTS, WIDTHS, st.text(LETTERS, max_size=2))),
    "concat": (TEXTS, TEXTS, TEXTS),
    **dict.fromkeys(("like", "ilike"), (TEXTS, PATTERNS, ESCAPES)),
    "rlike": (TEXTS, REGEXES),
    "levenshtein": (TEXTS, TEXTS),
}


def test_all_are_tried():
    assert set(ARGUMENTS) == set(TEXT_COLUMNS)


@pytest.mark.parametrize("name", ARGUMENTS)
@settings(max_examples=examples(80), deadline=None)
@given(data=st.data())
def test_columns_mean_what_rows_do(name, data):
    arity = data.draw(st.integers(*FUNCTIONS[name].arity)) if name != "concat" else 3
    kinds = ARGUMENTS[name][:arity]
    rows = data.draw(st.lists(st.tuples(*(st.one_of(st.none(), kind) for kind in kinds)), min_size=1, max_size=5))
    constant = [data.draw(st.booleans()) for _ in kinds]
    check(name, rows, constant)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5), WITH_PERCENT, st.sampled_from(["like", "ilike"]))
def test_patterns_of_one_shape(rows, shape, name):
    check(name, [(text, shape.format(part)) for text, part in rows], [False, False])


def check(name: str, rows: list[tuple], constant: list[bool]) -> None:
    """Compare a function of columns, some of which are constants, with that of each row; an error is one for both."""
    columns = [[row[i] for row in rows] for i in range(len(constant))]
    columns = [[values[0]] * len(rows) if same else values for values, same in zip(columns, constant, strict=True)]
    types = [next((BIGINT for v in values if isinstance(v, int)), STRING) for values in columns]
    args = tuple(
        Literal(values[0], type_) if same else Column("left", str(i), type_)
        for i, (values, type_, same) in enumerate(zip(columns, types, constant, strict=True))
    )
    result = FUNCTIONS[name].signature(tuple(types))
    if result is None:  # a column of NULLs alone, which was taken for texts
        return
    vectors = {str(i): from_python(type_, values) for i, (values, type_) in enumerate(zip(columns, types, strict=True))}
    run = partial(evaluate, Call(name, args, result[1]), Frame(len(rows), left=(vectors, None)))
    try:
        want = [None if None in row else call_function(name, *row) for row in zip(*columns, strict=True)]
    except cf.EvaluationError:
        with pytest.raises(cf.EvaluationError):
            run()
        return
    got = run().broadcast(len(rows))
    assert [v if ok else None for v, ok in zip(to_python(got), got.mask(), strict=True)] == want


# --- edit distances in a band


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.text("ab🦆", max_size=7), st.text("abé🦆", max_size=7)), max_size=5), st.integers(0, 12))
def test_edit_distances(compiled, pairs, limit):
    a, b = (np.array([*column], object) for column in zip(*pairs, strict=True)) if pairs else (np.empty(0, object),) * 2
    distances = kernel.distances if compiled else kernel.distances.py_func
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "distances", distances)
        got = kernel.levenshtein(a, b, np.ones(len(pairs), bool), limit)
    longest = max([len(text) for pair in pairs for text in pair], default=0)
    assert got.tolist() == [min(levenshtein(x, y), min(limit, longest) + 1) for x, y in pairs]


@given(st.text(LETTERS, max_size=9), st.integers(0, 9), st.booleans())
def test_what_is_not_asked_for_is_beyond_the_limit(text, limit, valid):
    texts = np.array([text], object)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "distances", kernel.distances.py_func)
        found = kernel.levenshtein(texts, texts, np.array([valid]), limit)
    assert found.tolist() == [0 if valid else min(limit, len(text)) + 1]


def test_letters_are_code_points():
    letters, begins = kernel.letters(np.array(["a🦆", "", "\ud800"], object))
    assert letters.tolist() == [97, 0x1F986, 0xD800] and begins.tolist() == [0, 2, 2, 3]
