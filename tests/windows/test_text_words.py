"""Oracle test: what kernels say of texts, of which they know the first bytes, is what `evaluate` says of the texts."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from counterflow.predicate.types import STRING
from counterflow.spec.join_spec import build_spec
from counterflow.windows.evaluate import matches
from counterflow.windows.store import Batch, WindowStore
from counterflow.windows.text_words import LENGTH_BITS, LONGER, text_word
from counterflow.windows.vectors import Vector, from_python
from effort import examples
from interpreted import searching

SCHEMA = pa.schema({"ts": pa.int64(), "s": pa.string(), "p": pa.string()})
STEMS = ("abcdefghijklmnopqrst", "ßßßßßßßßßß", "a日日日日日日", "🦆🦆🦆🦆🦆", "\0" * 20, "abcdef" + "\ud800" * 4)
texts = st.builds(
    lambda stem, cut, rest: stem[:cut] + rest,
    st.sampled_from(STEMS),
    st.integers(0, 20),
    st.just("") | st.text("ab\0ß🦆\ud800", max_size=3),
)
lists = st.lists(st.none() | texts, min_size=1, max_size=12)
LEFT_TO_HASHES = ["l.s = r.s", "l.s <=> r.s"]
WHERE = [
    *LEFT_TO_HASHES,
    "startswith(l.s, r.s)",
    "startswith(r.s, l.s) OR startswith(l.p, r.s)",
    *(f"l.s {op} r.s" for op in ("<", "<=", ">", ">=", "<>")),
    "l.s = r.s OR l.p <=> r.p",
    "l.s IN (r.s, r.p, 'abcdefgh', '')",
    "NOT startswith(l.s, r.s) AND l.p <> r.p",
    "startswith(coalesce(l.s, r.p), r.s) OR r.p < 'abcdefg' AND l.s IS NULL",
    "greatest(l.s, r.s) < r.p OR least(l.s, r.s) = l.p",
    "CASE WHEN l.s < r.s THEN l.p ELSE r.p END > r.s",
]


def columns(values: list) -> dict[str, Vector]:
    return {"s": from_python(STRING, values), "p": from_python(STRING, [v and v[2:] + v[:2] for v in values])}


def batch(side: str, values: list, last: int) -> Batch:
    at, low, high = np.arange(len(values)), np.zeros(len(values), np.int64), np.full(len(values), last)
    return Batch(side, columns(values), at, at, low, high)


def found(where: str, left: list, right: list, access: str) -> tuple[WindowStore, list[tuple[int, int]]]:
    spec = build_spec(SCHEMA, SCHEMA, where=where, time="ts", window=None)
    store = WindowStore("left", spec.predicate, spec.parts, access=access, compile_after=0)
    cut = len(left) // 2
    for begin, rows in ((0, left[:cut]), (cut, left[cut:])):
        some = batch("left", rows, 0)
        at = np.arange(begin, begin + len(rows))
        store.append(Batch("left", some.columns, at, at, some.low, some.high))
    parts = store.probe(batch("right", right, len(left) - 1))
    return store, sorted((int(i), int(p)) for part in parts for p, i in zip(*part, strict=True))


@settings(max_examples=examples(500), deadline=None)
@given(left=lists, right=lists, where=st.sampled_from(WHERE), access=st.sampled_from(["auto", "scan"]))
def test_kernels_say_of_texts_what_evaluate_says(left, right, where, access):
    with searching("kernels"):
        store, pairs = found(where, left, right, access)
    assert store.is_compiled or (access == "scan" and where in LEFT_TO_HASHES)
    assert pairs == expected(store, left, right)


def expected(store: WindowStore, left: list, right: list) -> list[tuple[int, int]]:
    i, j = (a.ravel() for a in np.meshgrid(np.arange(len(left)), np.arange(len(right)), indexing="ij"))
    hit = matches(store.predicate, columns(left), columns(right), i, j)
    return list(zip(i[hit].tolist(), j[hit].tolist(), strict=True))


@pytest.mark.parametrize("where", ["startswith(l.s, r.s)", "l.s < r.s", "l.s <> r.s OR startswith(r.p, l.s)"])
def test_texts_that_fit_their_words_are_decided(where, monkeypatch):
    """Nothing is left to `evaluate`, whatever is in the longer one of a text and its beginning."""
    left, right = ["", "a", "a\0", "ßßß", "abcdefg", None], ["abcdefg", "abcdef", "", "ß", "a\0", None]
    with searching("kernels"):
        monkeypatch.setattr(WindowStore, "_matches", lambda *_: pytest.fail("it was asked"))
        store, pairs = found(where, left, right, "scan")
    assert store.is_compiled
    assert pairs == expected(store, left, right)


@settings(max_examples=examples(500), deadline=None)
@given(texts, texts)
def test_words_stand_in_the_order_of_texts(a, b):
    x, y = text_word(a), text_word(b)
    if x == y and x & LENGTH_BITS != LONGER:
        assert a == b
    if x != y:
        assert (x < y) == (a < b)
