"""ScaleGate (ScaleJoin, sections IV.A and V.C): sorted streams in, one sorted stream out, to every reader.

    source 0 ──► try_add ┐                                     ┌► next_ready ──► reader 0
    source 1 ──► try_add ┼► skip list, ordered by (time, tie) ─┼► next_ready ──► reader 1
    source 2 ──► advance ┘        ready │ not yet ready        └► next_ready ──► reader 2

A source adds its tuples in ascending order of (time, tie), which no two tuples share. `frontier[source]` promises
that it will add nothing with a time up to there. A tuple is ready when its time is at most the smallest frontier:
nothing can come before it any more. Each reader gets all ready tuples in order. This is Algorithm 2 with another
rule for what is ready. There it was "the source has added a later one", so tuples were lost unless every source had
delivered one, the last tuple of a source was never ready, and ties were ordered by arrival. Here an idle source
calls `advance`, one that ends calls `close`, and a tuple with time t promises only t - 1: more of the same time may
follow, from any source, and the tie orders them. A source whose pool is full promises more, the tie included: nothing
before the tuple that it could not add. So what fills a pool becomes ready, be it all of one time.

**Order.** A source links its node with a compare-and-swap on level 0 and then raises its frontier (release). A
reader reads all frontiers (acquire) and then the link after the node it stands on: all nodes up to the smallest
frontier are in the list by then. Upper levels are shortcuts: any link goes from a smaller to a larger key, and
nothing relies on more. So an upper link may be missing, and a node whose predecessor on some level is not known
simply begins a new chain there that leads into the old one.

A frontier is two words, a time and a tie within the time after it. A source takes the tie away before it raises the
time, and a reader reads the time first; so a tie that it sees was promised for that time, or for one still later.

**Where an insertion starts.** Per level a source remembers the last node before its latest one (the paper's
`update`) and goes on from there, up to a level that skips far enough and down again. Without such a hint it starts
from a node that a reader stands on: that one was ready, so it is before all that is still to be added.

**Reuse of nodes.** A node comes from its source's pool and goes back to it, both in order. A reader publishes the
node on which it *stands*, the last one it got. A source *retires* those of its nodes that are before the nodes on
which all readers stand, and frees them when no insertion can still meet them:

1. An insertion is enclosed by two stores to `hold[source]`, which is odd meanwhile; a full fence follows the first.
2. Who retires nodes looks where the readers stand, raises `floor` to the time of the last node it retires, makes a
   full fence and then reads every `hold`. The nodes are free when each of those that were odd has changed.
3. An insertion uses a hint only if its time is after the `floor` that it reads after its fence, and looks where
   readers stand after its fence too.

Take an insertion and a retirement. If the retirement's fence comes first, the insertion sees the raised floor and
readers where the retirement saw them or further on; so it starts after all retired nodes and, as links lead only
to larger keys, stays there. If the insertion's fence comes first, the retirement sees its hold and waits. Readers
touch only the node they stand on and the ones after it. So nobody meets a node that is free, the pointer that a
compare-and-swap expects cannot have been reused (no ABA), and since a new node is not ready before its source
raises its frontier, it cannot be retired while it is being linked.

Memory is the pools. Where a source has no free node `try_add` returns False, and the caller waits for the readers;
a thread that feeds several sources first advances the others, or it may wait for itself. A source that is stopped
inside an insertion delays the reuse of nodes, nothing else.
"""

from __future__ import annotations

import numpy as np

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import (
    compare_and_swap,
    fence,
    load,
    load_acquire,
    prefetch_to_read,
    prefetch_to_write,
    store,
    store_fenced,
    store_release,
)
from counterflow.lockfree.shared_words import LINE, Words, check_place, whole_lines

NONE = 0  # no node: the end of a list
FIRST_TIME, LAST_TIME = np.iinfo(np.int64).min + 1, np.iinfo(np.int64).max  # tuples come after FIRST_TIME
NO_TIE = np.iinfo(np.int64).min  # of a frontier: no tie is below it
LEVELS = 5  # a quarter of a level's nodes reach the next one

# A node is one cache line. A link to it has its height in the low bits, so that they need not be fetched.
TIME, TIE, VALUE, NEXT = 0, 1, 2, 3
NODE = 8
HEIGHT = NODE - 1
AHEAD = 4 * NODE  # readers and other sources have had the next nodes of the pool; they are fetched this much earlier

