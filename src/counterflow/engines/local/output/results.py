"""From pairs of numbers to results: which rows, in which order, and when they are certain.

A mark says from where on tuples may still be met by those that come after it. Once all pairs of the tuples before a
mark are known, a row that is out of reach then and has no match never gets one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from counterflow.engines.local.checkpoint import Checkpoint, CheckpointFolder, SavedSide
from counterflow.engines.local.core import Found
from counterflow.engines.local.order import BEGINNING, END, array_runs, sorting
from counterflow.engines.local.output.payload import MATCHED, OPEN, KeptRows
from counterflow.engines.local.output.retained import RetainedRows
from counterflow.engines.local.stamps import Mark, Stamped, Step
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.compiled.forking import compiled_module
from counterflow.windows.vectors import Array

RESULT_ROWS_MAX = 1 << 16  # of a batch
SCAN_ROWS = 1 << 12
START = Mark((0, 0), 0, BEGINNING, (0, 0), (0, 0))
_NONE = np.empty(0, np.int64)
_NO_RESULTS = np.empty((4, 0), np.int64)  # later rank, earlier rank, left place, right place


def make_results(spec: JoinSpec, in_order: bool = False, folder: CheckpointFolder | None = None) -> Results:
    """Return what makes results of pairs; those of a durable join go on where the folder's checkpoint was written.

    With `in_order`, pairs come in the order of ordered results: then only unmatched rows have to find their places.
    """
    sorts = spec.ordered and (folder is not None or not (in_order and spec.how == "inner"))
    results = (SemiResults if spec.how == "semi" else OrderedResults if sorts else Results)(spec)
    if folder is not None:
        results.retain(folder.found)
    return results


@dataclass(frozen=True)
class Chosen:
    """Results as the places of their rows, -1 for a missing one; `pair_time` is the later row's, or as given."""

    left: Array
    right: Array
    times: Array | None = None


NOTHING = Chosen(_NONE, _NONE)


