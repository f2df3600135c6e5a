"""The window store: one side's live tuples, with append, probe and expire. All engines use it.

A row has a coordinate `at`; a probing row has the range of coordinates that are in its window. What a
coordinate is, its engine decides: the ordinal in the stream where tuples come in order (then one comparison
serves duration, row and mixed windows alike), or the time where they come as they come.

A small window is searched with numpy. Once it is worth it, the predicate is compiled; the answer is the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from counterflow.errors import EvaluationError
from counterflow.predicate.expression import Expression, Side, columns_of
from counterflow.predicate.split import Split
from counterflow.windows.access import SortedIndex, SortedRuns, choose_path
from counterflow.windows.compiled.alternatives import CompiledAlternatives
from counterflow.windows.compiled.compiled_predicate import Access, kernel_array
from counterflow.windows.compiled.compiled_window import CompiledWindow, Task
from counterflow.windows.compiled.forking import compiled_module
from counterflow.windows.compiled.predicate_source import NotCompilable
from counterflow.windows.crew import Crew, crew_of
from counterflow.windows.evaluate import Columns, candidate_cost, matches, one_sided
from counterflow.windows.row_ring import Ring, of_predicate, validity_of
from counterflow.windows.vectors import Array, contiguous, from_arrow_column

CANDIDATE_ROWS_MAX = 1 << 18  # candidate pairs checked at once: bounds the memory of a probe
COMPILE_AFTER = 50_000  # rows appended and probed: numpy needs about as long for them as compiling takes
COMPILE_AFTER_CANDIDATES = 1 << 26
CANDIDATES_AT_ONCE = 1 << 24  # that numpy looks at before it is asked whether it is compiled
SCANNED_MEANWHILE = 512  # rows that a compiled scan looks at while numpy checks one candidate
UNSELECTIVE_MAX = 8


@dataclass(frozen=True)
class Batch:
    """Rows of one side: the predicate's columns, a row id and a coordinate each; while probing, a range too."""

    side: Side
    columns: Columns
    rows: Array
    at: Array
    low: Array
    high: Array

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Array | slice) -> Batch:
        columns = {name: column.take(index) for name, column in self.columns.items()}
        at = self.at[index]
        rows = at if self.rows is self.at else self.rows[index]
        return Batch(self.side, columns, rows, at, self.low[index], self.high[index])

    @cached_property
    def arrays(self) -> dict[str, Array]:
        return {name: kernel_array(vector) for name, vector in self.columns.items()}

    @cached_property
    def keyed(self) -> list[tuple[object, Any]]:
        """What kernels need of it, once it is known, each with what it is for: mostly the same in both windows."""
        return []

    @property
    def has_nulls(self) -> bool:
        return any(vector.valid is not None for vector in self.columns.values())


class Compiler(Protocol):
    """Who makes kernels ready while windows are searched without them (`windows.compiled.background`)."""

    def ready(self, nullable: bool) -> bool: ...

    def ready_for_few(self, nullable: bool) -> bool: ...

    def close(self) -> None: ...


