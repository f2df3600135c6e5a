"""Streams in process, as a user has them: every kind of source, schemas, errors, late rows and punctuation.

No test measures time; what waits, waits for an event, and a hang fails after a minute.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import queue
import threading
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.lab.simulator.window_forms import BOUNDED
from inputs import PREDICATES, tables, typed_table, windows
from live import (
    ALL,
    LEFT,
    NEAR,
    RIGHT,
    SCHEMA,
    WAIT_SECONDS,
    after_left,
    asynchronous,
    batch,
    endless,
    generated,
    ids_of,
    ours,
    queued,
    table,
    threads_end,  # noqa: F401  runs after each test
    wait_until,
)
from oracle import HOWS
from stepped import one_batch, rows_of

pytestmark = pytest.mark.timeout(60)


class Exported:
    def __arrow_c_stream__(self, requested_schema=None):
        return table(*LEFT).__arrow_c_stream__(requested_schema)


KINDS = {
    "list": lambda: LEFT,
    "generator": lambda: generated(LEFT),
    "tables": lambda: [table(*LEFT[:2]), table(*LEFT[2:])],
    "pandas": lambda: (b.to_pandas() for b in LEFT),
    "polars": lambda: (pl.from_arrow(b) for b in LEFT),
    "lists of dicts": lambda: (b.to_pylist() for b in LEFT),
    "dicts": lambda: (row for b in LEFT for row in b.to_pylist()),
    "reader": lambda: table(*LEFT).to_reader(),
    "exported": Exported,
    "one table": lambda: table(*LEFT),
    "one frame": lambda: table(*LEFT).to_pandas(),
    "queue": lambda: queued(LEFT),
    "asynchronous generator": lambda: asynchronous(LEFT),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_source(kind):
    joined = cf.window_join(cf.stream(KINDS[kind]()), cf.stream(RIGHT), ordered=True, **NEAR)
    assert not ours()  # nothing starts before it is asked for
    assert ids_of(joined) == ALL
    assert joined.schema.names == ["id", "t", "s", "id_right", "t_right", "s_right", "pair_time"]
    assert list(joined) == []


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow", "arrows"])
def test_files(tmp_path, suffix):
    paths = []
    for i, part in enumerate((table(*LEFT[:2]), table(*LEFT[2:]))):
        paths.append(tmp_path / f"{i}.{suffix}")
        if suffix == "parquet":
            pa.parquet.write_table(part, paths[-1])
        elif suffix == "csv":
            pa.csv.write_csv(part, paths[-1])
        else:
            new = pa.ipc.new_file if suffix == "arrow" else pa.ipc.new_stream
            with new(paths[-1], part.schema) as writer:
                writer.write_table(part)
    joined = cf.window_join(cf.stream(paths), cf.stream([str(paths[0])]), ordered=True, **NEAR)
    assert joined.schema.field("s").type == pa.string()
    assert ids_of(joined) == list(range(8))
    assert ids_of(cf.window_join(cf.stream(paths[1]), cf.stream(paths), ordered=True, **NEAR)) == list(range(8, 20))


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "x.parquet").write_text("no parquet")
    for name, message in (("gone.csv", "does not exist"), ("x.parquet", "cannot read"), ("x.txt", "no known kind")):
        with pytest.raises(cf.InputError, match=message):
            cf.window_join(cf.stream(tmp_path / name), cf.stream(RIGHT), **NEAR)


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=15, deadline=None)
@given(
    left=tables(),
    right=tables(),
    where=st.sampled_from(list(PREDICATES.values())),
    window=windows(forms=BOUNDED),
    ordered=st.booleans(),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    sources=st.integers(1, 3),
    buffer_rows=st.sampled_from([1, 5, 1000]),
)
def test_streams_are_tables(how, left, right, where, window, ordered, cuts, sources, buffer_rows):
    """Differential test: through threads and small buffers, with disorder inside the delay, as two tables."""
    options = dict(where=where, time="ts", window=window, how=how, ordered=ordered)

    def side(given):
        found = []
        for number in range(sources):
            part = given.filter(np.arange(len(given)) % sources == number)
            pieces, row = [], 0
            while row < len(part) or not pieces:
                pieces.append(part.slice(row, cuts[len(pieces) % len(cuts)]))
                row += len(pieces[-1]) or 1
            found.append(cf.stream(iter(pieces), delay="9 seconds"))  # rows are up to 8 seconds apart
        return found[0] if sources == 1 else found

    # At equal times rows are ordered by their source first, so that tables in that order are the same; which rows are
    # in a window of rows depends on it too.
    order = [i for n in range(sources) for i in range(n, max(len(left), len(right)), sources)]
    sides = [t.take(np.array([i for i in order if i < len(t)], np.int64)) for t in (left, right)]
    want = cf.window_join(*sides, **{**options, "ordered": True})
    joined = cf.window_join(side(left), side(right), engine=cf.Local(buffer_rows=buffer_rows), **options)
    got = [row for part in joined for row in rows_of(part)]
    expected = rows_of(want)
    assert got == expected if ordered else Counter(got) == Counter(expected)
    metrics = joined.metrics()
    assert (metrics["rows_left"], metrics["rows_right"], metrics["results"]) == (len(left), len(right), len(want))
    assert (metrics["late_left"], metrics["late_right"]) == (0, 0)


def test_a_table_beside_a_stream():
    """It is a finite stream: its rows come in order of time, in whatever order they are."""
    shuffled = table(*RIGHT).take([*range(19, -1, -1)])
    for right in (shuffled, shuffled.to_pandas(), [shuffled.slice(0, 7), pl.from_arrow(shuffled.slice(7))]):
        assert ids_of(cf.window_join(cf.stream(LEFT), right, ordered=True, **NEAR)) == ALL
        assert ids_of(cf.window_join(right, cf.stream(LEFT), ordered=True, **NEAR)) == ALL


def test_a_chain_of_joins():
    """The result of one join is a stream of the next, in order or not: it says itself how far it is."""
    for ordered in (False, True):
        for how in ("inner", "full"):
            inner = cf.window_join(cf.stream(LEFT), cf.stream(RIGHT[:1]), how=how, ordered=ordered, **NEAR)
            third = cf.stream(generated(RIGHT))
            options = dict(where="l.id = r.id", time=(None, "t"), window=10, suffix="_third", how="left", ordered=True)
            outer = cf.window_join(inner if ordered else cf.stream(inner), third, **options)
            assert ids_of(outer) == (ALL if how == "full" else list(range(9)))
            assert not ours()


def test_arrow_stream():
    reader = pa.RecordBatchReader.from_stream(cf.window_join(cf.stream(LEFT), cf.stream(RIGHT), **NEAR))
    assert sorted(reader.read_all()["id"].to_pylist()) == ALL
    with_polars = pl.from_arrow(pa.table(cf.window_join(cf.stream(LEFT), cf.stream(RIGHT), **NEAR)))
    assert sorted(with_polars["id"].to_list()) == ALL
    half = pa.RecordBatchReader.from_stream(cf.window_join(cf.stream(endless()), cf.stream(endless()), **NEAR))
    half.read_next_batch()
    del half  # the fixture waits for its threads


def test_empty_streams():
    """Each join gets a source of its own, because most kinds can be read once only."""
    empties = (list, lambda: iter(()), lambda: [batch([])], lambda: queued([]), lambda: asynchronous([]))
    for empty in empties:
        for how, count in (("inner", 0), ("left", 20), ("right", 0), ("full", 20), ("semi", 0), ("anti", 20)):
            joined = cf.window_join(cf.stream(LEFT), cf.stream(empty(), schema=SCHEMA), how=how, **NEAR)
            assert len(ids_of(joined)) == count
    both = cf.window_join(cf.stream([], schema=SCHEMA), cf.stream([], schema=SCHEMA), how="full", **NEAR)
    assert list(both) == []
    assert pa.table(cf.window_join(cf.stream([], schema=SCHEMA), cf.stream(RIGHT), **NEAR)).num_rows == 0


def test_schemas_are_asked_for_late():
    """A queue that gets its first batch after the call: the call does not wait, `schema` and the first result do."""
    left, right = queue.Queue(), queue.Queue()
    joined = cf.window_join(cf.stream(left), cf.stream(right), **NEAR)
    assert joined.known_schema is None and joined.late("left").num_rows == 0 and joined.metrics()["rows_left"] == 0
    for source, batches in ((left, LEFT), (right, RIGHT)):
        for item in [cf.watermark(-5), *batches, None]:
            source.put(item)
    assert joined.schema.names[-1] == "pair_time"
    assert sorted(ids_of(joined)) == ALL
    with pytest.raises(cf.InputError, match=r"the left stream ended before its first batch.*schema="):
        next(cf.window_join(cf.stream(iter(())), cf.stream(RIGHT), **NEAR))
    # One source of a side that knows its columns is enough.
    assert ids_of(cf.window_join([cf.stream(iter(())), cf.stream(LEFT)], cf.stream(RIGHT), ordered=True, **NEAR)) == ALL


# --- errors


@pytest.mark.parametrize("source", ["generator", "asynchronous"])
def test_an_error_in_a_source_is_raised_as_itself(source):
    class Broken(Exception):
        pass

    def broken():
        yield from LEFT
        wait_until(lambda: joined.metrics()["rows_right"] >= 20)
        raise Broken("wire cut")

    async def broken_there():
        for item in broken():
            yield item

    closed = threading.Event()
    left = cf.stream(broken() if source == "generator" else broken_there(), schema=SCHEMA)
    joined = cf.window_join(left, cf.stream(endless(closed=closed)), ordered=True, **NEAR)
    got = []
    with pytest.raises(Broken, match="wire cut") as raised:
        for part in joined:
            got += part["id"].to_pylist()
    assert raised.value.__notes__ == ["in the left stream, after 20 rows"]
    assert got == ALL[:-1]  # what was certain before came first: the right row of 19 might have followed a left one
    assert closed.wait(WAIT_SECONDS)
    assert list(joined) == []


def test_an_unmatched_row_is_not_invented_by_an_error():
    """The left rows may have had matches after the error: nothing is said of them."""

    def broken():
        yield RIGHT[0]
        wait_until(lambda: joined.metrics()["rows_left"] == 20)
        raise OSError("gone")

    joined = cf.window_join(cf.stream(LEFT), cf.stream(broken()), how="left", **NEAR)
    got = []
    with pytest.raises(OSError, match="gone"):
        for part in joined:
            got += rows_of(part)
    assert sorted(row[:2] for row in got) == [(i, i) for i in range(9)]


def test_an_error_of_the_predicate():
    joined = cf.window_join(cf.stream(LEFT), cf.stream(RIGHT), where="1 / (l.id - r.id) > 0", time="t", window=5)
    with pytest.raises(cf.EvaluationError):
        list(joined)


def test_errors_of_the_data():
    def left(*items, **options):
        return cf.window_join(cf.stream(iter(items), **options), cf.stream(RIGHT), **NEAR)

    null = pa.record_batch([[1, 2], [1, None], ["a", "b"]], schema=SCHEMA)
    extra = batch([1]).append_column("more", pa.array([1]))
    changed = batch([5]).set_column(1, "t", pa.array([5], pa.int32()))
    cases = [
        (
            (batch([1, 5]), batch([6, 4])),
            cf.TimeError,
            r"row 3 of the left stream goes back in time: 4 after 6.*delay=",
        ),
        ((batch([1, 5]), batch([4])), cf.TimeError, "row 2 of the left stream goes back in time: 4 after 5"),
        (
            (batch([1]), cf.watermark(7), batch([6])),
            cf.TimeError,
            r"row 1 of the left stream has time 6.*watermark\(7\)",
        ),
        ((batch([0]), null), cf.TimeError, "the left stream: time column 't' is null in row 2: filter"),
        (
            (batch([0]), batch([1]).drop_columns(["s"])),
            cf.ColumnError,
            "left stream, the batch at row 1: no column 's'",
        ),
        ((batch([0]), extra), cf.ColumnError, "a column 'more' that the stream did not have"),
        ((batch([0]), changed), cf.ColumnError, "column 't' is int32, but was int64 before.*schema="),
        ((batch([0]), cf.watermark(dt.datetime(2024, 1, 1))), cf.TimeError, "give an integer"),
        ((batch([0]), 5), cf.InputError, "the left stream: item 1 is a int: expected"),
        ((batch([0]), [{"id": "x", "t": 1, "s": "a"}]), cf.InputError, "item 1 .list. cannot be converted"),
    ]
    for items, error, message in cases:
        with pytest.raises(error, match=message):
            list(left(*items))
    assert ids_of(left(batch([0]), changed, schema=SCHEMA)) == [0, 5]  # what is asked for is converted
    assert ids_of(left([{"id": 3, "t": 3, "s": "x"}], [], [{"t": 4, "id": 4, "s": None}])) == [3, 4]


def test_two_sources_of_a_side_must_agree():
    other = pa.record_batch({"id": [1], "t": [1]})
    with pytest.raises(cf.ColumnError, match="left stream 2 of 2, the batch at row 0: no column 's'"):
        list(cf.window_join([cf.stream(LEFT), cf.stream([other])], cf.stream(RIGHT), **NEAR))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cf.stream(LEFT, delay=-1), cf.OptionError, "delay=-1"),
        (lambda: cf.stream(LEFT, delay=1.5), cf.OptionError, "delay=1.5"),
        (lambda: cf.stream(LEFT, schema={"id": "int"}), cf.OptionError, "pyarrow.Schema"),
        (lambda: cf.stream({"id": [1]}), cf.InputError, "cf.stream.. of a dict"),
        (lambda: cf.stream(cf.stream(LEFT)), cf.InputError, "give its batches"),
        (lambda: joined_with(left=cf.stream(asyncio.Queue())), cf.InputError, "the left stream: an asyncio.Queue"),
        (lambda: joined_with(left=cf.stream(object())), cf.InputError, "the left stream: cf.stream.. of a object"),
        (lambda: joined_with(window=(1, 2, 3)), cf.WindowError, r"window=\(1, 2, 3\): a pair is"),
        (lambda: cf.watermark("noon"), cf.TimeError, "'noon'"),
        (lambda: cf.Local(overflow="drop"), cf.OptionError, "unknown overflow='drop'.*drop_newest"),
        (lambda: cf.Local(waiting="yeild"), cf.OptionError, "unknown waiting='yeild'.*yield"),
        (lambda: cf.Local(buffer_rows=0), cf.OptionError, "buffer_rows=0"),
        (lambda: cf.Local(late_rows=-1), cf.OptionError, "late_rows=-1"),
        (lambda: joined_with(window=None), cf.WindowError, "the left window is missing or None"),
        (lambda: joined_with(window=(5, None)), cf.WindowError, "the right window is missing or None"),
        (lambda: joined_with(how="sideways"), cf.OptionError, "unknown how='sideways'"),
        (lambda: joined_with(left=cf.stream(LEFT, delay="5 s")), cf.OptionError, "the left stream: delay='5 s'"),
        (lambda: joined_with(left=cf.stream(LEFT), where="l.nope = 1"), cf.ColumnError, "no column 'nope'"),
        (lambda: joined_with(right=3), cf.InputError, "the right input is a int"),
        (lambda: joined_with(right=[]), cf.InputError, "the right side is an empty list"),
        (lambda: joined_with(engine=cf.Spark()), cf.InputError, "engine=cf.Spark"),
        (lambda: joined_with().late("middle"), cf.OptionError, "'left' or 'right'"),
        (lambda: cf.explain(cf.stream(iter(LEFT)), cf.stream(RIGHT), **NEAR), cf.InputError, "schema="),
    ],
)
def test_options(call, error, message):
    with pytest.raises(error, match=message):
        call()


def joined_with(left=None, right=None, **options):
    left = cf.stream(generated(LEFT)) if left is None else left
    return cf.window_join(left, cf.stream(RIGHT) if right is None else right, **{**NEAR, **options})


def test_explain_reads_no_row():
    explanation = cf.explain(cf.stream(generated([]), schema=SCHEMA), cf.stream(RIGHT), show=False, **NEAR)
    assert explanation.to_dict()["time"] == {"left": "t", "right": "t"}


# --- late rows


def test_late_rows_are_counted_and_readable():
    """
    delay 3:   10   6    8   7   20   16   17   18
               the watermark is just below 7, so 6 is late, and 8 and 7 are not; then just below 17, so 16 is late, and
               17 and 18 are not
    """
    times = [10, 6, 8, 7, 20, 16, 17, 18]
    for cut in ([8], [1] * 8, [2, 3, 3]):
        pieces, row = [], 0
        for n in cut:
            pieces.append(batch(times[row : row + n]))
            row += n
        right = cf.stream(after_left(pieces), delay=3)
        joined = cf.window_join(cf.stream([], schema=SCHEMA), right, how="right", **NEAR)
        assert [row[1] for part in joined for row in rows_of(part)] == [7, 8, 10, 17, 18, 20]
        assert joined.late("right")["s"].to_pylist() == ["row 6", "row 16"]
        assert joined.late("left").num_rows == 0
        metrics = joined.metrics()
        assert (metrics["rows_right"], metrics["late_right"], metrics["late_left"]) == (8, 2, 0)


def test_only_the_last_late_rows_are_kept():
    pieces = [batch([100]), *(batch(range(n, n + 7)) for n in range(0, 70, 7))]
    options = dict(how="right", engine=cf.Local(late_rows=10), **NEAR)
    joined = cf.window_join(cf.stream([], schema=SCHEMA), cf.stream(after_left(pieces), delay=0), **options)
    assert [row[1] for part in joined for row in rows_of(part)] == [100]
    assert joined.late("right")["id"].to_pylist() == list(range(60, 70))
    assert joined.metrics()["late_right"] == 70


# --- punctuation


def reached(joined, time):
    """Read on until a punctuation has reached this time; returns the results' times until then."""
    said, times = None, []
    for item in joined.punctuated():
        if isinstance(item, cf.Punctuation):
            assert said is None or item.time > said
            said = item.time
            if said >= time:
                return times
        else:
            times += item["pair_time"].to_pylist()
            assert said is None or min(times[-item.num_rows :]) > said
    raise AssertionError("ended before")


