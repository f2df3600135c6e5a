"""Streams in process, as a user has them: every kind of source, threads that end, and buffers that are bounded.

No test measures time; what waits, waits for an event, and a hang fails after a minute.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
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
from counterflow.engines.local import joined as lifecycle
from inputs import PREDICATES, tables, window_of
from test_local_streams import BOUNDED, HOWS, one_batch, rows_of

pytestmark = pytest.mark.timeout(60)
SCHEMA = pa.schema({"id": pa.int64(), "t": pa.int64(), "s": pa.string()})
NEAR = dict(where="l.id = r.id", time="t", window=10)
WAIT_SECONDS = 30


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("counterflow")]


def after_left(items):
    """For the right stream: when the left one has ended, which the driver notices before it takes these."""
    wait_until(lambda: not any("reader of the left" in thread.name for thread in ours()))
    yield from items


def wait_until(what) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not what():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def threads_end(monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "never")  # which takes seconds; other tests compile
    yield
    gc.collect()
    wait_until(lambda: not ours())


def batch(ids, times=None) -> pa.RecordBatch:
    times = list(ids) if times is None else times
    return pa.record_batch([list(ids), list(times), [f"row {i}" for i in ids]], schema=SCHEMA)


def table(*batches) -> pa.Table:
    return pa.Table.from_batches(list(batches), schema=SCHEMA)


def ids_of(joined) -> list[int]:
    return [i for part in joined for i in part["id"].to_pylist()]


LEFT = [batch(range(0, 5)), batch(range(5, 8)), batch([]), batch(range(8, 20))]
RIGHT = [batch(range(0, 9)), batch(range(9, 20))]
ALL = list(range(20))


def generated(batches):
    yield from batches


async def asynchronous(batches):
    for item in batches:
        await asyncio.sleep(0)
        yield item


def queued(batches):
    found = queue.Queue()
    for item in [*batches, None]:
        found.put(item)
    return found


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
    window=st.sampled_from(BOUNDED),
    ordered=st.booleans(),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    sources=st.integers(1, 3),
    buffer_rows=st.sampled_from([1, 5, 1000]),
)
def test_streams_are_tables(how, left, right, where, window, ordered, cuts, sources, buffer_rows):
    """Differential test: through threads and small buffers, with disorder inside the delay, as two tables."""
    options = dict(where=where, time="ts", window=window_of(window), how=how, ordered=ordered)

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

    want = cf.window_join(left, right, **{**options, "ordered": True})
    # At equal times rows are ordered by their source first, so that tables in that order are the same.
    order = [i for n in range(sources) for i in range(n, max(len(left), len(right)), sources)]
    if ordered:
        sides = [t.take(np.array([i for i in order if i < len(t)], np.int64)) for t in (left, right)]
        want = cf.window_join(*sides, **options)
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


def endless(rows=10, asked=None, closed=None):
    """0, 1, 2, ... in batches; counts what it was asked for, and tells when it is closed."""
    try:
        first = 0
        while True:
            yield batch(range(first, first + rows))
            first += rows
            if asked is not None:
                asked.append(rows)
    finally:
        if closed is not None:
            closed.set()


def test_empty_streams():
    for empty in ([], iter(()), [batch([])], queued([]), asynchronous([])):
        for how, count in (("inner", 0), ("left", 20), ("right", 0), ("full", 20), ("semi", 0), ("anti", 20)):
            if not isinstance(empty, list):
                empty = iter(())
            joined = cf.window_join(cf.stream(LEFT), cf.stream(empty, schema=SCHEMA), how=how, **NEAR)
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


def failing(batches, error):
    yield from batches
    raise error


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
    joined = cf.window_join(cf.stream(LEFT), cf.stream(failing(RIGHT[:1], OSError("gone"))), how="left", **NEAR)
    got = []
    with pytest.raises(OSError, match="gone"):
        for part in joined:
            got += rows_of(part)
    assert all(right is not None for _, right, _ in got)


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
        (lambda: cf.watermark("noon"), cf.TimeError, "'noon'"),
        (lambda: cf.Local(overflow="drop"), cf.OptionError, "unknown overflow='drop'.*drop_newest"),
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
    delay 3:   10   6    8   20   17   18
               watermark 7 then, so 6 is late; 8 is not; then watermark 17, so 17 is late and 18 is not
    """
    times = [10, 6, 8, 20, 17, 18]
    for cut in ([6], [1] * 6, [2, 3, 1]):
        pieces, row = [], 0
        for n in cut:
            pieces.append(batch(times[row : row + n]))
            row += n
        right = cf.stream(after_left(pieces), delay=3)
        joined = cf.window_join(cf.stream([], schema=SCHEMA), right, how="right", **NEAR)
        assert [row[1] for part in joined for row in rows_of(part)] == [8, 10, 18, 20]
        assert joined.late("right")["s"].to_pylist() == ["row 6", "row 17"]
        assert joined.late("left").num_rows == 0
        metrics = joined.metrics()
        assert (metrics["rows_right"], metrics["late_right"], metrics["late_left"]) == (6, 2, 0)


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


