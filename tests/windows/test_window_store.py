"""The window store: any order of append, probe and expire finds what a plain list would find.

Property tests run kernels as plain Python (`interpreted`); the tests at the end compile them.
"""

from __future__ import annotations

import subprocess
import sys

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.reference.one_pair import Row, evaluate
from counterflow.reference.table_rows import tuples_of
from counterflow.spec.join_spec import build_spec
from counterflow.windows import pair_buffers as pairs_module
from counterflow.windows.compiled import compiled_window as window_module
from counterflow.windows.compiled.compiled_predicate import CompiledPredicate
from counterflow.windows.shared_window import read_window, write_window
from counterflow.windows.store import Batch, WindowStore, predicate_columns
from effort import examples
from inputs import PREDICATES, SCHEMA, table_of, tables
from interpreted import SEARCHES, searching

MORE = {
    "hash then band": "l.k = r.k AND abs(l.x - r.x) <= 2",
    "two float bands": "abs(l.f - r.f) <= 1 AND abs(l.x - r.x) <= 3",
    "band and residual": "abs(l.x - r.x) <= 3 AND l.s <> r.s",
    "division": "abs(l.x - r.x) <= 3 AND r.x <> 0 AND l.x / r.x > 0.5",
    "key without a value": "r.k <> 0 AND l.x = 1 / r.k",
    "large products": "l.x * r.x * l.x * 1000000000000 * 1000000 > r.x",
    "names of the ring's own": "l.at = r.at AND abs(l.row - r.row) <= 2 AND l.hash <> r.reached",
    "a doubt that two conditions share": "l.y * r.y > 5 AND l.y * r.y > 6",
    "text, and a key without a value": "r.k <> 0 AND l.x = 1 / r.k AND l.s <> r.s",
    "two bands of keys without a value": "l.k <> 0 AND abs(1 / l.k - r.x) <= 0.5 AND abs(l.f - r.f) <= 1",
    "NaN of the smaller side": "r.f - l.f >= 1 AND r.f - l.f <= 2",
    "three bands": "abs(l.x - r.x) <= 3 AND abs(l.k - r.k) <= 1 AND abs(l.f - r.f) <= 2",
    "two intervals": "l.x <= r.x + r.k AND r.x <= l.x + l.k AND l.f <= r.f + 2 AND r.f <= l.f + 1",
    "interval after an equality": "l.k = r.k AND l.x <= r.f AND r.x <= l.f",
    "band and interval": "abs(l.x - r.x) <= 2 AND l.f <= r.f + r.k AND r.f - 1 <= l.f",
    "two inequalities": "l.x < r.k AND r.x < l.f",
    "Euclid": "sqrt(pow(l.x - r.x, 2) + pow(l.k - r.k, 2) + pow(l.f - r.f, 2)) <= 2.5",
    "a width that is a column": "abs(l.x - r.x) <= r.k",
    "a radius that is a column": "hypot(l.x - r.x, l.k - r.k) <= l.f",
    "a largest difference": "greatest(abs(l.x - r.x), abs(l.f - r.f)) <= 1.5",
    "alternatives of one difference": "abs(l.x - r.x) <= 1 OR (l.x - r.x BETWEEN 3 AND 4 AND l.k = r.k)",
    "on a sphere": "haversine(l.x * 20, l.f * 50, r.x * 20, r.f * 50) <= 3000000",
}
ALL = PREDICATES | MORE
BANDED = [  # what the merge join can sort by
    "band", "two bands", "float band", "hash then band", "two float bands", "band and residual", "division",
    "names of the ring's own", "two bands of keys without a value", "NaN of the smaller side",
]  # fmt: skip


def widened(table: pa.Table) -> pa.Table:
    """With columns that are called like the ring's own, and numbers whose products need more than 64 bits."""
    large = pa.array([None if x is None else x * 10**9 for x in table["x"].to_pylist()], pa.int64())
    more = {"at": table["x"], "row": table["k"], "hash": table["s"], "reached": table["s"], "y": large}
    for name, column in more.items():
        table = table.append_column(name, column)
    return table


