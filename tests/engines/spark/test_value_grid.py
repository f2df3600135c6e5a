"""Where layout `band` sends rows, by the code that Spark runs: rows are packed, and looked for in the cells.

Oracle test: any two rows that satisfy the predicate (by `reference`) meet in exactly one cell that may count the pair,
rows that are decided somewhere are there once, with all their partners, and each row is counted once; whatever the keys
are, with a sample of the values or without.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from decimal import Decimal
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.engines.spark.cell.row_order import HOME
from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.query.late_rows import write_late_rows
from counterflow.engines.spark.query.layout import Layout, choose_layout, possible_layouts
from counterflow.engines.spark.query.routing import pack
from counterflow.engines.spark.query.value_axis import BANDS_A_PLACE
from counterflow.engines.spark.state.blobs import from_blob
from counterflow.engines.spark.state.identity import identity_of
from counterflow.spec.join_spec import JoinSpec, build_spec
from effort import examples
from inputs import BENCHMARK, benchmark_inputs
from oracle import HOWS, expected

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
SPECIAL = [None, float("nan"), float("inf"), -float("inf"), -0.0, 1e300, -1e300, 1e9]

# By its type: the values of a column, near enough to each other to meet, and far enough to be in many places.
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy]] = {
    "x": (pa.int64(), st.one_of(st.none(), st.integers(-40, 40), st.sampled_from([-(2**62), 2**62, 2**62 - 7]))),
    "n": (pa.int8(), st.integers(-128, 127)),
    "f": (pa.float64(), st.one_of(st.sampled_from(SPECIAL), st.floats(-20, 20))),
    "g": (pa.float32(), st.one_of(st.sampled_from(SPECIAL[:-3]), st.floats(-20, 20, width=32))),
    "p": (pa.decimal128(10, 2), st.one_of(st.none(), st.decimals(-20, 20, places=2))),
    "q": (pa.decimal128(38, 6), st.one_of(st.just(Decimal(10) ** 30), st.decimals(-20, 20, places=6))),
    "d": (pa.date32(), st.one_of(st.none(), st.dates(dt.date(1969, 12, 1), dt.date(1970, 2, 1)))),
    "t": (pa.timestamp("us", "UTC"), st.builds(lambda s: START + dt.timedelta(seconds=s), st.floats(-60, 60))),
    "i": (pa.duration("us"), st.one_of(st.none(), st.builds(lambda s: dt.timedelta(seconds=s), st.floats(-60, 60)))),
}
WHERE = [
    "abs(l.x - r.x) <= 3",
    "l.x BETWEEN r.x - 1 AND r.x + 9 AND l.f BETWEEN r.f - 1.5 AND r.f + 1.5",
    "abs(l.x - r.x) <= 0",
    "l.x - r.x >= 5 AND l.x - r.x <= 3",
    "l.x + l.n BETWEEN r.x - 5 AND r.x + 5",
    "l.n BETWEEN r.x - 2 AND r.x + 2",
    "abs(l.f - r.f) <= 2.5",
    "l.f - r.f BETWEEN -1.5 AND 2",
    "abs(l.g - r.g) <= 1",
    "l.f BETWEEN r.g - 1 AND r.g + 1",
    "abs(l.p - r.p) <= 1.25 AND l.x < r.x",
    "abs(l.q - r.p) <= 2",
    "l.d BETWEEN r.d - 3 AND r.d + INTERVAL 2 DAYS",
    "abs(datediff(l.d, r.d)) <= 1 AND abs(l.x - r.x) <= 9",
    "l.t BETWEEN r.t - INTERVAL 5 SECONDS AND r.t + INTERVAL 1 SECOND",
    "l.i - r.i BETWEEN INTERVAL '-3' SECOND AND INTERVAL 5 SECONDS",
    "greatest(abs(l.x - r.x), abs(l.f - r.f)) <= 4",
    "CASE WHEN l.n > 0 THEN abs(l.x - r.x) ELSE 2 * abs(l.x - r.x) END <= 3",
    "sqrt(pow(l.x - r.x, 2) + pow(l.f - r.f, 2)) <= 5",
    "haversine(l.f, l.g, r.f, r.g) <= 300000",
]


@st.composite
def rows(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(0, 12))
    data = {name: draw(st.lists(values, min_size=count, max_size=count)) for name, (_, values) in COLUMNS.items()}
    arrays = {name: pa.array(data[name], kind) for name, (kind, _) in COLUMNS.items()}
    times = pa.array([START + dt.timedelta(seconds=i % 3) for i in range(count)], pa.timestamp("us", "UTC"))
    return pa.table({"id": pa.array(range(count), pa.int64()), "ts": times, **arrays})


class Cells:
    """What each cell gets of both sides: of every row whether it is at home there; and how often rows are counted."""

    def __init__(self, spec: JoinSpec, layout: Layout, left: pa.Table, right: pa.Table, batch: int = 1000) -> None:
        self.got = {"left": defaultdict(dict), "right": defaultdict(dict)}
        self.counted = {"left": Counter(), "right": Counter()}
        cell_of = {key: cell for cell, key in enumerate(layout.keys)}
        for side, table in (("left", left), ("right", right)):
            packing = pack(spec, layout, side)  # type: ignore[arg-type]
            messages = packing(iter(table.combine_chunks().to_batches(max_chunksize=batch)))
            for message in (row for part in messages for row in part.to_pylist() if row["payload"] is not None):
                table = from_blob(message["payload"])
                homes = table[HOME].to_pylist() if HOME in table.column_names else [True] * len(table)
                for row, home in zip(table["id"].to_pylist(), homes, strict=True):
                    assert row not in self.got[side][cell_of[message["cell"]]], "sent to a cell twice"
                    self.got[side][cell_of[message["cell"]]][row] = home
                    self.counted[side][row] += message["counted"]

    def meetings(self, cells: range, left: int, right: int) -> int:
        """Return in how many of the cells these two rows may be a pair."""
        sides = [(self.got["left"].get(cell, {}), self.got["right"].get(cell, {})) for cell in cells]
        return sum(left in a and right in b and (a[left] or b[right]) for a, b in sides)

    def homes(self, side: str, row: int) -> list[int]:
        return sorted(cell for cell, got in self.got[side].items() if row in got)


@settings(max_examples=examples(500), deadline=None)
@given(
    left=rows(),
    right=rows(),
    where=st.sampled_from(WHERE),
    how=st.sampled_from(HOWS),
    cells=st.integers(1, 5),
    narrow=st.booleans(),
    sampled=st.booleans(),
    rates=st.sampled_from([(1, 1), (1, 9), (9, 1)]),
)
def test_rows_meet_all_their_partners(left, right, where, how, cells, narrow, sampled, rates):
    spec = build_spec(left.schema, right.schema, where=where, time="ts", window="1 hour", how=how)
    with mock.patch.dict(BANDS_A_PLACE, {1: 1, 2: 1} if narrow else {}):
        try:
            engine = Spark(layout=f"band:{cells}", rates=rates, sample=(left, right) if sampled else None)
            layout = choose_layout(spec, engine, 2)
        except cf.OptionError as error:
            assert "none of its rows" in str(error)
            return
    assert layout.kind == "band"
    found = Cells(spec, layout, left, right)
    pairs = expected(left, right, where=where, time="ts", window=None)
    for grid in layout.grids:
        inside = range(grid.first, grid.first + grid.cells)
        assert all(found.meetings(inside, a, b) == 1 for a, b, _ in pairs)
        for side in grid.decides | ({"left"} if how == "semi" else set()):
            for row in range(len(left if side == "left" else right)):
                assert len([cell for cell in found.homes(side, row) if cell in inside]) == 1
    for side, table in (("left", left), ("right", right)):
        assert found.counted[side] == Counter(range(len(table)))
    again = Cells(spec, layout, left.take(np.arange(len(left))[::-1]), right.take(np.arange(len(right))[::-1]), batch=2)
    assert again.got == found.got, "a row's cells depend on the rows beside it"


def test_late_rows_are_written_as_they_came(tmp_path):
    """A predicate that a NULL passes over: the join marks its rows, for itself."""
    table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2], "y": [None, 2.0]})
    where = "greatest(abs(l.x - r.x), abs(l.y - r.y)) <= 3"
    spec = build_spec(table.schema, table.schema, where=where, time="ts", window="1 second")
    layout = choose_layout(spec, Spark(layout="band:2"), 1)
    blobs = [
        row["payload"] for part in pack(spec, layout, "left")(iter(table.to_batches())) for row in part.to_pylist()
    ]
    sent = [from_blob(blob) for blob in blobs if blob]
    assert all(HOME in part.column_names for part in sent)
    write_late_rows(str(tmp_path), "left", "late", pa.concat_tables(sent))
    assert pq.read_table(tmp_path / "left" / "late.parquet").column_names == table.column_names


# --- how many copies, and how even


def received(layout: Layout, spec: JoinSpec, left: pa.Table, right: pa.Table) -> np.ndarray:
    """The rows that each cell gets."""
    rows = dict.fromkeys(layout.keys, 0)
    for side, table in (("left", left), ("right", right)):
        for part in pack(spec, layout, side)(iter(table.combine_chunks().to_batches())):  # type: ignore[arg-type]
            for message in part.to_pylist():
                rows[message["cell"]] += len(from_blob(message["payload"])) if message["payload"] else 0
    return np.array([rows[key] for key in layout.keys])


def crowded(table: pa.Table, columns: dict[str, float], seed: int) -> pa.Table:
    """Half of the rows with values in this part of the range of each column, which is 1 to 10,000."""
    rng = np.random.default_rng(seed)
    half = rng.random(len(table)) < 0.5
    for name, part in columns.items():
        crowd = rng.uniform(5000, 5000 + 10_000 * part, len(table))
        if part == 0:
            crowd = np.full(len(table), 5000)
        values = np.where(half, np.floor(crowd) if name in "xa" else crowd, table[name].to_numpy())
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values).cast(table[name].type))
    return table


ONE, BOTH = ({"x": 0.01}, {"a": 0.01}), ({"x": 0.01, "y": 0.01}, {"a": 0.01, "b": 0.01})
ALIKE = ({"x": 0.0, "y": 0.0}, {})
TENTH = ({"x": 0.1, "y": 0.1}, {"a": 0.1, "b": 0.1})


@pytest.mark.parametrize(
    ("crowds", "sample_rows", "sent_max", "evenness_min"),
    [
        (({}, {}), 0, 1.15, 0.9),
        (ONE, 0, 1.15, 0.8),  # the other axis spreads them
        (TENTH, 0, 1.15, 0.8),  # 1 percent of the plane
        (({}, {}), 4000, 1.1, 0.8),
        (ONE, 4000, 1.1, 0.8),
        (BOTH, 4000, 1.4, 0.7),  # ten bands wide
        (ALIKE, 4000, 1.1, 0.7),  # what no cut divides is dealt out
    ],
)
def test_few_copies_and_even_cells(crowds, sample_rows, sent_max, evenness_min):
    def inputs(rows, seed):
        tables = benchmark_inputs(rows, 60, seed, domain=10_000)
        return [crowded(t, columns, seed) for t, columns in zip(tables, crowds, strict=True)]

    left, right = inputs(20_000, 1)
    spec = build_spec(left.schema, right.schema, where=BENCHMARK, time="ts", window="1 minute")
    sample = tuple(inputs(sample_rows, 2)) if sample_rows else None
    layout = choose_layout(spec, Spark(layout="band:16", sample=sample), 1)
    rows = received(layout, spec, left, right)
    sent, evenness = rows.sum() / 40_000, rows.mean() / rows.max()
    assert sent < sent_max and evenness > evenness_min, (sent, evenness)
    said = sum(layout.copies.values()) / 2
    assert abs(said - sent) < 0.1 * sent


# --- choosing


SCHEMA = pa.schema(
    {
        "ts": pa.timestamp("us", "UTC"),
        "x": pa.int64(),
        "y": pa.float64(),
        "k": pa.int32(),
        "b": pa.int8(),
        "s": pa.string(),
    }
)


def auto(where: str, cells: int = 8, **options) -> Layout:
    spec = build_spec(SCHEMA, SCHEMA, where=where, time="ts", window="1 minute", **options)
    return choose_layout(spec, Spark(), cells)


@pytest.mark.parametrize(
    ("where", "kind", "said"),
    [
        ("l.k = r.k AND abs(l.x - r.x) <= 5", "hash", "equal keys meet"),
        ("abs(l.x - r.x) <= 5", "band", "left rows are in the cell of their values"),
        ("sqrt(pow(l.x - r.x, 2) + pow(l.y - r.y, 2)) <= 5", "band", "left rows are in the cell"),
        ("haversine(l.x, l.y, r.x, r.y) <= 1000", "band", "left rows are in the cell"),
        ("haversine(l.x, l.y, r.x, r.y) <= 4000000", "matrix", "the values of its keys are too few"),
        ("levenshtein(l.s, r.s) <= 5", "matrix", "the values of its keys are too few"),
        ("abs(l.b - r.b) <= 5", "matrix", "the values of its keys are too few"),
        ("l.x < r.x", "matrix", "with the least copied"),
        ("l.ts BETWEEN r.ts - INTERVAL 1 SECOND AND r.ts + INTERVAL 1 SECOND", "matrix", "with the least copied"),
        ("abs(l.x / nullif(l.k, 0) - r.y) <= 5", "matrix", "with the least copied"),  # may fail
    ],
)
def test_auto_prefers_hash_then_band_then_a_matrix(where, kind, said):
    layout = auto(where)
    assert layout.kind == kind and said in layout.reason


def test_few_cells_are_a_matrix():
    layout = auto("abs(l.x - r.x) <= 5", cells=2)
    assert str(layout) == "1x2" and "not 'band': with fewer than 4 cells" in layout.reason


def test_the_side_that_is_not_copied():
    """The one that must meet all its partners; else the one with more rows, or without keys that say nothing."""

    def copied(where: str, **options) -> str:
        return " ".join(
            opposite for opposite in ("left", "right") if f"{opposite} rows copied" in str(auto(where, **options))
        )

    assert copied("abs(l.x - r.x) <= 5") == "right"
    assert copied("l.y - r.y BETWEEN -5 AND 5") == "right"
    assert copied("r.y - l.y BETWEEN -5 AND 5") == "left"  # a NaN of the left side may exceed everything
    assert copied("abs(l.x - r.x) <= 5", how="right") == "left"
    assert copied("abs(l.x - r.x) <= 5", how="anti") == "right"
    assert copied("abs(l.x - r.x) <= 5", how="full") == "left right"


def test_copies_of_the_possible_layouts():
    spec = build_spec(SCHEMA, SCHEMA, where="l.k = r.k AND abs(l.x - r.x) <= 5", time="ts", window="1 minute")
    found = {layout.kind: layout.copies for layout in possible_layouts(spec, Spark(), 16)}
    assert found == {
        "hash": {"left": 1, "right": 1},
        "band": {"left": 1, "right": 1.25},
        "matrix": {"left": 4, "right": 4},
    }


def test_a_checkpoint_knows_what_decides_where_rows_go():
    spec = build_spec(SCHEMA, SCHEMA, where="abs(l.x - r.x) <= 5", time="ts", window="1 minute")

    def fingerprint(layout: str = "band:8", values: tuple[int, ...] = (), rates=None) -> str:
        table = pa.table({"x": values})
        engine = Spark(layout=layout, rates=rates, sample=(table, table) if values else None)
        return repr(identity_of(spec, choose_layout(spec, engine, 1)))

    one, other = tuple(range(1000)), (*range(500), *[7] * 500)
    assert fingerprint(values=one) == fingerprint(values=one)
    texts = [fingerprint(), fingerprint("band:9"), fingerprint(values=one), fingerprint(values=other)]
    texts += [fingerprint(rates=(1, 2)), fingerprint("2x4")]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ((pa.table({"y": [1]}), pa.table({"x": [1]})), "the left one has no column 'x'"),
        ((pa.table({"x": [1]}), pa.table({"x": ["a"]})), "the right one has other types than the input"),
        ((pa.table({"x": [1]}), pa.table({"x": pa.array([None], pa.int64())})), "none of its rows of one side"),
        ((1, 2), "int is neither a table nor a static DataFrame"),
    ],
)
def test_samples_that_say_nothing(sample, message):
    spec = build_spec(SCHEMA, SCHEMA, where="abs(l.x - r.x) <= 5", time="ts", window="1 minute")
    with pytest.raises(cf.OptionError, match=message):
        choose_layout(spec, Spark(layout="band:4", sample=sample), 1)


def test_no_band_is_an_error_that_says_what_to_do():
    spec = build_spec(SCHEMA, SCHEMA, where="l.x < r.x", time="ts", window="1 minute")
    with pytest.raises(cf.OptionError, match=r"has none: use 'auto' or a matrix such as '2x3'"):
        choose_layout(spec, Spark(layout="band"), 4)
