"""Columns of several time zones: one predicate reads all wall clocks in one zone.

Oracle test: the zone and the wall clocks are recomputed here with `zoneinfo`, and the pairs from them, so that a zone
which the binder gives to everybody alike is noticed too.
"""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec
from effort import THOROUGH, examples
from interpreted import SEARCHES, searching

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"]
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

# What is compared, on the wall clocks of both rows; and the columns that it uses.
CONDITIONS = {
    "hour(l.z) = hour(r.z)": (lambda a, b: a.hour == b.hour, "both"),
    "hour(l.z) < hour(r.z)": (lambda a, b: a.hour < b.hour, "both"),
    "hour(l.z) = 13 AND r.id >= 0": (lambda a, b: a.hour == 13, "left"),
    "r.n <> l.id + 900 AND dayofyear(r.z) = 2": (lambda a, b: b.timetuple().tm_yday == 2, "right"),
    "hour(l.z) + 0 * r.id = 12 AND r.z IS NOT NULL": (lambda a, b: a.hour == 12, "both"),
    "CAST(l.z AS TIMESTAMP_NTZ) = CAST(r.z AS TIMESTAMP_NTZ)": (lambda a, b: a == b, "both"),
    "CAST(l.z AS STRING) <=> CAST(r.z AS STRING)": (lambda a, b: a == b, "both"),
    "to_date(l.z) < CAST(r.z AS DATE)": (lambda a, b: a.date() < b.date(), "both"),
    "TRY_CAST(l.z AS DATE) = r.z::date OR minute(l.z) > minute(r.z)": (
        lambda a, b: a.date() == b.date() or a.minute > b.minute,
        "both",
    ),
    "l.z > '2024-01-02 00:00:00' AND r.id >= 0": (lambda a, b: a > dt.datetime(2024, 1, 2), "left"),
    "abs(hour(l.z) - hour(r.z)) <= 1": (lambda a, b: abs(a.hour - b.hour) <= 1, "both"),
}


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Arrival times, and the minutes after START that `z` is at."""
    arrivals = sorted(draw(st.lists(st.integers(0, 9), min_size=1, max_size=6)))
    return [(t, draw(st.integers(0, 2 * 24 * 4)) * 15) for t in arrivals]


def table_of(given_rows: list[tuple[int, int]], zone: str, unused: str) -> pa.Table:
    moments = [START + dt.timedelta(minutes=m) for _, m in given_rows]
    return pa.table(
        {
            "id": list(range(len(given_rows))),
            "t": pa.array([t for t, _ in given_rows], pa.int64()),
            "z": pa.array(moments, pa.timestamp("us", zone)),
            "unused": pa.array(moments, pa.timestamp("us", unused)),
            "n": pa.array([m for _, m in given_rows], pa.int64()),
        }
    )


def pairs_by_hand(where: str, left: pa.Table, right: pa.Table, window: int) -> list[tuple[int, int]]:
    holds, used = CONDITIONS[where]
    zones = {t["z"].type.tz for t, name in ((left, "left"), (right, "right")) if used in (name, "both")}
    zone = ZoneInfo(zones.pop() if len(zones) == 1 else "UTC")

    def clocks(table: pa.Table) -> list[dt.datetime]:
        return [(START + dt.timedelta(minutes=n)).astimezone(zone).replace(tzinfo=None) for n in table["n"].to_pylist()]

    return [
        (i, j)
        for i, (a, s) in enumerate(zip(clocks(left), left["t"].to_pylist(), strict=True))
        for j, (b, t) in enumerate(zip(clocks(right), right["t"].to_pylist(), strict=True))
        if abs(s - t) <= window and holds(a, b)
    ]


def ids(table: pa.Table) -> list[tuple[int, int]]:
    return sorted(zip(table["id"].to_pylist(), table["id_right"].to_pylist(), strict=True))


def streamed(table: pa.Table) -> cf.Stream:
    return cf.stream(iter(table.to_batches(max_chunksize=2)), schema=table.schema)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("where", CONDITIONS)
@settings(max_examples=examples(45), deadline=None)
@given(
    left=rows(),
    right=rows(),
    zones=st.tuples(*[st.sampled_from(ZONES)] * 4),
    live=st.booleans(),
    batch_rows=st.integers(1, 8),
)
def test_one_zone_for_both_sides(where, search, left, right, zones, live, batch_rows):
    """Whichever row came first, on tables and on streams, with numpy and with kernels."""
    tables = table_of(left, zones[0], zones[2]), table_of(right, zones[1], zones[3])
    want = pairs_by_hand(where, *tables, window=5)
    spec = build_spec(*(t.schema for t in tables), where=where, time="t", window=5)
    assert sorted((a, b) for a, b, _ in reference_pairs(spec, *tables)) == want
    with searching(search):
        inputs = map(streamed, tables) if live else tables
        engine = cf.Local(batch_rows=batch_rows)
        joined = cf.window_join(*inputs, where=where, time="t", window=5, engine=engine)
        found = pa.Table.from_batches(list(joined), schema=joined.schema) if live else joined
    assert ids(found) == want


@pytest.mark.parametrize("where", list(CONDITIONS)[:: 1 if THOROUGH else 4])
def test_one_zone_in_machine_code(where, monkeypatch):
    """Really compiled, in a window and on threads."""
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "always")
    moments = [(0, 0), (1, 12 * 60), (2, 23 * 60), (3, 25 * 60 + 15), (3, 12 * 60), (4, 36 * 60)]
    left, right = table_of(moments, "Europe/Berlin", "UTC"), table_of(moments[::-1], "America/New_York", "UTC")
    right = right.set_column(1, "t", left["t"])
    want = pairs_by_hand(where, left, right, window=5)
    assert want
    for engine in (cf.Local("kang"), cf.Local("llhj", workers=2)):
        assert ids(cf.window_join(left, right, where=where, time="t", window=5, engine=engine)) == want