class WindowStore:
    """The live tuples of `side`, and how they are searched.

    `access` forces a path (the scan for algorithms that are defined by it); `compile_after` is the number of rows
    after which the predicate is compiled, 0 for at once; `threads`, a number or a crew, share the search of a compiled
    window (with numpy it is one thread, as it would hold Python's lock for most of the time); a window that is expected
    to hold `expected_rows` need not grow to them. With a `compiler` nobody waits: the window is searched with numpy
    until the compiler is ready.
    """

    def __init__(
        self,
        side: Side,
        predicate: Expression,
        parts: Split,
        *,
        access: Access = "auto",
        threads: int | Crew = 1,
        compile_after: int = COMPILE_AFTER,
        expected_rows: int = 0,
        compiler: Compiler | None = None,
    ) -> None:
        self.side, self.predicate = side, predicate
        self.path = choose_path(parts, side)
        self.access, self.crew = access, crew_of(threads)
        self.compile_after: float = _compile_after(compile_after)
        self._compiler = compiler if self.compile_after else None
        self.ring = Ring(expected_rows)
        self.types = {c.name: c.type for c in columns_of(predicate) if c.side == side}
        self._compiled: CompiledWindow | CompiledAlternatives | None = None
        self._rows_are_coordinates = True  # row ids, of all rows until now: then the ring has no column for them
        self._nulls = False  # any seen, on either side
        self.looked_at: Counter[str] = Counter()  # candidates, by what found them
        self._work = self._candidates = 0
        self._candidate_cost = candidate_cost(predicate)
        self._runs: SortedRuns | None = SortedRuns(self.path)
        self._unselective = 0  # batches in which the sorted runs helped no probe
        self._stopped = False

    def __len__(self) -> int:
        return len(self.ring)

    @property
    def nbytes(self) -> int:
        """The bytes that the window takes, unused capacity included; not the texts that columns refer to."""
        return self.ring.nbytes + (0 if self._compiled is None else self._compiled.nbytes)

    @property
    def is_compiled(self) -> bool:
        return self._compiled is not None

    def expect_many(self) -> None:
        """Compile the predicate as soon as rows are looked for."""
        self.compile_after = min(self.compile_after, 1) if self.compile_after != np.inf else np.inf

    def use_threads(self, threads: int) -> None:
        """Search with this many threads from the next probe on, in whatever thread this is said."""
        self.crew.threads = threads

    def is_settled(self, nulls: bool) -> bool:
        """Return whether it is compiled, and arrivals with NULLs or without do not change how."""
        return self._compiled is not None and self._compiled.nullable == (self._nulls or nulls)

    @property
    def one_window(self) -> CompiledWindow | None:
        """The compiled window, if there is one, and not several for the alternatives of an OR."""
        return self._compiled if isinstance(self._compiled, CompiledWindow) else None

    @property
    def nulls(self) -> bool:
        """Whether a row with a NULL was seen, on either side."""
        return self._nulls

    def adopt(self, nulls: bool) -> CompiledWindow | CompiledAlternatives:
        """Return a compiled window over the ring as it is; whoever calls this has its index."""
        self._nulls, self._rows_are_coordinates = nulls, "row" not in self.ring.columns
        self._compiled = self._new_window()
        return self._compiled

    @property
    def takes_few(self) -> bool:
        """Whether `few_rows` may work on it: what it calls is compiled, and a row's number is known by its place."""
        window, ring = self.one_window, self.ring
        return (
            window is not None
            and window.access == "index"
            and window.bands is not None
            and not window.nullable
            and not window.kernels.shape.hashed
            and self._rows_are_coordinates
            and ring.offset is not None
            and ring.in_order
            and (self._compiler is None or self._compiler.ready_for_few(False))
        )

    def stop(self) -> None:
        """Let `probe` end soon, in whatever thread it is; some pairs are then missing."""
        self._stopped = True

    # --- append, expire

    def append(self, batch: Batch) -> None:
        assert batch.side == self.side
        if not len(batch):
            return
        begin = self.ring.next
        columns = {of_predicate(name): array for name, array in batch.arrays.items()}
        if batch.rows is not batch.at or not self._rows_are_coordinates:
            columns["row"] = batch.rows
            if self._rows_are_coordinates:
                self._rows_are_coordinates, self.ring.columns["row"] = False, self.ring.columns["at"].copy()
        for name, vector in batch.columns.items():
            if vector.valid is not None or validity_of(name) in self.ring.columns:
                self._note_validity(name)
                columns[validity_of(name)] = vector.mask()
        moved = self.ring.append(batch.at, columns)
        self._work += len(batch)
        self._nulls |= batch.has_nulls
        if self._compiled is None:
            return
        if moved or self._nulls != self._compiled.nullable:
            self._compile()
            return
        with self._fallback():
            self._compiled.append(self._keyed(batch), begin)

    def expire(self, before: int) -> None:
        """Forget the rows with a coordinate less than `before`; those between others that stay are kept with them."""
        self.ring.expire(before)

    def _note_validity(self, name: str) -> None:
        if validity_of(name) not in self.ring.columns:  # no NULL until now
            self.ring.columns[validity_of(name)] = np.ones(self.ring.capacity, bool)

    # --- probe

    def probe(self, probing: Batch) -> Iterator[tuple[Array, Array]]:
        """Yield all pairs in the window that satisfy the predicate: indices into `probing`, and ids of stored rows.

        They come some at a time; the arrays are the caller's to keep.
        """
        if not len(self.ring) or not len(probing):
            return
        self._work += len(probing)
        self._nulls |= probing.has_nulls
        begin = 0
        while begin < len(probing):
            rest = probing.take(slice(begin, None)) if begin else probing
            if self._should_compile():
                self._compile(rest)
            with self._fallback():
                if self._compiled is not None:
                    for p, rows in self._compiled_pairs(rest):
                        yield p + begin if begin else p, rows
                    return
            begin += yield from self._numpy_pairs(rest, begin)
            if self._stopped:
                return

    def _compiled_pairs(self, probing: Batch) -> Iterator[tuple[Array, Array]]:
        assert self._compiled is not None
        oldest, newest = self._range(probing)
        keyed = self._keyed(probing)
        if self._compiled.misjudges(keyed):
            self._compile(probing)
        scanned, candidates = self._selective(probing, oldest, newest)
        for p, rows in candidates:
            if self._stopped:
                return
            self.looked_at[self.path.name] += len(p)
            yield from self._checked(probing, p, rows, unsure=True)
        for task in self._compiled.probe(keyed, probing.columns, oldest, newest, scanned):
            if self._stopped:
                return
            p, rows = (a[: task.pairs.count] for a in (task.pairs.probes, task.pairs.rows))
            self._count(task)
            yield from self._checked(probing, p, rows, task.unsure, task.window.predicate)

    def _count(self, task: Task) -> None:
        """Count what a task looked at since it was counted last."""
        for what, found in ((task.window.path.name, task.candidates), ("scan", task.rows_scanned)):
            if found:
                self.looked_at[what] += found
        task.candidates = task.rows_scanned = 0

    def _range(self, probing: Batch) -> tuple[Array, Array]:
        """Return the first and the last row that each probe has to look at."""
        ring = self.ring
        if self._compiled is not None and ring.offset is not None:
            oldest, newest = np.empty((2, len(probing)), np.int64)
            low, high = contiguous(probing.low), contiguous(probing.high)
            compiled_module("arrivals").rows_between(low, high, ring.offset, ring.first, ring.next, oldest, newest)
            return oldest, newest
        oldest = ring.search(probing.low, "left", ring.reached)
        if not ring.in_order:
            return oldest, np.full(len(probing), ring.next - 1)
        return oldest, ring.search(probing.high, "right") - 1

    def _keyed(self, batch: Batch, window: Any = None) -> Any:
        """Return what kernels need of a batch: computed when it is stored, and known when it is looked for."""
        window = window or self._compiled
        keys = window.nullable, self.path.keyed_by
        for known, keyed in batch.keyed:
            if known == keys:
                return keyed
        keyed = window.keyed(batch.side, batch.columns, batch.arrays, len(batch))
        batch.keyed.append((keys, keyed))
        return keyed

    def _checked(
        self, probing: Batch, p: Array, rows: Array, unsure: bool, predicate: Expression | None = None
    ) -> Iterator[tuple[Array, Array]]:
        """Yield the pairs among candidates; coordinates are checked if out of order, the predicate if `unsure`."""
        if not unsure and self._rows_are_coordinates and self.ring.offset is not None:
            if len(p):
                yield p.copy(), rows + self.ring.offset
            return
        slots = rows & (self.ring.capacity - 1)
        if not self.ring.in_order:
            at = self.ring.columns["at"][slots]
            inside = np.flatnonzero((at >= probing.low[p]) & (at <= probing.high[p]))
            p, slots = p[inside], slots[inside]
        for i in range(0, len(p), CANDIDATE_ROWS_MAX if unsure else max(len(p), 1)):
            p_part, s_part = (a[i : i + CANDIDATE_ROWS_MAX] if unsure else a for a in (p, slots))
            if unsure:
                hit = np.flatnonzero(self._matches(predicate or self.predicate, probing, p_part, s_part))
                p_part, s_part = p_part[hit], s_part[hit]
            if len(p_part):
                ids = self.ring.columns["at" if self._rows_are_coordinates else "row"][s_part]
                yield p_part.copy() if p_part.base is not None else p_part, ids

    def _matches(self, predicate: Expression, probing: Batch, p: Array, slots: Array) -> Array:
        stored = self.ring.vectors(self.types, slots)
        everything = np.arange(len(p))
        if probing.side == "left":
            return matches(predicate, probing.columns, stored, p, everything)
        return matches(predicate, stored, probing.columns, everything, p)

    # --- compiled

    def _should_compile(self) -> bool:
        if self._compiled is not None:
            return self._nulls != self._compiled.nullable
        worth_it = self._work >= self.compile_after or self._candidates >= COMPILE_AFTER_CANDIDATES
        return worth_it and self.compile_after != np.inf

    def _compile(self, probing: Batch | None = None) -> None:
        """Make, or make anew, the compiled window over the rows that are there; not before the compiler is ready.

        It is made for rows like the `probing` ones.
        """
        with self._fallback():
            if self._compiler is not None and not self._compiler.ready(self._nulls):
                self._compiled = None
                return
            window: Any = self._new_window()
            window.learn(None if probing is None else self._keyed(probing, window), self._compiled)
            for begin, part in self.ring.spans("at"):
                slots = np.arange(begin, begin + len(part)) & (self.ring.capacity - 1)
                vectors = self.ring.vectors(self.types, slots)
                arrays = {name: kernel_array(vector) for name, vector in vectors.items()}
                window.append(window.keyed(self.side, vectors, arrays, len(slots)), begin)
            self._compiled = window

    def _new_window(self) -> CompiledWindow | CompiledAlternatives:
        if self.path.ways and self.access in ("auto", "index"):
            return CompiledAlternatives(self.ring, self.path.ways, self._nulls, self.crew)
        if self.path.similar and self.access in ("auto", "index"):
            module = compiled_module("similar_texts")
            return module.SimilarTexts(self.ring, self.path, self.predicate, self._nulls, self.crew)
        return CompiledWindow(self.ring, self.path, self.predicate, self.access, self._nulls, self.crew)

    def _fallback(self) -> _Fallback:
        return _Fallback(self)

    # --- numpy

    def _numpy_pairs(self, probing: Batch, begin: int) -> Generator[tuple[Array, Array], None, int]:
        """Yield the pairs of the first probes, numbered from `begin` on, and return how many probes these were.

        They are as many as have not too many candidates: then it is asked again whether it is compiled.
        """
        oldest, newest = self._range(probing)
        end = np.maximum(newest + 1, oldest)
        ranges = self._sorted_ranges(probing)
        counts, indexed = end - oldest, np.zeros(len(probing), bool)
        if ranges is not None:
            found = _total(ranges)
            indexed = found < counts
            counts = np.where(indexed, found, counts)
        most = CANDIDATES_AT_ONCE // self._candidate_cost
        n = max(int(np.searchsorted(np.cumsum(counts), most, "right")), 1)
        plain, indexed = np.flatnonzero(~indexed[:n]), np.flatnonzero(indexed[:n])
        parts = [_expand(plain, oldest[plain], end[plain])]
        if ranges is not None:
            parts.append(_sorted_candidates(ranges, indexed, oldest, end))
        for p, rows in chain(*parts):
            if self._stopped:
                break
            self._candidates += len(p) * self._candidate_cost
            self.looked_at["numpy"] += len(p)
            for hits, ids in self._checked(probing, p, rows, unsure=True):
                yield hits + begin if begin else hits, ids
        return min(n, len(probing))

    def _sorted_ranges(self, probing: Batch) -> list[tuple[SortedIndex, Array, Array]] | None:
        """Bring the sorted runs up to date, and return where each probe's candidates are; None if they do not tell."""
        if self.access not in ("auto", "index") or self._runs is None or not self._runs.usable:
            return None
        begin = max(self._runs.next, self.ring.first)
        if begin < self.ring.next:
            slots = np.arange(begin, self.ring.next) & (self.ring.capacity - 1)
            self._runs.append(self.ring.vectors(self.types, slots), self.ring.first, begin, self.ring.next)
        return self._runs.ranges(probing.columns, len(probing))

    def _selective(self, probing: Batch, oldest: Array, newest: Array) -> tuple[Array, Iterator[tuple[Array, Array]]]:
        """Return the probes to be scanned, and the candidates of the others (in a window with inequalities alone)."""
        everything = np.arange(len(probing))
        if self.path.narrows or not self.path.inequalities:
            return everything, iter(())
        ranges = self._sorted_ranges(probing)
        if ranges is None:
            return everything, iter(())
        few = _total(ranges) * SCANNED_MEANWHILE < newest + 1 - oldest
        self._unselective = 0 if few.any() else self._unselective + 1
        if self._unselective > UNSELECTIVE_MAX:  # sorting is in vain
            self._runs = None
        return np.flatnonzero(~few), _sorted_candidates(ranges, np.flatnonzero(few), oldest, newest + 1)


