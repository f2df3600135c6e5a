"""Implied bounds: what they are for the forms that people write, and that they never reject a pair."""

from __future__ import annotations

import math
from decimal import Decimal

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.predicate.great_circle import haversine
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec
from counterflow.windows.access import choose_path
from counterflow.windows.key_columns import KEY_COLUMNS
from effort import examples
from interpreted import SEARCHES, searching

SCHEMA = pa.schema(
    {
        "ts": pa.int64(),
        "x": pa.float64(),
        "y": pa.float64(),
        "n": pa.int32(),
        "f": pa.float32(),
        "w": pa.float64(),
        "s": pa.string(),
        "lat": pa.float64(),
        "lon": pa.float64(),
        "d": pa.decimal128(9, 2),
    }
)


def parts(where: str):
    return build_spec(SCHEMA, SCHEMA, where=where, time="ts", window=1).parts


def bounds(where: str) -> dict[str, tuple[float, float]]:
    """The implied bounds, by the difference they are of, rounded."""
    found = {}
    for bound in parts(where).implied:
        low, high = (end if end is None else float(f"{float(end):.9g}") for end in (bound.low, bound.high))
        found[f"{bound.left} - {bound.right}"] = low, high
    return found


X, Y, N = "l.x - r.x", "l.y - r.y", "l.n - r.n"
FIVE = (-5.0, 5.0)
LOGS = "log_size(l.x) - log_size(cast(r.n AS DOUBLE))"
IMPLIED = {
    "sqrt(pow(l.x - r.x, 2) + pow(l.y - r.y, 2)) <= 5": {X: FIVE, Y: FIVE},
    "sqrt((l.x - r.x) * (l.x - r.x) + (l.y - r.y) * (l.y - r.y)) <= 5": {X: FIVE, Y: FIVE},
    "pow(l.x - r.x, 2) + pow(l.y - r.y, 2) + pow(l.n - r.n, 2) <= 25": {X: FIVE, Y: FIVE, N: FIVE},
    "hypot(l.x - r.x, r.y - l.y) < 5": {X: FIVE, Y: FIVE},
    "abs(l.x - r.x) + abs(l.y - r.y) <= 5": {X: FIVE, Y: FIVE},
    "greatest(abs(l.x - r.x), abs(l.y - r.y)) <= 5": {X: FIVE, Y: FIVE},
    "5 >= 2 * hypot(l.x - r.x, l.y - r.y)": {X: (-2.5, 2.5), Y: (-2.5, 2.5)},
    "degrees(radians(l.x) - radians(r.x)) BETWEEN -5 AND 5": {
        "radians(l.x) - radians(r.x)": (-0.0872664626, 0.0872664626)
    },
    "sqrt(abs(l.x - r.x + 1)) <= 2": {X: (-5.0, 3.0)},
    "abs(l.x - r.x) <= 1 OR abs(l.x - r.x) <= 5": {X: FIVE},
    "l.x - r.x BETWEEN -5 AND 1 OR (l.x - r.x BETWEEN 4 AND 5 AND l.n = r.n)": {X: FIVE},
    "NOT (l.x - r.x > 5 OR l.x - r.x < -5)": {X: FIVE},
    "CASE WHEN l.s = r.s THEN abs(l.x - r.x) ELSE 2 * abs(l.x - r.x) END <= 5": {X: FIVE},
    "CASE WHEN l.s = r.s THEN abs(l.x - r.x) ELSE 1e9D END <= 5": {X: FIVE},
    "abs(l.n - r.n) IN (1, 5)": {N: FIVE},
    "abs(l.n - r.n) = 5": {N: FIVE},
    "exp(abs(l.x - r.x)) <= exp(5)": {},  # a function of constants is not a constant here
    "exp(abs(l.x - r.x)) <= 148.4131591025766D": {X: FIVE},
    "asin(abs(l.x - r.x) / 10) <= 0.5235987755982989D": {X: FIVE},
    "abs(l.x - r.x) / 2 <= 2.5": {X: FIVE},
    "abs(l.x - r.x) <= 5 OR l.n = r.n": {},
    "abs(l.x - r.x) / l.y <= 5": {},  # a row with l.y = 0 has to end in an error
    "abs(l.x - r.x) + CAST(l.s AS INT) <= 5": {},
    "abs(l.x - r.x) >= 5": {},
    "-abs(l.x - r.x) >= -5": {},  # NaN is more than any number, and so would any NaN be here
    "-abs(l.n - r.n) >= -5": {N: FIVE},
    "abs(l.x - r.x) + l.y <= 5": {},  # l.y may be anything
    "abs(l.x - r.x) + cos(l.y) <= 4": {X: FIVE},
    "l.x / r.x BETWEEN 0.5D AND 2": {"log_size(l.x) - log_size(r.x)": (-0.693147181, 0.693147181)},
    "r.n / l.x > 0.25D AND r.n / l.x < 0.5D": {LOGS: (0.693147181, 1.38629436)},
    "l.x / r.x <= 2": {},  # it may be negative
    "abs(l.x - r.x) <= 1e308": {},  # a key and that might be beyond a DOUBLE
    "abs(l.x - r.x) BETWEEN 0 AND 1e30": {},
}


