"""Durable joins: wherever they are killed, and whatever goes on from their checkpoint, the results are the same.

No test measures time; what waits, waits for an event, and a hang fails after two minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

import counterflow as cf
import effort
from counterflow.engines.local import checkpoint as files
from counterflow.engines.local.checkpoint import CheckpointFolder
from counterflow.engines.local.input.intake import End
from live import (
    ALL,
    LEFT,
    NEAR,
    RIGHT,
    SCHEMA,
    asynchronous,
    batch,
    ids_of,
    table,
    threads_end,  # noqa: F401  runs after each test
)
from oracle import HOWS
from places import SUPPORT
from stepped import DRAWN, Stepped, events_of, expected_results, expected_rows, tables_of

pytestmark = pytest.mark.timeout(120)


# --- any moment, any join


@settings(max_examples=effort.examples(600), deadline=None)
@given(
    **DRAWN,
    how=st.sampled_from(HOWS),
    batch_rows=st.integers(1, 5),
    killed=st.sets(st.integers(0, 30), max_size=6),
)
def test_every_join_killed_at_any_moment(tmp_path_factory, left, right, chosen, where, window, how, batch_rows, killed):
    """Oracle test, in order: the results of all its lives, one after the other, are those of one life."""
    fed = left + right
    happened, tables = events_of(fed, chosen), tables_of(fed)
    options = dict(where=where, time="ts", window=window, how=how, ordered=True)
    want = expected_results(fed, tables, expected_rows(fed, happened)[0], **options)
    folder, engine = tmp_path_factory.mktemp("join"), cf.Local(batch_rows=batch_rows)
    found, seen, ended = [], [0] * len(fed), []
    join = Stepped(fed, engine=engine, folder=folder, **options)
    for moment, event in enumerate(happened):
        if moment in killed:
            found += join.out
            join.save()
            join = Stepped(fed, engine=engine, folder=folder, **options)
            for source in ended:  # it ends again, as there is nothing after its position
                join.take(source, End())
        join.happen(event, tables, seen)
        ended += [event[0]] * (event[1] is None)
    join.join()
    assert found + join.out == want


# --- through the public call

OPTIONS = dict(where="abs(l.id % 23 - r.id % 23) <= 1 AND l.id % 7 <> 3", time="t", window=12)


def some_rows(n: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return table(batch(rng.integers(0, 100, n), np.sort(rng.integers(0, 2 * n, n))))


def from_position(rows: pa.Table, size: int) -> cf.Stream:
    return cf.stream(lambda position: iter(rows.slice(position).to_batches(size)))


def lives(folder: Path, left: pa.Table, right: pa.Table, engines: list[cf.Local], seed: int, **options) -> list[dict]:
    """The results of a join that ends again and again; a sink keeps what comes, and drops what comes again."""
    rng, sink = random.Random(seed), []
    for life in range(1000):
        engine = replace(engines[life % len(engines)], checkpoint=folder)
        sides = from_position(left, rng.randint(1, 9)), from_position(right, rng.randint(1, 9))
        with cf.window_join(*sides, engine=engine, **options) as joined:
            assert joined.output_position <= len(sink)
            del sink[joined.output_position :]
            for part in islice(joined, rng.randint(1, 12)):
                sink += part.to_pylist()
                assert joined.output_position == len(sink)
                if rng.random() < 0.5:
                    assert joined.checkpoint() == len(sink)
            if joined.poll(0) is None and joined.ended:
                return sink
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("how", HOWS)
def test_one_algorithm_goes_on_from_another_one_s_checkpoint(tmp_path, how):
    left, right = some_rows(150, 1), some_rows(120, 2)
    want = cf.window_join(left, right, how=how, ordered=True, **OPTIONS).to_pylist()
    engines = [cf.Local(name, batch_rows=5, buffer_rows=16) for name in ("auto", "llhj", "scalejoin", "dpjoin")]
    assert lives(tmp_path, left, right, engines, 3, how=how, **OPTIONS) == want


@pytest.mark.parametrize("window", [cf.rows(9), (cf.rows(4), 10), cf.window(before=10, after=0, closed=False), 0])
def test_windows_of_every_kind(tmp_path, window):
    left, right = some_rows(150, 4), some_rows(120, 5)
    options = {**OPTIONS, "window": window, "how": "full"}
    want = cf.window_join(left, right, ordered=True, **options).to_pylist()
    assert lives(tmp_path, left, right, [cf.Local(batch_rows=5, buffer_rows=16)], 6, **options) == want


def test_streams_that_are_out_of_order(tmp_path):
    """Rows that wait for their place are in the checkpoint, not in what is read again."""
    left, right = some_rows(200, 7), some_rows(200, 8)
    order = np.argsort(left["t"].to_numpy() + np.random.default_rng(9).integers(0, 20, 200), kind="stable")
    shuffled = left.take(pa.array(order))
    want = cf.window_join(shuffled, right, ordered=True, **OPTIONS).to_pylist()
    sink: list[dict] = []
    for _ in range(100):
        late = cf.stream(lambda position: iter(shuffled.slice(position).to_batches(3)), delay=40)
        engine = cf.Local(batch_rows=4, buffer_rows=16, checkpoint=tmp_path)
        with cf.window_join(late, from_position(right, 5), engine=engine, **OPTIONS) as joined:
            del sink[joined.output_position :]
            for part in islice(joined, 3):
                sink += part.to_pylist()
            joined.checkpoint()
            if joined.poll(1) is None and joined.ended:
                break
    assert sink == want


def test_results_that_were_made_and_not_handed_out(tmp_path, monkeypatch):
    """A checkpoint between two batches of results: what comes is what has not been handed out."""
    from counterflow.engines.local.output import results

    monkeypatch.setattr(results, "RESULT_ROWS_MAX", 7)
    rows = table(batch(range(40), [0] * 40))
    options = dict(where="true", time="t", window=0, engine=cf.Local(buffer_rows=7, checkpoint=tmp_path))
    found = []
    for _ in range(300):
        with cf.window_join(from_position(rows, 40), from_position(rows, 40), **options) as joined:
            assert joined.output_position == len(found)
            part = joined.poll(10)
            if part is None:
                break
            found += [(row["id"], row["id_right"]) for row in part.to_pylist()]
            assert joined.checkpoint() == len(found)
    assert found == [(i, k) for k in range(40) for i in range(40)]


# --- sources


def test_what_can_be_read_again_begins_at_its_position(tmp_path):
    """Tables and files do so by themselves; a function is called with it; pushed rows begin where positions say."""
    pq.write_table(table(*LEFT), tmp_path / "left.parquet")
    sources = {
        "file": lambda: cf.stream(tmp_path / "left.parquet"),
        "table": lambda: table(*LEFT),
        "function": lambda: from_position(table(*LEFT), 3),
    }
    for name, left in sources.items():
        engine, found = cf.Local(batch_rows=2, buffer_rows=4, checkpoint=tmp_path / name), []
        while len(found) < 20:
            with cf.window_join(left(), from_position(table(*RIGHT), 2), engine=engine, **NEAR) as joined:
                found += next(joined)["id"].to_pylist()
                joined.checkpoint()
        assert found == ALL, name


def test_pushed_rows_begin_where_positions_say(tmp_path):
    found = []
    for _ in range(5):
        left, right = cf.stream(schema=SCHEMA), cf.stream(schema=SCHEMA)
        with cf.window_join(left, right, engine=cf.Local(checkpoint=tmp_path), **NEAR) as joined:
            positions = joined.positions
            for stream_, side in ((left, "left"), (right, "right")):
                first = positions[side][0]
                stream_.push([row for part in LEFT for row in part.to_pylist()][first : first + 4])
                stream_.advance(min(first + 3, 19))
            while len(found) < joined.positions["left"][0] + 4 and (part := joined.poll(3)) is not None:
                found += part["id"].to_pylist()
                joined.checkpoint()
    assert found == ALL


def test_before_the_first_result_and_after_the_last_one(tmp_path):
    streams = [lambda: from_position(table(*LEFT), 3), lambda: from_position(table(*RIGHT), 4)]
    with cf.window_join(*(make() for make in streams), engine=cf.Local(checkpoint=tmp_path), **NEAR) as joined:
        assert joined.positions == {"left": [0], "right": [0]}
        assert joined.checkpoint() == 0
    with cf.window_join(*(make() for make in streams), engine=cf.Local(checkpoint=tmp_path), **NEAR) as joined:
        assert ids_of(joined) == ALL
        assert joined.ended and joined.checkpoint() == 20
    with cf.window_join(*(make() for make in streams), engine=cf.Local(checkpoint=tmp_path), **NEAR) as joined:
        assert joined.output_position == 20 and joined.positions == {"left": [20], "right": [20]}
        assert ids_of(joined) == []


def test_async_for(tmp_path):
    """What a cancelled task has fetched is in the checkpoint, too."""

    async def run(count: int) -> list[int]:
        joined = cf.window_join(
            cf.stream(lambda position: asynchronous(table(*LEFT).slice(position).to_batches(3))),
            from_position(table(*RIGHT), 2),
            engine=cf.Local(batch_rows=2, buffer_rows=4, checkpoint=tmp_path),
            **NEAR,
        )
        found: list[int] = []
        async for part in joined:
            found += part["id"].to_pylist()
            if count == 0:
                continue
            task = asyncio.ensure_future(anext(joined))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                found += (await task)["id"].to_pylist()
            await asyncio.to_thread(joined.checkpoint)
            break
        joined.close()
        return found

    assert asyncio.run(run(1)) + asyncio.run(run(1)) + asyncio.run(run(0)) == ALL


def test_text_lists_and_dictionaries(tmp_path):
    """Columns of every kind come back as they were."""
    rows = pa.table(
        {
            "t": range(30),
            "s": pa.array([f"text {i}" if i % 3 else None for i in range(30)]).dictionary_encode(),
            "list": [[i, None] for i in range(30)],
            "flag": [None if i % 4 == 0 else i % 2 == 0 for i in range(30)],
        }
    )
    options = dict(where="abs(l.t - r.t) <= 3", time="t", window=5, how="left")
    want = cf.window_join(rows, rows, ordered=True, **options).to_pylist()
    assert lives(tmp_path, rows, rows, [cf.Local(batch_rows=3, buffer_rows=8)], 1, **options) == want


# --- kills

KILLED = """
    import sys, time
    sys.path[:0] = {paths!r}
    import counterflow as cf, test_checkpoints as t
    folder, sink = {folder!r}, {sink!r}
    left, right = t.some_rows({rows}, 11), t.some_rows({rows}, 12)

    def slow(rows):
        def read(position):
            for part in rows.slice(position).to_batches(4):
                time.sleep(0.001)
                yield part
        return cf.stream(read)

    done = len(open(sink).read().splitlines())  # whole lines only: the test cuts the last one off
    engine = cf.Local({algorithm!r}, batch_rows=16, buffer_rows=64, checkpoint=folder)
    joined = cf.window_join(slow(left), slow(right), how="full", engine=engine, **t.OPTIONS)
    with open(sink, "a") as file, joined:
        print("begins", joined.output_position, flush=True)
        for n, part in enumerate(joined):
            first = joined.output_position - part.num_rows
            if n == 0:
                print("runs", flush=True)
            for i, row in enumerate(part.to_pylist()):
                if first + i >= done:
                    file.write(repr(row) + chr(10))
            file.flush()
            if n % 5 == 0:
                joined.checkpoint()
    print("done", flush=True)
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["auto", "llhj"])
def test_killed_at_random_moments_in_a_row(tmp_path, algorithm):
    """SIGKILL, again and again: what a sink has in the end, which counts results, are all of them once."""
    folder, sink = tmp_path / "checkpoint", tmp_path / "sink"
    sink.touch()
    paths = [str(Path(__file__).parent), str(SUPPORT)]
    wanted, rows = (100, 30_000) if effort.THOROUGH else (6, 2_000)  # it does not come to its end before the last kill
    filled = KILLED.format(paths=paths, folder=str(folder), sink=str(sink), algorithm=algorithm, rows=rows)
    script, rng, begins, kills = textwrap.dedent(filled), random.Random(5), [], 0
    while True:
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        begins.append(int(child.stdout.readline().split()[1]))
        if kills < wanted:
            if rng.random() < 0.9:
                assert child.stdout.readline() == "runs\n"
            time.sleep(rng.uniform(0, 0.1))
            child.send_signal(signal.SIGKILL)
            kills += 1
        ended = child.stdout.read().split()[-1:] == ["done"]
        assert child.wait() == (0 if ended else -signal.SIGKILL)
        text = sink.read_text()
        sink.write_text(text[: text.rfind("\n") + 1])
        if ended:
            break
    assert kills == wanted
    assert begins == sorted(begins) and len(set(begins)) > wanted // 2, "it went on from later and later checkpoints"
    want = cf.window_join(some_rows(rows, 11), some_rows(rows, 12), how="full", ordered=True, **OPTIONS)
    assert sink.read_text().splitlines() == [repr(row) for row in want.to_pylist()]