class Results:
    """Results in any order, as soon as they are certain: a pair at once, an unmatched row when it is out of reach."""

    ranked = False  # whether rows' ranks are needed

    def __init__(self, spec: JoinSpec) -> None:
        self.spec = spec
        self.rows = KeptRows(spec, "left", self.ranked), KeptRows(spec, "right", self.ranked)
        self.complete = (0, 0)
        self.last = START  # the mark of the last step that was added
        self.pairs = self.results = 0
        self._schema = spec.output_schema
        self._time_type = self._schema.field(len(self._schema) - 1).type
        is_stamp = pa.types.is_timestamp(self._time_type)
        # Microseconds in a tick; 0: a thousandth of one
        self._per_tick = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0}[self._time_type.unit] if is_stamp else 1
        self._time_dtype = np.int64 if is_stamp else self._time_type.to_pandas_dtype()
        self._marks: deque[Mark] = deque()  # not all pairs of their tuples are known
        self._droppable = START  # rows that were out of reach there have had their last result
        self._open = [0, 0]  # no row before is undecided
        self._hopeless: list[tuple[Array, Array]] = []
        self._compiled = False
        self._retained: list[RetainedRows] = []  # of a durable join, for each side
        self._certain = 0  # all results of lower ranks were made
        self._resumed = 0  # and those of lower ranks before this join went on from a checkpoint
        self.settled = True  # whether those that were chosen are made, too

    def use_compiled(self) -> None:
        """Pick rows by compiled code from now on."""
        if not self._compiled:
            self._compiled = True
            for rows in self.rows:
                rows.records.compiled = compiled_module("picking")

    # --- input

    def add(self, step: Step | Mark) -> None:
        """Take tuples that the core was given, or is about to be given; or only a mark."""
        mark = step if isinstance(step, Mark) else step.mark
        if isinstance(step, Step):
            self._append(step)
        if self._marks and self._marks[-1].numbers == mark.numbers:
            self._marks.pop()
        self._marks.append(mark)
        self.last = mark

    def _append(self, step: Step) -> None:
        for i, (stamped, batch) in enumerate(zip((step.left, step.right), step.rows, strict=True)):
            rows = self.rows[i]
            if rows.padded and stamped.kept is not None and not self.spec.ordered:
                hopeless = np.delete(np.arange(len(stamped)), stamped.kept) + rows.places
                self._hopeless.append(_alone(i, hopeless))
            rows.append(stamped, batch, **self._facts(i, stamped))
            if self._retained:
                self._retained[i].append(stamped, batch)

    def _facts(self, i: int, stamped: Stamped) -> dict[str, Array]:
        """Return what else is to be known of rows that have come."""
        return {}

    def found(self, found: Found | None) -> Iterator[pa.RecordBatch]:
        """Turn pairs into results. Every step whose tuples they mention must have been added.

        Take all of them before the next call.
        """
        left, right = _NONE, _NONE
        if found is not None:
            self.complete = found.complete
            self.pairs += len(found.left)
            left, right = self.rows[0].place_of(found.left), self.rows[1].place_of(found.right)
        self.settled = False
        last = None
        for batch in self._gathered(self._choose(left, right)):
            if last is not None:
                yield last
            last = batch
        self._drop()
        self.settled = True
        if last is not None:
            yield last

    def note_few(self, pairs: int, complete: tuple[int, int]) -> None:
        """Count pairs that were made into results elsewhere (`short_way`), and what is complete with them."""
        self.complete = complete
        self.pairs += pairs
        self.results += pairs

    # --- what is certain

    @property
    def limit(self) -> int:
        """A time; no result with an earlier `pair_time` comes any more."""
        times = [self._complete_time()]
        for i, rows in enumerate(self.rows):
            if rows.padded and (place := self._first_open(i)) < rows.places:
                times.append(rows.time_at(place))
        return min(times)

    def _choose(self, left: Array, right: Array) -> Chosen:
        self._note_matches(left, right)
        parts = [] if self.spec.how == "anti" else [(left, right)]
        parts += self._hopeless
        self._hopeless = []
        mark = self._passed()
        if mark is not None:
            parts += [_alone(i, rows.bury(*mark.dead(i))) for i, rows in enumerate(self.rows) if rows.padded]
            self._droppable = mark
        parts = [part for part in parts if len(part[0])]
        if not parts:
            return NOTHING
        if len(parts) > 1:
            left, right = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        else:
            left, right = parts[0]
        return Chosen(left, right)

    def _note_matches(self, left: Array, right: Array) -> None:
        for rows, places in zip(self.rows, (left, right), strict=True):
            if rows.padded and len(places):
                rows.facts.put("state", places, MATCHED)

    def _passed(self) -> Mark | None:
        """Return the last mark that has been passed: all pairs of its tuples are known now."""
        passed = None
        while self._marks and all(n <= done for n, done in zip(self._marks[0].numbers, self.complete, strict=True)):
            passed = self._marks.popleft()
        return passed

    def _incomplete(self) -> list[tuple[KeptRows, int]]:
        """Return each side's first tuple whose pairs may still be missing, if it has come."""
        return [
            (rows, int(rows.place_of(np.array([done]))[0]))
            for rows, done in zip(self.rows, self.complete, strict=True)
            if done < rows.numbers
        ]

    def _complete_time(self) -> int:
        """Return a time; all pairs with a `pair_time` before it are known."""
        times = [rows.time_at(place) for rows, place in self._incomplete()]
        return min([*times, self.last.time])

    def _first_open(self, i: int) -> int:
        """Return the first row of a padded side that may still get its first match."""
        rows = self.rows[i]
        place = max(self._open[i], rows.dead)
        while place < rows.places:
            end = min(place + SCAN_ROWS, rows.places)
            hits = np.flatnonzero(rows.facts.live("state", place, end) == OPEN)
            if len(hits):
                place += int(hits[0])
                break
            place = end
        self._open[i] = place
        return place

    # --- output

    def _gathered(self, chosen: Chosen) -> Iterator[pa.RecordBatch]:
        self.results += len(chosen.left)
        for begin in range(0, len(chosen.left), RESULT_ROWS_MAX):
            part = slice(begin, begin + RESULT_ROWS_MAX)
            columns, times = self.rows[0].gather(chosen.left[part])
            if self.spec.has_right_columns:
                more, others = self.rows[1].gather(chosen.right[part])
                columns += more
                times = others if times is None else times if others is None else np.maximum(times, others)
            if chosen.times is not None:
                times = chosen.times[part]
            assert times is not None
            yield pa.RecordBatch.from_arrays([*columns, self._time_array(times)], schema=self._schema)

    def _time_array(self, times: Array) -> pa.Array:
        """Return times (microseconds, or an integer time's unit) in the type of the time columns they come from."""
        if self._per_tick == 1:
            ticks = times.astype(self._time_dtype, copy=False)
        else:
            ticks = times // self._per_tick if self._per_tick else times * 1_000
        return pa.Array.from_buffers(self._time_type, len(ticks), [None, pa.py_buffer(ticks)])

    def _drop(self) -> None:
        """Forget the rows that no further result has."""
        for i, rows in enumerate(self.rows):
            rows.drop(*self._droppable.dead(i))
        self._release()

    def _release(self) -> None:
        """Forget what no checkpoint needs: the rows that are not kept."""
        for retained, rows, dead in zip(self._retained, self.rows, self._droppable.dead_ordinals, strict=False):
            retained.drop(*(rows.first, END) if rows.padded else (dead, rows.first))

    # --- durable joins

    def retain(self, found: Checkpoint | None) -> None:
        """Keep what checkpoints need from now on, and go on where this one was written."""
        self._retained = [
            RetainedRows(pa.RecordBatch.from_pylist([], schema=side.schema))
            for side in (self.spec.left, self.spec.right)
        ]
        if found is not None:
            self._resumed = found.rank
            for rows, saved in zip(self.rows, found.sides, strict=True):
                rows.restore(saved.facts)

    def saved(self) -> tuple[tuple[SavedSide, SavedSide], int]:
        """Return both sides' rows for a checkpoint, and the rank among them before which all results were made."""
        made = max(self._certain, self._resumed)
        left, right = (SavedSide(r.rows, self._known(i, r, made)) for i, r in enumerate(self._retained))
        return (left, right), sum(int(np.searchsorted(r.ranks, made)) for r in self._retained)

    def _known(self, i: int, retained: RetainedRows, made: int) -> dict[str, Array]:
        """Return what is known of a side's retained rows; those before the rank `made` are no results by themselves."""
        facts, places = self.rows[i].facts, retained.ordinals
        if not self.rows[i].padded:
            return {}
        state = np.full(len(places), MATCHED, np.int8)
        later = np.flatnonzero((places >= facts.first) & (retained.ranks >= made))
        if len(later):
            state[later] = facts.get("state", places[later])
        return {"state": state}