# --- the end of threads


def test_close_in_the_middle():
    closed = [threading.Event(), threading.Event()]
    with cf.window_join(*(cf.stream(endless(closed=c)) for c in closed), **NEAR) as joined:
        assert next(joined).num_rows
        assert ours()
    assert not ours() and all(c.is_set() for c in closed)
    assert next(joined, None) is None
    joined.close()


def test_close_before_the_start():
    closed = threading.Event()
    source = endless(closed=closed)
    next(source)
    joined = cf.window_join(cf.stream(source, schema=SCHEMA), cf.stream(RIGHT), **NEAR)
    joined.close()
    assert closed.is_set() and list(joined) == [] and not ours()


def test_close_from_another_thread():
    """While the consumer waits for a result that never comes."""
    joined = cf.window_join(cf.stream(queue.Queue(), schema=SCHEMA), cf.stream(queue.Queue(), schema=SCHEMA), **NEAR)
    got = []
    consumer = threading.Thread(target=lambda: got.append(list(joined)))
    consumer.start()
    wait_until(lambda: len(ours()) == 3)
    joined.close()
    consumer.join(WAIT_SECONDS)
    assert got == [[]]


def test_close_while_a_schema_is_waited_for():
    joined = cf.window_join(cf.stream(queue.Queue()), cf.stream(queue.Queue()), **NEAR)
    consumer = threading.Thread(target=lambda: list(joined))
    consumer.start()
    wait_until(ours)
    joined.close()
    consumer.join(WAIT_SECONDS)
    assert not consumer.is_alive()


def test_garbage_collection_ends_it():
    closed = [threading.Event(), threading.Event()]
    for _ in cf.window_join(*(cf.stream(endless(closed=c)) for c in closed), **NEAR):
        break  # the only reference was the loop's
    gc.collect()
    assert all(c.wait(WAIT_SECONDS) for c in closed)
    punctuated = cf.window_join(cf.stream(endless()), cf.stream(endless()), **NEAR).punctuated()
    next(punctuated)
    punctuated.close()
    del punctuated


def test_garbage_in_a_cycle_is_collected_too():
    closed = threading.Event()
    cycle = [cf.window_join(cf.stream(endless(closed=closed)), cf.stream(endless()), **NEAR)]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert closed.wait(WAIT_SECONDS)


def test_an_error_in_the_consumer():
    closed = threading.Event()

    def consume():
        with cf.window_join(cf.stream(endless(closed=closed)), cf.stream(endless()), **NEAR) as joined:
            for _ in joined:
                raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        consume()
    assert closed.is_set()


def test_closing_a_chain_closes_all_of_it():
    closed = [threading.Event() for _ in range(3)]
    a, b, c = (cf.stream(endless(closed=event)) for event in closed)
    inner = cf.window_join(a, b, ordered=True, **NEAR)
    outer = cf.window_join(inner, c, where="l.id = r.id", time=(None, "t"), window=10, suffix="_c")
    next(outer)
    outer.close()
    assert all(event.wait(WAIT_SECONDS) for event in closed)


def test_an_asynchronous_source_is_cancelled():
    ended = threading.Event()

    async def silent():
        try:
            yield LEFT[0]
            await asyncio.Event().wait()
        finally:
            ended.set()

    joined = cf.window_join(cf.stream(silent()), cf.stream(endless()), **NEAR)
    next(joined)
    joined.close()
    assert ended.is_set() and not ours()


