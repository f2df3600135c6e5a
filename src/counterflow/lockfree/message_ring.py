"""A bounded ring of messages from one thread to one other.

    words:  | capacity, waiter | tail | producer's own | head | consumer's own | slot 0 | slot 1 | ...

`tail` counts the messages published so far and is written by the producer alone, `head` those dropped, by the
consumer alone (Lamport's ring). Each is written with release and read by the other side with acquire: a message is
written before the tail that covers it, and read before the head that gives its slot back. Each side keeps a copy of
the other's index and looks at the real one only when the copy says full or empty; each index and each side's own
words have a cache line to themselves, so that nothing else travels between the two cores.

A publication costs the consumer a cache miss. Who has several messages at once stages them and publishes them
together; staged messages take their slots at once.

A ring may name the consumer's waiter (`lockfree.waiting`), so that whoever sends knows whom to wake.
"""

from __future__ import annotations

from counterflow.jit import inlined
from counterflow.lockfree.atomics import load, load_acquire, store, store_release
from counterflow.lockfree.shared_words import LINE, Words, check_place, whole_lines

WIDTH = 4  # words of a message
CAPACITY = 0
WAITER = 1  # the consumer's; 0: it has none, or others know it
TAIL = LINE
STAGED, HEAD_SEEN = 2 * LINE, 2 * LINE + 1  # the producer's: its tail with what is not yet published
HEAD = 3 * LINE
TAIL_SEEN = 4 * LINE  # the consumer's
SLOTS = 5 * LINE


def ring_size(capacity: int) -> int:
    return SLOTS + whole_lines(capacity * WIDTH)


def ring_init(words: Words, ring: int, capacity: int) -> None:
    if capacity < 1 or capacity & (capacity - 1):
        raise ValueError(f"a ring's capacity is a power of two, not {capacity}")
    check_place(words, ring, ring_size(capacity))
    words[ring : ring + SLOTS] = 0
    words[ring + CAPACITY] = capacity


# --- the producer's side


@inlined
def stage(words: Words, ring: int, a: int, b: int, c: int, d: int) -> bool:
    """Write a message that the consumer sees after `publish`; False where there is no room."""
    tail, capacity = load(words, ring + STAGED), load(words, ring + CAPACITY)
    if tail - load(words, ring + HEAD_SEEN) == capacity:
        head = load_acquire(words, ring + HEAD)  # with `pop`: the consumer is done with the slot
        store(words, ring + HEAD_SEEN, head)
        if tail - head == capacity:
            return False
    slot = ring + SLOTS + (tail & (capacity - 1)) * WIDTH
    store(words, slot, a)
    store(words, slot + 1, b)
    store(words, slot + 2, c)
    store(words, slot + 3, d)
    store(words, ring + STAGED, tail + 1)
    return True


@inlined
def publish(words: Words, ring: int) -> None:
    """Let the consumer see what was staged."""
    store_release(words, ring + TAIL, load(words, ring + STAGED))  # with `waiting`


@inlined
def try_send(words: Words, ring: int, a: int, b: int, c: int, d: int) -> bool:
    """Send a message, after those that were staged; False where there is no room."""
    if not stage(words, ring, a, b, c, d):
        return False
    publish(words, ring)
    return True


@inlined
def room(words: Words, ring: int) -> int:
    """How many messages the producer can stage at least."""
    head = load_acquire(words, ring + HEAD)  # with `pop`
    store(words, ring + HEAD_SEEN, head)
    return load(words, ring + CAPACITY) - (load(words, ring + STAGED) - head)


# --- the consumer's side


@inlined
def waiting(words: Words, ring: int) -> int:
    """How many messages the consumer can read at least; 0 only if there was none just now."""
    head, tail = load(words, ring + HEAD), load(words, ring + TAIL_SEEN)
    if tail == head:
        tail = load_acquire(words, ring + TAIL)  # with `publish`: the messages before it are written
        store(words, ring + TAIL_SEEN, tail)
    return tail - head


@inlined
def front(words: Words, ring: int, field: int) -> int:
    """A word of the oldest message; only if one is waiting."""
    slot = load(words, ring + HEAD) & (load(words, ring + CAPACITY) - 1)
    return load(words, ring + SLOTS + slot * WIDTH + field)


@inlined
def pop(words: Words, ring: int) -> None:
    """Drop the oldest message; only if one is waiting."""
    store_release(words, ring + HEAD, load(words, ring + HEAD) + 1)  # with `stage`