@pytest.mark.parametrize("how", HOWS)
def test_punctuation(how):
    """It comes while the streams are silent, and nothing with an earlier time comes after it."""
    for ordered in (False, True):
        left, right = queue.Queue(), queue.Queue()
        streams = cf.stream(left, schema=SCHEMA), cf.stream(right, schema=SCHEMA, delay=2)
        joined = cf.window_join(
            *streams, where="l.id = r.id AND l.id % 2 = 0", time="t", window=2, how=how, ordered=ordered
        )
        times = []
        for n in range(0, 40, 10):
            left.put(batch(range(n, n + 10)))
            right.put(batch([n + 1, n, *range(n + 2, n + 10)]))
            times += reached(joined, n + 4)
        left.put(None)
        right.put(None)
        times += [t for part in joined for t in part["pair_time"].to_pylist()]
        count = {"inner": 20, "left": 40, "right": 40, "full": 60, "semi": 20, "anti": 20}[how]
        assert len(times) == count and (not ordered or times == sorted(times))


def test_punctuation_and_watermarks_of_timestamps():
    ts = pa.timestamp("ms", "Europe/Berlin")
    at = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    hour = dt.timedelta(hours=1)
    rows = [pa.record_batch({"ts": pa.array([at + dt.timedelta(seconds=s)], ts), "x": [s]}) for s in range(4)]
    left, right = queue.Queue(), queue.Queue()
    for item in (rows[0], cf.watermark(at + hour)):
        left.put(item)
    for item in (*rows, cf.watermark((int(at.timestamp()) + 3600) * 1000)):  # in the column's unit
        right.put(item)
    options = dict(where="l.x <= r.x", time="ts", window="1 minute")
    joined = cf.window_join(cf.stream(left), cf.stream(right), **options)
    assert reached(joined, at + hour) == [at + dt.timedelta(seconds=s) for s in range(4)]
    assert joined.metrics()["watermark"] == at + hour
    joined.close()
    naive = cf.stream([rows[0], cf.watermark(dt.datetime(2024, 7, 1))])
    with pytest.raises(cf.TimeError, match="give a datetime with a zone"):
        list(cf.window_join(naive, cf.stream(rows), **options))


