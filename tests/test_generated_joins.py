"""A campaign of generated joins, really compiled: every form of window, every algorithm, 1 to 5 workers.

Oracle test: tables and streams go through `cf.window_join` and must give what `reference` gives. A seed decides a join
altogether. Some 200 run in an ordinary run, 20,000 with `--thorough`; COUNTERFLOW_JOINS says another number,
and COUNTERFLOW_JOIN=SEED runs one join alone, as a failure says.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.lab.simulator.window_forms import BOUNDED, FORMS, Form, draw_form, draw_window
from counterflow.reference import window_join as reference_join
from counterflow.reference.table_rows import tuples_of
from counterflow.spec.join_spec import JoinSpec, build_spec
from effort import THOROUGH
from inputs import form_of
from oracle import HOWS
from stepped import rows_of

ALGORITHMS = ("auto", "kang", "celljoin", "handshake", "llhj", "dpjoin", "scalejoin")
COUNT = int(os.environ.get("COUNTERFLOW_JOINS") or (20_000 if THOROUGH else 210))
PARTS = 100 if THOROUGH else 10  # tests
SCHEMA = pa.schema({"id": pa.int64(), "t": pa.int64(), "k": pa.int64(), "x": pa.int64(), "f": pa.float64()})
# Few, so that each is compiled once: an index of each kind, a scan, NULLs that match, conditions on one side. With
# --thorough those that candidates are found by in another way, too.
PREDICATES = (
    "abs(l.x - r.x) <= 1",
    "l.k = r.k",
    "l.k <=> r.k AND l.x < r.x + 3",
    "(l.x * r.x) % 3 = 1",
    "l.x > 0 AND r.k IS NOT NULL AND l.f BETWEEN r.f - 1 AND r.f + 1",
    *(
        (
            "hypot(l.x - r.x, l.f - r.f) <= 1.5",
            "l.x <= r.x + r.k AND r.x <= l.x + l.k",
            "hypot(l.x - r.x, l.f - r.f) <= r.k",
            "l.k = r.k OR abs(l.x - r.x) <= 1",
            "l.f / nullif(r.x, 0) BETWEEN 0.5 AND 1.5",
        )
        * THOROUGH
    ),
)
# Times are small numbers from here on: the ends of 64 bits, or somewhere between.
BEGINNINGS = (-(2**63), 0, 1_700_000_000_000_000, 2**63)
SPAN = 10


@dataclass(frozen=True)
class Generated:
    """A join: its tables by source, in the order in which rows come, and all options."""

    left: list[pa.Table]
    right: list[pa.Table]
    form: Form
    options: dict[str, Any]
    engine: cf.Local
    is_stream: bool
    delay: int | None
    batch_rows: int
    table: str | None  # the side that is a table without a time

    def __str__(self) -> str:
        rows = [[len(table) for table in side] for side in (self.left, self.right)]
        kind = f"streams (delay {self.delay})" if self.is_stream else "tables"
        return f"{kind} of {rows[0]} and {rows[1]} rows, {self.options}, {self.engine}"


def generated(seed: int) -> Generated:
    chance = random.Random(seed)
    algorithm, is_stream = ALGORITHMS[seed % 7], bool(seed // 35 % 2)
    workers: int | None = 1 + seed // 7 % 5
    form = draw_form(chance, BOUNDED if is_stream else FORMS)
    delay = chance.choice([None, 0, 1, 3, SPAN]) if is_stream else None
    beginning = chance.choice(BEGINNINGS)
    sides = [
        [_table(chance, beginning, delay) for _ in range(chance.choice([1, 1, 2, 3]) if is_stream else 1)]
        for _ in range(2)
    ]
    options = dict(
        where=chance.choice(PREDICATES),
        time="t",
        window=draw_window(form, chance),
        how=chance.choice(HOWS),
        ordered=chance.random() < 0.5,
    )
    if algorithm == "kang" or (algorithm == "auto" and workers > 1):
        workers = None  # all cores, or none but one
    engine = cf.Local(algorithm, workers=workers, batch_rows=chance.choice([1, 3, 16, 1024]))
    batch_rows = chance.choice([1, 2, 7, 100])
    table = chance.choice([*[None] * 8, "left", "right"])
    streaming = sides[0 if table == "right" else 1]
    if table is not None and any(-(2**63) in rows["t"].to_pylist() for rows in streaming):
        table = None  # nothing is before that time
    if table is not None:
        options["time"] = (None, "t") if table == "left" else ("t", None)
        options["how"] = chance.choice(["inner", "right"] if table == "left" else ["inner", "left", "semi", "anti"])
    return Generated(*sides, form, options, engine, is_stream, delay, batch_rows, table)


def _table(chance: random.Random, beginning: int, delay: int | None) -> pa.Table:
    """Rows with many ties; in order, but for rows up to `delay` behind the newest."""
    count, span = chance.choice([0, 1, 5, 12, 30]), chance.choice([1, 3, SPAN])
    times = sorted(chance.randrange(span) for _ in range(count))
    if delay is not None:
        times = [t for _, t in sorted((t + chance.randint(0, delay), t) for t in times)]
    first = beginning if beginning < 2**63 else beginning - span  # up to the end of time

    def some(values: list[Any]) -> list[Any]:
        return [chance.choice(values) for _ in range(count)]

    columns = {
        "id": range(count),
        "t": [first + t for t in times],
        "k": some([None, 0, 1, 2]),
        "x": some([None, *range(-3, 4)]),
        "f": some([None, 0.0, -0.0, 0.5, 1.5, float("nan"), float("inf")]),
    }
    return pa.table({name: pa.array(list(values), SCHEMA.field(name).type) for name, values in columns.items()})


def with_ids(tables: list[pa.Table]) -> list[pa.Table]:
    """An id of its own for each row of a side."""
    firsts = np.cumsum([0, *map(len, tables)])
    return [
        table.set_column(0, "id", pa.array(range(first, first + len(table)), pa.int64()))
        for table, first in zip(tables, firsts, strict=False)
    ]


def expected(join: Generated) -> list[tuple[int | None, int | None, int]]:
    spec = build_spec(SCHEMA, SCHEMA, **join.options)
    left, right = (list(_tuples(spec, side, tables)) for side, tables in (("left", join.left), ("right", join.right)))
    return [
        (r.left and r.left.row["id"], r.right and r.right.row["id"], r.pair_time)
        for r in reference_join(spec, left, right)
    ]


def _tuples(spec: JoinSpec, side: Any, tables: list[pa.Table]) -> Iterator[Any]:
    for source, table in enumerate(tables):
        for tuple_, id_ in zip(tuples_of(spec, spec.side(side), table), table["id"].to_pylist(), strict=True):
            yield replace(tuple_, source=source, row={**tuple_.row, "id": id_})


def found(join: Generated) -> list[tuple[int | None, int | None, int]]:
    if not join.is_stream:
        return rows_of(cf.window_join(join.left[0], join.right[0], engine=join.engine, **join.options))

    def streams(tables: list[pa.Table]) -> list[cf.Stream]:
        pieces = [t.to_batches(max_chunksize=join.batch_rows) if len(t) else [] for t in tables]
        return [cf.stream(iter(batches), schema=SCHEMA, delay=join.delay) for batches in pieces]

    left, right = (
        tables if join.table == side else streams(tables)
        for side, tables in (("left", join.left), ("right", join.right))
    )
    with cf.window_join(left, right, engine=join.engine, **join.options) as joined:
        return [row for batch in joined for row in rows_of(batch)]


def check(seed: int) -> None:
    join = generated(seed)
    join = replace(join, left=with_ids(join.left), right=with_ids(join.right))
    again = (
        f"join {seed}: {join}\nagain with: COUNTERFLOW_JOIN={seed} ./dev test tests/test_generated_joins.py -k one_join"
    )
    try:
        got, want = found(join), expected(join)
    except Exception as error:
        error.add_note(again)
        raise
    lost, more = Counter(want) - Counter(got), Counter(got) - Counter(want)
    assert not lost and not more, f"lost {dict(lost)}, too many {dict(more)}\n{again}"
    assert got == want or not join.options["ordered"], f"not in order\n{again}"


@pytest.mark.parametrize("part", range(PARTS))
def test_generated_joins(part, monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "always")
    for seed in range(part, COUNT, PARTS):
        check(seed)


@pytest.mark.skipif("COUNTERFLOW_JOIN" not in os.environ, reason="COUNTERFLOW_JOIN=SEED runs a join alone")
def test_one_join(monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "always")
    check(int(os.environ["COUNTERFLOW_JOIN"]))


def test_the_campaign_has_everything():
    """Every algorithm with every number of workers, on tables and on streams; every form of window; every option."""
    joins = [generated(seed) for seed in range(3000)]
    alone = {("auto", None), ("auto", 1), ("kang", None)}
    assert {(j.engine.algorithm, j.engine.workers, j.is_stream) for j in joins} == {
        (*which, is_stream)
        for which in alone | set(product(ALGORITHMS[2:], range(1, 6)))
        for is_stream in (True, False)
    }
    for is_stream, forms in ((True, BOUNDED), (False, FORMS)):
        assert {form_of(j.options["window"]) for j in joins if j.is_stream == is_stream} == set(forms)
    assert {(j.options["where"], j.options["how"], j.options["ordered"]) for j in joins} == set(
        product(PREDICATES, HOWS, (True, False))
    )
    assert {(j.table, j.options["how"], j.is_stream, j.options["ordered"]) for j in joins} >= set(
        product(["right"], ["inner", "left", "semi", "anti"], (True, False), (True, False))
    ) | set(product(["left"], ["inner", "right"], (True, False), (True, False)))
    times = {t for j in joins for table in (*j.left, *j.right) for t in table["t"].to_pylist()}
    assert min(times) == -(2**63) and max(times) == 2**63 - 1
