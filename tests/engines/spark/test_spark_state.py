"""A cell's durable state: a function of its input, to the byte; and nothing of it is believed without a check.

Spark runs a batch again after a crash, and may keep what the first run wrote while it goes on from the second.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from dataclasses import asdict

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
import oracle
from cells import Cell, hashed
from counterflow.engines.spark.cell.row_order import TIE
from counterflow.engines.spark.state import blobs, chunks, hosts
from counterflow.engines.spark.state.blobs import to_blob
from counterflow.engines.spark.state.chunks import decode_chunk, digest_of, in_one_order, new_chunk
from counterflow.engines.spark.state.directory import FORMAT, Directory, read_directory
from counterflow.engines.spark.state.identity import identity_of
from counterflow.errors import StateError
from counterflow.predicate.expression import SIDES
from counterflow.spec.join_spec import build_spec
from inputs import tables

JOINS = {
    "inner": dict(window=("2 seconds", "3 seconds")),
    "left": dict(window="2 seconds", how="left"),
    "full, ordered": dict(window="1 second", how="full", ordered=True),
    "semi": dict(window="2 seconds", how="semi"),
    "rows": dict(window=cf.rows(3)),
    "rows and a duration, anti": dict(window=(cf.rows(2), "2 seconds"), how="anti"),
}


def by_chance(rng: random.Random):
    """A shuffle that delivers the rows in any order, in messages of any size."""

    def delivered(messages):
        parts = []
        for side, table in messages:
            table = table.take(rng.sample(range(len(table)), len(table)))
            cuts = sorted({0, *rng.sample(range(len(table)), min(3, len(table))), len(table)})
            parts += [(side, table.slice(a, b - a)) for a, b in itertools.pairwise(cuts)]
        return rng.sample(parts, len(parts))

    return delivered


@pytest.mark.parametrize("name", JOINS)
@settings(max_examples=15, deadline=None)
@given(left=tables(40), right=tables(40), seed=st.integers(0, 10**6), threads=st.integers(1, 3))
def test_a_batch_that_runs_again_writes_the_same_bytes(name, left, right, seed, threads):
    """Whatever the shuffle's order, where the windows are, how many threads there are, and what attempts were lost."""
    rng = random.Random(seed)
    spec = build_spec(left.schema, right.schema, where="l.k = r.k OR l.x > r.x", time="ts", **JOINS[name])
    kept, again = Cell(spec), Cell(spec, threads)
    watermark = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blobs, "BLOB_ROWS_MAX", 16)  # chunks are cut
        patch.setattr(chunks, "MERGE_CHUNKS", 2)  # and merged
        for batch in range(8):
            parts = [t.slice(5 * batch, 5) for t in (left, right)]
            for cell in (kept, again):
                if rng.random() < 0.3:
                    hosts.HOST.clear()
                if rng.random() < 0.3:
                    cell.attempt().batch(*parts, watermark, delivered=by_chance(rng), stop_early=rng.random() < 0.5)
                cell.batch(*parts, watermark, delivered=by_chance(rng))
            assert kept.handle.value == again.handle.value
            assert kept.handle.map == again.handle.map
            watermark = max(watermark, 1_704_067_195_000 + rng.randrange(12_000))
    assert {chunk for (chunk,) in kept.handle.map} == {entry.id for entry in kept.directory.chunks}


