"""Atomics, the ring and waiting, run by threads without the GIL. Each stress test names what must never be seen."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numba import njit

from counterflow.jit import OPTIONS
from counterflow.lockfree.atomics import (
    clock_ns,
    compare_and_swap,
    fence,
    fetch_add,
    futex_wait,
    futex_wake,
    load,
    load_acquire,
    pause,
    store,
    store_fenced,
    store_release,
    yield_thread,
)
from counterflow.lockfree.message_ring import (
    front,
    pop,
    publish,
    ring_init,
    ring_size,
    room,
    stage,
    try_send,
    waiting,
)
from counterflow.lockfree.shared_words import LINE, shared_words
from counterflow.lockfree.waiting import (
    ASLEEP,
    PARK,
    SLEEPS,
    SPIN,
    SPIN_ROUNDS,
    STRATEGIES,
    YIELD,
    YIELD_ROUNDS,
    _idle_longer,
    busy,
    idle,
    notify,
    waiter_init,
)
from racing import APART, PLACES, WAITER, line_up, loop, run_together

HOUR_NS = 3600 * 10**9
PARK_ROUND = SPIN_ROUNDS + YIELD_ROUNDS  # the first one that goes to sleep


# --- atomics


@loop
def write_then_flag(words, n):
    line_up(words, 2 * LINE, 2)
    for i in range(1, n + 1):
        store(words, 0, i)
        store_release(words, LINE, i)


@loop
def flag_then_read(words, n):
    stale, flag = 0, 0
    line_up(words, 2 * LINE, 2)
    while flag < n:
        flag = load_acquire(words, LINE)
        if load(words, 0) < flag:
            stale += 1
    return stale


def test_message_passing():
    """Forbidden: the flag is seen, and the data written before it are not."""
    words, n = shared_words(3 * LINE), 1_000_000
    _, stale = run_together(lambda: write_then_flag(words, n), lambda: flag_then_read(words, n))
    assert stale == 0


@loop
def dekker(words, me, rounds, n, fenced, missed):
    """Store to a word of a pair, then look at the other thread's. Without a fence one time in ten both see nothing."""
    meeting = 2 * n * LINE
    for k in range(rounds):
        for i in range(n):
            store(words, (2 * i + me) * LINE, 0)
        line_up(words, meeting, 4 * k + 2)
        for i in range(n):
            if fenced:
                store_fenced(words, (2 * i + me) * LINE, 1)
            else:
                store_release(words, (2 * i + me) * LINE, 1)
                fence()
            missed[k, i] = load_acquire(words, (2 * i + 1 - me) * LINE) == 0
        line_up(words, meeting, 4 * k + 4)


@pytest.mark.parametrize("fenced", [False, True], ids=["fence", "store_fenced"])
def test_store_then_load(fenced):
    """Forbidden: of two threads that each store and then look at the other's store, neither sees it."""
    rounds, n = 200, 1000
    words, missed = shared_words((2 * n + 1) * LINE), np.zeros((2, rounds, n), np.bool_)
    run_together(*(lambda me=me: dekker(words, me, rounds, n, fenced, missed[me]) for me in (0, 1)))
    assert not missed.all(axis=0).any()


@loop
def increment(words, threads, n):
    total = 0
    line_up(words, LINE, threads)
    for _ in range(n):
        total += fetch_add(words, 0, 1)
    return total


def test_fetch_add():
    """Forbidden: an increment is lost, or two threads get the same number."""
    words, threads, n = shared_words(2 * LINE), 4, 500_000
    totals = run_together(*[lambda: increment(words, threads, n)] * threads)
    assert words[0] == threads * n
    assert sum(totals) == threads * n * (threads * n - 1) // 2


@loop
def claim(words, me, threads, n):
    won = 0
    line_up(words, n, threads)
    for i in range(n):
        if compare_and_swap(words, i, 0, me):
            won += 1
    return won


def test_compare_and_swap():
    """Forbidden: a word has two winners, or none, or holds what its winner did not write."""
    threads, n = 4, 1_000_000
    words = shared_words(n + LINE)
    won = run_together(*(lambda me=me: claim(words, me, threads, n) for me in range(1, threads + 1)))
    assert sum(won) == n
    assert [np.count_nonzero(words[:n] == me) for me in range(1, threads + 1)] == won


@loop
def use_the_system(words):
    """Every function of the C library once; what is there to see of it."""
    yield_thread()
    futex_wake(words, 0, 1)
    futex_wait(words, 0, 1, HOUR_NS)  # returns at once: the word is not 1
    return clock_ns()


