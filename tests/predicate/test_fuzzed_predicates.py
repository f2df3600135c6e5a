"""Ten thousand predicates, column names and constants that nobody would write, with kernels really compiled.

Each gives the reference's pairs or one clear `CounterflowError` (`tests/support/fuzzed.py` says what is allowed). A
failure prints its seed and the command that replays it. All of them take `--thorough`.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

import counterflow as cf
import fuzzed
from counterflow.predicate.expression import columns_of
from counterflow.predicate.forms import FORMS
from counterflow.predicate.functions import FUNCTIONS
from counterflow.spec.join_spec import build_spec
from counterflow.windows.compiled.predicate_source import compile_predicate
from effort import THOROUGH
from fuzzed_grammar import INTERNAL, Generator

SEEDS = 10_000
CHUNK = 50  # seeds that a process is started for: it keeps the machine code of all of them


def in_chunks(seeds: range) -> list[range]:
    return [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]


def run_chunk(seeds: range, ways: tuple[str, ...]) -> tuple[list[str], Counter[str]]:
    """In a process of its own, whose machine code is thrown away."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        os.chmod(folder, 0o700)
        patch.setenv("COUNTERFLOW_CACHE_DIR", folder)
        return fuzzed.failures(seeds, ways)


def run(seeds: range, ways: tuple[str, ...]) -> Counter[str]:
    wrong: list[str] = []
    endings: Counter[str] = Counter()
    workers = min(os.cpu_count() or 1, len(in_chunks(seeds)))
    with ProcessPoolExecutor(workers, get_context("spawn"), max_tasks_per_child=1) as pool:
        for found, ended in pool.map(run_chunk, in_chunks(seeds), [ways] * len(in_chunks(seeds))):
            wrong += found
            endings += ended
    assert not wrong, f"{len(wrong)} of {len(seeds)}:\n" + "\n".join(wrong[:20])
    return endings


@pytest.mark.timeout(4 * 3600)
def test_right_or_one_clear_error():
    seeds = range(SEEDS) if THOROUGH else range(20)
    endings = run(seeds, ("numpy", "interpreted", "compiled"))
    assert endings.total() == len(seeds) and endings["pairs"] > len(seeds) // 2


def test_without_a_compiler():
    """More of them, as compiling is what takes its time."""
    wrong, endings = fuzzed.failures(range(SEEDS, SEEDS + (5000 if THOROUGH else 400)), ("numpy", "interpreted"))
    assert not wrong, "\n".join(wrong)
    assert all(endings[how] for how in ("pairs", "error", "refused"))


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