@pytest.mark.parametrize("name", [*JOINS][:-1])  # an unmatched row in a window of rows waits for more rows
@settings(max_examples=8, deadline=None)
@given(left=tables(36), right=tables(36), data=st.data())
def test_a_column_comes_at_a_restart(name, left, right, data):
    """Rows from before have NULL there, be they read back, merged, matched or still alone."""
    options = dict(where="l.k = r.k OR l.x > r.x", time="ts", **JOINS[name])
    comes = {side: data.draw(st.integers(1, 6)) for side in SIDES}  # before which batch; 6: never
    place = data.draw(st.integers(0, left.num_columns))
    sent: dict[str, list[pa.Table]] = {"left": [], "right": []}
    cell = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "MERGE_CHUNKS", 2)
        for batch in range(6):
            parts = {side: table.slice(6 * batch, 6) for side, table in (("left", left), ("right", right))}
            for side, part in parts.items():
                if comes[side] <= batch:
                    notes = pa.array([f"{side} {row}" for row in part["id"].to_pylist()], pa.string())
                    parts[side] = part.add_column(place, f"{side} note", notes)
            if cell is None or batch in comes.values():
                spec = build_spec(*(part.schema for part in parts.values()), **options)
                cell = Cell(spec) if cell is None else cell.restarted(spec)
            for side, part in parts.items():
                sent[side].append(hashed(cell.spec, part))
            cell.batch(*parts.values(), 0)
        cell.batch(*(part[:0] for part in parts.values()), 1_704_067_205_000 + 10**8)
    # At equal times the hash that a row came with decides the order of rows, which matters to windows of rows.
    both = [pa.concat_tables(parts, promote_options="default").sort_by(TIE) for parts in sent.values()]
    results = [cell.spec.output_schema.empty_table(), *cell.pairs]
    found = pa.concat_tables(results, promote_options="default")
    assert Counter(oracle.results(found, cell.spec.how)) == Counter(oracle.expected(*both, **options))
    for side, part, row in zip(SIDES, both, ("id", "id_right"), strict=True):
        if f"{side} note" in found.column_names:
            notes = dict(zip(part["id"].to_pylist(), part[f"{side} note"].to_pylist(), strict=True))
            assert found[f"{side} note"].to_pylist() == [notes.get(id_) for id_ in found[row].to_pylist()]


@given(keys=st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 1), st.integers(0, 2)), max_size=30))
def test_rows_are_ordered_by_all_keys(keys):
    columns = [np.array(column, np.int64) for column in zip(*keys, strict=True)] or [np.empty(0, np.int64)] * 3
    assert chunks._ordered(columns).tolist() == sorted(range(len(keys)), key=keys.__getitem__)


def like(table: pa.Table, garbage: int) -> pa.Table:
    """The same rows in arrays with other rubbish: values at NULLs, bits behind the end, offsets, several pieces."""
    columns = []
    for column in table.columns:
        array = column.combine_chunks()
        if pa.types.is_int64(array.type):
            valid = np.array([v is not None for v in array.to_pylist()])
            bits = np.packbits(valid, bitorder="little")
            if len(valid) % 8:
                bits[-1] |= 0xFF << len(valid) % 8 & 0xFF
            values = np.array([garbage if v is None else v for v in array.to_pylist()], np.int64)
            buffers = [pa.py_buffer(bits.tobytes()), pa.py_buffer(values.tobytes())]
            array = pa.Array.from_buffers(pa.int64(), len(valid), buffers)
        if len(array):
            array = pa.concat_arrays([array.slice(0, 1), array]).slice(1)
        cut = garbage % (len(array) + 1)
        columns.append(pa.chunked_array([array.slice(0, cut), array.slice(cut)]))
    return pa.table(columns, schema=table.schema)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rows_in_one_order_are_the_same_bytes(data):
    """For every kind of column; rows that differ only in the sign of a zero, or in a nested value, have one hash."""
    n = data.draw(st.integers(1, 20))

    def column(values, type_):
        return pa.array(data.draw(st.lists(st.none() | values, min_size=n, max_size=n)), type_)

    nested = pa.struct({"a": pa.int64(), "b": pa.list_(pa.float64())})
    table = pa.table(
        {
            "ts": pa.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), pa.timestamp("us", "UTC")),
            "i": column(st.integers(0, 1), pa.int64()),
            "f": column(st.sampled_from([0.0, -0.0, 1.0, float("nan")]), pa.float64()),
            "s": column(st.sampled_from(["", "a", "bb"]), pa.string()),
            "b": column(st.booleans(), pa.bool_()),
            "l": column(st.lists(st.integers(0, 1), max_size=2), pa.list_(pa.int64())),
            "m": column(st.just([("k", 1)]), pa.map_(pa.string(), pa.int64())),
            "n": column(st.fixed_dictionaries({"a": st.none() | st.just(1), "b": st.just([0.0])}), nested),
        }
    )
    side = build_spec(table.schema, table.schema, where="l.i = r.i", time="ts", window="1 second").left
    ties = [hash((row["i"], row["s"], row["b"])) for row in table.to_pylist()]  # what the hash sees, in this test
    table = table.append_column(TIE, pa.array(ties, pa.int64()))
    order = data.draw(st.permutations(range(n)))
    one = to_blob(in_one_order(side, like(table, 7)))
    assert one == to_blob(in_one_order(side, like(table.take(order), data.draw(st.integers(0, 100)))))