def test_the_clock_is_that_of_python():
    before = time.monotonic_ns()
    now = use_the_system(shared_words(LINE))
    assert before <= now <= time.monotonic_ns()


def test_another_process_runs_the_cached_code():
    """The addresses of system calls are not those of the process that compiled the code."""
    code = (
        "from counterflow.lockfree import shared_words as words, waiting as w;"
        "block = words.shared_words(w.waiter_size()); w.waiter_init(block, 0, 1000, 1000);"
        f"[w._idle_longer(block, 0, {SPIN_ROUNDS} + k, w.PARK) for k in range(2 * {YIELD_ROUNDS})];"
        "print(block[w.SLEEPS], sum(w._idle_longer.stats.cache_hits.values()))"
    )
    _idle_longer(shared_words(WAITER), 0, 0, YIELD)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert answer.split() == [str(YIELD_ROUNDS - 1), "1"]


def test_no_reference_counts():
    """Arrays that are passed on in a loop must not be counted: threads would contend for the count."""

    @njit(**OPTIONS)
    def pump(words, ring, waiter, n):
        for i in range(n):
            try_send(words, ring, i, 0, 0, 0)
            notify(words, waiter)
            if waiting(words, ring) > 0:
                pop(words, ring)
            idle(words, waiter, i, SPIN)

    pump(np.zeros(4096, np.int64), 0, 2048, 0)
    (assembly,) = pump.inspect_asm().values()
    assert "pump" in assembly and "NRT_" not in assembly


# --- the ring


@given(
    capacity=st.sampled_from([1, 2, 4, 16]),
    steps=st.lists(st.tuples(st.sampled_from(["stage", "publish", "send", "pop"]), st.integers(1, 20)), max_size=40),
)
@settings(max_examples=150, deadline=None)
def test_ring_against_a_queue(capacity, steps):
    """Oracle: a deque, whose last messages may not be published yet."""
    words = shared_words(LINE + ring_size(capacity) + LINE)
    words[:] = -1
    ring_init(words, LINE, capacity)
    kept, hidden, number = deque(), 0, 0
    for action, times in steps:
        for _ in range(times):
            number += 1
            message = (number, -number, number * 3, number**5)
            if action == "publish":
                publish(words, LINE)
                hidden = 0
            elif action == "pop":
                assert (waiting(words, LINE) > 0) == (len(kept) > hidden)
                assert waiting(words, LINE) <= len(kept) - hidden
                if len(kept) > hidden:
                    assert tuple(front(words, LINE, k) for k in range(4)) == kept.popleft()
                    pop(words, LINE)
            else:
                fits = len(kept) < capacity
                assert (stage if action == "stage" else try_send)(words, LINE, *message) == fits
                if fits:
                    kept.append(message)
                    hidden = hidden + 1 if action == "stage" else 0
            assert room(words, LINE) == capacity - len(kept)
    assert (words[:LINE] == -1).all() and (words[LINE + ring_size(capacity) :] == -1).all()


def test_places_and_capacities_are_checked():
    words = shared_words(1000)
    for begin, capacity in [(0, 3), (0, 0), (4, 8), (-8, 8), (0, 1024)]:
        with pytest.raises(ValueError):
            ring_init(words, begin, capacity)
    for other in (np.zeros(1000), np.zeros(2000, np.int64)[::2]):
        with pytest.raises(ValueError):
            waiter_init(other, 0)


@loop
def produce(words, ring, n, batch, strategy, own_waiter, consumer_waiter):
    """Messages 0 to n - 1, published when `batch` of them are staged or the ring is full."""
    turn = i = staged = 0
    while i < n:
        if stage(words, ring, i, 3 * i, ~i, i * i):
            i += 1
            staged += 1
            turn = 0
            busy(words, own_waiter)
            if staged < batch and i < n:
                continue
        else:
            idle(words, own_waiter, turn, strategy)
            turn += 1
        if staged > 0:
            publish(words, ring)
            notify(words, consumer_waiter)
            staged = 0