# The gate: constants; the floor; a block for each source; a line for each reader; the first node; the pools.
SOURCES, READERS, SLOTS, SOURCE_SIZE = 0, 1, 2, 3
FLOOR = LINE
BLOCKS = 2 * LINE

# A source's block. Readers look at the frontier all the time, so it is apart from the words used for each tuple.
FRONTIER, FRONTIER_TIE, HOLD = 0, 1, LINE
POOL, POOL_END, FRESH, OLDEST, IN_USE, RETIRED, COUNTDOWN, RANDOM = (2 * LINE + k for k in range(8))
HINT, HINT_TIME = 3 * LINE, 3 * LINE + LEVELS  # per level; the times never rise from level to level
HOLDS_SEEN = 4 * LINE  # per source: odd if the retired nodes have to wait for it

# A reader's line.
STANDS_ON, READY_UNTIL, READY_TIE, HAS_ALL = 0, 1, 2, 3


def gate_size(sources: int, readers: int, capacity: int) -> int:
    pools = sources * (capacity + 1) * NODE
    return BLOCKS + sources * _source_size(sources) + readers * LINE + whole_lines(NODE + pools)


def gate_init(words: Words, gate: int, sources: int, readers: int, capacity: int) -> None:
    """A pool has one node more than `capacity`: readers stand on the last one they got, even when it is read."""
    if min(sources, readers, capacity) < 1:
        raise ValueError(f"at least one source, reader and tuple, not {sources}, {readers} and {capacity}")
    check_place(words, gate, gate_size(sources, readers, capacity))
    words[gate : gate + gate_size(sources, readers, capacity)] = 0
    slots, source_size = capacity + 1, _source_size(sources)
    words[gate + SOURCES], words[gate + READERS] = sources, readers
    words[gate + SLOTS], words[gate + SOURCE_SIZE] = slots, source_size
    words[gate + FLOOR] = FIRST_TIME - 1
    first = gate + BLOCKS + sources * source_size + readers * LINE
    words[first + TIME] = FIRST_TIME
    for reader in range(readers):
        own = gate + BLOCKS + sources * source_size + reader * LINE
        words[own + STANDS_ON] = first | LEVELS
        words[own + READY_UNTIL], words[own + READY_TIE] = FIRST_TIME, NO_TIE
    for source in range(sources):
        own, pool = gate + BLOCKS + source * source_size, first + NODE + source * slots * NODE
        words[own + FRONTIER], words[own + FRONTIER_TIE] = FIRST_TIME, NO_TIE
        words[[own + POOL, own + FRESH, own + OLDEST]] = pool
        words[own + POOL_END] = pool + slots * NODE
        words[own + COUNTDOWN] = _retire_every(slots)
        words[own + RANDOM] = (source + 1) * 0x9E3779B97F4A7C15 % LAST_TIME  # any number but 0
        words[own + HINT_TIME : own + HINT_TIME + LEVELS] = FIRST_TIME - 1  # not after the floor: no hint


def _source_size(sources: int) -> int:
    return HOLDS_SEEN + whole_lines(sources)


