"""Ten thousand predicates, column names and constants that nobody would write, with kernels really compiled.

Each gives the reference's pairs or one clear `CounterflowError` (`tests/support/fuzzed.py` says what is allowed). A
failure prints its seed and the command that replays it. All of them take `--thorough`.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

import counterflow as cf
import fuzzed
import fuzzed_indexes
from counterflow.predicate.expression import columns_of
from counterflow.predicate.forms import FORMS
from counterflow.predicate.functions import FUNCTIONS
from counterflow.spec.join_spec import build_spec
from counterflow.windows.access import choose_path
from counterflow.windows.compiled.predicate_source import compile_predicate
from effort import THOROUGH
from fuzzed_grammar import INTERNAL, Generator

SEEDS = 10_000
CHUNK = 50  # seeds that a process is started for: it keeps the machine code of all of them


def in_chunks(seeds: range) -> list[range]:
    return [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]


def run_chunk(seeds: range, ways: tuple[str, ...], kind: str = "grammar") -> tuple[list[str], Counter[str]]:
    """In a process of its own, whose machine code is thrown away."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        os.chmod(folder, 0o700)
        patch.setenv("COUNTERFLOW_CACHE_DIR", folder)
        return fuzzed.failures(seeds, ways, kind)


def run(seeds: range, ways: tuple[str, ...], kind: str = "grammar") -> Counter[str]:
    wrong: list[str] = []
    endings: Counter[str] = Counter()
    workers = min(os.cpu_count() or 1, len(in_chunks(seeds)))
    with ProcessPoolExecutor(workers, get_context("spawn"), max_tasks_per_child=1) as pool:
        for found, ended in pool.map(partial(run_chunk, ways=ways, kind=kind), in_chunks(seeds)):
            wrong += found
            endings += ended
    assert not wrong, f"{len(wrong)} of {len(seeds)}:\n" + "\n".join(wrong[:20])
    return endings


@pytest.mark.timeout(4 * 3600)
def test_right_or_one_clear_error():
    seeds = range(SEEDS) if THOROUGH else range(20)
    endings = run(seeds, ("numpy", "interpreted", "compiled"))
    assert endings.total() == len(seeds) and endings["pairs"] + endings["no pairs"] > len(seeds) // 2


def test_without_a_compiler():
    """More of them, as compiling is what takes its time."""
    wrong, endings = fuzzed.failures(range(SEEDS, SEEDS + (5000 if THOROUGH else 400)), ("numpy", "interpreted"))
    assert not wrong, "\n".join(wrong)
    assert all(endings[how] for how in ("pairs", "error", "refused"))


def test_conditions_that_find_an_index():
    """Joins through every index, most of them with pairs: distances, overlaps, ratios, prefixes, alternatives."""
    seeds = range(10_000 if THOROUGH else 250)
    wrong, endings = fuzzed.failures(seeds, ("numpy", "interpreted"), "indexes")
    assert not wrong, "\n".join(wrong)
    assert endings["pairs"] > len(seeds) // 2 and not endings["refused"]


@pytest.mark.timeout(2 * 3600)
@pytest.mark.thorough
def test_compiled_conditions_that_find_an_index():
    run(range(20_000, 20_200), ("whole",), "indexes")


def test_every_kind_of_index_is_tried():
    seen: Counter[str] = Counter()
    for seed in range(400):
        generator = fuzzed_indexes.Generator(seed)
        where, left, right = generator.where(), generator.table("l"), generator.table("r")
        parts = build_spec(left.schema, right.schema, where=where, time="t", window=None).parts
        path = choose_path(parts, "left")
        seen["equality"] += bool(parts.equalities)
        seen["implied band"] += any(bound.is_band for bound in parts.implied)
        seen["two bands"] += len(path.bands) > 1
        seen["overlap"] += bool(path.overlaps)
        seen["alternatives"] += bool(path.ways)
        seen["scan"] += not path.narrows
        seen["NULL says nothing"] += any(bound.nulls_meet for bound in parts.bounds)
        for key in ("log_size", "unit_x", "text_place", "length"):
            seen[key] += any(f"{key}(" in str(bound) for bound in parts.implied)
    assert min(seen.values()) >= 5 and len(seen) == 11, seen


def test_broken_texts():
    """They are refused, or happen to mean something; either way one can read what."""
    for seed in range(5000 if THOROUGH else 300):
        generator = Generator(seed)
        schemas = [generator.table(side).schema for side in "lr"]
        text = generator.where()
        for _ in range(5):
            text = generator.broken(text or "x")
            try:
                spec = build_spec(*schemas, where=text, time="t", window=None)
                assert str(spec.predicate) and spec.parts is not None
            except cf.CounterflowError as error:
                assert str(error), (seed, text)
            except Exception as error:
                pytest.fail(f"seed {seed}: {text!r}: {type(error).__name__}: {error}")


@pytest.mark.timeout(3600)
@pytest.mark.thorough  # indexes take three times as long to compile as the scan of the other test
def test_whole_joins():
    """Through `window_join`, so with the compiled indexes, too."""
    run(range(300), ("whole",))


def test_the_whole_grammar_is_tried():
    """Every function and form, and enough that has a compiled form, an index, and no meaning at all."""
    seen: Counter[str] = Counter()
    calls: set[str] = set()
    for seed in range(4000):
        generator = Generator(seed)
        where, left, right = generator.where(), generator.table("l"), generator.table("r")
        calls |= {name for name in (*FUNCTIONS, *FORMS) if f"{name}(" in where}
        try:
            spec = build_spec(left.schema, right.schema, where=where, time="t", window=None)
        except cf.CounterflowError:
            seen["refused"] += 1
            continue
        seen["compiled"] += any(compile_predicate(spec.predicate, nullable=True).columns.values())
        seen["equality"] += bool(spec.parts.equalities)
        seen["inequality"] += bool(spec.parts.inequalities)
        seen["two sides"] += len({column.side for column in columns_of(spec.predicate)}) == 2
    assert sorted((set(FUNCTIONS) | set(FORMS)) - calls - INTERNAL) == []
    assert min(seen[what] for what in ("compiled", "two sides")) > 500
    assert min(seen[what] for what in ("refused", "equality", "inequality")) > 50
