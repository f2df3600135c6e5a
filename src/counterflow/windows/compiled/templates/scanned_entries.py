"""Template: `store` without an index and `scan`, for compiled protocols. Part of a module with `scan` and `entries`."""

from counterflow.jit import cfunc
from counterflow.windows.compiled.templates.entries import *
from counterflow.windows.compiled.templates.scan import *

# ---- holes: what stands here is only the meaning; `entries` writes them


def bound_columns(descriptor, position, at, count):
    """Return one bound of every scan key, for the probing rows from slot `at` of their arena on."""


def key_columns(descriptor, at, count):
    """Return the stored columns that are scan keys, from slot `at` of the ring on."""


# ---- the text from here on is used as it stands


@cfunc(CALL, **CALLABLE)
def store(block, start, stride, count):
    """Make rows start, start + stride, ... of the arena the rows from NEXT_ROW on; return how many are stored: all."""
    b = view_i8(block, BLOCK_WORDS)
    arena, ring = view_i8(b[STORED], ARENA_COLUMNS + STORED_WIDTH), view_i8(b[RING], RING_COLUMNS + STORED_WIDTH + 3)
    stage = view_i8(b[STAGE], ARENA_COLUMNS + STORED_WIDTH)
    if b[DONE] == 0:
        take_rows(b, arena, ring, stage, start, stride, count)
    return count


scan_rows = scan


@cfunc(CALL, **CALLABLE)
def scan(block, first, count, job):
    """Find pairs of the chosen probes among the `count` from `first` on; return 1 when all are found."""
    b, status = view_i8(block, BLOCK_WORDS), view_i8(block, STATUS_WORDS)
    arena = view_i8(b[PROBING], ARENA_COLUMNS + PROBE_WIDTH + 2 * SCAN_KEYS)
    slot = first & arena[ARENA_MASK]
    columns, constants, oldest, newest, out_probe, out_row = probing_arrays(b, arena, slot, count)
    ring = view_i8(b[RING], RING_COLUMNS + STORED_WIDTH)
    lower = bound_columns(arena, ARENA_COLUMNS + PROBE_WIDTH, slot, count)
    upper = bound_columns(arena, ARENA_COLUMNS + PROBE_WIDTH + SCAN_KEYS, slot, count)
    all_chosen = view_i8(b[CHOSEN], count)
    if job != GO_ON:
        if job == RESTART_ALL:
            b[CHOSEN_COUNT] = count
            for i in range(count):
                all_chosen[i] = i
        b[SPAN], status[AT], status[AT_BLOCK], status[UNSURE], status[FOUND] = 0, 0, 0, 0, 0
        b[TURN] = (b[FIRST_ROW] | ring[RING_MASK]) + 1
    n = b[CHOSEN_COUNT]
    chosen, begins, ends = view_i8(b[CHOSEN], n), view_i8(b[BEGINS], n), view_i8(b[ENDS], n)
    # A ring may be exchanged for a larger one in the middle of a search: there, too, each part is in one piece.
    first_row, next_row, turn = b[FIRST_ROW], b[NEXT_ROW], b[TURN]
    while b[SPAN] < 2:
        base = first_row if b[SPAN] == 0 else turn
        length = min(next_row, turn) - base if b[SPAN] == 0 else next_row - base
        if length > 0:
            for c in range(n):
                begins[c] = max(oldest[chosen[c]] - base, 0)
                ends[c] = min(newest[chosen[c]] + 1 - base, length)
            at = base & ring[RING_MASK]
            keys, stored = key_columns(ring, at, length), stored_columns(ring, RING_COLUMNS, at, length)
            scan_rows(
                chosen, begins, ends, keys, lower, upper, columns, base, length, stored, constants,
                out_probe, out_row, status,
            )  # fmt: skip
            if status[AT_BLOCK] < length:
                return 0
        b[SPAN] += 1
        status[AT], status[AT_BLOCK] = 0, 0
    return 1
