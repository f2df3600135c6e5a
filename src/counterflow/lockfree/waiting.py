"""What a thread does that has nothing to do: SPIN, YIELD or PARK.

All begin with some `pause`, about 10 µs, because work that comes soon is then found in a fraction of a microsecond.
SPIN goes on like that, YIELD offers the core to others each time, PARK offers it some times and then sleeps. With
more threads than cores all of them make progress: even SPIN offers the core once in 10 µs.

    consumer                                        producer
    look for work: nothing                          publish work (release)
    idle: asleep = 1, fence, return                 notify: fence
    look for work: nothing                                  asleep is 1? then asleep = 0, wake
    idle: sleep while asleep is 1

No wake-up is lost. Both sides have a full fence between their store and their load (Dekker's pattern), so either
the consumer's second look sees the work or the producer's look sees the flag. In the second case the producer
takes the flag away before it wakes: a consumer that is not yet asleep then does not fall asleep, as the futex
compares in the kernel, and one that is asleep is woken. A producer that is stopped between its fence and its wake
delays the consumer; the sleep has an end, so even then, and after a mistake of a caller, the program goes on.

A producer that has published work for several consumers needs one fence for all of them, before it looks at the
first flag: each consumer's argument is about its own work and its own flag.

A flag that is taken away without need (two producers, or one that saw an old flag) costs a round, nothing else.
"""

from __future__ import annotations

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import (
    fence,
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
from counterflow.lockfree.shared_words import LINE, Words, check_place

SPIN, YIELD, PARK = 0, 1, 2
STRATEGIES = {"spin": SPIN, "yield": YIELD, "park": PARK}

SPIN_ROUNDS = 200
YIELD_ROUNDS = 20  # before parking
FIRST_SLEEP_NS, LAST_SLEEP_NS = 1_000_000, 50_000_000

ASLEEP = 0  # the futex; written by both sides
FIRST_NS, LAST_NS, SLEEPS = LINE, LINE + 1, LINE + 2  # the waiting thread's own


def waiter_size() -> int:
    return 2 * LINE


def waiter_init(
    words: Words, waiter: int, first_sleep_ns: int = FIRST_SLEEP_NS, last_sleep_ns: int = LAST_SLEEP_NS
) -> None:
    """A sleep that nobody ends takes `first_sleep_ns`, each further one twice as long, up to `last_sleep_ns`."""
    check_place(words, waiter, waiter_size())
    words[waiter : waiter + waiter_size()] = 0
    words[waiter + FIRST_NS], words[waiter + LAST_NS] = first_sleep_ns, last_sleep_ns


@compiled
def _idle_longer(words: Words, waiter: int, round: int, strategy: int) -> None:
    if strategy == SPIN:
        if round % SPIN_ROUNDS == 0:
            yield_thread()
        else:
            pause()
    elif strategy == YIELD or round < SPIN_ROUNDS + YIELD_ROUNDS:
        yield_thread()
    elif load_acquire(words, waiter + ASLEEP) == 0:
        store_fenced(words, waiter + ASLEEP, 1)  # with `notify`; the caller now looks again
    else:  # it has looked since the flag was set
        longer = min((round - SPIN_ROUNDS - YIELD_ROUNDS) // 2, 16)
        sleep_ns = min(load(words, waiter + FIRST_NS) << longer, load(words, waiter + LAST_NS))
        store(words, waiter + SLEEPS, load(words, waiter + SLEEPS) + 1)
        futex_wait(words, waiter + ASLEEP, 1, sleep_ns)


@inlined
def idle(words: Words, waiter: int, round: int, strategy: int) -> None:
    """Wait a little: called after each look that found nothing, with round 0, 1, 2, ..."""
    if round < SPIN_ROUNDS:
        pause()
    else:
        _idle_longer(words, waiter, round, strategy)


@inlined
def busy(words: Words, waiter: int) -> None:
    """Work was found: producers need not wake this thread."""
    if load_acquire(words, waiter + ASLEEP) != 0:
        store_release(words, waiter + ASLEEP, 0)


@compiled
def _wake(words: Words, waiter: int) -> None:
    store_release(words, waiter + ASLEEP, 0)
    futex_wake(words, waiter + ASLEEP, 1)


@inlined
def wake_sleeper(words: Words, waiter: int) -> None:
    """Wake the thread if it sleeps; after a fence that follows the publication."""
    if load_acquire(words, waiter + ASLEEP) != 0:
        _wake(words, waiter)


@inlined
def notify(words: Words, waiter: int) -> None:
    """After work was published: wake the thread that waits for it, if it sleeps. Once for several pieces will do."""
    fence()  # with the fenced store of `idle`
    wake_sleeper(words, waiter)


@inlined
def notify_all(words: Words, waiters: int, count: int) -> None:
    """Do the same for several threads: the words from `waiters` on name them."""
    fence()  # with the fenced stores of `idle`
    for i in range(waiters, waiters + count):
        wake_sleeper(words, words[i])
