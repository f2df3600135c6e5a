"""Records written side by side and picked from anywhere, compiled: the memory of the next ones is on its way meanwhile.

A ring of records is given by its address and its records' length, `width`, in 64-bit words. `fields` has a row for each
field that is copied: where it begins in a record and how long it is, in bytes, and the address of its column, which is
an array of its own.
Importing this module compiles it, or loads it from the cache.
"""

from __future__ import annotations

from typing import Any

from numba import types

from counterflow.jit import OPTIONS, inlined, njit
from counterflow.windows.compiled import intrinsics
from counterflow.windows.vectors import Array

BLOCK = 64  # records that are copied field by field, while they are in the nearest cache
WORD = 8  # bytes
prefetch: Any = intrinsics.prefetch
view_i8, view_i4 = intrinsics.viewer(types.int64), intrinsics.viewer(types.int32)
view_i2, view_i1 = intrinsics.viewer(types.int16), intrinsics.viewer(types.int8)


@inlined
def slot_of(row: int, size: int, turn: int) -> int:
    """Return where a row lies in a ring of this size; `turn` is a multiple of it, at most two turns before."""
    return row - turn - (size if row - turn >= size else 0)


@njit("void(int64, int64, int64, int64, int64[::1], int64[:, ::1])", **OPTIONS)
def pick_fields(ring: int, width: int, size: int, turn: int, rows: Array, fields: Array) -> None:
    """Copy fields of these rows' records to columns. The ring has `size` records; see `slot_of` for `turn`."""
    n, words = len(rows), view_i8(ring, size * width)
    for i in range(min(BLOCK, n)):
        prefetch(words, slot_of(rows[i], size, turn) * width)
    for begin in range(0, n, BLOCK):
        end = min(begin + BLOCK, n)
        for i in range(end, min(end + BLOCK, n)):
            prefetch(words, slot_of(rows[i], size, turn) * width)
        for f in range(fields.shape[0]):
            offset, bytes_, column = fields[f, 0], fields[f, 1], fields[f, 2]
            if bytes_ == 8:
                to8, at = view_i8(column, n), offset // 8
                for i in range(begin, end):
                    to8[i] = words[slot_of(rows[i], size, turn) * width + at]
            elif bytes_ == 4:
                to4, from4 = view_i4(column, n), view_i4(ring + offset, size * width * 2)
                for i in range(begin, end):
                    to4[i] = from4[slot_of(rows[i], size, turn) * width * 2]
            elif bytes_ == 1:
                to1, from1 = view_i1(column, n), view_i1(ring + offset, size * width * 8)
                for i in range(begin, end):
                    to1[i] = from1[slot_of(rows[i], size, turn) * width * 8]
            elif bytes_ == 2:
                to2, from2 = view_i2(column, n), view_i2(ring + offset, size * width * 4)
                for i in range(begin, end):
                    to2[i] = from2[slot_of(rows[i], size, turn) * width * 4]
            else:
                parts, at = bytes_ // 8, offset // 8
                to8 = view_i8(column, n * parts)
                for i in range(begin, end):
                    for k in range(parts):
                        to8[i * parts + k] = words[slot_of(rows[i], size, turn) * width + at + k]


@njit("void(int64, int64, int64, int64, int64[:, ::1])", **OPTIONS)
def write_fields(ring: int, width: int, slot: int, n: int, fields: Array) -> None:
    """Write columns of `n` values to fields of the records from this slot on."""
    records = ring + slot * width * WORD
    for begin in range(0, n, BLOCK):
        end = min(begin + BLOCK, n)
        for f in range(fields.shape[0]):
            at, size, column = records + fields[f, 0], fields[f, 1], fields[f, 2]
            if size == 4:
                to4, from4 = view_i4(at, n * width * 2), view_i4(column, n)
                for i in range(begin, end):
                    to4[i * width * 2] = from4[i]
            elif size == 1:
                to1, from1 = view_i1(at, n * width * 8), view_i1(column, n)
                for i in range(begin, end):
                    to1[i * width * 8] = from1[i]
            elif size == 2:
                to2, from2 = view_i2(at, n * width * 4), view_i2(column, n)
                for i in range(begin, end):
                    to2[i * width * 4] = from2[i]
            else:
                to8, from8, parts = view_i8(at, n * width), view_i8(column, n * (size // 8)), size // 8
                for i in range(begin, end):
                    for k in range(parts):
                        to8[i * width + k] = from8[i * parts + k]