@inlined
def _retire_every(slots: int) -> int:
    """How many tuples after which old nodes are retired: rarely enough to look at the readers, before all is used."""
    return max(slots // 4, 1)


@inlined
def _source(words: Words, gate: int, source: int) -> int:
    return gate + BLOCKS + source * load(words, gate + SOURCE_SIZE)


@inlined
def _reader(words: Words, gate: int, reader: int) -> int:
    return gate + BLOCKS + load(words, gate + SOURCES) * load(words, gate + SOURCE_SIZE) + reader * LINE


@inlined
def _precedes(words: Words, link: int, time: int, tie: int) -> bool:
    """Whether there is a node behind the link, and it comes before this key."""
    if link == NONE:
        return False
    node = link & ~HEIGHT
    node_time = load(words, node + TIME)
    return node_time < time or (node_time == time and load(words, node + TIE) < tie)


# --- a source's promises


@inlined
def _promise(words: Words, own: int, time: int) -> None:
    if time > load(words, own + FRONTIER):
        store(words, own + FRONTIER_TIE, NO_TIE)
        store_release(words, own + FRONTIER, time)  # with `ready_until`: what was added before is linked


@inlined
def _promise_before(words: Words, own: int, time: int, tie: int) -> None:
    """Nothing before this key will be added."""
    _promise(words, own, time - 1)
    if load(words, own + FRONTIER) == time - 1 and tie > load(words, own + FRONTIER_TIE):
        store_release(words, own + FRONTIER_TIE, tie)  # with `ready_until`


@inlined
def advance(words: Words, gate: int, source: int, time: int) -> None:
    """This source will add nothing with a time up to `time`."""
    _promise(words, _source(words, gate, source), time)


@inlined
def advance_to(words: Words, gate: int, source: int, time: int, tie: int) -> None:
    """Promise that this source will add nothing before this key; `time` is after FIRST_TIME."""
    _promise_before(words, _source(words, gate, source), time, tie)


@inlined
def close(words: Words, gate: int, source: int) -> None:
    """This source will add nothing any more."""
    _promise(words, _source(words, gate, source), LAST_TIME)


@inlined
def ready_until(words: Words, gate: int) -> tuple[int, int]:
    """The smallest frontier: tuples up to this time, and those of the next with a tie below this one, are ready.

    They are linked for whoever reads the list after this.
    """
    least, least_tie = LAST_TIME, NO_TIE
    own = gate + BLOCKS
    for source in range(load(words, gate + SOURCES)):
        time = load_acquire(words, own + FRONTIER)  # with `_promise`
        tie = load_acquire(words, own + FRONTIER_TIE)  # with `_promise_before`
        if source == 0 or time < least or (time == least and tie < least_tie):
            least, least_tie = time, tie
        own += load(words, gate + SOURCE_SIZE)
    return least, least_tie


@inlined
def _is_ready(words: Words, link: int, until: int, until_tie: int) -> bool:
    """Whether there is a node behind the link, and it is ready with this frontier."""
    if link == NONE:
        return False
    node = link & ~HEIGHT
    time = load(words, node + TIME)
    return time <= until or (time - 1 == until and load(words, node + TIE) < until_tie)


# --- reuse of nodes; the caller holds


@inlined
def _following(words: Words, own: int, node: int) -> int:
    """The next node of the pool."""
    node += NODE
    return load(words, own + POOL) if node == load(words, own + POOL_END) else node


@inlined
def _raise(words: Words, i: int, value: int) -> None:
    seen = load_acquire(words, i)
    while seen < value and not compare_and_swap(words, i, seen, value):
        seen = load_acquire(words, i)


@compiled
def _retire(words: Words, gate: int, source: int) -> None:
    """Retire the nodes before those on which all readers stand; step 2 of the module's text."""
    own = _source(words, gate, source)
    time, tie = LAST_TIME, LAST_TIME
    for reader in range(load(words, gate + READERS)):
        link = load_acquire(words, _reader(words, gate, reader) + STANDS_ON)  # with `next_ready`
        if _precedes(words, link, time, tie):
            node = link & ~HEIGHT
            time, tie = load(words, node + TIME), load(words, node + TIE)
    oldest, retired, last = load(words, own + OLDEST), 0, FIRST_TIME
    while retired < load(words, own + IN_USE) and _precedes(words, oldest, time, tie):
        last = load(words, oldest + TIME)
        retired += 1
        oldest = _following(words, own, oldest)
    if retired == 0:
        return
    store(words, own + OLDEST, oldest)
    store(words, own + RETIRED, retired)
    _raise(words, gate + FLOOR, last)
    fence()  # with `_enter`
    for other in range(load(words, gate + SOURCES)):
        hold = load_acquire(words, _source(words, gate, other) + HOLD)
        store(words, own + HOLDS_SEEN + other, 0 if other == source else hold)


@compiled
def _free_retired(words: Words, gate: int, source: int) -> None:
    """Free the retired nodes if all insertions that may meet them are over."""
    own = _source(words, gate, source)
    for other in range(load(words, gate + SOURCES)):
        seen = load(words, own + HOLDS_SEEN + other)
        if seen & 1 and load_acquire(words, _source(words, gate, other) + HOLD) == seen:  # with `_leave`
            return
    store(words, own + IN_USE, load(words, own + IN_USE) - load(words, own + RETIRED))
    store(words, own + RETIRED, 0)


@compiled
def _reclaim(words: Words, gate: int, source: int) -> None:
    own = _source(words, gate, source)
    store(words, own + COUNTDOWN, _retire_every(load(words, gate + SLOTS)))
    if load(words, own + RETIRED) > 0:
        _free_retired(words, gate, source)
    if load(words, own + RETIRED) == 0:
        _retire(words, gate, source)
        _free_retired(words, gate, source)


# --- insertion; the caller holds


@inlined
def _enter(words: Words, own: int) -> None:
    store_fenced(words, own + HOLD, load(words, own + HOLD) + 1)  # with the fence of `_retire`


@inlined
def _leave(words: Words, own: int) -> None:
    store_release(words, own + HOLD, load(words, own + HOLD) + 1)


@inlined
def _hint(words: Words, own: int, level: int, node: int) -> None:
    store(words, own + HINT + level, node)
    store(words, own + HINT_TIME + level, load(words, node + TIME))


@compiled
def _start_from_reader(words: Words, gate: int, source: int) -> int:
    """Make the furthest node on which a reader stands the hint. Returns the number of levels with a hint."""
    own = _source(words, gate, source)
    furthest = load_acquire(words, _reader(words, gate, 0) + STANDS_ON)
    for reader in range(1, load(words, gate + READERS)):
        link = load_acquire(words, _reader(words, gate, reader) + STANDS_ON)
        node = link & ~HEIGHT
        if _precedes(words, furthest, load(words, node + TIME), load(words, node + TIE)):
            furthest = link
    for level in range(furthest & HEIGHT):
        _hint(words, own, level, furthest & ~HEIGHT)
    return furthest & HEIGHT


@inlined
def _hinted_levels(words: Words, gate: int, source: int) -> int:
    """How many levels have a hint that this insertion may use; step 3 of the module's text."""
    own = _source(words, gate, source)
    floor = load_acquire(words, gate + FLOOR)
    levels = 0
    while levels < LEVELS and load(words, own + HINT_TIME + levels) > floor:
        levels += 1
    return levels if levels > 0 else _start_from_reader(words, gate, source)


@inlined
def _search(words: Words, own: int, levels: int, time: int, tie: int) -> int:
    """Move the hint of level 0 to the last node before the key, by way of higher levels if it is far (L50-56).

    Returns the number of levels with a hint.
    """
    level = 0
    while level < levels:
        link = load_acquire(words, load(words, own + HINT + level) + NEXT + level)
        if not _precedes(words, link, time, tie):
            break
        level += 1
    if level == 0:
        return levels
    level -= 1
    node = load(words, own + HINT + level)
    while True:
        link = load_acquire(words, node + NEXT + level)
        if _precedes(words, link, time, tie):
            node = link & ~HEIGHT
            level = (link & HEIGHT) - 1  # higher than before only where a chain of shortcuts begins
            levels = max(levels, level + 1)
        else:
            _hint(words, own, level, node)
            if level == 0:
                return levels
            level -= 1


@inlined
def _link(words: Words, before: int, level: int, time: int, tie: int, new: int) -> int:
    """Put the new node in its place on one level, at or after `before` (L61-67). Returns the link that follows it."""
    while True:
        link = load_acquire(words, before + NEXT + level)
        if _precedes(words, link, time, tie):
            before = link & ~HEIGHT
        else:
            store_release(words, (new & ~HEIGHT) + NEXT + level, link)
            if compare_and_swap(words, before + NEXT + level, link, new):
                return link


@inlined
def _next_height(words: Words, own: int) -> int:
    """1 with the probability 3/4, 2 with 3/16, ... (xorshift64)."""
    x = np.uint64(load(words, own + RANDOM))
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state = np.int64(x)
    store(words, own + RANDOM, state)
    return 1 + (state & 3 == 0) + (state & 15 == 0) + (state & 63 == 0) + (state & 255 == 0)


@inlined
def _insert(words: Words, gate: int, source: int, time: int, tie: int, value: int) -> None:
    """A node from the pool, which has one, to all its levels."""
    own = _source(words, gate, source)
    levels = _search(words, own, _hinted_levels(words, gate, source), time, tie)
    node, height = load(words, own + FRESH), _next_height(words, own)
    prefetch_to_write(words, node + AHEAD)
    store(words, node + TIME, time)
    store(words, node + TIE, tie)
    store(words, node + VALUE, value)
    for level in range(1, LEVELS):
        store(words, node + NEXT + level, NONE)
    link = _link(words, load(words, own + HINT), 0, time, tie, node | height)
    for level in range(1, height):
        if level < levels:
            link = _link(words, load(words, own + HINT + level), level, time, tie, node | height)
        else:  # no predecessor is known: only lead into the chain that follows
            while link != NONE and link & HEIGHT <= level:
                link = load_acquire(words, (link & ~HEIGHT) + NEXT + level - 1)
            store_release(words, node + NEXT + level, link)
    for level in range(height):
        _hint(words, own, level, node)
    store(words, own + FRESH, _following(words, own, node))
    store(words, own + IN_USE, load(words, own + IN_USE) + 1)
    store(words, own + COUNTDOWN, load(words, own + COUNTDOWN) - 1)


@inlined
def try_insert(words: Words, gate: int, source: int, time: int, tie: int, value: int) -> bool:
    """Like `try_add`, but a success promises nothing: who has several tuples inserts all and advances once.

    A promise for each tuple has readers and sources exchange a cache line for each.
    """
    own = _source(words, gate, source)
    slots = load(words, gate + SLOTS)
    _enter(words, own)
    if load(words, own + COUNTDOWN) <= 0 or load(words, own + IN_USE) == slots:
        _reclaim(words, gate, source)
    inserted = load(words, own + IN_USE) < slots
    if inserted:
        _insert(words, gate, source, time, tie, value)
    _leave(words, own)
    if not inserted:
        _promise_before(words, own, time, tie)
    return inserted


@inlined
def try_add(words: Words, gate: int, source: int, time: int, tie: int, value: int) -> bool:
    """Add a tuple (addTuple, L46-59): after the source's last one, its time after the source's frontier.

    False if the pool has no free node: then wait for the readers and try again. The source has promised then that
    nothing before this tuple will follow, so what the pool is full of becomes ready.
    """
    if not try_insert(words, gate, source, time, tie, value):
        return False
    _promise(words, _source(words, gate, source), time - 1)
    return True


# --- readers


@inlined
def _note_ready(words: Words, own: int, until: int, tie: int) -> None:
    store(words, own + READY_UNTIL, until)
    store(words, own + READY_TIE, tie)


@inlined
def next_ready(words: Words, gate: int, reader: int) -> int:
    """The reader's next ready tuple (getNextReadyTuple, L38-44), or NONE.

    Its words are at the returned index plus TIME, TIE and VALUE, until the reader's next call.
    """
    own = _reader(words, gate, reader)
    until, tie = load(words, own + READY_UNTIL), load(words, own + READY_TIE)
    if load(words, own + HAS_ALL) == 1:
        # All up to `until` was read. The list is not looked at before more is promised: sources are writing there.
        promised, promised_tie = ready_until(words, gate)
        if promised == until and promised_tie == tie:
            return NONE
        until, tie = promised, promised_tie
        _note_ready(words, own, until, tie)
    here = load(words, own + STANDS_ON) & ~HEIGHT
    link = load_acquire(words, here + NEXT)
    if not _is_ready(words, link, until, tie):
        until, tie = ready_until(words, gate)
        _note_ready(words, own, until, tie)
        link = load_acquire(words, here + NEXT)  # again: an earlier tuple may have been added before the promise
        if not _is_ready(words, link, until, tie):
            store(words, own + HAS_ALL, 1)
            return NONE
    store(words, own + HAS_ALL, 0)
    store_release(words, own + STANDS_ON, link)  # with `_retire`: this reader is done with the node before
    prefetch_to_read(words, (link & ~HEIGHT) + NODE)  # its source's next one, which comes after those of others
    return link & ~HEIGHT


@inlined
def read_until(words: Words, gate: int, reader: int) -> int:
    """After `next_ready` has returned NONE: the reader got all tuples up to this time. LAST_TIME if no more come."""
    return load(words, _reader(words, gate, reader) + READY_UNTIL)