class Model:
    """A window as a list, searched pair by pair with the reference's evaluator: what the store has to agree with."""

    def __init__(self, where: str, side: str, **options) -> None:
        schema = widened(SCHEMA.empty_table()).schema
        self.spec = build_spec(schema, schema, where=where, time="ts", window=None)
        self.side = side
        self.store = WindowStore(side, self.spec.predicate, self.spec.parts, **options)
        self.rows: list[tuple[int, int, Row]] = []  # coordinate, id, the row
        self.ids = 0

    def batch(self, side: str, table: pa.Table, at: list[int], low: list[int], high: list[int]) -> Batch:
        columns = predicate_columns(self.spec.predicate, side, widened(table))
        first, self.ids = self.ids, self.ids + len(table)
        at, low, high = (np.array(v[: len(table)], np.int64) for v in (at, low, high))
        return Batch(side, columns, np.arange(first, first + len(table)) * 7, at, low, high)

    def append(self, table: pa.Table, at: list[int]) -> None:
        batch = self.batch(self.side, table, at, at, at)
        self.store.append(batch)
        self.rows += zip(batch.at.tolist(), batch.rows.tolist(), self.values(self.side, table), strict=True)

    def values(self, side: str, table: pa.Table) -> list[Row]:
        return [tuple_.row for tuple_ in tuples_of(self.spec, self.spec.side(side), widened(table))]

    def check(self, table: pa.Table, low: list[int], high: list[int]) -> int:
        opposite = "right" if self.side == "left" else "left"
        probing = self.batch(opposite, table, low, low, high)
        found = sorted((int(p), int(i)) for ps, ids in self.store.probe(probing) for p, i in zip(ps, ids, strict=True))
        assert found == self.expected(self.values(opposite, table), low, high)
        return len(found)

    def expected(self, probing: list[Row], low: list[int], high: list[int]) -> list[tuple[int, int]]:
        found = []
        for p, probe in enumerate(probing):
            for at, id_, row in self.rows:
                left, right = (row, probe) if self.side == "left" else (probe, row)
                if low[p] <= at <= high[p] and evaluate(self.spec.predicate, left, right) is True:
                    found.append((p, id_))
        return sorted(found)

    def expire(self, before: int) -> None:
        self.store.expire(before)
        self.rows = [row for row in self.rows if row[0] >= before]


STEPS = st.lists(st.tuples(tables(rows_max=6), tables(rows_max=4), st.randoms(use_true_random=False)), max_size=5)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=examples(25), deadline=None)
@given(
    steps=STEPS,
    side=st.sampled_from(["left", "right"]),
    disorder=st.sampled_from([0, 3, 20]),
    access=st.sampled_from(["auto", "index", "scan", "prefilter", "merge"]),
    threads=st.sampled_from([1, 2, 3]),
)
def test_any_order_of_steps(name, search, steps, side, disorder, access, threads):
    """Coordinates may go back by some disorder; rows before the last expiry are never asked for."""
    access = "auto" if access == "merge" and name not in BANDED else access
    with searching(search), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledPredicate.__init__, "__defaults__", (False, 4))  # basic blocks that few rows fill
        patch.setattr(window_module, "PART_COMPARISONS", 1)
        model = Model(ALL[name], side, access=access, threads=threads)
        time = expired = 0
        for table, probing, random in steps:
            at = [time + random.randint(0, 5) - random.randint(0, disorder) for _ in range(len(table))]
            if not disorder:
                at = sorted(at)
                time = max([time, *at])
            model.append(table, at)
            low = [max(expired, time - random.randint(0, 15)) for _ in range(len(probing))]
            high = [value + random.randint(0, 20) for value in low]
            model.check(probing, low, high)
            expired = max(expired, time - random.randint(5, 15))
            model.expire(expired)
            time += random.randint(0, 6)
        assert len(model.store) >= len(model.rows)
        model.check(table_of([(0, 1, 1, 1.0, "a")]), [expired], [time + 100])