# --- what is refused


def written(folder: Path, **options) -> Path:
    """A checkpoint in this folder."""
    joined = cf.window_join(
        from_position(table(*LEFT), 3),
        from_position(table(*RIGHT), 3),
        engine=cf.Local(batch_rows=2, buffer_rows=4, checkpoint=folder),
        **{**NEAR, **options},
    )
    with joined:
        next(joined)
        joined.checkpoint()
    return folder / files.NAME


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (dict(where="l.id <= r.id"), "its where was 'l.id = r.id' and is 'l.id <= r.id' now"),
        (dict(window=11), "its left window was '<= 10' and is '<= 11' now"),
        (dict(how="left"), "its how was 'inner' and is 'left' now"),
        (dict(suffix="_r"), "its right names in the result was"),
    ],
)
def test_another_join_is_refused(tmp_path, changed, said):
    written(tmp_path)
    streams = [cf.stream(iter(side), schema=SCHEMA) for side in (LEFT, RIGHT)]
    with pytest.raises(cf.StateError, match=said):
        cf.window_join(*streams, engine=cf.Local(checkpoint=tmp_path), **{**NEAR, **changed})
    written(tmp_path)  # the folder is free


def test_other_streams_are_refused(tmp_path):
    written(tmp_path)
    right = cf.stream(iter(RIGHT))
    with pytest.raises(cf.StateError, match="a join of 1 left streams, and this one has 2"):
        cf.window_join([cf.stream(iter(LEFT))] * 2, right, engine=cf.Local(checkpoint=tmp_path), **NEAR)
    other = cf.stream(iter(()), schema=pa.schema({"id": pa.int64(), "t": pa.int64()}))
    with pytest.raises(cf.StateError, match="its left columns was 'id int64, t int64, s string'"):
        cf.window_join(other, right, engine=cf.Local(checkpoint=tmp_path), **NEAR)
    with pytest.raises(cf.StateError, match="its left delays was 'None' and is '5' now"):
        cf.window_join(cf.stream(iter(LEFT), delay=5), right, engine=cf.Local(checkpoint=tmp_path), **NEAR)
    first, cannot = cf.window_join(cf.stream(iter(LEFT)), right, **NEAR), "another join's result, which cannot begin"
    with first, pytest.raises(cf.UnsupportedError, match=cannot):
        cf.window_join(first, right, engine=cf.Local(checkpoint=tmp_path / "chain"), **NEAR)