@pytest.mark.parametrize("where", IMPLIED)
def test_bounds(where):
    assert bounds(where) == IMPLIED[where]


CIRCLES = [
    "haversine(l.lat, l.lon, r.lat, r.lon) <= 10000",
    "2 * 6371008.8D * asin(sqrt(pow(sin(radians(l.lat - r.lat) / 2), 2) + cos(radians(l.lat)) * cos(radians(r.lat)) "
    "* pow(sin(radians(l.lon - r.lon) / 2), 2))) <= 10000",
    "6371008.8D * 2 * atan2(sqrt({a}), sqrt(1 - ({a}))) <= 10000".format(
        a="sin((radians(r.lat) - radians(l.lat)) * 0.5) * sin((radians(r.lat) - radians(l.lat)) * 0.5) + "
        "sin((radians(r.lon) - radians(l.lon)) * 0.5) * sin((radians(r.lon) - radians(l.lon)) * 0.5) "
        "* cos(radians(r.lat)) * cos(radians(l.lat))"
    ),
    "6371008.8D * acos(least(1D, sin(radians(l.lat)) * sin(radians(r.lat)) + cos(radians(l.lat)) * "
    "cos(radians(r.lat)) * cos(radians(r.lon) - radians(l.lon)))) <= 10000",
]


@pytest.mark.parametrize("where", CIRCLES)
def test_distances_on_a_sphere_have_three_bands(where):
    found = parts(where).implied
    assert [band.is_band for band in found] == [True] * 3
    assert all(math.isclose(float(band.high), 10_000 / 6_371_008.8, rel_tol=1e-3) for band in found)


def test_a_width_of_one_side_is_in_that_side_s_key():
    found = parts("abs(l.n - r.n) <= l.n % 5").implied
    assert [str(bound) for bound in found] == ["(l.n - (l.n % 5)) - r.n <= 0", "0 <= (l.n + (l.n % 5)) - r.n"]
    assert len(parts("sqrt(pow(l.x - r.x, 2) + pow(l.y - r.y, 2)) <= r.w").implied) == 4
    assert parts("abs(l.x - r.x) <= l.w * r.w").implied == []


# --- they never reject a pair

NUMBERS = [0.0, -0.0, 1.0, 1.5, -2.0, 3.0, 4.999999999999999, 1e-200, 1e300, -1e300, math.nan, math.inf, -math.inf]
LATITUDES = [0.0, 90.0, -90.0, 89.999999, 45.0, 45.00001, -45.0, 500.0, math.nan, 1e9]
AMOUNTS = [Decimal(text) for text in ("0.00", "1.00", "1.01", "2.00", "-0.05", "9999999.99")]
LONGITUDES = [0.0, 180.0, -180.0, 179.99999, -179.99999, 90.0, 540.0, 1e300, math.inf]


def _or_none(values):
    return st.one_of(st.none(), st.sampled_from(values))


ROWS = st.lists(
    st.tuples(
        _or_none(NUMBERS), _or_none(NUMBERS), _or_none([0, 1, 2, 3, 5, 2**31 - 1, -(2**31)]),
        _or_none([0.0, 0.1, 1.0, 1e-30, 3e38, math.nan]), _or_none([0.0, 1.0, 2.5, -1.0, 1e300, math.nan, math.inf]),
        _or_none(["a", "b"]), _or_none(LATITUDES), _or_none(LONGITUDES), _or_none(AMOUNTS),
    ),
    max_size=7,
)  # fmt: skip

