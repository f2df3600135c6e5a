"""Few rows in one call, compiled: read where Arrow has them, stored, looked for, and their pairs made into columns.

`take` reads a batch through Arrow's C data interface, and does what `WindowStore.append` and `probe` do, on the same
rings and indexes. `give` writes the results of its pairs as one message of Arrow's. What they work on is known by
address: `words` has SIDE_WORDS for each side, then what both share.
Importing this module compiles it, or loads it from the cache.
"""

from __future__ import annotations

from typing import Any

from numba import types

from counterflow.jit import OPTIONS, inlined, njit
from counterflow.windows.compiled import block, intrinsics
from counterflow.windows.compiled.arrivals import within
from counterflow.windows.vectors import Array

# Of a side: the times of its known tuples, in one piece
FRONTIER = 0  # rows before are not on time, or not in order
TIMES, TIMES_BEGIN, TIMES_END, TIMES_SIZE = 1, 2, 3, 4
TIMES_FIRST = 5  # the number of the oldest of them
BEFORE, AFTER = 6, 7  # how much earlier and later the tuples are that its rows meet
TIME_CHILD = 8  # which column of a batch has the time
# Its window (`row_ring`, `compiled_window`)
OFFSET, FIRST_ROW, NEXT_ROW, RING_MASK, RING_AT = 9, 10, 11, 12, 13  # OFFSET: a row's number is so much more
STORE, BLOCK, PROBE = 14, 15, 16  # functions that are called by address, and their block (`compiled.block`)
# What the predicate needs of a batch; a row of COLUMNS for each column, see COLUMN_CHILD and the next names
COLUMNS, COLUMNS_COUNT = 17, 18
HASHED, HASHES = 19, 20  # the column (a row of COLUMNS) that is the equality's key, or -1; where hashes go
KEYED, KEYED_COUNT, KEYS = 21, 22, 23  # the columns that are the bands' keys; where keys go
# What results need of it: a row of FIELDS for each field of a record, see FIELD_CHILD
RECORDS, RECORDS_WIDTH, RECORDS_SIZE, RECORDS_FIRST, RECORDS_NEXT = 24, 25, 26, 27, 28
FIELDS, FIELDS_COUNT = 29, 30
SIDE_WORDS = 32
# Of both
OLDEST, NEWEST, OUT_PROBE, OUT_ROW = 64, 65, 66, 67
WORDS = 72

ROWS_MAX = 256  # of a batch; the arenas have room for so many

COLUMN_CHILD, COLUMN_WIDTH, COLUMN_FLOAT, COLUMN_RING, COLUMN_ARENA, COLUMN_WORDS = 0, 1, 2, 3, 4, 5
FIELD_CHILD, FIELD_OFFSET, FIELD_BYTES, FIELD_WORDS = 0, 1, 2, 3
# A column of results: a field of the records of side 0 or 1, and where the column is in the message. For LATER, the
# later tuple's time, GIVEN_OFFSET is where the time is in left records, and GIVEN_BYTES where it is in right ones.
GIVEN_SIDE, GIVEN_OFFSET, GIVEN_BYTES, GIVEN_AT = 0, 1, 2, 3
LATER = 2

# What `take` answers with, if it is no number of pairs
NOT_PLAIN = -1  # the batch has NULLs, or a row that is not in order or on time: nothing was done
NO_ROOM = -2  # nothing was done
INDEX_FULL = -3  # nothing but a part of the index: make room in it, and repeat the call
SEARCH_AGAIN = -4  # the rows are stored, and are to be looked for in another way

# Arrow's C data interface: words of an array
LENGTH, NULL_COUNT, ARRAY_OFFSET, BUFFERS, CHILDREN = 0, 1, 2, 5, 6
ARRAY_WORDS = 10

