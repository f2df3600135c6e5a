"""`counterflow bench gate`: a ScaleGate alone, by sources and readers (ScaleJoin, Section VI, Figure 7a).

    source 0 ──► sorted tuples ──► try_insert ┐        ┌► next_ready ──► reader 0: order and checksum
    source 1 ──► sorted tuples ──► try_insert ┴► gate ─┴► next_ready ──► reader 1: order and checksum

Every source and every reader is a thread in compiled code that holds no lock of Python's. A source inserts its own
sorted tuples, each reader gets all of them. What a reader got is checked by a checksum that depends on the order: it
must be that of the sorted union. `promise_rows` is how many tuples a source inserts before it promises that nothing
earlier follows: 1 is the paper's `addTuple`, more is what the join does with a batch.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterflow.cores import pin_thread, start_thread, usable_cores
from counterflow.jit import compiled, inlined
from counterflow.lab.bench.core_hops import hop_ns
from counterflow.lab.bench.host import heading, stolen_s
from counterflow.lab.bench.report import Note, Row
from counterflow.lockfree.atomics import clock_ns, fetch_add, load_acquire, pause, yield_thread
from counterflow.lockfree.scale_gate import (
    LAST_TIME,
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
    try_insert,
)
from counterflow.lockfree.shared_words import LINE, Words, shared_words
from counterflow.windows.vectors import Array

GATE = LINE  # where it begins; the first line counts the threads that are there
PAUSES = 50  # before a thread that waits offers its core
FACTOR = 0x5851F42D4C957F2D  # of the checksum; odd, so that nothing is lost
ENDED, COUNT, DISORDER, CHECKSUM = 0, 1, 2, 3  # what a thread says
SAID = 4


@dataclass(frozen=True)
class GateSizes:
    sources: tuple[int, ...] = (1, 2, 4, 8, 16)
    readers: tuple[int, ...] = (1, 2, 4, 8)
    promise_rows: tuple[int, ...] = (1, 64)
    tuples: int = 1_000_000  # of all sources together
    capacity: int = 8192  # tuples that a source is ahead of the slowest reader, at most
    repeats: int = 5


SMOKE = GateSizes(sources=(1, 3), readers=(1, 2), promise_rows=(1, 8), tuples=3_000, capacity=64, repeats=1)


def bench_gate(smoke: bool, note: Note) -> dict[str, Any]:
    """Return the rates at which tuples are added to a gate and taken out of it, every reader's order checked."""
    found, sizes = heading("gate", smoke), SMOKE if smoke else GateSizes()
    begin = time.perf_counter()
    measure(Streams(1, 64), 1, 1, 8)
    compile_s, rows = round(time.perf_counter() - begin, 3), []
    for sources in sizes.sources:
        streams = Streams(sources, sizes.tuples)
        for readers in sizes.readers:
            for promise_rows in sizes.promise_rows:
                note(f"{sources} sources, {readers} readers, a promise for {promise_rows} tuples")
                runs = [measure(streams, readers, promise_rows, sizes.capacity) for _ in range(sizes.repeats)]
                rows.append({**_median(runs), "compile_s": compile_s})
    return {**found, "ratios": _ratios(rows), "remarks": [], "results": rows}


