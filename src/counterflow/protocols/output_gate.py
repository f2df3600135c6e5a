"""ScaleJoin's second gate (Section IV.B): processing threads are its sources, the collector is its reader.

    node 0 ──► outbox, sorted ──► try_insert ┐
    node 1 ──► outbox, sorted ──► try_insert ┼► gate ──► next_ready ──► collector
    node 2 ──► nothing found ───► advance    ┘

The order is that of the later tuples' ranks, and of one later tuple that of the earlier tuples' numbers. A node finds
the pairs of a batch in the order of its kernels; so they wait in its outbox until the batch is complete, and are sorted
there. Then it adds them, and promises that it is done with all ranks of the batch.

Differences from the paper: there a result is ready when every thread has added a later one, so one that finds nothing
holds back the others' results; here it promises how far it is. And results with equal timestamps come in the order in
which they were added; here no two have the same place.

**Nobody waits for ever.** A node has a pool of its own in the gate, so those that are ahead cannot take its room. Where
the pool is full, the node has promised that nothing before its next result follows. Take the node that has promised
least. If its pool is full, all that is in it is ready, and the collector makes room. If it waits for tuples, it is done
with all that the first gate has, and so are the others, as they have promised no less.
"""

from __future__ import annotations

from counterflow.jit import compiled, inlined
from counterflow.lockfree.scale_gate import NONE, TIE, TIME, VALUE, advance, next_ready, try_insert
from counterflow.lockfree.shared_words import Words
from counterflow.lockfree.waiting import notify
from counterflow.protocols import words as w
from counterflow.protocols.node import batch_ends, node_at, words_at

THE_READER = 0


# --- a node sorts the results of a batch


@compiled
def sort_results(m: Words, node: int) -> None:
    """Merge neighbouring runs until there is one: the kernels leave few."""
    box = m[node + w.NODE_OUTBOX]
    count, size = m[box + w.OUTBOX_SENT], m[box + w.OUTBOX_SIZE] * w.RESULT_WORDS
    results, spare = words_at(m[box + w.OUTBOX_DATA], size), words_at(m[box + w.OUTBOX_SPARE], size)
    while count > 0 and run_end(results, 0, count) < count:
        merge_runs(results, spare, count)
        if run_end(spare, 0, count) == count:
            for i in range(count * w.RESULT_WORDS):
                results[i] = spare[i]
            return
        merge_runs(spare, results, count)


@inlined
def precedes(results: Words, i: int, j: int) -> bool:
    """Compare by the later tuple's rank, then by the earlier one: of one later tuple only that number differs."""
    a, b = i * w.RESULT_WORDS, j * w.RESULT_WORDS
    if results[a] != results[b]:
        return results[a] < results[b]
    return results[a + 1] < results[b + 1] or (results[a + 1] == results[b + 1] and results[a + 2] < results[b + 2])


@inlined
def run_end(results: Words, begin: int, count: int) -> int:
    """Return where the ascending run ends that begins here."""
    end = begin + 1
    while end < count and precedes(results, end - 1, end):
        end += 1
    return min(end, count)


@compiled
def merge_runs(source: Words, target: Words, count: int) -> None:
    """Merge each run with the one after it."""
    begin = 0
    while begin < count:
        middle = run_end(source, begin, count)
        end = run_end(source, middle, count)
        i, j = begin, middle
        for to in range(begin, end):
            if j == end or (i < middle and precedes(source, i, j)):
                taken, i = i, i + 1
            else:
                taken, j = j, j + 1
            for word in range(w.RESULT_WORDS):
                target[to * w.RESULT_WORDS + word] = source[taken * w.RESULT_WORDS + word]
        begin = end


# --- a node adds them


@compiled
def add_results(m: Words, k: int, node: int) -> bool:
    """Add the batch's results to the gate, from where it was full; True when all are in it, and the batch is promised.

    The time is the rank of the later tuple, the tie is the number of the earlier one, and the value is the rest.
    """
    gate, box = m[w.HEADER_GATE_OUT], m[node + w.NODE_OUTBOX]
    results = words_at(m[box + w.OUTBOX_DATA], m[box + w.OUTBOX_SIZE] * w.RESULT_WORDS)
    for i in range(m[box + w.OUTBOX_TAKEN], m[box + w.OUTBOX_SENT]):
        at = i * w.RESULT_WORDS
        side = results[at] & 1
        later, earlier = results[at + 1 + side], results[at + 2 - side]
        value = (later * 2 + side) * 2 + (results[at + 3] != 0)
        if not try_insert(m, gate, k, results[at] >> 1, earlier, value):
            m[box + w.OUTBOX_TAKEN] = i
            notify(m, m[w.HEADER_COLLECTOR])  # who is refused has promised more
            return False
    m[box + w.OUTBOX_SENT], m[box + w.OUTBOX_TAKEN] = 0, 0
    left, right = batch_ends(m, node)
    advance(m, gate, k, left + right - 1)
    return True


# --- the collector reads


@compiled
def take_ready_results(m: Words, out: Words, capacity: int) -> int:
    """Move ready results to `out`, in order; returns how many."""
    gate, taken = m[w.HEADER_GATE_OUT], 0
    while taken < capacity:
        ready = next_ready(m, gate, THE_READER)
        if ready == NONE:
            break
        earlier, value, at = m[ready + TIE], m[ready + VALUE], taken * w.RESULT_WORDS
        side = value >> 1 & 1
        out[at] = m[ready + TIME] * 2 + side
        out[at + 1 + side], out[at + 2 - side] = value >> 2, earlier
        out[at + 3] = value & 1
        taken += 1
    if taken > 0:
        for k in range(m[w.HEADER_NODES]):
            notify(m, m[node_at(m, k) + w.NODE_WAITER])
    return taken