call_entry: Any = intrinsics.call_entry
view_i8, view_i4 = intrinsics.viewer(types.int64), intrinsics.viewer(types.int32)
view_i2, view_i1 = intrinsics.viewer(types.int16), intrinsics.viewer(types.int8)
view_f8, view_f4 = intrinsics.viewer(types.float64), intrinsics.viewer(types.float32)


@inlined
def is_plain(children: Array, k: int) -> bool:
    """Return whether a column of a batch has no NULLs."""
    child = view_i8(children[k], ARRAY_WORDS)
    return child[NULL_COUNT] == 0 or view_i8(child[BUFFERS], 1)[0] == 0


@inlined
def data_of(children: Array, k: int, offset: int, width: int) -> int:
    """Return where the values of a column of a batch begin."""
    child = view_i8(children[k], ARRAY_WORDS)
    return view_i8(child[BUFFERS], 2)[1] + (child[ARRAY_OFFSET] + offset) * width


@inlined
def copy_bytes(source: int, target: int, n: int) -> None:
    """Copy `n` bytes; both addresses are multiples of the largest of 8, 4, 2 and 1 that divides `n`."""
    if n & 7 == 0:
        from8, to8 = view_i8(source, n >> 3), view_i8(target, n >> 3)
        for i in range(n >> 3):
            to8[i] = from8[i]
    elif n & 3 == 0:
        from4, to4 = view_i4(source, n >> 2), view_i4(target, n >> 2)
        for i in range(n >> 2):
            to4[i] = from4[i]
    elif n & 1 == 0:
        from2, to2 = view_i2(source, n >> 1), view_i2(target, n >> 1)
        for i in range(n >> 1):
            to2[i] = from2[i]
    else:
        from1, to1 = view_i1(source, n), view_i1(target, n)
        for i in range(n):
            to1[i] = from1[i]


@inlined
def take_column(source: int, width: int, ring: int, arena: int, first: int, mask: int, n: int) -> None:
    """Copy a column to its ring and to its arena. Narrow integers have 32 bits there."""
    if width == 8:
        ring8, arena8, given8 = view_i8(ring, mask + 1), view_i8(arena, n), view_i8(source, n)
        for i in range(n):
            ring8[(first + i) & mask] = arena8[i] = given8[i]
        return
    ring4, arena4 = view_i4(ring, mask + 1), view_i4(arena, n)
    given4, given2, given1 = view_i4(source, n), view_i2(source, n), view_i1(source, n)
    for i in range(n):
        value = given4[i] if width == 4 else types.int32(given2[i] if width == 2 else given1[i])
        ring4[(first + i) & mask] = arena4[i] = value


@inlined
def take_columns(words: Array, own: int, children: Array, offset: int, n: int) -> None:
    """Copy what the predicate needs of the rows, and compute their hash and keys."""
    first, mask = words[own + NEXT_ROW], words[own + RING_MASK]
    columns = view_i8(words[own + COLUMNS], words[own + COLUMNS_COUNT] * COLUMN_WORDS)
    for c in range(words[own + COLUMNS_COUNT]):
        at = c * COLUMN_WORDS
        width = columns[at + COLUMN_WIDTH]
        source = data_of(children, columns[at + COLUMN_CHILD], offset, width)
        take_column(source, width, columns[at + COLUMN_RING], columns[at + COLUMN_ARENA], first, mask, n)
    if words[own + HASHED] >= 0:
        at, hashes = words[own + HASHED] * COLUMN_WORDS, view_i8(words[own + HASHES], n)
        arena, is_wide = columns[at + COLUMN_ARENA], columns[at + COLUMN_WIDTH] == 8
        wide, narrow = view_i8(arena, n), view_i4(arena, n)
        for i in range(n):
            hashes[i] = wide[i] if is_wide else types.int64(narrow[i])
    keyed = view_i8(words[own + KEYED], words[own + KEYED_COUNT])
    for k in range(words[own + KEYED_COUNT]):
        at, keys = keyed[k] * COLUMN_WORDS, view_f8(words[own + KEYS] + 8 * k * ROWS_MAX, n)
        arena, is_wide = columns[at + COLUMN_ARENA], columns[at + COLUMN_WIDTH] == 8
        i8, i4, f8, f4 = view_i8(arena, n), view_i4(arena, n), view_f8(arena, n), view_f4(arena, n)
        for i in range(n):
            if columns[at + COLUMN_FLOAT] != 0:
                keys[i] = f8[i] if is_wide else types.float64(f4[i])
            else:
                keys[i] = types.float64(i8[i]) if is_wide else types.float64(i4[i])


