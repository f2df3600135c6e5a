"""A window of texts, found by their pieces: which stored texts differ from a given one by at most a few edits.

    2 edits, 5 pieces    stored   at la nt ic oc ean ...      given   at lo nt i oc ean ...
                                  0     1     2    3    4             0        2    4      as they are: (0, 2, 4)

A stored text is cut into pieces, of which the edits change at most as many as they are; the others are in the given
text as they are, each moved by what was inserted and deleted before it. So a text is stored under every choice of
pieces that may be left, by the hash of their letters; and looked for by every choice, with every way in which so many
edits can move them (`LookUps`; Pass-Join's partitions, but with several pieces together: one alone is too common).

Rows with the same hash are chained, the newest first: so a walk ends at the first one that has expired, and nothing
has to be done to forget it. Entries are numbered, and their numbers compared in 32 bits.

Importing this module compiles it, or loads it from the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
from numba import int32, int64, uint32, uint64

from counterflow.jit import OPTIONS, inlined, njit
from counterflow.predicate.expression import Expression, Side
from counterflow.windows.access import AccessPath
from counterflow.windows.compiled import intrinsics
from counterflow.windows.compiled.predicate_source import NotCompilable
from counterflow.windows.compiled.texts import letters
from counterflow.windows.crew import Crew
from counterflow.windows.evaluate import Columns
from counterflow.windows.keys import computed
from counterflow.windows.pair_buffers import Pairs
from counterflow.windows.row_ring import Ring
from counterflow.windows.vectors import Array

PIECES = {0: 1, 1: 3, 2: 5, 3: 5}  # by the number of edits: those that are left together have most of the letters
BASE = 0x9E3779B97F4A7C15  # of the polynomial that hashes letters; odd
ENTRY_BITS = 4  # of an entry's number: which of its row's it is
ENTRY_MASK = (1 << ENTRY_BITS) - 1
PART_TEXTS = 1 << 10  # worth a thread: some 5 ms of looking
FEW = 32  # rows among which a row is looked for before it is noted again
TABLE_COLUMNS = 2  # of `LookUps.table`, before the pieces' moves
prefetch: Any = intrinsics.prefetch


@dataclass(frozen=True)
class LookUps:
    """How texts are stored and looked for, given how many edits there may be."""

    edits: int
    pieces: int
    choices: Array  # the pieces that may be left, one choice a row
    table: Array  # a row for each thing to look for: the choice, how much longer the text is, how far each piece moved


@cache
def look_ups(edits: int) -> LookUps:
    """Return how to look for texts with so many edits.

    Of the pieces without an edit the first ones are chosen: so each piece that is left out before the last chosen one
    has at least one edit. An insertion counts to the piece before it.
    """
    pieces = PIECES[edits]
    choices = list(combinations(range(pieces), pieces - edits))
    table = set()
    for number, choice in enumerate(choices):
        left_out = [k for k in range(choice[-1]) if k not in choice]
        for moves in product(range(-edits, edits + 1), repeat=len(left_out)):
            spare = edits - sum(max(abs(move), 1) for move in moves)
            moved = [sum(move for k, move in zip(left_out, moves, strict=True) if k < piece) for piece in choice]
            table |= {(number, moved[-1] + rest, *moved) for rest in range(-spare, spare + 1)}
    return LookUps(edits, pieces, np.array(choices), np.array(sorted(table)))


@inlined
def mix(x):  # type: ignore[no-untyped-def]
    """Apply splitmix64's finaliser: every bit of the input moves every bit of the output."""
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


@inlined
def with_piece(found, prefixes, powers, at, size):  # type: ignore[no-untyped-def]
    """Return the hash of some pieces and of another one, which begins at a place in `prefixes`."""
    letters = prefixes[at + size] - prefixes[at] * powers[size]
    return (found ^ letters ^ (letters >> uint64(29))) * uint64(0xD6E8FEB86659FD93)


@inlined
def begun(choice, length):  # type: ignore[no-untyped-def]
    """Return the hash with which a choice of pieces of a text of this length begins."""
    return uint64(length) * uint64(0xA0761D6478BD642F) + uint64(choice)


@njit("void(uint32[::1], int64[::1], uint64[::1])", **OPTIONS)
def hash_prefixes(texts: Array, begins: Array, out: Array) -> None:
    """Write the hash of each text's first letters: none, one, ...; so each text has a place more than letters."""
    for row in range(len(begins) - 1):
        at, found = begins[row] + row, uint64(0)
        out[at] = found
        for i in range(begins[row], begins[row + 1]):
            found = found * uint64(BASE) + uint64(texts[i]) + uint64(1)
            at += 1
            out[at] = found


@inlined
def cut(bounds, at, length, pieces):  # type: ignore[no-untyped-def]
    """Write where the pieces of a text of this length begin, and where the last one ends."""
    for k in range(pieces + 1):
        bounds[at + k] = k * length // pieces