differences = st.sampled_from(
    [
        "l.x - r.x",
        "r.y - l.y",
        "l.n - r.n",
        "l.f - r.f",
        "l.d - r.d",
        "(l.d - r.d) / 3",
        "(r.d - l.d) * 0.000001",
        "l.x - r.n + 1",
        "l.x * 2 - r.y",
        "radians(l.x) - radians(r.x)",
    ]
)
sizes = st.sampled_from(
    [
        *("0", "1", "1.5D", "5", "-1", "1e-3", "1e300", "1e308", "0.1F", "0.333333", "double('NaN')", "double('inf')"),
        *("1e16D + 3D - 1e16D", "16777216F + 3F - 16777216F", "1e308D * 10D"),
    ]
)
one_sided = st.sampled_from(["l.w", "r.w", "r.n", "0.5 * l.w", "abs(r.y)", "r.w + l.w", "l.f", "r.d / 3"])


def _values(inner):
    return st.one_of(
        st.builds("abs({})".format, inner),
        st.builds("pow({}, {})".format, inner, st.sampled_from(["2", "3", "0.5", "1", "-1"])),
        st.builds("({0}) * ({0})".format, inner),
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["+", "-"]), inner),
        st.builds("sqrt({})".format, inner),
        st.builds("-({})".format, inner),
        st.builds("{} * ({})".format, st.sampled_from(["2", "-0.5D", "cos(l.y)"]), inner),
        st.builds("hypot({}, {})".format, inner, inner),
        st.builds("{}({}, {})".format, st.sampled_from(["greatest", "least", "coalesce"]), inner, inner),
        st.builds("CASE WHEN l.s = r.s THEN {} ELSE {} END".format, inner, inner),
        st.builds("{}({})".format, st.sampled_from(["exp", "ln", "atan", "asin", "acos", "radians", "cbrt"]), inner),
        st.builds("haversine(l.lat, l.lon, r.lat, {})".format, st.sampled_from(["r.lon", "l.lon"])),
    )


