"""Oracle test: the index of texts by their pieces finds every text that few edits make of the given one."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.predicate.text_functions import levenshtein
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec
from counterflow.windows.access import choose_path
from counterflow.windows.compiled.similar_texts import SimilarTexts, look_ups
from counterflow.windows.row_ring import CAPACITY_MIN
from counterflow.windows.store import Batch, WindowStore, predicate_columns
from effort import examples
from interpreted import searching

SCHEMA = pa.schema({"ts": pa.int64(), "s": pa.string()})
texts = st.one_of(st.none(), st.text("ab", max_size=11), st.text("aß🦆", max_size=5), st.text("abcdef", max_size=30))
WRAPPED = [0, 1 << 32, (1 << 32) // 10 - 20, (1 << 31) // 3 - 20]  # numbers of rows whose entries go round 32 bits


def spec_of(edits: int):
    return build_spec(SCHEMA, SCHEMA, where=f"levenshtein(l.s, r.s) <= {edits}", time="ts", window=None)


def batch(spec, side, values, first, low, high) -> Batch:
    table = pa.table({"ts": [0] * len(values), "s": pa.array(values, pa.string())}, schema=SCHEMA)
    at = np.arange(first, first + len(values))
    low, high = (np.full(len(values), bound) for bound in (low, high))
    return Batch(side, predicate_columns(spec.predicate, side, table), at, at, low, high)


@settings(max_examples=examples(400), deadline=None)
@given(
    stored=st.lists(texts, max_size=30),
    wanted=st.lists(texts, max_size=8),
    edits=st.integers(0, 3),
    start=st.sampled_from(WRAPPED),
    expired=st.integers(0, 10),
)
def test_few_edits(stored, wanted, edits, start, expired):
    spec = spec_of(edits)
    store = WindowStore("left", spec.predicate, spec.parts, compile_after=0)
    store.ring.first = store.ring.next = start
    cut = len(stored) // 2
    for begin, end in ((0, cut), (cut, len(stored))):
        store.append(batch(spec, "left", stored[begin:end], start + begin, 0, 0))
        store._compile() if store._compiled is None else None
    first = start + min(expired, len(stored))
    store.expire(first)
    probes = batch(spec, "right", wanted, 0, first, start + len(stored) - 2)
    got = sorted((int(p), int(row)) for part in store.probe(probes) for p, row in zip(*part, strict=True))
    assert got == sorted(
        (p, start + i)
        for p, a in enumerate(wanted)
        for i, b in enumerate(stored[:-1])
        if a is not None and b is not None and start + i >= first and levenshtein(a, b) <= edits
    )
    if len(store) and wanted:
        assert isinstance(store._compiled, SimilarTexts)
        assert sum(store.looked_at.values()) <= len(stored) * len(wanted)  # each pair once


def test_a_ring_that_goes_round_and_grows():
    """Rows come and go: 60 rounds through the least capacity, then more than it holds."""
    spec, rng = spec_of(1), np.random.default_rng(3)
    store = WindowStore("left", spec.predicate, spec.parts, compile_after=0)
    words = np.array(["".join(rng.choice(list("abc"), 5)) for _ in range(60 * CAPACITY_MIN)], object)
    live = CAPACITY_MIN - 100
    for begin in range(0, len(words), 300):
        part = words[begin : begin + 300]
        store.append(batch(spec, "left", list(part), begin, 0, 0))
        kept = live if begin < 50 * CAPACITY_MIN else 3 * live
        first = max(begin + 300 - kept, 0)
        store.expire(first)
        word = words[rng.integers(first, begin + len(part))]
        found = [row for part in store.probe(batch(spec, "right", [word], 0, 0, 1 << 40)) for row in part[1].tolist()]
        window = range(max(first, store.ring.first), begin + len(part))
        assert sorted(found) == [i for i in window if levenshtein(words[i], word) <= 1]
    assert isinstance(store._compiled, SimilarTexts)


@pytest.mark.parametrize("edits", [0, 1, 2, 3])
def test_candidates_do_not_grow_with_the_window(edits):
    """Names of ten letters: what is looked at are pairs that nearly match."""
    assert len(look_ups(edits).table) == {0: 1, 1: 9, 2: 80, 3: 170}[edits]
    spec, rng = spec_of(edits), np.random.default_rng(4)
    store = WindowStore("left", spec.predicate, spec.parts, compile_after=0)
    names = np.array(list("abcdefghijklmnopqrstuvwxyz"))[rng.integers(0, 26, (20_000, 10))]
    store.append(batch(spec, "left", ["".join(name) for name in names], 0, 0, 0))
    given = ["".join(name) for name in names[:500]]
    assert sum(len(p) for p, _ in store.probe(batch(spec, "right", given, 0, 0, 1 << 40))) >= 500
    assert sum(store.looked_at.values()) < 500 * (1.2 if edits < 3 else 40)


def test_which_predicates_look_for_pieces():
    def path(where):
        schema = SCHEMA.append(pa.field("x", pa.int64()))
        return choose_path(build_spec(schema, schema, where=where, time="ts", window=None).parts, "left").name

    assert path("levenshtein(l.s, r.s) <= 2") == "pieces of l.s"
    assert path("3 > levenshtein(r.s, lower(l.s))") == "pieces of lower(l.s)"
    assert path("levenshtein(l.s, r.s) = 1 AND l.x < r.x") == "pieces of l.s"
    assert path("levenshtein(l.s, r.s) < 1") == "pieces of l.s"
    assert path("levenshtein(l.s, r.s) <= 9") == "band on length(l.s)"
    assert path("levenshtein(l.s, r.s) <= 2 AND l.x = r.x").startswith("hash on l.x")
    assert path("levenshtein(l.s, r.s) <= 2 AND abs(l.x - r.x) <= 1").startswith("band on l.x")
    assert "pieces" not in path("levenshtein(l.s, l.s) <= 2 OR levenshtein(l.s, r.s) > 2")


@pytest.mark.parametrize("where", ["levenshtein(l.s, r.s) <= 2", "levenshtein(lower(l.s), r.s) < 2 AND l.ts <= r.ts"])
def test_whole_joins(where):
    rng = np.random.default_rng(5)

    def table():
        names = ["".join(rng.choice(list("aAb"), rng.integers(0, 7))) for _ in range(60)]
        return pa.table({"ts": range(60), "s": [None if i % 11 == 0 else name for i, name in enumerate(names)]})

    left, right = table(), table()
    spec = build_spec(left.schema, right.schema, where=where, time="ts", window=20)
    want = sorted((a, b) for a, b, _ in reference_pairs(spec, left, right))
    with searching("kernels"):
        got = cf.window_join(left, right, where=where, time="ts", window=20, engine=cf.Local(batch_rows=7))
    assert sorted(zip(got["ts"].to_pylist(), got["ts_right"].to_pylist(), strict=True)) == want
