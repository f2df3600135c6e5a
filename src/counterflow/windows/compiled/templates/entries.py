"""Template: what `store`, `probe` and `scan` share, the functions that compiled protocols call by address.

They take the address of a block (`block.py`), make arrays of the addresses in it, and call the kernels. A descriptor
is an array of words: a mask, and the addresses of columns.
"""

from numba import float32, float64, int32, int64, njit, uint8, uint64

from counterflow.windows.compiled.block import *
from counterflow.windows.compiled.intrinsics import viewer
from counterflow.windows.compiled.templates.holes import *

# ---- holes: what stands here is only the meaning; `entries` writes them

STORED_WIDTH, PROBE_WIDTH, SCAN_KEYS = 2, 2, 1  # columns of stored and of probing rows; keys that the scan bounds


def stored_columns(descriptor, position, at, count):
    """Return the stored rows' columns from slot `at` on; their addresses begin at `position` of the descriptor."""


def probe_columns(descriptor, at, count):
    """Return the probing rows' columns from slot `at` of their arena on."""


def predicate_constants(address):
    """Return the predicate's numbers, which lie there as words."""


def take_columns(b, source, staged, kept, start, stride, mask, first, ring_mask, count):
    """Call `take_column` for each column."""


# ---- the text from here on is used as it stands

CALLABLE = dict(error_model="numpy", boundscheck=False, _nrt=False)
CALL = int64(int64, int64, int64, int64)

view_i4, view_i8, view_u1, view_u8 = viewer(int32), viewer(int64), viewer(uint8), viewer(uint64)
view_f4, view_f8, view_keys, view_work = viewer(float32), viewer(float64), viewer(float64, 2), viewer(int64, 2)


@njit(**SPLICED)
def take_column(b, source, staged, kept, start, stride, mask, first, ring_mask, count):
    """Lay rows start, start + stride, ... of an arena side by side; where COPIES says so, write them into the ring."""
    for i in range(count):
        value = source[(start + i * stride) & mask]
        staged[i] = value
    if b[COPIES] != 0:
        for i in range(count):
            kept[(first + i) & ring_mask] = staged[i]


@njit(**SPLICED)
def take_rows(b, arena, ring, stage, start, stride, count):
    """Do that with all columns of arriving rows, which become the rows from number NEXT_ROW on."""
    mask, ring_mask = arena[ARENA_MASK], ring[RING_MASK]
    source = stored_columns(arena, ARENA_COLUMNS, 0, mask + 1)
    staged = stored_columns(stage, ARENA_COLUMNS, 0, count)
    kept = stored_columns(ring, RING_COLUMNS, 0, ring_mask + 1)
    take_columns(b, source, staged, kept, start, stride, mask, b[NEXT_ROW], ring_mask, count)


@njit(**SPLICED)
def probing_arrays(b, arena, slot, count):
    """Return what a search needs of `count` probing rows from a slot of their arena on, and where it writes pairs."""
    columns, constants = probe_columns(arena, slot, count), predicate_constants(b[CONSTANTS])
    oldest, newest = view_i8(b[OLDEST], count), view_i8(b[NEWEST], count)
    out_probe, out_row = view_i8(b[OUT_PROBE], b[OUT_SIZE]), view_i8(b[OUT_ROW], b[OUT_SIZE])
    return columns, constants, oldest, newest, out_probe, out_row