class OrderedResults(Results):
    """Results in order: a pair waits until all that comes before it is known, and so does an unmatched row.

    With r the least rank of an incomplete tuple and of an undecided row of a padded side, all results whose later
    tuple has a rank below r are certain.
    """

    ranked = True

    def __init__(self, spec: JoinSpec) -> None:
        super().__init__(spec)
        self._held = array_runs()  # pairs by their later rank: earlier rank, left place, right place
        self._unmatched = [0, 0]  # no unmatched row before is still to come
        self._out_of_reach: deque[Mark] = deque()

    def _choose(self, left: Array, right: Array) -> Chosen:
        self._note_matches(left, right)
        found = self._ranked(left, right)
        mark = self._passed()
        if mark is not None:
            for i, rows in enumerate(self.rows):
                rows.bury(*mark.dead(i))
            self._out_of_reach.append(mark)
        certain = self._certain = self._certain_rank()
        while self._out_of_reach and self._out_of_reach[0].rank <= certain:
            self._droppable = self._out_of_reach.popleft()
        parts = [np.vstack([later, rows]) for later, rows in self._held.take(certain)]
        if found.shape[1]:
            waits = found[0] >= certain
            if waits.any():
                self._held.add(found[0, waits], found[1:, waits])
                found = found[:, ~waits]
            parts.append(found)
        parts += [self._unmatched_before(certain, i) for i, rows in enumerate(self.rows) if rows.padded]
        parts = [part for part in parts if part.shape[1]]
        if not parts:
            return NOTHING
        later, earlier, left, right = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        order = sorting(earlier, later)
        return Chosen(left[order], right[order])

    def _ranked(self, left: Array, right: Array) -> Array:
        """Return pairs as later rank, earlier rank, left and right place; without those of a former life."""
        if not len(left) or self.spec.how == "anti":
            return _NO_RESULTS
        found = np.empty((4, len(left)), np.int64)
        left_rank, right_rank = self.rows[0].ranks(left), self.rows[1].ranks(right)
        np.maximum(left_rank, right_rank, out=found[0])
        np.minimum(left_rank, right_rank, out=found[1])
        found[2], found[3] = left, right
        if self._certain < self._resumed:
            found = found[:, found[0] >= self._resumed]
            self.pairs -= len(left) - found.shape[1]
        return found

    def _certain_rank(self) -> int:
        ranks = [self.last.rank]
        ranks += [rows.rank_at(place) for rows, place in self._incomplete()]
        for i, rows in enumerate(self.rows):
            if rows.padded and (place := self._first_open(i)) < rows.places:
                ranks.append(rows.rank_at(place))
        return min(ranks)

    def _unmatched_before(self, rank: int, i: int) -> Array:
        rows = self.rows[i]
        begin, end = self._unmatched[i], int(rows.facts.search("rank", rank))
        if end <= begin:
            return _NO_RESULTS
        self._unmatched[i] = end
        places = np.flatnonzero(rows.facts.live("state", begin, end) != MATCHED) + begin
        return np.stack([rows.ranks(places), np.full(len(places), -1), *_alone(i, places)])