def test_a_folder_has_one_join(tmp_path):
    streams = [cf.stream(iter(side)) for side in (LEFT, RIGHT)]
    first = cf.window_join(*streams, engine=cf.Local(checkpoint=tmp_path), **NEAR)
    with first, pytest.raises(cf.StateError, match="is in use by another join"):
        cf.window_join(*streams, engine=cf.Local(checkpoint=tmp_path), **NEAR)
    written(tmp_path)


def test_options_that_do_not_go_with_it(tmp_path):
    with pytest.raises(cf.OptionError, match=r"overflow='drop_newest' drops .* not go with checkpoint="):
        cf.Local(overflow="drop_newest", checkpoint=tmp_path)
    with pytest.raises(cf.OptionError, match="checkpoint=5: give a folder"):
        cf.Local(checkpoint=5)  # type: ignore[arg-type]
    with pytest.raises(cf.OptionError, match=r"checkpoint=.* is for streams, and these inputs are tables"):
        cf.window_join(table(*LEFT), table(*RIGHT), engine=cf.Local(checkpoint=tmp_path), **NEAR)
    (tmp_path / "file").touch()
    with pytest.raises(cf.OptionError, match="give a folder that can be written to"):
        written(tmp_path / "file")
    joined = cf.window_join(cf.stream(iter(LEFT)), cf.stream(iter(RIGHT)), **NEAR)
    with joined, pytest.raises(cf.OptionError, match=r"checkpoint\(\): say where to"):
        joined.checkpoint()
    joined = cf.window_join(
        cf.stream(iter(LEFT)), cf.stream(iter(RIGHT)), engine=cf.Local(checkpoint=tmp_path / "a"), **NEAR
    )
    joined.close()
    with pytest.raises(cf.InputError, match="was closed"):
        joined.checkpoint()