@inlined
def keep(words: Array, own: int, children: Array, offset: int, n: int) -> None:
    """Write what results need of the rows to the ring of records."""
    width, size, next_ = words[own + RECORDS_WIDTH], words[own + RECORDS_SIZE], words[own + RECORDS_NEXT]
    fields = view_i8(words[own + FIELDS], words[own + FIELDS_COUNT] * FIELD_WORDS)
    for f in range(words[own + FIELDS_COUNT]):
        field, bytes_ = f * FIELD_WORDS, fields[f * FIELD_WORDS + FIELD_BYTES]
        source = data_of(children, fields[field + FIELD_CHILD], offset, bytes_)
        to = words[own + RECORDS] + fields[field + FIELD_OFFSET]
        for i in range(n):
            copy_bytes(source + i * bytes_, to + (next_ + i) % size * width, bytes_)
    words[own + RECORDS_NEXT] = next_ + n


@inlined
def have_room(words: Array, own: int, n: int, keeps: int) -> bool:
    """Return whether a side's arrays have room for `n` rows more."""
    rows = words[own + NEXT_ROW] - words[own + FIRST_ROW] + n
    times = words[own + TIMES_END] + n
    records = words[own + RECORDS_NEXT] - words[own + RECORDS_FIRST] + n
    return (
        rows <= words[own + RING_MASK] + 1
        and times <= words[own + TIMES_SIZE]
        and (keeps == 0 or records <= words[own + RECORDS_SIZE])
    )


@inlined
def look_for(words: Array, own: int, other: int, times: Array, n: int) -> int:
    """Find the pairs of rows that are stored, and return how many: their numbers are in OUT_PROBE and OUT_ROW."""
    if words[other + FIRST_ROW] == words[other + NEXT_ROW]:
        return 0
    begin, offset = words[other + TIMES_BEGIN], words[other + OFFSET]
    known = view_i8(words[other + TIMES] + 8 * begin, words[other + TIMES_END] - begin)
    oldest, newest = view_i8(words[OLDEST], n), view_i8(words[NEWEST], n)
    for i in range(n):
        first, end = within(times[i], words[own + BEFORE], words[own + AFTER], known)
        of = words[other + TIMES_FIRST] - offset
        oldest[i] = max(of + first, words[other + FIRST_ROW])
        newest[i] = min(of + end, words[other + NEXT_ROW]) - 1
    found = call_entry(words[other + PROBE], words[other + BLOCK], 0, n, 1)
    status = view_i8(words[other + BLOCK], block.STATUS_WORDS)
    if found == 0 or status[block.LEFT_OVER] != 0 or status[block.UNSURE] != 0:
        return SEARCH_AGAIN
    pairs = status[block.FOUND]
    probes, rows = view_i8(words[OUT_PROBE], pairs), view_i8(words[OUT_ROW], pairs)
    number = words[own + NEXT_ROW] - n + words[own + OFFSET]
    for p in range(pairs):
        probes[p] += number
        rows[p] += offset
    return pairs