@loop
def consume(words, ring, n, strategy, own_waiter, producer_waiter):
    """How many messages were not the next one, or were damaged."""
    turn = i = wrong = 0
    while i < n:
        if waiting(words, ring) == 0:
            idle(words, own_waiter, turn, strategy)
            turn += 1
            continue
        busy(words, own_waiter)
        turn = 0
        a, b = front(words, ring, 0), front(words, ring, 1)
        c, d = front(words, ring, 2), front(words, ring, 3)
        if a != i or b != 3 * i or c != ~i or d != i * i:
            wrong += 1
        pop(words, ring)
        notify(words, producer_waiter)
        i += 1
    return wrong + waiting(words, ring)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "capacity, batch, n", [(1, 1, 5_000), (2, 1, 10_000), (8, 3, 30_000), (64, 1, 100_000), (1024, 100, 300_000)]
)
def test_ring_between_threads(capacity, batch, n, strategy, place):
    """Forbidden: a message is lost, comes twice, out of order or damaged; a side sleeps while it could go on."""
    words = shared_words(2 * WAITER + ring_size(capacity))
    for waiter in (0, WAITER):
        waiter_init(words, waiter, HOUR_NS, HOUR_NS)  # a lost wake-up would be seen
    ring, how = 2 * WAITER, STRATEGIES[strategy]
    ring_init(words, ring, capacity)
    _, wrong = run_together(
        lambda: produce(words, ring, n, batch, how, 0, WAITER),
        lambda: consume(words, ring, n, how, WAITER, 0),
        place=place,
    )
    assert wrong == 0


# --- waiting


@loop
def pass_ball(words, me, players, laps, first_round, strategy, delay, ball):
    """The ball is at player `ball % players`; each waits for it and hands it on, and takes its time before both."""
    waiter, following = me * WAITER, (me + 1) % players * WAITER
    line_up(words, ball + LINE, players)
    for lap in range(laps):
        turn = first_round
        while load_acquire(words, ball) != lap * players + me:
            idle(words, waiter, turn, strategy)
            turn += 1
        busy(words, waiter)
        for _ in range(lap * 7 % (delay + 1)):
            pause()
        store_release(words, ball, lap * players + me + 1)
        notify(words, following)
        for _ in range(lap * 11 % (delay + 1)):
            pause()


def play(laps: int, place: str, first_rounds: list[int], strategies: list[int], delay: int = 0) -> list[int]:
    """How often each player slept."""
    players = len(strategies)
    ball = players * WAITER
    words = shared_words(ball + 2 * LINE)
    for player in range(players):
        waiter_init(words, player * WAITER, HOUR_NS, HOUR_NS)

    def player(k):
        return lambda: pass_ball(words, k, players, laps, first_rounds[k], strategies[k], delay, ball)

    run_together(*map(player, range(players)), place=place)
    assert words[ball] == players * laps
    return [int(words[player * WAITER + SLEEPS]) for player in range(players)]


@pytest.mark.parametrize("place", PLACES)
def test_no_wake_up_is_lost(place):
    """Forbidden: the ball is at a player who sleeps for ever. Both go to sleep as early as they can."""
    assert min(play(5_000, place, [PARK_ROUND] * 2, [PARK] * 2)) > 0


def test_no_wake_up_is_lost_while_falling_asleep():
    """Forbidden: the same; but the ball comes back at any instant from just before the flag to deep in the sleep."""
    play(30_000, APART, [PARK_ROUND, 0], [PARK, SPIN], delay=12)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_more_threads_than_cores(strategy, place):
    """Forbidden: no end, because threads that wait keep the cores from the one that has work."""
    play(300, place, [0] * 7, [STRATEGIES[strategy]] * 7)


@loop
def count_work(words, waiter, at, n):
    turn = PARK_ROUND
    while load_acquire(words, at) < n:
        idle(words, waiter, turn, PARK)
        turn += 1
    busy(words, waiter)


@loop
def add_work(words, waiter, at, n):
    for _ in range(n):
        fetch_add(words, at, 1)
        notify(words, waiter)


def test_many_producers_wake_one_thread():
    """Forbidden: the last piece of work is there and nobody has woken the thread that waits for it."""
    at, producers = WAITER, 4
    for n in range(1, 200):
        words = shared_words(WAITER + LINE)
        waiter_init(words, 0, HOUR_NS, HOUR_NS)
        adding = [lambda n=n, words=words: add_work(words, 0, at, n)] * producers
        run_together(lambda n=n, words=words: count_work(words, 0, at, n * producers), *adding)


def test_a_sleep_without_a_wake_up_ends():
    """Forbidden: a thread that nobody wakes sleeps for ever."""
    words = shared_words(WAITER)
    waiter_init(words, 0, 1_000, 1_000)
    for turn in range(PARK_ROUND, PARK_ROUND + 10):
        idle(words, 0, turn, PARK)
    assert words[SLEEPS] == 9 and words[ASLEEP] == 1  # the first call only raises the flag
    busy(words, 0)
    assert words[ASLEEP] == 0


def test_only_parking_raises_the_flag():
    words = shared_words(WAITER)
    waiter_init(words, 0)
    for strategy in (SPIN, YIELD):
        for turn in range(3 * PARK_ROUND):
            idle(words, 0, turn, strategy)
    assert words[ASLEEP] == words[SLEEPS] == 0