values = st.recursive(differences, _values, max_leaves=4)
comparisons = st.builds(
    "({}) {} ({})".format, values, st.sampled_from(["<=", "<", ">=", "=", "<=>"]), st.one_of(sizes, one_sided)
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.sampled_from(["l.x / nullif(r.y, 0) BETWEEN 0.5D AND 1.5D", "l.n / nullif(r.w, 0) > 0.5D"]),
        st.builds("({}) OR ({})".format, inner, inner),
        st.builds("({}) AND ({})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=3,
)


def table(rows) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 9
    data = {name: list(values) for name, values in zip(SCHEMA.names[1:], columns, strict=True)}
    return pa.table({"ts": [1] * len(rows), **data}, schema=SCHEMA).append_column("id", pa.array(range(len(rows))))


ROUNDED = [
    "abs(l.d - r.d) / 3 <= 0.333333",
    "abs(l.d - r.d) / 3 = 0.333333",
    "abs(l.d - r.d) / 3 <= l.d / 3",
    "abs(l.d - r.d) * 0.000000000000000000000000000000000001 <= 0",
    "abs(l.x - r.x) <= 1e16D + 3D - 1e16D",
    "abs(l.f - r.f) <= 16777216F + 3F - 16777216F",
    "abs(l.x - r.x) <= 1e308D * 10D",
    "abs(l.x - r.x) + pow(sqrt(l.y), -1) <= 2",
]


@pytest.mark.parametrize("where", ROUNDED)
def test_what_an_operation_rounds_is_no_pair_less(where):
    """A DECIMAL rounds to its last digit, a constant of DOUBLE or FLOAT in its type; 1 / -0.0 is minus infinity."""
    near = (4.0, -0.0, 1, 4.0, 1.0, "a", 0.0, 0.0, Decimal("1.00"))
    origin = (0.0, -0.0, 0, 0.0, 1.0, "a", 0.0, 0.0, Decimal("0.00"))
    far = (500.0, -0.0, 500, 500.0, 1.0, "a", 0.0, 0.0, Decimal("500.00"))
    left, right = table([near] + [far] * 40), table([origin] + [far] * 40)
    spec = build_spec(left.schema, right.schema, where=where, time="ts", window=None)
    want = sorted((le, ri) for le, ri, _ in reference_pairs(spec, left, right))
    got = cf.window_join(left, right, where=where, time="ts", window=None)
    assert (0, 0) in want
    assert sorted(zip(got["id"].to_pylist(), got["id_right"].to_pylist(), strict=True)) == want


@settings(max_examples=examples(1500), deadline=None)
@given(left=ROWS, right=ROWS, where=conditions, search=st.sampled_from(SEARCHES))
def test_no_pair_is_rejected(left, right, where, search):
    left, right = table(left), table(right)
    spec = build_spec(left.schema, right.schema, where=where, time="ts", window=None)
    want = sorted((le, ri) for le, ri, _ in reference_pairs(spec, left, right))
    with searching(search):
        got = cf.window_join(left, right, where=where, time="ts", window=None, engine=cf.Local(batch_rows=3))
    assert sorted(zip(got["id"].to_pylist(), got["id_right"].to_pylist(), strict=True)) == want


@settings(max_examples=examples(200), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    metres=st.sampled_from([0.0, 1e-3, 10.0, 1e4, 1e6, 1e7, 2e7, 2.1e7]),
    where=st.sampled_from(CIRCLES),
    search=st.sampled_from(SEARCHES),
)
def test_points_near_each_other_anywhere(seed, metres, where, search):
    """Pairs about as far apart as is asked for, at the poles and across the date line as well."""
    rng = np.random.default_rng(seed)
    lat = np.degrees(np.arcsin(rng.uniform(-1, 1, 40)))
    lon = rng.uniform(-180, 180, 40)
    lat[:10], lon[10:20] = rng.choice([90.0, -90.0, 89.9999999], 10), rng.choice([180.0, -180.0], 10)
    step = metres / 6_371_008.8 * 180 / np.pi * rng.uniform(0.9, 1.1, 40)
    angle = rng.uniform(0, 2 * np.pi, 40)
    moved = np.clip(lat + step * np.cos(angle), -90, 90)
    turned = lon + step * np.sin(angle) / np.maximum(np.cos(np.radians(lat)), 1e-6)
    turned = (turned + 180) % 360 - 180
    left = pa.table({"ts": [1] * 40, "id": range(40), "lat": lat, "lon": lon})
    right = pa.table({"ts": [1] * 40, "id": range(40), "lat": moved, "lon": turned})
    where = where.replace("10000", repr(metres) + "D")
    spec = build_spec(left.schema, right.schema, where=where, time="ts", window=None)
    want = sorted((le, ri) for le, ri, _ in reference_pairs(spec, left, right))
    with searching(search):
        got = cf.window_join(left, right, where=where, time="ts", window=None)
    assert sorted(zip(got["id"].to_pylist(), got["id_right"].to_pylist(), strict=True)) == want


# --- texts

BY_TEXT = {  # by what rows are found
    "starts_with(l.s, r.p)": "overlap on text_place(l.s)",
    "startswith(l.s, r.p) = true": "overlap on text_place(l.s)",
    "NOT startswith(l.s, r.p) = false": "scan",
    "l.s LIKE r.p || '%'": "overlap on text_place(l.s)",
    "l.s LIKE concat(r.p, '%')": "overlap on text_place(l.s)",
    "lower(l.s) LIKE concat(lower(r.p), '%')": "overlap on text_place(lower(l.s))",
    "l.s ILIKE r.p || '%'": "overlap on text_place(lower(l.s))",
    "l.s LIKE '%' || r.p": "overlap on text_place(reverse(l.s))",
    "l.s ILIKE concat('%', r.p)": "overlap on text_place(reverse(lower(l.s)))",
    "ends_with(l.s, r.p)": "overlap on text_place(reverse(l.s))",
    "locate(r.p, l.s) = 1": "overlap on text_place(l.s)",
    "1 = instr(l.s, r.p)": "overlap on text_place(l.s)",
    "position(r.p IN l.s) = 1": "overlap on text_place(l.s)",
    "left(l.s, length(r.p)) = r.p": "overlap on text_place(l.s)",
    "r.p = right(l.s, length(r.p))": "overlap on text_place(reverse(l.s))",
    "substring(l.s, 1, length(r.p)) = r.p": "overlap on text_place(l.s)",
    "SUBSTRING(l.s FROM 0 FOR char_length(r.p)) = r.p": "overlap on text_place(l.s)",
    "startswith(initcap(l.s), r.p || '')": "overlap on text_place(initcap(l.s))",
    "left(l.s, 3) = r.p": "hash on left(l.s, 3)",
    "substring(l.s, 1, 3) = r.p": "hash on substring(l.s, 1, 3)",
    "right(l.s, 2) = r.p": "hash on right(l.s, 2)",
    "split_part(l.s, '%', 1) = r.p": "hash on split_part(l.s, '%', 1)",
    "instr(l.s, r.p) IN (1)": "overlap on text_place(l.s)",
    # what says nothing of the begin
    "left(l.s, length(r.p)) <=> r.p": "scan",  # two NULLs match
    "instr(l.s, r.p) = 2": "scan",
    "locate(r.p, l.s, 2) = 1": "scan",
    "position(r.p, l.s, r.n) = 1": "scan",
    "left(l.s, length(r.p) - 1) = r.p": "scan",
    "contains(l.s, r.p)": "scan",
    "l.s LIKE r.p": "overlap on text_place(l.s)",
    "l.s LIKE r.p ESCAPE '!'": "overlap on text_place(l.s)",
    "l.s LIKE '_' || r.p": "overlap on text_place(reverse(l.s))",
}
TEXT_SCHEMA = pa.schema({"id": pa.int64(), "ts": pa.int64(), "s": pa.string(), "p": pa.string(), "n": pa.int32()})


@pytest.mark.parametrize("where", BY_TEXT)
def test_access_path_of_texts(where):
    found = build_spec(TEXT_SCHEMA, TEXT_SCHEMA, where=where, time="ts", window=1).parts
    assert choose_path(found, "left").name == BY_TEXT[where]


LETTERS = "aAbß%_!İΣ日🦆\x00\uffff\U0010ffff"
TEXT_ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.text(LETTERS, max_size=9)),
        st.one_of(st.none(), st.text(LETTERS, max_size=8)),
        st.one_of(st.none(), st.integers(-1, 3)),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(600), deadline=None)