@njit("int64(int64[::1], int64, int64, int64)", **OPTIONS)
def take(words: Array, side: int, array: int, keeps: int) -> int:
    """Store the rows of a batch (an Arrow array, by address) of a side, and return how many pairs they have.

    The pairs' numbers are then in OUT_PROBE (of this side) and OUT_ROW. With `keeps` the records have the rows, too.
    A negative answer says why it was not done; see NOT_PLAIN and what follows it.
    """
    own, other = side * SIDE_WORDS, (1 - side) * SIDE_WORDS
    batch = view_i8(array, ARRAY_WORDS)
    n, offset = batch[LENGTH], batch[ARRAY_OFFSET]
    children = view_i8(batch[CHILDREN], 1 << 32)
    plain = is_plain(children, words[own + TIME_CHILD])
    columns = view_i8(words[own + COLUMNS], words[own + COLUMNS_COUNT] * COLUMN_WORDS)
    for c in range(words[own + COLUMNS_COUNT]):
        plain &= is_plain(children, columns[c * COLUMN_WORDS + COLUMN_CHILD])
    fields = view_i8(words[own + FIELDS], words[own + FIELDS_COUNT] * FIELD_WORDS)
    for f in range(words[own + FIELDS_COUNT] if keeps != 0 else 0):
        plain &= is_plain(children, fields[f * FIELD_WORDS + FIELD_CHILD])
    if not plain:
        return NOT_PLAIN
    times, last = view_i8(data_of(children, words[own + TIME_CHILD], offset, 8), n), words[own + FRONTIER]
    for i in range(n):
        if times[i] < last:
            return NOT_PLAIN
        last = times[i]
    if not have_room(words, own, n, keeps):
        return NO_ROOM
    take_columns(words, own, children, offset, n)
    stored = view_i8(words[own + BLOCK], block.BLOCK_WORDS)
    stored[block.NEXT_ROW] = words[own + NEXT_ROW]
    if call_entry(words[own + STORE], words[own + BLOCK], 0, 1, n) < n:
        return INDEX_FULL
    at, mask = view_i8(words[own + RING_AT], words[own + RING_MASK] + 1), words[own + RING_MASK]
    known = view_i8(words[own + TIMES] + 8 * words[own + TIMES_END], n)
    for i in range(n):
        row = words[own + NEXT_ROW] + i
        at[row & mask] = row + words[own + OFFSET]
        known[i] = times[i]
    words[own + NEXT_ROW] += n
    words[own + TIMES_END] += n
    words[own + FRONTIER] = last
    if keeps != 0:
        keep(words, own, children, offset, n)
    return look_for(words, own, other, times, n)


@inlined
def record_of(words: Array, side: int, row: int) -> int:
    """Return where a row's record is."""
    own = side * SIDE_WORDS
    return words[own + RECORDS] + row % words[own + RECORDS_SIZE] * words[own + RECORDS_WIDTH]


@njit("void(int64[::1], int64, int64, int64[::1], int64[:, ::1], int64)", **OPTIONS)
def give(words: Array, side: int, pairs: int, message: Array, columns: Array, target: int) -> None:
    """Write the results of the pairs that `take` has found to an address: a message, with these columns in it.

    `side` is that of the rows that `take` was given.
    """
    written = view_i8(target, len(message))
    for i in range(len(message)):
        written[i] = message[i]
    own, other = view_i8(words[OUT_PROBE], pairs), view_i8(words[OUT_ROW], pairs)
    for c in range(len(columns)):
        of, offset, size = columns[c, GIVEN_SIDE], columns[c, GIVEN_OFFSET], columns[c, GIVEN_BYTES]
        to = target + columns[c, GIVEN_AT]
        for p in range(pairs):
            left, right = (own[p], other[p]) if side == 0 else (other[p], own[p])
            if of == LATER:
                left_time = view_i8(record_of(words, 0, left) + offset, 1)[0]
                right_time = view_i8(record_of(words, 1, right) + size, 1)[0]
                view_i8(to, pairs)[p] = max(left_time, right_time)
            else:
                copy_bytes(record_of(words, of, left if of == 0 else right) + offset, to + p * size, size)
