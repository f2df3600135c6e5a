"""ScaleGate: what it means, against a sorted list; and threads, which must all see that same list.

The docstring of each stress test names what must never be seen.
"""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from counterflow.lockfree import scale_gate
from counterflow.lockfree.atomics import pause, yield_thread
from counterflow.lockfree.scale_gate import (
    HEIGHT,
    LAST_TIME,
    LEVELS,
    NEXT,
    NO_TIE,
    NONE,
    TIE,
    TIME,
    VALUE,
    advance,
    close,
    gate_init,
    gate_size,
    next_ready,
    read_until,
    ready_until,
    try_add,
    try_insert,
)
from counterflow.lockfree.shared_words import LINE, shared_words
from counterflow.lockfree.waiting import PARK, YIELD, busy, idle, notify, waiter_init, waiter_size
from effort import examples
from racing import APART, PLACES, WAITER, line_up, loop, run_together

GUARD = -0x5EED


class Gate:
    """A gate between guard words, and a sorted list as its twin."""

    def __init__(self, sources: int, readers: int, capacity: int, waiters: int = 0) -> None:
        self.sources, self.readers, self.capacity = sources, readers, capacity
        self.size = gate_size(sources, readers, capacity)
        self.waiters = LINE + self.size + LINE
        self.words = shared_words(self.waiters + waiters * waiter_size())
        self.words[: self.waiters] = GUARD
        for k in range(waiters):
            waiter_init(self.words, self.waiters + k * waiter_size())
        gate_init(self.words, LINE, sources, readers, capacity)
        self.frontiers = [(scale_gate.FIRST_TIME, NO_TIE)] * sources  # a time, and a tie within the next time
        self.tuples: list[tuple[int, int, int]] = []
        self.own: list[list[tuple[int, int]]] = [[] for _ in range(sources)]
        self.got: list[list[tuple[int, int, int]]] = [[] for _ in range(readers)]

    def try_add(self, source: int, time: int, tie: int, promise: bool = True) -> bool:
        """With a tuple's value made of its key; refused only if it has to be."""
        places = [self.got[reader][-1][:2] if self.got[reader] else (0, 0) for reader in range(self.readers)]
        in_use = sum(key >= min(places) for key in self.own[source])
        added = (try_add if promise else try_insert)(self.words, LINE, source, time, tie, time - tie)
        assert added == (in_use <= self.capacity)
        if added:
            self.tuples.append((time, tie, time - tie))
            self.own[source].append((time, tie))
        if promise or not added:
            self._promise(source, time - 1, NO_TIE if added else tie)
        return added

    def _promise(self, source: int, time: int, tie: int) -> None:
        self.frontiers[source] = max(self.frontiers[source], (time, tie))

    def advance(self, source: int, time: int) -> None:
        advance(self.words, LINE, source, time)
        self._promise(source, time, NO_TIE)

    def close(self, source: int) -> None:
        close(self.words, LINE, source)
        self._promise(source, LAST_TIME, NO_TIE)

    def read(self, reader: int) -> tuple[int, int, int] | None:
        """The next ready tuple, compared with the twin's."""
        ready = sorted(t for t in self.tuples if (t[0] - 1, t[1]) < min(self.frontiers))
        node, number = next_ready(self.words, LINE, reader), len(self.got[reader])
        assert ready_until(self.words, LINE) == min(self.frontiers)
        if node == NONE:
            assert number == len(ready)
            assert read_until(self.words, LINE, reader) == min(self.frontiers)[0]
            return None
        found = tuple(int(self.words[node + field]) for field in (TIME, TIE, VALUE))
        assert number < len(ready) and found == ready[number]
        self.got[reader].append(found)
        return found

    def read_all(self, reader: int) -> list[tuple[int, int, int]]:
        return list(iter(lambda: self.read(reader), None))

    def check_guards(self) -> None:
        outside = np.concatenate([self.words[:LINE], self.words[LINE + self.size : self.waiters]])
        assert (outside == GUARD).all()


# --- the meaning