def test_dictionaries_that_differ_from_batch_to_batch():
    """As pandas makes them, with indexes of 8 bits: together they have more values than that."""
    words = [f"word {i}" for i in range(300)]
    schema = pa.schema({"t": pa.int64(), "w": pa.dictionary(pa.int8(), pa.string())})
    pieces = []
    for n in range(0, 300, 50):
        some = pa.DictionaryArray.from_arrays(pa.array([*range(49), None], pa.int8()), words[n : n + 50])
        pieces.append(pa.record_batch([list(range(n, n + 50)), some], schema=schema))
    joined = cf.window_join(cf.stream(iter(pieces)), cf.stream(pieces, delay=7), where="l.w = r.w", time="t", window=9)
    got = pa.table(joined)
    assert got.schema.field("w").type == pa.dictionary(pa.int32(), pa.string())
    assert sorted(got["w"].to_pylist()) == sorted(w for i, w in enumerate(words) if i % 50 < 49)


def test_rows_keep_their_values():
    """Every type of column goes through rings and chunks, with nulls, and over many small batches."""
    given = typed_table()
    given = given.append_column("list", pa.array([[i] if i % 3 else None for i in range(len(given))]))
    given = given.append_column("word", pa.array(["a", "b", None] * 99)[: len(given)].dictionary_encode())
    given = given.append_column("clock", pa.array(range(len(given)), pa.time64("us")))
    given = given.append_column("none", pa.nulls(len(given)))
    many = pa.concat_tables([given] * 20)
    many = many.set_column(0, "id", pa.array(range(len(many)), pa.int64()))
    options = dict(where="l.id = r.id", time="id", window=3, how="full", ordered=True)
    pieces = [one_batch(many.slice(i, 7)) for i in range(0, len(many), 7)]
    joined = cf.window_join(cf.stream(pieces), cf.stream(pieces[:9], delay=2), **options)
    want = cf.window_join(many, pa.Table.from_batches(pieces[:9]), **options)
    got = pa.Table.from_batches(joined, schema=joined.schema)
    assert got.cast(want.schema).equals(want) or got.to_pylist().__repr__() == want.to_pylist().__repr__()