SCHEMA = pa.schema({"id": pa.int64(), "ts": pa.timestamp("us", "UTC"), "x": pa.int32(), "name": pa.string()})
SPEC = build_spec(SCHEMA, SCHEMA, where="l.x = r.x", time="ts", window="1 minute", streaming=True)
CHUNK = pa.table([range(200), range(200), range(200), [f"n{i}" for i in range(200)]], schema=SCHEMA)


def test_a_damaged_chunk_is_refused():
    """A bit flipped anywhere, bytes missing or added, another chunk: each is an error that says what to do."""
    entry, blob = new_chunk(SPEC.left, CHUNK)
    assert decode_chunk(entry, blob).equals(CHUNK)
    rng = random.Random(1)
    flipped = []
    for _ in range(3000):
        damaged = bytearray(blob)
        damaged[rng.randrange(len(blob))] ^= 1 << rng.randrange(8)
        flipped.append(bytes(damaged))
    other = new_chunk(SPEC.left, CHUNK, position=1)[1]
    for damaged in (*flipped, b"", blob[:-1], blob + b"\0", other[::-1]):
        with pytest.raises(StateError, match="start with a new checkpointLocation"):
            decode_chunk(entry, damaged)
    with pytest.raises(StateError, match="missing"):
        decode_chunk(entry, None)


IDENTITY = identity_of(SPEC, "1x2")


def directory() -> Directory:
    found = Directory(IDENTITY, "a join", watermark_us=5, batches=7, version="0" * 32)
    found.chunks.append(new_chunk(SPEC.left, CHUNK, 3, 2)[0])
    return found


def test_a_directory_is_read_as_it_was_written():
    assert read_directory(directory().to_json(), IDENTITY) == directory()
    assert read_directory(None, IDENTITY) is None


def test_a_damaged_directory_is_refused():
    text = directory().to_json()
    for i in range(len(text)):
        damaged = text[:i] + chr(ord(text[i]) ^ 1) + text[i + 1 :]
        with pytest.raises(StateError, match=r"damaged|has format"):
            read_directory(damaged, IDENTITY)
    for damaged in ("", "{", "null", text[:-1], text[33:], '{"format": 2, "fingerprint": "a join"}'):
        with pytest.raises(StateError, match="start with a new checkpointLocation"):
            read_directory(damaged, IDENTITY)


def forged(**changes: object) -> str:
    """Somebody else's directory, with the right checksum."""
    data = {"format": FORMAT, "counterflow": cf.__version__, **asdict(directory())}
    for name, value in changes.items():
        if name in data["chunks"][0]:
            data["chunks"][0][name] = value
        else:
            data[name] = value
    text = json.dumps(data)
    return f"{digest_of(text.encode())} {text}"


@pytest.mark.parametrize(
    "changes",
    [
        *({"id": name} for name in ("../../etc/passwd", "/tmp/x", "", "00000001-left-0001/..", "~", 5, None)),
        {"digest": "x"},
        {"digest": None},
        {"side": "middle"},
        {"rows": "3"},
        {"time_max": 1.5},
        {"batches": True},
        {"watermark_us": "soon"},
        {"totals": {}},
        {"totals": None},
        {"chunks": 5},
        {"cell": "/home"},
        {"identity": {}},
        {"identity": "a join"},
        {"identity": IDENTITY | {"how": 5}},
        {"identity": IDENTITY | {"left columns": {"x": "int32"}}},
        {"format": "4"},
        {"format": None},
        {"origin": 5},
    ],
    ids=str,
)
def test_a_directory_of_another_form_is_refused(changes):
    """Ids become names of files: only the form that is written here is read."""
    if changes == {"totals": {}}:  # no counts yet are counts of zero
        assert read_directory(forged(**changes), IDENTITY) is not None
        return
    with pytest.raises(StateError, match="is damaged"):
        read_directory(forged(**changes), IDENTITY)