def test_a_source_that_does_not_return_does_not_hang_close(monkeypatch):
    """Nobody can stop it; its thread ends when it does."""
    monkeypatch.setattr(lifecycle, "CLOSE_SECONDS", 0.01)
    release, closed = threading.Event(), threading.Event()

    def stuck():
        try:
            yield LEFT[0]
            release.wait(WAIT_SECONDS)
            yield LEFT[1]
        finally:
            closed.set()

    joined = cf.window_join(cf.stream(stuck()), cf.stream(endless()), **NEAR)
    next(joined)
    joined.close()
    assert len(ours()) == 1 and not closed.is_set()
    release.set()
    assert closed.wait(WAIT_SECONDS)


SCRIPT = """
    import queue, sys, threading
    import pyarrow as pa
    import counterflow as cf

    def endless(pause):
        try:
            n = 0
            while True:
                yield pa.record_batch({"id": [n], "t": [n]})
                n += 1
                if n == 10:
                    print("ready", flush=True)
                if pause:
                    threading.Event().wait(pause if n > 5 else 0)
        finally:
            print("closed", flush=True)

    def join(pause):
        streams = cf.stream(endless(pause)), cf.stream(endless(0))
        return cf.window_join(*streams, where="l.id = r.id", time="t", window=10)
"""


def run_script(code: str, interrupt: bool = False) -> tuple[int, str, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT) + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if interrupt:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_SECONDS)
    return process.returncode, out, err


def test_interrupt():
    """Ctrl-C while the consumer waits for a batch: its threads end, the generators are closed."""
    code, out, err = run_script(
        """
        schema = pa.schema({"id": pa.int64(), "t": pa.int64()})
        left, right = (cf.stream(queue.Queue(), schema=schema) for _ in range(2))
        joined = cf.window_join([left, cf.stream(endless(0))], right, where="l.id = r.id", time="t", window=10)
        try:
            next(joined)
        except KeyboardInterrupt:
            print("interrupted", len(threading.enumerate()), flush=True)
        """,
        interrupt=True,
    )
    assert (code, out, err) == (0, "closed\ninterrupted 1\n", "")


@pytest.mark.parametrize(
    ("code", "closed"),
    [
        ("joined = join(0); next(joined)", 2),  # a reference is kept until the end
        ("next(join(0))", 2),
        ("joined = join(0); next(joined); sys.exit(0)", 2),
        ("joined = join(1000); next(joined)", 1),  # a source that does not return
    ],
)
def test_interpreter_exit(code, closed):
    status, out, err = run_script(code)
    assert (status, out.count("closed"), err) == (0, closed, "")


# --- bounds


def test_a_slow_consumer_holds_the_sources_back():
    """Each buffer holds `buffer_rows`: what was read, what is ahead, what is joined; and the batch in hand."""
    asked = [[], []]
    engine = cf.Local(buffer_rows=100)
    joined = cf.window_join(*(cf.stream(endless(asked=a)) for a in asked), engine=engine, **NEAR)
    first = next(joined)["id"].to_pylist()
    settled = 0
    while sum(map(sum, asked)) != settled:  # until nothing moves any more
        settled = sum(map(sum, asked))
        time.sleep(0.3)
    for a in asked:
        assert sum(a) <= 100 * 5 + 20
    got = first + [i for _, part in zip(range(50), joined, strict=False) for i in part["id"].to_pylist()]
    assert got == list(range(len(got)))
    joined.close()


def test_a_fast_source_waits_for_a_slow_one():
    """The left stream is not read ahead of the right one by more than the buffers."""
    asked, slow = [], queue.Queue()
    joined = cf.window_join(
        cf.stream(endless(asked=asked)), cf.stream(slow, schema=SCHEMA), engine=cf.Local(buffer_rows=100), **NEAR
    )
    consumer = threading.Thread(target=lambda: list(joined))
    consumer.start()
    wait_until(lambda: joined.metrics()["waiting_rows_left"] >= 100)
    assert sum(asked) <= 100 * 3 + 20
    slow.put(batch([500]))
    wait_until(lambda: sum(asked) >= 500)
    assert sum(asked) <= 500 + 100 * 3 + 20
    joined.close()
    consumer.join(WAIT_SECONDS)