class _Fallback:
    """A context in which a window that cannot be compiled, or no longer, falls back to numpy."""

    def __init__(self, store: WindowStore) -> None:
        self.store = store

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if kind is not None and issubclass(kind, NotCompilable):
            self.store._compiled = None
            self.store.compile_after = np.inf
            return True
        return False


def _compile_after(rows: int) -> float:
    """Return the rows after which to compile: COUNTERFLOW_COMPILE (always, never, auto) decides where it is set."""
    return {"always": 0, "never": np.inf}.get(os.environ.get("COUNTERFLOW_COMPILE", "auto"), rows)


def _total(ranges: list[tuple[SortedIndex, Array, Array]]) -> Array:
    return np.sum([end - begin for _, begin, end in ranges], axis=0)


def _sorted_candidates(
    ranges: list[tuple[SortedIndex, Array, Array]], chosen: Array, oldest: Array, end: Array
) -> Iterator[tuple[Array, Array]]:
    for run, run_begin, run_end in ranges:
        for p, k in _expand(chosen, run_begin[chosen], run_end[chosen]):
            rows = run.rows[k]
            inside = (rows >= oldest[p]) & (rows < end[p])
            if inside.any():
                yield p[inside], rows[inside]


def _expand(probes: Array, begin: Array, end: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the pairs of each probe with each number of its range, at most CANDIDATE_ROWS_MAX at a time."""
    counts = end - begin
    keep = counts > 0
    probes, begin, counts = probes[keep], begin[keep], counts[keep]
    totals = np.cumsum(counts)
    first = 0
    while first < len(probes):
        done = int(totals[first - 1]) if first else 0
        last = max(int(np.searchsorted(totals, done + CANDIDATE_ROWS_MAX, "right")), first + 1)
        part = slice(first, last)
        size = int(totals[last - 1]) - done
        offsets = np.arange(size) - np.repeat(totals[part] - counts[part] - done, counts[part])
        p, s = np.repeat(probes[part], counts[part]), np.repeat(begin[part], counts[part]) + offsets
        for i in range(0, size, CANDIDATE_ROWS_MAX):  # one probe alone may have more
            yield p[i : i + CANDIDATE_ROWS_MAX], s[i : i + CANDIDATE_ROWS_MAX]
        first = last


def predicate_columns(predicate: Expression, side: Side, table: pa.Table) -> Columns:
    """Return the vectors of the columns that the predicate uses of one side."""
    names = {column.name for column in columns_of(predicate) if column.side == side}
    return {name: from_arrow_column(name, table[name]) for name in names}


def passing(
    filters: list[Expression], side: Side, columns: Columns, n: int, required: Sequence[str] = ()
) -> Array | None:
    """Return the rows that pass the one-sided conditions, and have no NULL in `required` columns.

    None if all do, or if that cannot be told beforehand.
    """
    keep = np.ones(n, bool)
    for name in required:
        valid = columns[name].valid
        if valid is not None:
            keep &= valid
    try:
        for condition in filters:
            keep &= one_sided(condition, side, columns, n).is_true()
    except EvaluationError:
        return None
    return None if keep.all() else np.flatnonzero(keep)