class Streams:
    """The sorted tuples of some sources, and what a reader must say of them: their number and their checksum."""

    def __init__(self, sources: int, tuples: int) -> None:
        rng = np.random.default_rng(sources)
        times = np.sort(rng.integers(1, tuples // 2 + 2, tuples))  # two tuples at the same time, on average
        owner = rng.integers(0, sources, tuples)
        ties = np.arange(tuples)  # different everywhere, and ascending in each source
        everything = np.column_stack([times, ties, rng.integers(1, 1 << 62, tuples)]).astype(np.int64)
        self.tuples = [np.ascontiguousarray(everything[owner == k]) for k in range(sources)]
        self.count, self.checksum = tuples, int(checksum_of(everything))


def measure(streams: Streams, readers: int, promise_rows: int, capacity: int) -> Row:
    """Run all threads once, and return the rates, and whether every reader saw the sorted union."""
    sources = len(streams.tuples)
    words = shared_words(GATE + gate_size(sources, readers, capacity))
    gate_init(words, GATE, sources, readers, capacity)
    threads, said = sources + readers, np.zeros((sources + readers, SAID), np.int64)
    begun = np.zeros(threads, np.int64)

    def run(k: int) -> None:
        pin_thread(k)
        begun[k] = line_up(words, threads)
        if k < sources:
            insert_all(words, k, streams.tuples[k], promise_rows, said[k])
        else:
            read_all(words, k - sources, said[k])

    workers = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(threads)]
    stolen = stolen_s()
    for worker in workers:
        start_thread(worker, "benchmark", "measure fewer sources and readers")
    for worker in workers:
        worker.join()
    inserting, getting = ((part.max() - begun.min()) / 1e9 for part in (said[:sources, ENDED], said[sources:, ENDED]))
    got = said[sources:]
    verified = (got[:, [COUNT, DISORDER, CHECKSUM]] == [streams.count, 0, streams.checksum]).all()
    return {
        "sources": sources,
        "readers": readers,
        "promise_rows": promise_rows,
        "capacity": capacity,
        "tuples": streams.count,
        "seconds": float(getting),
        "inserts_per_s": streams.count / float(inserting),
        "gets_per_s": readers * streams.count / float(getting),
        "stolen": (stolen_s() - stolen) / float(getting) / len(usable_cores()),
        "verified": bool(verified),
    }


def _median(runs: list[Row]) -> Row:
    """Return the medians of several runs; verified if all are."""
    rates = {name: statistics.median(run[name] for run in runs) for name in ("seconds", "inserts_per_s", "gets_per_s")}
    stolen = statistics.fmean(run["stolen"] for run in runs)
    verified = all(run["verified"] for run in runs)
    return {**runs[0], **rates, "stolen": stolen, "hop_ns": hop_ns(), "repeats": len(runs), "verified": verified}


def _ratios(rows: list[Row]) -> Row:
    """Return how inserts change from the fewest to the most sources, and gets from the fewest to the most readers."""

    def change(axis: str, rate: str) -> float:
        ends = [min(row[axis] for row in rows), max(row[axis] for row in rows)]
        first, last = (statistics.fmean(row[rate] for row in rows if row[axis] == end) for end in ends)
        return float(last / first)

    return {
        "most_sources_to_fewest": change("sources", "inserts_per_s"),
        "most_readers_to_fewest": change("readers", "gets_per_s"),
    }


# --- compiled


@inlined
def mixed(checksum: int, time: int, tie: int, value: int) -> int:
    """Return the checksum with another tuple at its end."""
    return ((checksum * FACTOR + time) * FACTOR + tie) * FACTOR + value


@compiled
def checksum_of(tuples: Array) -> int:
    """Return the checksum of tuples in this order."""
    checksum = 0
    for i in range(len(tuples)):
        checksum = mixed(checksum, tuples[i, 0], tuples[i, 1], tuples[i, 2])
    return checksum


@inlined
def wait(turn: int) -> None:
    """Wait a little; there may be more threads than cores."""
    if turn % PAUSES == PAUSES - 1:
        yield_thread()
    else:
        pause()


@compiled
def line_up(words: Words, threads: int) -> int:
    """Wait until all threads are there, and return when that was."""
    fetch_add(words, 0, 1)
    turn = 0
    while load_acquire(words, 0) < threads:
        wait(turn)
        turn += 1
    return clock_ns()


@compiled
def insert_all(words: Words, source: int, tuples: Array, promise_rows: int, said: Words) -> None:
    """Insert a source's tuples, with a promise after so many of them, and close the source."""
    for i in range(len(tuples)):
        time, turn = tuples[i, 0], 0
        while not try_insert(words, GATE, source, time, tuples[i, 1], tuples[i, 2]):
            wait(turn)
            turn += 1
        if (i + 1) % promise_rows == 0:
            advance(words, GATE, source, time - 1)
    close(words, GATE, source)
    said[COUNT], said[ENDED] = len(tuples), clock_ns()


@compiled
def read_all(words: Words, reader: int, said: Words) -> None:
    """Get tuples until no more come; say how many they were, how many came out of order, and their checksum."""
    count, disorder, checksum, turn, last_time, last_tie = 0, 0, 0, 0, 0, 0
    while True:
        node = next_ready(words, GATE, reader)
        if node == NONE:
            if read_until(words, GATE, reader) == LAST_TIME:
                break
            wait(turn)
            turn += 1
            continue
        time, tie = words[node + TIME], words[node + TIE]
        disorder += time < last_time or (time == last_time and tie <= last_tie and count > 0)
        checksum = mixed(checksum, time, tie, words[node + VALUE])
        last_time, last_tie, turn = time, tie, 0
        count += 1
    said[COUNT], said[DISORDER], said[CHECKSUM], said[ENDED] = count, disorder, checksum, clock_ns()