def test_a_damaged_file_is_refused(tmp_path):
    """Every bit counts: flip one, cut the file anywhere, or add to it."""
    path = written(tmp_path / "good")
    data, rng = path.read_bytes(), random.Random(1)
    damaged = [data[:n] for n in (0, 10, 40, len(data) // 2, len(data) - 1)]
    damaged += [data + b"x"]
    for bit in rng.sample(range(8 * len(data)), effort.examples(900)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for some in damaged:
        path.write_bytes(some)
        with pytest.raises(cf.StateError, match=r"is damaged|is no checkpoint"):
            CheckpointFolder(path.parent)
    path.write_bytes(data)
    CheckpointFolder(path.parent).close()


def test_a_failed_write_leaves_the_one_before(tmp_path, monkeypatch):
    path = written(tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(files.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(cf.StateError, match=r"could not be written, and the one before stays: .*No space left"):
        written(tmp_path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [files.NAME]


# --- the versions to come

GOLDEN = Path(__file__).parent / "checkpoints"
GOLDEN_ROWS = some_rows(60, 21), some_rows(60, 22)


@pytest.mark.parametrize("how", HOWS)
def test_checkpoints_of_earlier_versions(tmp_path, how):
    """The files are those of the versions whose names they bear; made by `write_golden_checkpoints`."""
    for path in sorted(GOLDEN.glob(f"*/{how}.checkpoint")):
        folder = tmp_path / path.parent.name
        folder.mkdir()
        shutil.copy(path, folder / files.NAME)
        engine = cf.Local(checkpoint=folder)
        with cf.window_join(*(from_position(r, 5) for r in GOLDEN_ROWS), engine=engine, how=how, **OPTIONS) as joined:
            begin = joined.output_position
            found = [row for part in joined for row in part.to_pylist()]
        want = cf.window_join(*GOLDEN_ROWS, how=how, ordered=True, **OPTIONS).to_pylist()
        assert 0 < begin < len(want) and found == want[begin:], path


def write_golden_checkpoints() -> None:
    """Write the checkpoints of this version, once for each version whose files have changed."""
    for how in HOWS:
        folder = GOLDEN / cf.__version__ / how
        engine = cf.Local(batch_rows=4, buffer_rows=8, checkpoint=folder)
        with cf.window_join(*(from_position(r, 5) for r in GOLDEN_ROWS), engine=engine, how=how, **OPTIONS) as joined:
            while joined.output_position < 8:
                next(joined)
            joined.checkpoint()
        (folder / files.NAME).rename(folder.with_suffix(".checkpoint"))
        folder.rmdir()