class SemiResults(Results):
    """Each left row once, at the time of its first pair: certain when all pairs before that time are known."""

    def __init__(self, spec: JoinSpec) -> None:
        super().__init__(spec)
        self._pending = _NONE  # left rows that have a pair, but perhaps not yet their first

    def _facts(self, i: int, stamped: Stamped) -> dict[str, Array]:
        n = len(stamped.tuples)
        return {} if i else dict(first=np.full(n, END), seen=np.zeros(n, bool), done=np.zeros(n, bool))

    def _append(self, step: Step) -> None:
        facts = self.rows[0].facts
        begin = facts.next
        super()._append(step)
        seen = np.flatnonzero(facts.live("seen", begin) & ~facts.live("done", begin))
        self._pending = np.concatenate([self._pending, seen + begin])  # of a checkpoint: others have just come

    def _known(self, i: int, retained: RetainedRows, made: int) -> dict[str, Array]:
        if i:
            return {}
        facts, places = self.rows[0].facts, retained.numbers
        known = {"first": np.full(len(places), END), "seen": places >= 0, "done": places >= 0}
        kept = np.flatnonzero(places >= facts.first)
        for name, values in known.items() if len(kept) else ():
            values[kept] = facts.get(name, places[kept])
        return known

    def _choose(self, left: Array, right: Array) -> Chosen:
        facts = self.rows[0].facts
        if len(left):
            wanted = np.flatnonzero(~facts.get("done", left))
            left, right = left[wanted], right[wanted]
            facts.least("first", left, np.maximum(self.rows[0].times(left), self.rows[1].times(right)))
            new = np.unique(left[~facts.get("seen", left)])
            facts.put("seen", new, True)
            self._pending = np.concatenate([self._pending, new])
        mark = self._passed()
        if mark is not None:
            self._droppable = mark
        if not len(self._pending):
            return NOTHING
        limit, first = self._complete_time(), facts.get("first", self._pending)
        # In order, another row may still get its first pair at the very time of the limit.
        certain = first < limit if self.spec.ordered else first <= limit
        chosen, times = self._pending[certain], first[certain]
        self._pending = self._pending[~certain]
        facts.put("done", chosen, True)
        if self.spec.ordered:
            order = np.lexsort((chosen, times))
            chosen, times = chosen[order], times[order]
        return Chosen(chosen, _NONE, times)

    def _drop(self) -> None:
        ordinal, number = self._droppable.dead(0)
        self.rows[0].drop(ordinal, min(number, int(self._pending.min(initial=END))))
        self.rows[1].drop(*self._droppable.dead(1))
        self._release()


def _alone(i: int, places: Array) -> tuple[Array, Array]:
    """Return rows of one side as results with nothing of the other."""
    missing = np.full(len(places), -1)
    return (places, missing) if i == 0 else (missing, places)