@njit(
    "void(uint64[::1], int64[::1], uint64[::1], boolean[::1], int64, int64[:, ::1], int64, int64, uint32[::1], "
    "uint32[::1], uint32[::1], int64[::1])",
    **OPTIONS,
)
def append(
    prefixes: Array, begins: Array, powers: Array, usable: Array, pieces: int, choices: Array, capacity: int,
    next_row: int, heads: Array, tags: Array, older: Array, bounds: Array,
) -> None:  # fmt: skip
    """Chain the entries of some rows, whose numbers begin with `next_row`."""
    mask = uint64(len(heads) - 1)
    for row in range(len(begins) - 1):
        first, length = begins[row] + row, begins[row + 1] - begins[row]
        first_slot = ((next_row + row) & (capacity - 1)) * len(choices)
        cut(bounds, 0, length, pieces)
        for c in range(len(choices)):
            if not usable[row]:
                tags[first_slot + c] = uint32(0)
                continue
            found = begun(c, length)
            for j in range(choices.shape[1]):
                at = bounds[choices[c, j]]
                found = with_piece(found, prefixes, powers, first + at, bounds[choices[c, j] + 1] - at)
            found = mix(found)
            bucket = int64(found & mask)
            tags[first_slot + c], older[first_slot + c] = uint32(found >> uint64(32)), heads[bucket]
            heads[bucket] = uint32(((next_row + row) << ENTRY_BITS) + c)


@njit(
    "void(int64, uint64[::1], int64[::1], uint64[::1], boolean[::1], int64, int64, int64[:, ::1], int64[:, ::1], "
    "int64, int64, int64[::1], int64[::1], uint32[::1], uint32[::1], uint32[::1], int64[::1], uint64[::1], "
    "int64[::1], int64[::1], int64[::1])",
    **OPTIONS,
)
def probe(
    begin: int, prefixes: Array, begins: Array, powers: Array, usable: Array, edits: int, pieces: int, choices: Array,
    table: Array, capacity: int, first_row: int, oldest: Array, newest: Array, heads: Array, tags: Array,
    older: Array, bounds: Array, wanted: Array, out_probe: Array, out_row: Array, status: Array,
) -> None:  # fmt: skip
    """Find rows that have the pieces of a given text, from text `begin` on; some twice, where they are many.

    `status` gets how many were found, and at which text it stopped because there was no more room.
    """
    mask, found, keys = uint64(len(heads) - 1), 0, len(choices)
    first_entry = uint32(first_row << ENTRY_BITS)
    for p in range(begin, len(begins) - 1):
        before = found
        if not usable[p]:
            continue
        first, given, looked_for = begins[p] + p, begins[p + 1] - begins[p], 0
        for longer in range(-edits, edits + 1):
            cut(bounds, (longer + edits) * (pieces + 1), max(given - longer, 0), pieces)
        for t in range(len(table)):
            c, longer = table[t, 0], table[t, 1]
            hashed, fits = begun(c, given - longer), longer <= given
            for j in range(choices.shape[1]):
                piece = (longer + edits) * (pieces + 1) + choices[c, j]
                size, place = bounds[piece + 1] - bounds[piece], bounds[piece] + table[t, TABLE_COLUMNS + j]
                fits = fits and place >= 0 and place + size <= given
                if fits:
                    hashed = with_piece(hashed, prefixes, powers, first + place, size)
            if fits:
                wanted[looked_for] = mix(hashed)
                prefetch(heads, int64(wanted[looked_for] & mask))
                looked_for += 1
        for i in range(looked_for):
            ahead = int32(heads[int64(wanted[i] & mask)] - first_entry)
            if ahead >= 0:
                slot = ((first_row + (int64(ahead) >> ENTRY_BITS)) & (capacity - 1)) * keys
                prefetch(tags, slot + (int64(ahead) & ENTRY_MASK))
                prefetch(older, slot + (int64(ahead) & ENTRY_MASK))
        for i in range(looked_for):
            tag = uint32(wanted[i] >> uint64(32))
            ahead = int32(heads[int64(wanted[i] & mask)] - first_entry)
            while ahead >= 0:
                row = first_row + (int64(ahead) >> ENTRY_BITS)
                slot = (row & (capacity - 1)) * keys + (int64(ahead) & ENTRY_MASK)
                if tags[slot] == tag and oldest[p] <= row <= newest[p]:
                    if found == len(out_probe):
                        status[0], status[1] = before, p
                        return
                    fresh = True
                    for e in range(max(before, found - FEW), found):
                        fresh &= out_row[e] != row
                    out_probe[found], out_row[found] = p, row
                    found += int(fresh)
                following = int32(older[slot] - first_entry)
                ahead = following if following < ahead else int32(-1)  # only a number of long ago is not smaller
    status[0], status[1] = found, len(begins) - 1


@dataclass
class Texts:
    """The texts of some rows, as the kernels take them."""

    prefixes: Array
    begins: Array
    usable: Array
    longest: int


