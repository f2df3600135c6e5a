"""Sources that come while ScaleJoin runs, and leave by ending.

left source 0     1   3     7        9      ─┐
left source 1         (added) 5  7   8  end ─┼─► gate      5 is late: its side had come to 7 when the source came
right source 0    2   3     5        8  9   ─┘
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.engines.local.input.carriers import shares_of
from counterflow.engines.local.input.intake import End
from counterflow.engines.local.input.sources import open_added
from counterflow.engines.local.order import BEGINNING
from counterflow.lab.simulator.window_forms import BOUNDED
from effort import THOROUGH
from gated import SteppedCarriers
from inputs import PREDICATES, table_of, windows
from live import ours, threads_end, wait_until  # noqa: F401  the fixture runs after each test
from oracle import HOWS
from schedules import EXPLORED
from stepped import Fed, events_of, expected_results, feeds, one_batch, rows_of, tables_of

pytestmark = pytest.mark.timeout(100)
SCHEMA = pa.schema({"id": pa.int64(), "t": pa.int64(), "k": pa.int64()})
SAME = dict(where="l.k = r.k", time="t", window=3, ordered=True)
KINDS = [PREDICATES[kind] for kind in ("two bands", "two equalities", "filters")]
EXAMPLES = 300 if THOROUGH else 25
TICK = 1e-6  # a watermark is a tick before the first time that may follow


# --- what comes when


class Definition:
    """What is on time, row by row, where sources come with their first item: the slow twin of the carriers.

    `carried` has, for each carrier, its sources, and the time up to which it lets none come.
    """

    def __init__(self, fed, at_first, cores):
        self.fed, self.order = fed, list(range(at_first))  # in the order of joining
        shares = shares_of([SimpleNamespace(side=f.side) for f in fed[:at_first]], cores)
        self.carried = [SimpleNamespace(sources=share, released=-np.inf) for share in shares]
        self.live = [i < at_first for i in range(len(fed))]
        self.reached, self.newest, self.joined = ([-np.inf] * len(fed) for _ in range(3))
        self.kept, self.late = ([[] for _ in fed] for _ in range(2))

    @property
    def watermark(self):
        return min((w for w, alive in zip(self.reached, self.live, strict=True) if alive), default=-np.inf)

    def add(self, i):
        """Let a source take part; return whether its side has not ended."""
        own = [c for c in self.carried if self.fed[c.sources[0]].side == self.fed[i].side]
        opened = [k for k, c in enumerate(own) if any(self.live[s] for s in c.sources)]
        if not opened:
            return False
        ended = [self.fed[s].rows[p][0] for c in own[opened[-1] + 1 :] for s in c.sources for p in self.kept[s]]
        self.joined[i] = self.reached[i] = max([self.watermark, own[opened[-1]].released, *ended])
        self.live[i] = True
        self.order.append(i)
        own[opened[-1]].sources.append(i)
        return True

    def happen(self, i, what):
        if what is None:
            self.live[i] = False
        elif isinstance(what, int):
            self.reached[i] = max(self.reached[i], what)
        else:
            for row in what:
                on_time = row[0] > max(self.watermark, self.joined[i])
                (self.kept if on_time else self.late)[i].append(len(self.kept[i]) + len(self.late[i]))
                self.newest[i] = max(self.newest[i], row[0])
                self.reached[i] = max(self.reached[i], self.newest[i] - (self.fed[i].delay or 0) - TICK)
        for c in self.carried:
            due = [self.reached[s] if self.fed[s].delay is None else self.watermark for s in c.sources if self.live[s]]
            c.released = max(c.released, min(due, default=-np.inf))


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=EXAMPLES, deadline=None, phases=EXPLORED)
@given(
    left=feeds("left"),
    right=feeds("right"),
    added=st.tuples(feeds("left"), feeds("right")),
    chosen=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 4), st.integers(-1, 12), st.booleans()), min_size=5, max_size=30
    ),
    where=st.sampled_from(KINDS),
    window=windows(forms=BOUNDED),
    cores=st.sampled_from([2, 4, 16]),
)
def test_sources_that_come_at_any_time(how, left, right, added, chosen, where, window, cores):
    """Oracle: late rows are as defined, and all others are joined as `reference` does, in the order of joining."""
    fed, at_first = left + right + added[0] + added[1], len(left) + len(right)
    happened, tables = events_of(fed, chosen), tables_of(fed)
    options = dict(where=where, time="ts", window=window, how=how, ordered=True)
    defined = Definition(fed, at_first, cores)
    join = SteppedCarriers(fed[:at_first], cores=cores, **options)
    ranks, refused, seen = {i: i for i in range(at_first)}, set(), {}
    try:
        for i, what, joins in happened:
            if i not in ranks and i not in refused:
                rank, has_place = join.add(fed[i]), defined.add(i)
                assert (rank is not None) == has_place
                if rank is None:
                    refused.add(i)
                else:
                    ranks[i] = rank
            if i in ranks:
                seen.setdefault(ranks[i], 0)
                defined.happen(i, what)
                join.happen((ranks[i], what, joins), {ranks[i]: tables[i]}, seen)
        join.join()
        join.end()
    finally:
        join.close()
    for side in ("left", "right"):
        want = {tables[i]["id"][p].as_py() for i, f in enumerate(fed) if f.side == side for p in defined.late[i]}
        assert set(join.driver.late[side].table()["id"].to_pylist()) == want
        assert join.driver.late[side].count == len(want)
    inorder = [[given[i] for i in defined.order] for given in (fed, tables, defined.kept)]
    assert join.out == expected_results(*inorder, **options)
    assert [len(rows.facts) for rows in join.results.rows] == [0, 0], "all rows are forgotten in the end"


# --- what threads may do at the same time


def seconds(*times):
    return [(t, 1, 1, 1.0, "a") for t in times]


def stepped(*fed, cores=16):
    """Sources of which nothing has come; what they will bring is pushed by hand."""
    return SteppedCarriers(list(fed), cores=cores, where="true", time="ts", window="1 hour", how="inner", ordered=True)


def brings(join, rank, *times):
    """Let a source have rows; its carrier does not move yet."""
    join.intake._put(rank, one_batch(table_of(seconds(*times))))


def test_a_source_that_is_admitted_while_others_move():
    """
    left 0 (its own carrier)   7      12         left 1 and right are up to 5 s out of order, and have come to 15
    left 2 (added to left 1)     admitted at 7
    right                             12 is released, 9 comes: it is late, although 7 is the join's frontier again
    """
    join = stepped(Fed("left", None, []), Fed("left", 5, []), Fed("right", 5, []))
    try:
        for rank, times in ((0, [7]), (1, [20]), (2, [20])):
            brings(join, rank, *times)
            join.driver.carriers[rank]._round()
        assert join.driver.carriers[1]._lags() and join.driver.carriers[1]._round()
        rank = join.driver.add_source(open_added(Fed("left", None, []).stream, "left", 3, join.columns["left"]))
        (coming,) = join.driver.carriers[1]._coming
        excuse = coming.excuse

        def while_the_others_move(others):
            excuse(others)
            brings(join, 0, 12)
            join.driver.carriers[0]._round()
            assert join.driver.carriers[2]._lags() and join.driver.carriers[2]._round()

        coming.excuse = while_the_others_move
        assert join.driver.carriers[1]._round()
        assert coming.rank == rank == 3 and join.driver._frontiers.least == coming.frontier
        brings(join, 2, 9, 18)
        assert join.driver.carriers[2]._round()
        assert join.driver.late["right"].count == 1
    finally:
        join.close()


def test_a_source_that_is_added_while_the_last_one_ends():
    """Its carrier goes on with it; from the moment that it has closed nobody is added."""
    join = stepped(Fed("left", None, []), Fed("right", None, []))
    (carrier, _) = join.driver.carriers
    added = open_added(Fed("left", None, []).stream, "left", 2, join.columns["left"])
    try:
        take_some, ranks = carrier._take_some, []

        def meanwhile():
            take_some()
            ranks.append(join.driver.add_source(added))

        carrier._take_some = meanwhile
        join.intake._end(0, End())
        assert carrier._round() and ranks == [2] and not carrier.closed
        carrier._take_some = take_some
        join.intake._end(2, End())
        assert not carrier._round() and carrier.closed
        assert join.driver.add_source(added) is None
    finally:
        join.close()


def test_a_source_begins_at_the_joins_frontier_where_its_carrier_lags():
    join = stepped(Fed("left", 5, []), Fed("right", 5, []))
    try:
        for rank in (0, 1):
            brings(join, rank, 20)
            join.driver.carriers[rank]._round()
        frontiers, carrier = join.driver._frontiers, join.driver.carriers[0]
        assert carrier._lags() and carrier._released < frontiers.least
        before = frontiers.least
        join.driver.add_source(open_added(Fed("left", None, []).stream, "left", 2, join.columns["left"]))
        carrier._admit()
        assert carrier.sources[2].frontier == frontiers.least == before
    finally:
        join.close()


def test_a_source_is_added_while_somebody_looks_at_all():
    """Frontiers, and what `metrics` says: the source is known to some and not yet to others."""
    join = stepped(Fed("left", None, []), Fed("right", None, []))
    frontiers = join.driver._frontiers
    try:
        silent_for = frontiers.silent_for

        def meanwhile(rank):
            if len(frontiers._all) == 2:
                join.driver.add_source(open_added(Fed("left", None, []).stream, "left", 2, join.columns["left"]))
            return silent_for(rank)

        frontiers.silent_for = meanwhile
        assert frontiers.without_silent() == BEGINNING
    finally:
        join.close()
    left, right = pushed(None, None)
    with scalejoin(left, right) as joined:
        left.push(rows_at([1])), right.push(rows_at([1])), left.close()
        assert taken(joined, 1) == [(0, 0, 1)]
        joined._join.intake.add(open_added(cf.stream([], schema=SCHEMA), "left", 2, joined._join.columns[0]))
        assert joined.metrics()["rows_left"] == 1


# --- through the public call


def rows_at(times, first_id=0, k=1):
    return pa.table([range(first_id, first_id + len(times)), times, [k] * len(times)], schema=SCHEMA)


def pushed(*delays):
    return [cf.stream(schema=SCHEMA, delay=delay) for delay in delays]


def scalejoin(left, right, **options):
    return cf.window_join(left, right, **SAME, engine=cf.Local("scalejoin", **options))


def taken(joined, count):
    """The first results, as they come."""
    found = []
    while len(found) < count:
        batch = joined.poll(timeout=30)
        assert batch is not None
        found += rows_of(batch)
    return found


def test_what_a_source_sends_counts_from_where_its_side_is():
    """
    left 0   1   4            right 0   2   3       left 1 (added)   3   4   5
             its side has come to 4: 3 is late, 4 comes after the other left row of 4
    """
    left, right, more = pushed(None, None, None)
    joined = scalejoin(left, right)
    left.push(rows_at([1, 4]))
    right.push(rows_at([2, 3]))
    assert taken(joined, 2) == [(0, 0, 2), (0, 1, 3)]
    joined.add_source("left", more)
    more.push(rows_at([3, 4, 5], 10))
    for stream in (left, right, more):
        stream.close()
    assert [row for batch in joined for row in rows_of(batch)] == [
        (1, 0, 4), (1, 1, 4), (11, 0, 4), (11, 1, 4), (12, 0, 5), (12, 1, 5)
    ]  # fmt: skip
    assert joined.late("left")["id"].to_pylist() == [10]
    metrics = joined.metrics()
    assert (metrics["late_left"], metrics["rows_left"], metrics["rows_right"]) == (1, 5, 2)


def test_sources_are_added_before_the_join_starts():
    left, right, more = pushed(None, None, None)
    joined = scalejoin(left, right)
    joined.add_source("right", more)
    joined.add_source("left", cf.stream(iter([rows_at([1, 9], 10)])))
    assert more.push(rows_at([2], 10)) and left.push(rows_at([1])) and right.push(rows_at([2]))
    for stream in (left, right, more):
        stream.close()
    want = [(0, 0, 2), (10, 0, 2), (0, 10, 2), (10, 10, 2)]
    assert [row for batch in joined for row in rows_of(batch)] == want
    assert joined.metrics()["late_left"] == 0


def test_the_last_source_that_is_there_may_come_late():
    """Streams come and go: each begins before the one before it has ended, and none of the first ones is left."""
    left, right = pushed(None, None)
    joined = scalejoin(left, right)
    left.push(rows_at([1, 2]))
    right.push(rows_at([1, 100]))
    assert taken(joined, 2) == [(0, 0, 1), (1, 0, 2)]
    for k in range(2, 20):
        (following,) = pushed(None)
        joined.add_source("left", following)
        left.close()
        left = following
        left.push(rows_at([k + 1], k))
    left.close(), right.close()
    assert [row for batch in joined for row in rows_of(batch)] == [(2, 0, 3), (3, 0, 4)]
    assert joined.metrics()["late_left"] == 0 and joined.metrics()["rows_left"] == 20
    wait_until(lambda: not ours())


def test_what_is_refused(tmp_path):
    left, right, more = pushed(None, None, None)
    with scalejoin(left, right) as joined:
        with pytest.raises(cf.OptionError, match="'left' or 'right'"):
            joined.add_source("top", more)
        with pytest.raises(cf.InputError, match="of a Table: give a stream"):
            joined.add_source("left", rows_at([1]))
        with pytest.raises(cf.ColumnError, match="added left stream 2, the batch at row 0: no column 't'"):
            joined.add_source("left", cf.stream([], schema=pa.schema({"id": pa.int64(), "k": pa.int64()})))
        with pytest.raises(cf.OptionError, match="delay='1 second', but its time column is an integer"):
            joined.add_source("left", cf.stream([], schema=SCHEMA, delay="1 second"))
        with pytest.raises(cf.InputError, match="is a side of a join already"):
            joined.add_source("left", right)
        left.push(rows_at([1])), right.push(rows_at([1])), left.close()
        assert taken(joined, 1) == [(0, 0, 1)]
        wait_until(lambda: all(carrier.closed for carrier in joined._join.driver.carriers if carrier.side == "left"))
        with pytest.raises(cf.InputError, match="all streams of that side have ended"):
            joined.add_source("left", more)
    with pytest.raises(cf.InputError, match="the join has ended"):
        joined.add_source("right", more)
    engines = [cf.Local("llhj"), cf.Local(), cf.Local("scalejoin", checkpoint=tmp_path)]
    for engine in engines:
        with (
            cf.window_join(*pushed(None, None), **SAME, engine=engine) as joined,
            pytest.raises(cf.UnsupportedError, match=r"algorithm='scalejoin'.*without checkpoint="),
        ):
            joined.add_source("left", more)
    with (
        scalejoin(*(cf.stream(iter([rows_at([1])])) for _ in range(2))) as joined,
        pytest.raises(cf.InputError, match="columns of the join are not known yet"),
    ):
        joined.add_source("left", more)


def test_an_error_of_a_source_that_was_added():
    left, right = pushed(None, None)
    joined = scalejoin(left, right)
    left.push(rows_at([1])), right.push(rows_at([1]))

    def failing():
        yield rows_at([2], 10)
        raise OSError("the line is dead")

    joined.add_source("left", cf.stream(failing()))
    with pytest.raises(OSError, match="the line is dead") as raised:
        list(joined)
    assert "in added left stream 2, after 1 rows" in raised.value.__notes__
    wait_until(lambda: not ours())


def test_sources_are_added_while_nobody_takes_results():
    """Everything is full, and the join is closed before anybody comes to the sources."""

    def endless(first):
        while True:
            yield rows_at(list(range(first, first + 500)))
            first += 500

    joined = cf.window_join(
        *(cf.stream(endless(0), schema=SCHEMA) for _ in range(2)),
        where="l.k = r.k", time="t", window=50, engine=cf.Local("scalejoin", buffer_rows=1000),
    )  # fmt: skip
    assert next(joined).num_rows
    for _ in range(3):
        joined.add_source("right", cf.stream(endless(0)))
    joined.close()
    wait_until(lambda: not ours())


def test_asynchronous_sources_are_added():
    async def some(times):
        for time in times:
            yield rows_at([time], time)

    async def run():
        left, right = pushed(None, None)
        joined = scalejoin(left, right)
        joined.add_source("left", cf.stream(some([1, 2])))
        left.close(), right.push(rows_at([2])), right.close()
        return [row async for batch in joined for row in rows_of(batch)]

    assert asyncio.run(run()) == [(1, 0, 2), (2, 0, 2)]


# --- stress


@pytest.mark.parametrize("cores", [2, 16])
@pytest.mark.parametrize("seed", range(20 if THOROUGH else 3))
def test_sources_come_and_go_on_threads(seed, cores, monkeypatch):
    """Differential: whatever is late when sources come at any moment, what is not is joined as in tables."""
    monkeypatch.setattr("counterflow.engines.local.input.carriers.usable_cores", lambda: list(range(cores)))
    rng = np.random.default_rng(seed)
    joined = scalejoin([*pushed(None, None)], [*pushed(None, None)], workers=2, batch_rows=32, buffer_rows=300)
    first = {side: [s.stream for s in joined._join.sources if s.side == side] for side in ("left", "right")}
    sent: dict[str, list] = {"left": [], "right": []}

    def push(side, stream, ids):
        t = 0
        for i in ids:
            t += int(rng_of[side].integers(0, 3))
            sent[side].append((i, t, i % 4))
            stream.push({"id": i, "t": t, "k": i % 4})
        stream.close()

    def come_and_go(side):
        begin, threads = 0, []
        for stream in first[side]:
            threads.append(threading.Thread(target=push, args=(side, stream, range(begin, begin + 400))))
            begin += 400
        for thread in threads:
            thread.start()
        for _ in range(6):
            (stream,) = pushed(None)
            try:
                joined.add_source(side, stream)
            except cf.InputError:  # all others have ended
                break
            threads.append(threading.Thread(target=push, args=(side, stream, range(begin, begin + 200))))
            threads[-1].start()
            begin += 200
        for thread in threads:
            thread.join()

    rng_of = {side: np.random.default_rng(int(rng.integers(1 << 30))) for side in ("left", "right")}
    sides = [threading.Thread(target=come_and_go, args=(side,)) for side in ("left", "right")]
    for thread in sides:
        thread.start()
    found = [row for batch in joined for row in rows_of(batch)]
    for thread in sides:
        thread.join()
    on_time = []
    for side in ("left", "right"):
        late = joined.late(side)["id"].to_pylist()
        assert joined.metrics()[f"late_{side}"] == len(late) and joined.metrics()[f"rows_{side}"] == len(sent[side])
        on_time.append({i: (t, k) for i, t, k in sent[side] if i not in set(late)})
    lefts, rights = on_time
    want = Counter(
        (i, j, max(t, u))
        for i, (t, k) in lefts.items()
        for j, (u, key) in rights.items()
        if k == key and abs(t - u) <= 3
    )
    assert Counter(found) == want
    assert [row[2] for row in found] == sorted(row[2] for row in found)