@settings(max_examples=examples(15), deadline=None)
@given(data=st.data(), name=st.sampled_from(["equality", "two bands", "everything", "inequality"]))
def test_a_full_buffer_is_handed_out_and_filled_again(data, name):
    with searching("kernels"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs_module, "PAIRS_MIN", 2)
        patch.setattr(pairs_module.Pairs.__init__, "__defaults__", (2,))
        patch.setattr(window_module, "PAIRS_MAX", 2)
        patch.setattr(window_module, "PART_COMPARISONS", 1)
        access = data.draw(st.sampled_from(["auto", "merge"])) if name == "two bands" else "auto"
        model = Model(ALL[name], "left", threads=data.draw(st.sampled_from([1, 2])), access=access)
        model.append(data.draw(tables()), list(range(20)))
        model.check(data.draw(tables()), [0] * 20, [30] * 20)


SHARED = [
    "equality",
    "two bands",
    "float band",
    "distance on a sphere",
    "interval overlap",
    "hash then band",
    "filters",
]


@pytest.mark.parametrize("name", SHARED)
@settings(max_examples=examples(10), deadline=None)
@given(stored=tables(rows_max=30), probing=tables(rows_max=10), side=st.sampled_from(["left", "right"]))
def test_a_window_that_another_process_has_written(tmp_path_factory, name, stored, probing, side):
    path, (low, high) = tmp_path_factory.mktemp("shared") / "window", ([0] * 10, [20] * 10)
    with searching("kernels"):
        written, read = (Model(ALL[name], side) for _ in range(2))
        written.append(stored, list(range(30)))
        written.check(probing, low, high)
        assert write_window(written.store, path) == bool(len(stored) and len(probing))
        if path.exists():
            read_window(read.store, path)
            read.rows, read.ids = written.rows, written.ids
            read.check(probing, low, high)
            read.append(probing, list(range(30, 40)))  # its own copy changes
            read.check(stored.slice(0, 10), low, [40] * 10)
            written.check(probing, low, high)


def test_windows_that_are_not_shared(tmp_path):
    """Texts are objects of a process; a scan needs no index; and half a file is none."""
    rows = table_of([(0, 1, 1, 1.0, "a"), (0, 2, 2, 2.0, "b")])
    with searching("kernels"):
        for name in ("equality of strings", "residual", "OR of two equalities"):
            model = Model(ALL[name], "left")
            model.append(rows, [0, 1])
            model.check(rows, [0, 0], [9, 9])
            assert not write_window(model.store, tmp_path / "window") and not list(tmp_path.iterdir())
        (tmp_path / "window").write_bytes(b"\x20" + b"\0" * 30)
        with pytest.raises(ValueError):
            read_window(Model(ALL["band"], "left").store, tmp_path / "window")