@st.composite
def steps_of_a_gate(draw):
    sources, readers = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    source, reader = st.integers(0, sources - 1), st.integers(0, readers - 1)
    step = st.one_of(
        st.tuples(st.sampled_from(["add", "insert"]), source, st.sampled_from([0, 0, 0, 1, 1, 2, 30])),
        st.tuples(st.just("read"), reader, st.integers(1, 12)),
        st.tuples(st.just("advance"), source, st.integers(0, 10)),
        st.tuples(st.just("close"), source, st.just(0)) if draw(st.booleans()) else st.nothing(),
    )
    return sources, readers, draw(st.sampled_from([1, 2, 3, 5, 20])), draw(st.lists(step, max_size=150))


@given(steps_of_a_gate())
@settings(max_examples=examples(300), deadline=None)
def test_against_a_sorted_list(steps):
    """Oracle: all tuples up to the smallest frontier, sorted, for each reader from where it is."""
    sources, readers, capacity, actions = steps
    gate = Gate(sources, readers, capacity)
    latest = [1] * sources
    for number, (action, who, amount) in enumerate(actions):
        if action == "read":
            for _ in range(amount):
                gate.read(who)
        elif gate.frontiers[who][0] == LAST_TIME:
            continue
        elif action in ("add", "insert"):
            latest[who] = max(latest[who] + amount, gate.frontiers[who][0] + 1)
            gate.try_add(who, latest[who], number, promise=action == "add")
        elif action == "advance":
            gate.advance(who, latest[who] + amount)
        else:
            gate.close(who)
    for source in range(sources):
        gate.close(source)
    for reader in range(readers):
        gate.read_all(reader)
        assert gate.got[reader] == sorted(gate.tuples)
    gate.check_guards()


def test_a_source_that_has_not_begun_loses_nothing():
    """The original lost tuples at the start unless every source had delivered one."""
    gate = Gate(sources=3, readers=2, capacity=8)
    for tie, time in enumerate([10, 20, 30]):
        gate.try_add(0, time, tie)
    assert gate.read(0) is None
    gate.advance(1, 15)
    gate.close(2)
    assert [t[0] for t in gate.read_all(0)] == [10]
    gate.try_add(1, 16, 100)
    gate.advance(1, 25)
    assert [t[0] for t in gate.read_all(0)] == [16, 20]
    assert [t[0] for t in gate.read_all(1)] == [10, 16, 20]


def test_ties_decide_not_arrival():
    gate = Gate(sources=4, readers=1, capacity=8)
    for source, tie in [(3, 0), (0, 7), (1, 3), (3, 6), (2, 1), (1, 4), (2, 5), (3, 8), (0, 9)]:
        assert gate.try_add(source, 5, tie)
    assert gate.read(0) is None  # more with the same time may follow
    for source in range(4):
        gate.advance(source, 5)
    assert [t[1] for t in gate.read_all(0)] == [0, 1, 3, 4, 5, 6, 7, 8, 9]


def test_the_last_tuple_becomes_ready():
    gate = Gate(sources=2, readers=1, capacity=8)
    gate.try_add(0, 5, 0)
    gate.try_add(1, LAST_TIME, 0)
    gate.close(0)
    assert [t[0] for t in gate.read_all(0)] == [5]
    gate.close(1)
    assert [t[0] for t in gate.read_all(0)] == [LAST_TIME]
    assert read_until(gate.words, LINE, 0) == LAST_TIME


def test_a_full_pool_becomes_ready():
    """Who is refused has promised the key of its tuple, so readers can empty the pool, even one of a single node."""
    for times in (range(1, 50), [7] * 49):
        gate = Gate(sources=1, readers=1, capacity=1)
        for tie, time in enumerate(times):
            while not gate.try_add(0, time, tie):
                assert gate.read(0) is not None
        assert len(gate.got[0]) == 48


def test_who_is_ahead_does_not_take_the_room_of_others():
    """All tuples have one time, and pools hold one; each source is refused in turn, and each goes on."""
    gate = Gate(sources=3, readers=1, capacity=1)
    waiting = {source: list(range(source, 60, 3)) for source in range(3)}
    while any(waiting.values()):
        moved = False
        for source, ties in waiting.items():
            while ties and gate.try_add(source, 7, ties[0]):
                ties.pop(0)
                moved = True
            if not ties:
                gate.advance(source, 7)
        assert gate.read_all(0) or moved
    gate.read_all(0)
    assert [t[1] for t in gate.got[0]] == list(range(60))


