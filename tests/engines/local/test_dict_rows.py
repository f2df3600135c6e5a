"""Rows that are dicts: whatever comes after the first row, each value is kept as it is, or an error names it."""

from __future__ import annotations

import datetime as dt
import re
import reprlib
from decimal import Decimal

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

import counterflow as cf
from live import NEAR, RIGHT, threads_end  # noqa: F401  runs after each test

pytestmark = pytest.mark.timeout(60)

NOW = dt.datetime(2024, 5, 6, 7, 8, 9, 10)
KINDS = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.sampled_from([0.0, -0.5, 1.0, 7.9, 2.0**53, float("inf"), float("nan")]),
    "bool": st.booleans(),
    "str": st.sampled_from(["", "a", "7"]),
    "bytes": st.sampled_from([b"", b"a", b"\xff"]),
    "decimal": st.sampled_from([Decimal("1.5"), Decimal("-20.25")]),
    "datetime": st.sampled_from([NOW, NOW.replace(hour=0, minute=0, second=0, microsecond=0)]),
    "zoned": st.sampled_from([NOW.replace(tzinfo=dt.UTC), NOW.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))]),
    "date": st.just(NOW.date()),
    "null": st.none(),
}
KINDS["list"] = st.lists(st.one_of(KINDS["int"], KINDS["float"], st.none()), max_size=3)
KINDS["struct"] = st.dictionaries(st.sampled_from("uv"), st.one_of(KINDS["int"], KINDS["float"]), min_size=1)
TYPES = [
    pa.int64(), pa.int8(), pa.uint64(), pa.float64(), pa.float32(), pa.bool_(), pa.string(), pa.large_string(),
    pa.binary(), pa.decimal128(6, 2), pa.timestamp("us"), pa.timestamp("s"), pa.timestamp("us", "Europe/Berlin"),
    pa.date32(), pa.list_(pa.int64()), pa.list_(pa.float64()), pa.struct({"u": pa.int64()}),
    pa.struct({"u": pa.float64(), "v": pa.int64()}), pa.dictionary(pa.int32(), pa.string()),
]  # fmt: skip


def batches(items, **options):
    """All rows of a stream of these items, as they come out of a join in which none of them has a partner."""
    left, right = cf.stream(iter(items), **options), cf.stream([], schema=RIGHT[0].schema)
    return cf.window_join(left, right, where="l.id = -r.id - 1", time="t", window=10, how="anti", ordered=True)


def joined(items, **options):
    return [row for batch in batches(items, **options) for row in batch.to_pylist()]


def is_kept(value, kept, type_) -> bool:
    """The oracle: the same value, of the same kind; only numbers may change theirs, and only if they are equal."""
    if isinstance(value, dict):
        return value.keys() == kept.keys() and all(is_kept(value[k], kept[k], None) for k in value)
    if isinstance(value, list):
        return len(value) == len(kept) and all(is_kept(v, k, None) for v, k in zip(value, kept, strict=True))
    if type_ == pa.float32() and type(value) is float:
        return kept == float(np.float32(value)) or (value != value and kept != kept)  # rounded, as its type says
    if type(value) in (int, float, Decimal) and type(kept) in (int, float, Decimal):
        return value == kept or (value != value and kept != kept)
    return type(value) is type(kept) and value == kept


@st.composite
def items_of(draw, per_kind=4):
    """Rows of one kind, and then perhaps one of another; each alone, or in lists."""
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2))
    values = [v for kind in kinds for v in draw(st.lists(KINDS[kind], min_size=1, max_size=per_kind))]
    rows = [{"id": i, "t": i, "x": value} for i, value in enumerate(values)]
    items, at = [], 0
    while at < len(rows):
        n = draw(st.integers(0, 3))
        items.append(rows[at] if n == 0 else rows[at : at + n])
        at += n or 1
    return rows, items


@settings(max_examples=400, deadline=None)
@example(drawn=([ROW := {"id": 0, "t": 0, "x": [2**53 + 1, 0.0]}], [ROW]), type_=None)  # together they have no type
@example(drawn=([ONE := {"id": 0, "t": 0, "x": [0]}, ROW], [[ONE, ROW]]), type_=None)  # but that of the first fits
@given(drawn=items_of(), type_=st.one_of(st.none(), st.sampled_from(TYPES)))
def test_a_value_is_kept_or_named(drawn, type_):
    rows, items = drawn
    schema = None if type_ is None else pa.schema({"id": pa.int64(), "t": pa.int64(), "x": type_})
    try:
        got = [kept for batch in batches(items, schema=schema) for kept in batch["x"]]
    except cf.CounterflowError as error:
        named = re.search(r"row (\d+), column 'x'", str(error))
        assert named, error
        assert reprlib.repr(rows[int(named[1])]["x"]) in str(error)
        assert ("schema=" in str(error)) and str(error).startswith("the left stream: item ")
    else:
        assert len(got) == len(rows)
        for row, kept in zip(rows, got, strict=True):
            value, temporal = row["x"], type_ is not None and pa.types.is_temporal(type_)
            if type(value) is int and temporal:  # with a schema, an integer in the column's own unit
                assert kept.value == value
            else:
                assert is_kept(value, kept.as_py(), type_), (row, kept)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"struct", "zoned"}))
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_rows_of_one_kind_are_accepted(kind, data):
    """A stream whose values are all of one kind, or None after the first, needs no schema."""
    values = data.draw(st.lists(KINDS[kind], min_size=1, max_size=5))
    if kind == "list":
        values = [[1.5], *([float(v) for v in value if v is not None] for value in values)]
    if kind == "decimal":
        values = [Decimal("-20.25"), *values]
    got = joined([{"id": i, "t": i, "x": value} for i, value in enumerate([*values, None])])
    assert all(is_kept(value, row["x"], None) for value, row in zip([*values, None], got, strict=True))