@dataclass
class Search:
    """Some given texts on their way through the index: each step finds candidates, each pair once."""

    window: SimilarTexts
    texts: Texts
    powers: Array
    oldest: Array
    newest: Array
    at: int
    end: int
    pairs: Pairs = field(default_factory=lambda: Pairs(0))  # what the last step found
    done: bool = False
    candidates: int = 0  # not counted yet
    rows_scanned: int = 0
    unsure: bool = True

    def __post_init__(self) -> None:
        self._found, self._bounds = Pairs(), self.window.room_for_bounds()
        self._wanted = np.empty(len(self.window.how.table), np.uint64)

    def step(self) -> None:
        """Look for texts until there is no more room for candidates."""
        window, texts, found, how = self.window, self.texts, self._found, self.window.how
        status = np.zeros(2, np.int64)
        while True:
            probe(
                self.at, texts.prefixes, texts.begins[: self.end + 1], self.powers, texts.usable, how.edits,
                how.pieces, how.choices, how.table, window.ring.capacity, window.ring.first, self.oldest, self.newest,
                window.heads, window.tags, window.older, self._bounds, self._wanted, found.probes, found.rows, status,
            )  # fmt: skip
            found.count, stopped = int(status[0]), int(status[1])
            if stopped > self.at or self.at == self.end:
                break
            found.reserve(2 * len(found.probes))  # one text has more than there is room for
        self.at, self.done = stopped, stopped == self.end
        self.pairs = self._once()
        self.candidates += self.pairs.count

    def _once(self) -> Pairs:
        """Return what was found without the pairs that were found before."""
        first = self.window.ring.first
        probes, rows = self._found.probes[: self._found.count], self._found.rows[: self._found.count] - first
        both = np.unique((probes << 40) | rows)
        pairs = Pairs(0)
        pairs.probes, pairs.rows, pairs.count = both >> 40, (both & ((1 << 40) - 1)) + first, len(both)
        return pairs


class SimilarTexts:
    """The index of a ring's rows by the pieces of a text; what it can do is what `CompiledWindow` can."""

    def __init__(self, ring: Ring, path: AccessPath, predicate: Expression, nullable: bool, crew: Crew) -> None:
        assert path.similar is not None
        self.ring, self.path, self.predicate, self.nullable, self.crew = ring, path, predicate, nullable, crew
        self.similar, self.how = path.similar, look_ups(path.similar.edits)
        entries = ring.capacity * len(self.how.choices)
        self.tags, self.older = np.empty((2, entries), np.uint32)
        nobody = ((ring.first << ENTRY_BITS) - 1) & 0xFFFFFFFF  # before all entries
        self.heads = np.full(1 << (entries - 1).bit_length(), nobody, np.uint32)
        self._powers = np.ones(1, np.uint64)
        self._bounds = self.room_for_bounds()

    @property
    def nbytes(self) -> int:
        return self.tags.nbytes + self.older.nbytes + self.heads.nbytes

    def room_for_bounds(self) -> Array:
        """Return room for where the pieces of a text begin, for each length that a similar one may have."""
        return np.empty((2 * self.how.edits + 1) * (self.how.pieces + 1), np.int64)

    def keyed(self, side: Side, columns: Columns, arrays: dict[str, Array], n: int) -> Texts:
        """Return what kernels need of some rows."""
        key = computed(self.similar.key(side), side, columns, n)
        if key is None:
            raise NotCompilable("a text has no value on some row")
        usable = key.mask()
        data, begins = letters(np.where(usable, key.values, ""))
        prefixes = np.empty(len(data) + n, np.uint64)
        hash_prefixes(data, begins, prefixes)
        return Texts(prefixes, begins, np.ascontiguousarray(usable), int(np.diff(begins).max(initial=0)))

    def learn(self, probes: Texts | None, before: object) -> None:
        """Take no note: it is made in one way, whatever is looked for."""

    def misjudges(self, probes: Texts) -> bool:
        return False

    def append(self, rows: Texts, begin: int) -> None:
        """Put rows into the index that are in the ring from number `begin` on."""
        append(
            rows.prefixes, rows.begins, self._powers_to(rows.longest), rows.usable, self.how.pieces, self.how.choices,
            self.ring.capacity, begin, self.heads, self.tags, self.older, self._bounds,
        )  # fmt: skip

    def probe(self, rows: Texts, columns: Columns, oldest: Array, newest: Array, scanned: Array) -> Iterator[Search]:
        """Yield candidates, some at a time: numbers of probing rows and of stored rows, `oldest` to `newest`."""
        n, powers = len(rows.usable), self._powers_to(rows.longest + self.similar.edits)
        threads = min(self.crew.threads, max(n // PART_TEXTS, 1))
        cuts = [n * part // threads for part in range(threads + 1)]
        yield from self.crew.deal((Search(self, rows, powers, oldest, newest, *cut) for cut in pairwise(cuts)), threads)

    def _powers_to(self, size: int) -> Array:
        """Return the powers of the hash's base, up to this one and more."""
        if len(self._powers) <= size:
            with np.errstate(over="ignore"):
                more = np.multiply.accumulate(np.full(2 * size, BASE, np.uint64))
            self._powers = np.concatenate([np.ones(1, np.uint64), more])
        return self._powers