def test_drop_newest():
    """A source that sends more than is taken loses batches, and every row is counted."""
    slow = queue.Queue()
    finished = threading.Event()

    def burst():
        yield from (batch(range(n, n + 10)) for n in range(0, 1000, 10))
        finished.set()

    engine = cf.Local(overflow="drop_newest", buffer_rows=50)
    joined = cf.window_join(cf.stream(burst()), cf.stream(slow, schema=SCHEMA), how="left", engine=engine, **NEAR)
    got: list[int] = []
    consumer = threading.Thread(target=lambda: got.extend(ids_of(joined)))
    consumer.start()
    assert finished.wait(WAIT_SECONDS)  # it never had to wait
    slow.put(None)
    consumer.join(WAIT_SECONDS)
    metrics = joined.metrics()
    assert metrics["dropped_left"] > 0 and metrics["dropped_right"] == 0
    assert len(got) == metrics["rows_left"] == 1000 - metrics["dropped_left"]
    # A table can wait: nothing of it is dropped.
    assert len(
        ids_of(
            cf.window_join(
                table(*LEFT), cf.stream(RIGHT), engine=cf.Local(overflow="drop_newest", buffer_rows=1), **NEAR
            )
        )
    )


def test_drop_results():
    """Results that nobody takes are dropped and counted; the sources do not wait."""
    finished = threading.Event()

    def burst(done=None):
        yield from (batch(range(n, n + 10)) for n in range(0, 5000, 10))
        if done:
            done.set()

    engine = cf.Local(overflow="drop_results", buffer_rows=100)
    joined = cf.window_join(cf.stream(burst(finished)), cf.stream(burst()), engine=engine, **NEAR)
    got = next(joined)["id"].to_pylist()
    assert finished.wait(WAIT_SECONDS)
    got += ids_of(joined)
    metrics = joined.metrics()
    assert metrics["results_dropped"] > 0 and metrics["pairs"] == 5000
    assert len(got) == metrics["results"] == 5000 - metrics["results_dropped"]
    broken = cf.window_join(cf.stream(failing(LEFT, OSError("gone"))), cf.stream(RIGHT), engine=engine, **NEAR)
    with pytest.raises(OSError, match="gone"):
        list(broken)
    for stopped in (cf.window_join(cf.stream(endless()), cf.stream(endless()), engine=engine, **NEAR),):
        next(stopped)


@pytest.mark.parametrize("how", HOWS)
def test_memory_is_that_of_the_window(how):
    """A long stream: rows, and the bytes that Arrow holds, stay what a window needs."""
    rows, count = 400, 150

    def long(step):
        for n in range(count):
            times = np.arange(n * rows, (n + 1) * rows)
            yield pa.record_batch([times * step, times, [f"a long text, number {t}" for t in times]], schema=SCHEMA)

    held, before = [], pa.total_allocated_bytes()
    options = dict(where="l.id = r.id AND l.id % 3 = 0", time="t", window=100, how=how, ordered=how in ("full", "semi"))
    engine = cf.Local(buffer_rows=1000)
    joined = cf.window_join(cf.stream(long(1)), cf.stream(long(1), delay=50), engine=engine, **options)
    for part in joined:
        del part
        metrics = joined.metrics()
        held.append((metrics["state_rows_left"] + metrics["state_rows_right"], pa.total_allocated_bytes() - before))
    assert max(rows for rows, _ in held) < 10_000
    assert max(size for _, size in held[len(held) // 2 :]) < 4_000_000  # all of it would be 15 MB


def test_a_large_batch_is_freed_behind_the_window():
    """One batch of 200,000 rows and a window of 100: behind the window its memory is free."""
    before = pa.total_allocated_bytes()
    times = np.arange(200_000)
    large = pa.record_batch([times, times, pa.array([f"a long text, number {t}" for t in times])], schema=SCHEMA)
    large_bytes = pa.total_allocated_bytes() - before
    left, right = queue.Queue(), queue.Queue()
    joined = cf.window_join(
        cf.stream(left, schema=SCHEMA), cf.stream(right, schema=SCHEMA), where="l.id = r.id", time="t", window=100
    )
    left.put(large)
    right.put(large)
    del large
    seen = 0
    for part in joined:
        seen += part.num_rows
        del part
        if seen >= 199_999:
            break
    left.put(batch([200_001]))
    right.put(batch([200_001]))
    assert next(joined).num_rows
    wait_until(lambda: pa.total_allocated_bytes() - before < large_bytes / 10)
    joined.close()


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
    from inputs import typed_table

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
