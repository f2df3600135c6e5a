"""What `auto` chooses: one core for an index, all cores for a scan; and that it says so."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.engines.local import options
from counterflow.windows.compiled import compiled_window
from counterflow.windows.crew import Crew

SCHEMA = pa.schema({"ts": pa.int64(), "x": pa.int64()})
INDEX, SCAN = "abs(l.x - r.x) <= 3", "l.x * r.x < 100"


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(options, "usable_cores", lambda: [0, 1])


def rows_of(n: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table([np.sort(rng.integers(0, n, n)), rng.integers(0, 50, n)], schema=SCHEMA)


@pytest.mark.parametrize(
    "where, workers, said",
    [(INDEX, None, "one thread asks the index"), (SCAN, None, "dealt out over all cores"), (SCAN, 1, "workers=1")],
)
def test_it_says_what_it_does(where, workers, said):
    streams = [cf.stream(schema=SCHEMA) for _ in range(2)]
    options = dict(where=where, time="ts", window=10, engine=cf.Local(workers=workers))
    assert said in str(cf.explain(*streams, **options))
    with cf.window_join(*streams, **options) as joined:
        assert said in joined.metrics()["chosen"]
    tables = "workers=1" if workers == 1 else "searched on all cores"
    assert tables in str(cf.explain(rows_of(9, 1), rows_of(9, 2), **options))


def test_other_algorithms_say_what_they_are():
    streams = [cf.stream(schema=SCHEMA) for _ in range(2)]
    with cf.window_join(*streams, where=SCAN, time="ts", window=10, engine=cf.Local("llhj", workers=3)) as joined:
        assert joined.metrics()["chosen"] == "algorithm llhj, 3 workers"


@pytest.mark.parametrize("ordered", [False, True])
def test_a_scan_on_all_cores_finds_the_same(monkeypatch, ordered):
    """Every scan is worth a second thread here; the results are those of one core."""
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "always")
    monkeypatch.setattr(compiled_window, "PART_COMPARISONS", 1)
    threads: list[int] = []
    deal = Crew.deal
    monkeypatch.setattr(Crew, "deal", lambda crew, tasks, n: threads.append(n) or deal(crew, tasks, n))
    left, right = rows_of(600, 1), rows_of(600, 2)
    options = dict(where=SCAN, time="ts", window=40, ordered=ordered)
    found = []
    for workers in (None, 1):
        sides = [cf.stream(table.to_batches(max_chunksize=97)) for table in (left, right)]
        joined = cf.window_join(*sides, engine=cf.Local(workers=workers), **options)
        rows = pa.Table.from_batches(list(joined), schema=joined.schema).to_pylist()
        found.append(rows if ordered else sorted(rows, key=repr))
        assert (2 in threads) == (workers is None)
        threads.clear()
    assert found[0] == found[1] and len(found[0]) > 1000