def test_a_stopped_insertion_keeps_the_nodes_it_may_meet():
    """A source inside an insertion may be at any node that was there when it began: none is reused until it is over."""
    gate = Gate(sources=2, readers=1, capacity=3)
    for time in range(1, 5):
        assert gate.try_add(0, time, 0)
    stopped = scale_gate._source(gate.words, LINE, 1)
    scale_gate._enter(gate.words, stopped)
    gate.advance(1, 100)
    gate.advance(0, 4)
    assert len(gate.read_all(0)) == 4
    for _ in range(3):
        assert not try_add(gate.words, LINE, 0, 5, 0, 5)
    scale_gate._leave(gate.words, stopped)
    gate.frontiers[0] = (4, 0)
    assert gate.try_add(0, 5, 0)
    gate.close(0)
    assert gate.read_all(0) == [(5, 0, 5)]


@pytest.mark.parametrize("sources", [1, 2, 3])
def test_shortcuts_are_complete_while_nothing_is_read(sources):
    """Every node is linked on each level up to its height, in order: so a place is found in few steps."""
    gate = Gate(sources, readers=1, capacity=2000)
    for tie in range(1500):
        gate.try_add(tie * 7 % 11 % sources, 1 + tie // 2, tie)
    first = gate.words[scale_gate._reader(gate.words, LINE, 0)] & ~HEIGHT
    on_level: list[list[tuple[int, int]]] = []
    heights: dict[tuple[int, int], int] = {}
    for level in range(LEVELS):
        keys, link = [], gate.words[first + NEXT + level]
        while link != NONE:
            node = link & ~HEIGHT
            keys.append((int(gate.words[node + TIME]), int(gate.words[node + TIE])))
            heights[keys[-1]] = int(link & HEIGHT)
            link = gate.words[node + NEXT + level]
        on_level.append(keys)
    assert on_level[0] == sorted(key[:2] for key in gate.tuples)
    for level in range(1, LEVELS):
        assert on_level[level] == [key for key in on_level[0] if heights[key] > level]
    assert 1 < len(on_level[3]) < len(on_level[1]) < 700


# --- threads


@loop
def linger(state, one_in):
    """Now and then, pause a while; returns the next state of the random numbers."""
    x = np.uint64(state)
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    if one_in > 0 and x % np.uint64(one_in) == np.uint64(0):
        for _ in range((x >> np.uint64(20)) & np.uint64(255)):
            pause()
    return np.int64(x)


@loop
def feed(words, gate, source, tuples, pauses, beats, random, strategy, own_waiter, waiters, count):
    """Add all tuples, with heartbeats after some of them, and close. A tuple with the tie -1 is only a heartbeat."""
    for i in range(len(tuples)):
        random = linger(random, pauses)
        time = tuples[i, 0]
        if tuples[i, 1] < 0:
            advance(words, gate, source, time)
            for k in range(count):
                notify(words, waiters + k * WAITER)
            continue
        turn = 0
        while True:
            if random & 6 == 0:
                added = try_insert(words, gate, source, time, tuples[i, 1], tuples[i, 2])
            else:
                added = try_add(words, gate, source, time, tuples[i, 1], tuples[i, 2])
            if added:
                break
            for k in range(count):
                notify(words, waiters + k * WAITER)
            idle(words, own_waiter, turn, strategy)
            turn += 1
        if beats > 0 and random % beats == 0 and i + 1 < len(tuples):
            advance(words, gate, source, tuples[i + 1, 0] - 1)
        busy(words, own_waiter)
        for k in range(count):
            notify(words, waiters + k * WAITER)
    close(words, gate, source)
    for k in range(count):
        notify(words, waiters + k * WAITER)


@loop
def stays_ready(words, gate, node):
    """For a moment a source may seem to promise less: when it exchanges a tie for the next time."""
    for _ in range(10_000):
        until, tie = ready_until(words, gate)
        if words[node + TIME] <= until or (words[node + TIME] - 1 == until and words[node + TIE] < tie):
            return True
        yield_thread()
    return False


@loop
def read_to_the_end(words, gate, reader, found, pauses, random, strategy, own_waiter, waiters, count):
    """All tuples into `found`. Returns how many, and how many came before they were ready."""
    n = early = turn = 0
    while True:
        node = next_ready(words, gate, reader)
        if node != NONE:
            early += 0 if stays_ready(words, gate, node) else 1
            if n < len(found):
                found[n, 0], found[n, 1], found[n, 2] = words[node], words[node + 1], words[node + 2]
            n += 1
            busy(words, own_waiter)
            for k in range(count):
                notify(words, waiters + k * WAITER)
            random = linger(random, pauses)
            turn = 0
        elif read_until(words, gate, reader) == LAST_TIME:
            return n, early
        else:
            idle(words, own_waiter, turn, strategy)
            turn += 1


def numbered(streams: list[np.ndarray]) -> list[np.ndarray]:
    """Tuples of streams of times: ties are different everywhere and ascend in each source; values follow from both."""
    tuples = []
    for source, times in enumerate(streams):
        ties = np.arange(len(times)) * len(streams) + source
        tuples.append(np.column_stack([times, ties, times * 1_000_003 + ties]).astype(np.int64))
    return tuples


def stress(
    streams: list[np.ndarray],
    readers: int,
    capacity: int,
    *,
    seed: int = 1,
    strategy: int = YIELD,
    place: str = APART,
    source_pauses: int = 0,
    reader_pauses: tuple[int, ...] = (0,),
    beats: int = 0,
    heartbeats_only: np.ndarray | None = None,
) -> None:
    """A thread for each source and reader; every reader must get the sorted union."""
    tuples = numbered(streams)
    everything = np.concatenate(tuples)
    if heartbeats_only is not None:
        tuples.append(np.column_stack([heartbeats_only, np.full((len(heartbeats_only), 2), -1)]).astype(np.int64))
    sources = len(tuples)
    gate = Gate(sources, readers, capacity, waiters=sources + readers)
    reading, feeding = gate.waiters, gate.waiters + readers * WAITER
    expected = everything[np.lexsort((everything[:, 1], everything[:, 0]))]
    found = np.zeros((readers, len(expected), 3), np.int64)

    def source(k):
        random, waiter = seed * 7919 + k + 1, feeding + k * WAITER
        return lambda: feed(
            gate.words, LINE, k, tuples[k], source_pauses, beats, random, strategy, waiter, reading, readers
        )

    def reader(k):
        random, waiter, pauses = seed * 104729 + k + 1, reading + k * WAITER, reader_pauses[k % len(reader_pauses)]
        return lambda: read_to_the_end(
            gate.words, LINE, k, found[k], pauses, random, strategy, waiter, feeding, sources
        )

    results = run_together(*map(source, range(sources)), *map(reader, range(readers)), place=place)
    for k in range(readers):
        count, early = results[sources + k]
        assert early == 0, f"reader {k}: {early} tuples before they were ready, seed {seed}"
        assert count == len(expected) and (found[k] == expected).all(), f"reader {k}, seed {seed}"
    gate.check_guards()


def random_times(n: int, step: int, ties_max: int, seed: int) -> np.ndarray:
    """Ascending, none of them more than `ties_max` times."""
    times = 1 + np.cumsum(np.random.default_rng(seed).integers(0, step + 1, n))
    for i in range(ties_max, n):
        if times[i] <= times[i - ties_max]:
            times[i:] += times[i - ties_max] - times[i] + 1
    return times


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("sources, readers", [(1, 1), (1, 3), (2, 2), (3, 1), (4, 3)])
def test_every_reader_gets_the_sorted_union(sources, readers, place):
    """Forbidden: a tuple is lost, comes twice, out of order, damaged, or before it is ready. Many times are equal."""
    for seed, (step, beats) in enumerate([(1, 0), (3, 5), (100, 1)]):
        streams = [random_times(6_000, step, 40, seed * 10 + k) for k in range(sources)]
        stress(streams, readers, 256, seed=seed, place=place, source_pauses=50, reader_pauses=(100,), beats=beats)


@pytest.mark.parametrize("capacity", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("sources, readers", [(1, 2), (3, 2)])
def test_nodes_are_reused_only_when_nobody_can_meet_them(capacity, sources, readers):
    """Forbidden: a node is overwritten while a reader or another source is at it. One reader is slow."""
    for seed, beats in enumerate([0, 2]):
        streams = [random_times(1_500, 2, capacity, seed * 10 + k) for k in range(sources)]
        pauses = dict(source_pauses=30, reader_pauses=(3, 0))
        stress(streams, readers, capacity, seed=seed, beats=beats, **pauses)
        stress(streams, readers, capacity, seed=seed, beats=beats, place=PLACES[-1], **pauses)


@pytest.mark.parametrize("sources", [3, 5])
def test_all_times_are_equal(sources):
    """Forbidden: sources that insert at the same place lose a node to each other, or ties are out of order."""
    streams = [np.full(3_000, 7)] * sources
    stress(streams, 2, 3_000)
    stress([np.repeat(np.arange(1, 41), 100)] * sources, 2, 100)


@pytest.mark.parametrize("capacity", [1, 5, 64])
def test_more_tuples_of_one_time_than_a_pool_holds(capacity):
    """Forbidden: sources wait for readers that wait for them. Pools are full of one time, and times change between."""
    for sources in (1, 2, 3):
        stress([np.full(500, 7)] * sources, 2, capacity)
        stress([np.repeat(np.arange(1, 41), 60)] * sources, 1, capacity, source_pauses=30, reader_pauses=(30,))
    uneven = [np.repeat(np.arange(1, 41), 60), np.repeat(np.arange(1, 2_001, 50), 3)]
    stress([*uneven, random_times(3_000, 2, 200, 5)], 2, capacity, beats=3)


def test_sources_that_differ():
    """Forbidden: a source that is idle, empty, rare, early or late keeps tuples from being ready, or loses its own."""
    many, none = random_times(8_000, 2, 30, 1), np.zeros(0, np.int64)
    stress([many, none, none], 2, 128)
    stress([none, none], 2, 4)
    stress([many, many + 1], 2, 64, heartbeats_only=np.arange(0, many[-1], 3))
    stress([many, many[::1000], many[:1]], 2, 128, beats=3)
    stress([many, many + many[-1] + 1], 2, 10_000)
    stress([many + many[-1] + 1, many, many // 3 + 1], 2, 10_000, source_pauses=20)


@pytest.mark.parametrize("place", PLACES)
def test_sources_and_readers_that_sleep(place):
    """Forbidden: no end. All of them sleep when they have nothing to do, and are woken by the others."""
    streams = [random_times(3_000, 2, 30, seed) for seed in range(3)]
    stress(streams, 2, 64, strategy=PARK, place=place, source_pauses=20, reader_pauses=(20,))


def test_a_tuple_that_comes_just_before_a_promise():
    """Forbidden: a reader that looks at the list and then at the frontiers passes a tuple added in between.

    One source is far ahead; the last one adds a tuple right after the one that the reader stands on, and promises at
    once that the reader can go on.
    """
    n, none = 20_000, np.zeros(0, np.int64)
    stress([np.arange(1, n) * 10, none, none, np.arange(1, n) * 10 - 5], 1, n, beats=1)


@loop
def feed_and_read(words, gate, me, threads, tuples, found, start):
    """A source and a reader in one thread, so that two cores are enough for all that can meet."""
    line_up(words, start, threads)
    i = n = 0
    while True:
        if i < len(tuples):
            if try_add(words, gate, me, tuples[i, 0], tuples[i, 1], tuples[i, 2]):
                i += 1
        else:
            close(words, gate, me)
        node = next_ready(words, gate, me)
        if node != NONE:
            if n < len(found):
                found[n, 0], found[n, 1], found[n, 2] = words[node], words[node + 1], words[node + 2]
            n += 1
        elif read_until(words, gate, me) == LAST_TIME:
            return n
        else:
            yield_thread()


@pytest.mark.parametrize("capacity", [1, 3, 8, 30])
@pytest.mark.parametrize("threads", [2, 3])
def test_sources_that_read(capacity, threads):
    """Forbidden: a source meets a node that another has reused meanwhile."""
    tuples = numbered([random_times(60_000, 3, min(capacity, 20), 100 + k) for k in range(threads)])
    everything = np.concatenate(tuples)
    expected = everything[np.lexsort((everything[:, 1], everything[:, 0]))]
    found = np.zeros((threads, len(expected), 3), np.int64)
    gate = Gate(threads, threads, capacity, waiters=1)

    def thread(k):
        return lambda: feed_and_read(gate.words, LINE, k, threads, tuples[k], found[k], gate.waiters)

    assert run_together(*map(thread, range(threads))) == [len(expected)] * threads
    assert (found == expected).all()
    gate.check_guards()