def test_a_directory_of_a_newer_version_is_refused():
    """It says which version to use, whatever else it holds."""
    said = rf"has format 99, written by Counterflow 9.1; .* reads formats 3 to {FORMAT}: use Counterflow 9.1 or newer"
    with pytest.raises(StateError, match=said):
        read_directory(forged(format=99, counterflow="9.1", shape="new"), IDENTITY)


# --- another join: what differs is named

OPTIONS = dict(where="l.x = r.x", time="ts", window="1 minute", streaming=True)
LONGER = SCHEMA.append(pa.field("note", pa.string()))
OTHERS = [
    (dict(where="l.x < r.x"), "its where was '(l.x = r.x)' and is '(l.x < r.x)' now"),
    (dict(how="left"), "its how was 'inner' and is 'left' now"),
    (dict(ordered=True), "its ordered was 'no' and is 'yes' now"),
    (dict(window=("1 minute", "2 minutes")), "its right window was '<= 60,000,000 microseconds' and is '<= 120,000,"),
    (dict(window=(cf.rows(5), "1 minute")), "its left window was '<= 60,000,000 microseconds' and is '5 rows' now"),
    (dict(layout="2x1"), "its layout was '1x2' and is '2x1' now: engine=cf.Spark(layout='1x2') keeps it"),
    (dict(left=SCHEMA.append(pa.field("t2", pa.timestamp("us", "UTC"))), time=("t2", "ts")), "its left time was 'ts'"),
    (dict(left=SCHEMA.remove(3)), "column name of the left input (string) is gone"),
    (dict(right=SCHEMA.set(3, pa.field("name", pa.binary()))), "column name of the right input was string and is bin"),
    (dict(left=SCHEMA.set(0, pa.field("id", pa.int64(), False))), "column id of the left input could be NULL and is N"),
    (dict(left=SCHEMA.append(pa.field("new", pa.int8(), False))), "column new (int8) of the left input is new and NOT"),
    (
        {side: SCHEMA.set(1, pa.field("ts", pa.timestamp("us", "Asia/Tokyo"))) for side in SIDES},
        "its session time zone was 'UTC' and is 'Asia/Tokyo' now: set spark.sql.session.timeZone to UTC",
    ),
]


def other(changes: dict) -> dict:
    """The identity of SPEC's join with other options, columns or layout."""
    changes = dict(changes)
    sides, layout = (changes.pop("left", SCHEMA), changes.pop("right", SCHEMA)), changes.pop("layout", "1x2")
    return identity_of(build_spec(*sides, **{**OPTIONS, **changes}), layout)


@pytest.mark.parametrize(("changes", "said"), OTHERS, ids=lambda given: str(given)[:40])
def test_what_differs_is_named(changes, said):
    with pytest.raises(StateError) as refused:
        read_directory(directory().to_json(), other(changes))
    text = str(refused.value)
    assert said in text and text.startswith("the checkpoint belongs to another join:\n")
    assert len(text.splitlines()) == 3 and "start with a new checkpointLocation" in text


def test_all_that_differs_is_named():
    with pytest.raises(StateError) as refused:
        read_directory(directory().to_json(), other(dict(where="l.x < r.x", how="left", left=SCHEMA.remove(3))))
    assert [line.split()[0:2] for line in str(refused.value).splitlines()[1:-1]] == [
        ["its", "how"],
        ["its", "where"],
        ["column", "name"],
    ]


@pytest.mark.parametrize(
    "changes",
    [dict(left=LONGER), dict(right=LONGER), dict(suffix="_r"), dict(left=LONGER.remove(0).insert(2, SCHEMA.field(0)))],
)
def test_what_may_change(changes):
    """A new column, anywhere; the order of columns; a suffix. The directory is the new join's from then on."""
    now = other(changes)
    found = read_directory(directory().to_json(), now)
    assert found is not None and found.identity == now and found.origin == "a join"


def test_a_column_that_may_be_null_now():
    strict = identity_of(build_spec(SCHEMA.set(0, pa.field("id", pa.int64(), False)), SCHEMA, **OPTIONS), "1x2")
    text = Directory(strict, "a join").to_json()
    assert read_directory(text, IDENTITY) is not None
