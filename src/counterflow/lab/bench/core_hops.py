"""How long a word takes from one core to another: a virtual machine's host may move its cores apart at any moment."""

from __future__ import annotations

import threading
import time

from counterflow.cores import pin_thread, usable_cores
from counterflow.jit import compiled
from counterflow.lockfree.atomics import load_acquire, store_release
from counterflow.lockfree.shared_words import LINE, Words, shared_words

ROUNDS = 10_000


@compiled
def play(words: Words, own: int, other: int, serves: bool, first: int, last: int) -> None:
    """Write each number once the other player has written it; the one who serves writes first."""
    for i in range(first, last + 1):
        if serves:
            store_release(words, own, i)
        while load_acquire(words, other) < i:
            pass
        if not serves:
            store_release(words, own, i)


def hop_ns(rounds: int = ROUNDS) -> float | None:
    """Return the mean of some thousand hops between the first two cores; None where there is only one."""
    if len(usable_cores()) < 2:
        return None
    words, spent_s = shared_words(2 * LINE), [0.0, 0.0]

    def player(k: int) -> None:
        pin_thread(k)
        play(words, k * LINE, (1 - k) * LINE, k == 0, 1, 1)  # both are there, and compiled
        begin = time.perf_counter()
        play(words, k * LINE, (1 - k) * LINE, k == 0, 2, rounds + 1)
        spent_s[k] = time.perf_counter() - begin

    threads = [threading.Thread(target=player, args=(k,), daemon=True) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(spent_s) / (2 * rounds) * 1e9