def test_numbers_are_widened_exactly_or_refused():
    base = {"id": 0, "t": 0, "x": 1.5}
    assert [row["x"] for row in joined([base, {**base, "x": 2**53}])] == [1.5, float(2**53)]
    assert [row["x"] for row in joined([[base, {**base, "x": 3}]])] == [1.5, 3.0]
    assert [row["x"] for row in joined([{**base, "x": 1}, {**base, "x": 2.0}])] == [1, 2]
    for wrong in (2**53 + 1, -(2**53) - 1):
        with pytest.raises(cf.InputError, match=rf"row 1, column 'x': {wrong} \(int\) does not fit double"):
            joined([base, {**base, "x": wrong}])
    with pytest.raises(cf.InputError, match=r"row 2, column 'x': 1.9 \(float\) does not fit int64.*schema="):
        joined([[{**base, "x": 1}, {**base, "x": 2}], [{**base, "x": 1.9}]])
    schema = pa.schema({"id": pa.int64(), "t": pa.int64(), "x": pa.float32()})
    assert [row["x"] for row in joined([{**base, "x": 0.1}], schema=schema)] == [pytest.approx(0.1)]
    with pytest.raises(cf.InputError, match=r"1e\+300 .float. does not fit float, which schema= of cf.stream"):
        joined([{**base, "x": 1e300}], schema=schema)


@pytest.mark.parametrize("given_schema", [False, True])
@pytest.mark.parametrize("in_lists", [False, True])
def test_every_row_has_the_same_keys(given_schema, in_lists):
    """With a schema and without: an explicit None is NULL, an absent key and a new one are errors."""
    schema = pa.schema({"id": pa.int64(), "t": pa.int64(), "speed": pa.float64()}) if given_schema else None
    first = {"id": 0, "t": 0, "speed": 1.5}

    def after_first(row):
        return joined([[first, row]] if in_lists else [first, row], schema=schema)

    assert after_first({"speed": None, "t": 1, "id": 1})[1]["speed"] is None
    assert after_first({"t": 1, "speed": 2.5, "id": 1})[1] == {"id": 1, "t": 1, "speed": 2.5, "pair_time": 1}
    with pytest.raises(
        cf.ColumnError, match=r"the left stream: item . \(\w+\): row 1 has no key 'speed' .it has id, t"
    ):
        after_first({"id": 1, "t": 1})
    with pytest.raises(cf.ColumnError, match=r"row 1 has a key 'flag' that the stream does not have.*schema="):
        after_first({**first, "flag": True})
    with pytest.raises(cf.ColumnError, match=r"row 1 has no key 'speed', and a key 'sped'.*did you mean 'speed'"):
        after_first({"id": 1, "t": 1, "sped": 2.5})
    with pytest.raises(cf.InputError, match="row 1 is an empty dict"):
        after_first({})


def test_a_list_of_dicts_and_something_else():
    with pytest.raises(cf.InputError, match="row 1 is a NoneType: expected a dict"):
        joined([[{"id": 0, "t": 0}, None]])
    with pytest.raises(cf.InputError, match=r"row 0, column 'x': 9{20} \(int\) has no Arrow type"):
        joined([{"id": 0, "t": 0, "x": int("9" * 20)}])
    with pytest.raises(cf.InputError, match=r"row 1, column 'x': 'a' .str. does not fit int64"):
        joined([[{"id": 0, "t": 0, "x": 1}, {"id": 0, "t": 0, "x": "a"}]])


def test_nested_keys_are_columns_too():
    """What a struct lacks, or has too many of, is an error of its column."""
    rows = [{"id": i, "t": i, "x": {"u": i, "v": 1.5}} for i in range(3)]
    assert [row["x"] for row in joined(rows)] == [row["x"] for row in rows]
    for wrong in ({"u": 1}, {"u": 1, "v": 1.5, "w": 2}, {"u": 1, "w": 1.5}, {"u": "a", "v": 1.5}):
        for items in ([*rows, {**rows[2], "x": wrong}], [[*rows, {**rows[2], "x": wrong}]]):
            with pytest.raises(cf.InputError, match="column 'x'"):
                joined(items)
    wider = {**rows[2], "x": {"u": 1.5, "v": 1.5}}
    assert joined([[*rows, wider]])[3]["x"] == wider["x"]  # rows that come together are looked at together
    with pytest.raises(
        cf.InputError, match=r"row 3, column 'x': \{'u': 1.5, 'v': 1.5\} .dict. does not fit struct<u: int64"
    ):
        joined([rows, wider])


def test_two_streams_of_a_side_have_one_schema():
    """The second stream's dicts are held to what the first one's told."""
    streams = [cf.stream([{"id": 0, "t": 0, "x": 1}]), cf.stream([{"id": 1, "t": 1, "x": 1.5}])]
    with pytest.raises(cf.InputError, match=r"left stream 2 of 2: item 0 .*row 0, column 'x': 1.5"):
        list(cf.window_join(streams, cf.stream(RIGHT), **NEAR))