def test_a_damaged_window_is_not_read(tmp_path):
    """Compiled code goes where an index says."""
    path, rows = tmp_path / "window", table_of([(0, n, n, float(n), None) for n in range(30)])
    with searching("kernels"):
        model = Model(ALL["band"], "left")
        model.append(rows, list(range(30)))
        model.check(rows, [0] * 30, [40] * 30)
        assert write_window(model.store, path)
        whole = path.read_bytes()
        held = [at for at, byte in enumerate(whole) if byte]  # between pages there is nothing
        for at in [*range(30), *held[:: max(len(held) // 200, 1)]]:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            with pytest.raises(ValueError):
                read_window(Model(ALL["band"], "left").store, path)
        for size in (0, 7, 30, len(whole) // 2):
            path.write_bytes(whole[:size])
            with pytest.raises(ValueError):
                read_window(Model(ALL["band"], "left").store, path)


def test_merging_batches_of_any_size(monkeypatch):
    """Unsorted probes, few and many of them, with blocks that are full, the newest that is not, and expired rows."""
    monkeypatch.setattr(CompiledPredicate.__init__, "__defaults__", (False, 8))
    rng = np.random.default_rng(5)
    with searching("kernels"):
        model, pairs = Model("abs(l.x - r.x) <= 1", "left", access="merge"), 0
        for turn in range(60):
            n = turn % 5 or 20
            stored, probes = ([(0, 0, int(x), 0.0, None) for x in rng.integers(0, 12, size)] for size in (7, n))
            model.append(table_of(stored), list(range(7 * turn, 7 * turn + 7)))
            low = rng.integers(7 * turn - 30, 7 * turn, n).tolist()
            pairs += model.check(table_of(probes), low, [at + 25 for at in low])
            model.expire(7 * turn - 30)
        assert pairs > 500


@pytest.mark.parametrize("search", SEARCHES)
def test_rings_wrap_grow_and_shrink(search):
    """A window of few rows turns over many times, grows to many, and becomes small again."""
    rng = np.random.default_rng(3)
    with searching(search):
        model = Model("l.k = r.k AND abs(l.x - r.x) <= 1", "left")
        time = 0
        sizes = []
        for live in [40] * 60 + [3000] + [20] * 4:
            n = max(live // 2, 10)
            rows = [(0, int(k), int(x), 0.0, None) for k, x in rng.integers(0, 40, (n, 2))]
            model.append(table_of(rows), list(range(time, time + n)))
            time += n
            model.check(table_of(rows[:3]), [time - live] * 3, [time] * 3)
            model.expire(time - live)
            sizes.append((len(model.store), model.store.ring.capacity))
        assert sizes[0][1] == sizes[59][1] == 1024
        assert sizes[60][1] == 2048 and sizes[-1][1] == 1024


# --- really compiled


def numbers(n: int, seed: int, **columns) -> pa.Table:
    rng = np.random.default_rng(seed)
    made = {name: draw(rng, n) for name, draw in columns.items()}
    return pa.table({"id": pa.array(range(n)), "ts": pa.array(range(n), pa.int64()), **made})


def compiled_store(where: str, stored: pa.Table, probing: pa.Table, window: int, **options) -> WindowStore:
    """Batches of both through a compiled window of `window` rows; each batch's pairs are recomputed (PLAIN)."""
    spec = build_spec(stored.schema, probing.schema, where=where, time="ts", window=None)
    store = WindowStore("left", spec.predicate, spec.parts, compile_after=0, **options)
    left = predicate_columns(spec.predicate, "left", stored)
    right = predicate_columns(spec.predicate, "right", probing)
    step = max(len(stored) // 10, 1)
    for begin in range(0, len(stored), step):
        rows = np.arange(begin, min(begin + step, len(stored)))
        low, high = np.maximum(rows - window + 1, 0), rows.copy()
        store.append(Batch("left", {n: v.take(rows) for n, v in left.items()}, rows, rows, low, high))
        batch = Batch("right", {n: v.take(rows) for n, v in right.items()}, rows, rows, low, high)
        found = sorted((int(p), int(i)) for ps, ids in store.probe(batch) for p, i in zip(ps, ids, strict=True))
        p, s = (a.ravel() for a in np.meshgrid(rows, np.arange(max(low[0], 0), high[-1] + 1), indexing="ij"))
        inside = (s > p - window) & (s <= p)
        p, s = p[inside], s[inside]
        hit = _plain_hits(where, stored, probing, s, p)
        assert found == sorted(zip((p[hit] - begin).tolist(), s[hit].tolist(), strict=True))
        store.expire(int(rows[-1]) - window + 2)
    assert store.is_compiled
    return store


def _integers(low, high, type_=pa.int32()):
    return lambda rng, n: pa.array(rng.integers(low, high, n), type_)


def _floats(low, high, type_=pa.float32()):
    return lambda rng, n: pa.array(rng.uniform(low, high, n), type_)


def _hot(rng, n):
    return pa.array(np.where(rng.random(n) < 0.5, 7, rng.integers(0, 1000, n)), pa.int64())


def _strange(rng, n):
    values = rng.choice([0.0, -0.0, 1.0, 2.5, np.nan, np.inf, -np.inf, 1e300], n)
    return pa.array(values, mask=rng.random(n) < 0.1)


def _texts(rng, n):
    values = [("", "", "same first bytes ")[i % 3] + str(i // 3) for i in rng.integers(0, 900, n)]
    return pa.array([text[: 20 - i] for i, text in zip(rng.integers(0, 20, n), values, strict=True)], mask=_few(rng, n))


def _few(rng, n):
    return rng.random(n) < 0.05


BANDS = "abs(l.x - r.x) <= 10 AND abs(l.y - r.y) <= 10"


def _plain_hits(where: str, left: pa.Table, right: pa.Table, s: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return which pairs match. A NULL in any column of PLAIN's predicates is no match."""
    sides = [{name: table[name].to_numpy()[i] for name in table.column_names} for table, i in ((left, s), (right, p))]
    hit = PLAIN[where](*sides)
    for table, i in ((left, s), (right, p)):
        for column in table.columns:
            hit = hit & column.is_valid().to_numpy()[i]
    return hit


def _at_least(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As in Spark: NaN equals itself and is more than any number."""
    return np.isnan(a) | (~np.isnan(b) & (a >= b))


# What the compiled windows' predicates mean, written by hand: nothing here calls the code that is tested.
PLAIN = {
    BANDS: lambda a, b: (abs(a["x"] - b["x"]) <= 10) & (abs(a["y"] - b["y"]) <= 10),
    "l.f BETWEEN r.f - 1 AND r.f + 1": lambda a, b: _at_least(a["f"], b["f"] - 1) & _at_least(b["f"] + 1, a["f"]),
    "l.x < r.x - 1995": lambda a, b: a["x"] < b["x"] - 1995,
    "l.x < r.x - 100": lambda a, b: a["x"] < b["x"] - 100,
    "l.y * r.y > 5 AND l.y * r.y > 6": lambda a, b: a["y"] > 6 / b["y"],  # positive, and their product is large
    "l.k = r.k": lambda a, b: a["k"] == b["k"],
    "abs(l.x - r.x) <= 1": lambda a, b: abs(a["x"] - b["x"]) <= 1,
    "startswith(l.s, r.s)": lambda a, b: np.array([*map(str.startswith, map(str, a["s"]), map(str, b["s"]))]),
}


@pytest.mark.parametrize(
    ("where", "columns", "options"),
    [
        (BANDS, dict(x=_integers(1, 300), y=_floats(1, 300)), {}),
        (BANDS, dict(x=_integers(1, 300), y=_floats(1, 300)), dict(threads=2)),
        (BANDS, dict(x=_integers(1, 300), y=_floats(1, 300)), dict(access="scan")),
        (BANDS, dict(x=_integers(1, 300), y=_floats(1, 300)), dict(access="prefilter", threads=2)),
        (BANDS, dict(x=_integers(1, 300), y=_floats(1, 300)), dict(access="merge", threads=2)),
        (BANDS, dict(x=_integers(1, 8), y=_floats(1, 8)), dict(access="merge")),  # all match: the output is often full
        ("l.f BETWEEN r.f - 1 AND r.f + 1", dict(f=_strange), dict(access="merge")),
        (BANDS, dict(x=_integers(1, 8), y=_floats(1, 8)), {}),  # all match: the index gives up, the scan finds them
        ("l.x < r.x - 1995", dict(x=_integers(1, 2000)), {}),  # a few pairs: found in the sorted runs
        ("l.x < r.x - 100", dict(x=_integers(1, 2000)), {}),  # many: scanned
        ("l.y * r.y > 5 AND l.y * r.y > 6", dict(y=_integers(2**31, 2**33, pa.int64())), {}),  # beyond 64 bits
        ("startswith(l.s, r.s)", dict(s=_texts), dict(access="scan")),
        ("l.k = r.k", dict(k=_hot), {}),  # half of all rows have one key
        ("l.f BETWEEN r.f - 1 AND r.f + 1", dict(f=_strange), {}),
    ],
)
def test_compiled_windows(where, columns, options, monkeypatch):
    monkeypatch.setattr(window_module, "PART_COMPARISONS", 1)  # threads as asked for
    stored, probing = numbers(3000, 1, **columns), numbers(3000, 2, **columns)
    compiled_store(where, stored, probing, 1000, **options)


def test_windows_of_one_row_and_empty_batches():
    table = numbers(30, 1, k=_integers(0, 2, pa.int64()))
    store = compiled_store("l.k = r.k", table, table, 1)
    empty = Batch(
        "left",
        {"k": predicate_columns(store.predicate, "left", table)["k"].take(slice(0, 0))},
        *[np.empty(0, np.int64)] * 4,
    )
    store.append(empty)
    assert list(store.probe(empty)) == [] and len(store) <= 1


def test_memory_does_not_grow_with_the_stream():
    """A window of 500 rows turns over a hundred times, while its values wander off: old buckets are given back."""
    spec_schema = pa.schema({"id": pa.int64(), "ts": pa.int64(), "x": pa.int32(), "y": pa.float32()})
    spec = build_spec(spec_schema, spec_schema, where=BANDS, time="ts", window=None)
    store = WindowStore("left", spec.predicate, spec.parts, compile_after=0)
    rng = np.random.default_rng(0)
    sizes = []
    for i in range(500):
        table = pa.table(
            {
                "x": pa.array(rng.integers(i * 50, i * 50 + 500, 100), pa.int32()),
                "y": pa.array(rng.uniform(0, 100, 100), pa.float32()),
            }
        )
        rows = np.arange(i * 100, i * 100 + 100)
        batch = Batch("left", predicate_columns(spec.predicate, "left", table), rows, rows, rows, rows)
        store.append(batch)
        probe = Batch("right", predicate_columns(spec.predicate, "right", table), rows, rows, rows - 500, rows)
        assert sum(len(p) for p, _ in store.probe(probe)) > 0
        store.expire(int(rows[-1]) - 500)
        sizes.append(store.nbytes)
    assert sizes[-1] == sizes[100]


@pytest.mark.parametrize("seed", range(examples(40)))
def test_blocks_whose_pool_grows(seed, monkeypatch):
    """A bucket that was tidied just when the pool is full must not keep what it dropped."""
    monkeypatch.setattr(window_module, "BLOCK_SPARE", 1)
    rng = np.random.default_rng(seed)
    window = int(rng.integers(700, 1000))
    skewed = lambda rng, n: pa.array((rng.exponential(2, n) ** 2).astype(np.int32))  # noqa: E731
    compiled_store("abs(l.x - r.x) <= 1", numbers(3000, seed, x=skewed), numbers(3000, seed + 1, x=skewed), window)


def test_a_second_process_compiles_nothing(tmp_path):
    """The machine code is found beside the source, which is named by its content."""
    program = """
import numpy as np, pyarrow as pa, counterflow as cf
from counterflow.windows.compiled import build
n = 30_000
t = pa.table({"ts": pa.array(range(n)), "k": pa.array(np.arange(n) % 997)})
print(len(cf.window_join(t, t, where="l.k = r.k AND l.ts < r.ts + CONSTANT", time="ts", window=cf.rows(10))))
assert build.TIMES.modules == 2
"""

    def run(constant):
        environment = {"COUNTERFLOW_CACHE_DIR": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", program.replace("CONSTANT", str(constant))],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        files = {p.name: p.stat().st_mtime_ns for p in tmp_path.rglob("counterflow_*") if p.suffix in (".py", ".nbc")}
        return done.stdout, files

    first, second = run(5), run(5)
    assert first == second and len(first[1]) > 4
    assert run(6)[1] == first[1]  # another constant, the same code


def test_a_large_table_join_in_parallel():
    """Both windows are filled and searched at the same time, by threads that share nothing: always the same pairs."""
    columns = dict(x=_integers(1, 3000), y=_floats(1, 3000))
    left, right = numbers(60_000, 1, **columns), numbers(60_000, 2, **columns)

    def pairs(**options):
        joined = cf.window_join(left, right, where=BANDS, time="ts", window=cf.rows(20_000), **options)
        return sorted(zip(joined["id"].to_pylist(), joined["id_right"].to_pylist(), strict=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUNTERFLOW_COMPILE", "never")
        expected = pairs()
    assert len(expected) > 10_000
    for batch_rows in (1000, 5000, 20_000, 70_000):
        assert pairs(engine=cf.Local(batch_rows=batch_rows)) == expected