@given(left=TEXT_ROWS, right=TEXT_ROWS, where=st.sampled_from(list(BY_TEXT)), search=st.sampled_from(SEARCHES))
def test_no_text_is_rejected(left, right, where, search):
    def texts(rows, others):
        # Some begin and end as a text of the other side does.
        found = [
            (s if i % 3 else (others[i % len(others)][1] or "") + (s or ""), p, n) for i, (s, p, n) in enumerate(rows)
        ]
        found += [((s or "") + (others[0][1] or ""), p, n) for s, p, n in rows[:2]]
        columns = list(zip(*found, strict=True))
        data = {"id": range(len(found)), "ts": [1] * len(found), "s": columns[0], "p": columns[1], "n": columns[2]}
        return pa.table({name: pa.array(values, TEXT_SCHEMA.field(name).type) for name, values in data.items()})

    tables = texts(left, right), texts(right, left)
    spec = build_spec(TEXT_SCHEMA, TEXT_SCHEMA, where=where, time="ts", window=None)
    try:
        want = sorted((le, ri) for le, ri, _ in reference_pairs(spec, *tables))
    except cf.EvaluationError:  # a pattern that ends with its escape character
        with searching(search), pytest.raises(cf.EvaluationError):
            cf.window_join(*tables, where=where, time="ts", window=None)
        return
    with searching(search):
        got = cf.window_join(*tables, where=where, time="ts", window=None, engine=cf.Local(batch_rows=3))
    assert sorted(zip(got["id"].to_pylist(), got["id_right"].to_pylist(), strict=True)) == want


@settings(deadline=None)
@given(st.text("a\ud800\udfff🦆\uffff", max_size=9), st.text("a\ud800\udfff🦆\uffff", max_size=9), st.integers(0, 9))
def test_places_of_texts_with_surrogates(text, other, letters):
    """Arrow has none of them; the keys take them all the same."""
    for prefix in (text[:letters], other):
        first, last = (KEY_COLUMNS[name](np.array([prefix], object))[0] for name in ("text_place", "text_place_last"))
        if text.startswith(prefix):
            assert first <= KEY_COLUMNS["text_place"](np.array([text], object))[0] <= last


def test_haversine():
    assert haversine(0.0, 0.0, 0.0, 180.0) == pytest.approx(math.pi * 6_371_008.8)
    assert haversine(90.0, 0.0, -90.0, 77.0) == pytest.approx(math.pi * 6_371_008.8)
    assert haversine(52.5, 13.4, 48.85, 2.35) == pytest.approx(877_500, rel=1e-3)
    assert math.isnan(haversine(math.inf, 0.0, 0.0, 0.0)) and math.isnan(haversine(0.0, math.nan, 0.0, 0.0))
