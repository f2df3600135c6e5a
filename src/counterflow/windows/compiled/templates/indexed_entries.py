"""Template: `store` and `probe` of an index, for compiled protocols. Part of a module with an index and `entries`."""

from numba import int64, njit

from counterflow.jit import cfunc
from counterflow.windows.compiled.templates.entries import *
from counterflow.windows.compiled.templates.hash_index import *

# ---- holes: what stands here is only the meaning; `build` writes them

RECORD = None  # the type of a row in the index


# ---- the text from here on is used as it stands

view_record = viewer(RECORD)


@njit(**SPLICED)
def index_of(b):
    bands = view_keys(b[BANDS], DIMENSIONS, BAND_WORDS)
    heads, records = view_i8(b[HEADS], b[HEADS_SIZE]), view_record(b[RECORDS], b[RECORDS_SIZE])
    return bands, heads, records


@cfunc(CALL, **CALLABLE)
def store(block, start, stride, count):
    """Make rows start, start + stride, ... of the arena the rows from NEXT_ROW on; return how many are in the index.

    Less than `count` are where the pool must grow first: then it is called again with the same arguments.
    """
    b = view_i8(block, BLOCK_WORDS)
    arena, ring = view_i8(b[STORED], ARENA_COLUMNS + STORED_WIDTH), view_i8(b[RING], RING_COLUMNS + STORED_WIDTH + 3)
    stage = view_i8(b[STAGE], ARENA_COLUMNS + STORED_WIDTH)
    mask, ring_mask, first = arena[ARENA_MASK], ring[RING_MASK], b[NEXT_ROW]
    hashes, usable = view_u8(stage[ARENA_HASH], count), view_u1(stage[ARENA_USABLE], count)
    keys = view_keys(stage[ARENA_KEYS], KEY_ROWS, count)
    if b[DONE] == 0:
        take_rows(b, arena, ring, stage, start, stride, count)
        from_hash, from_usable = view_u8(arena[ARENA_HASH], mask + 1), view_u1(arena[ARENA_USABLE], mask + 1)
        from_keys = view_keys(arena[ARENA_KEYS], KEY_ROWS, mask + 1)
        for i in range(count):
            slot = (start + i * stride) & mask
            hashes[i], usable[i] = from_hash[slot], from_usable[slot]
            for k in range(KEY_ROWS):
                keys[k, i] = from_keys[k, slot]
        if b[COPIES] != 0:  # for an index that is made anew
            ring_hash = view_u8(ring[RING_COLUMNS + STORED_WIDTH], ring_mask + 1)
            ring_usable = view_u1(ring[RING_COLUMNS + STORED_WIDTH + 1], ring_mask + 1)
            ring_keys = view_keys(ring[RING_COLUMNS + STORED_WIDTH + 2], KEY_ROWS, ring_mask + 1)
            for i in range(count):
                slot = (first + i) & ring_mask
                ring_hash[slot], ring_usable[slot] = hashes[i], usable[i]
                for k in range(KEY_ROWS):
                    ring_keys[k, slot] = keys[k, i]
    columns = stored_columns(stage, ARENA_COLUMNS, 0, count)
    bands, heads, records = index_of(b)
    pool, numbers = view_i8(b[POOL], POOL_WORDS), view_i8(b[NUMBERS], NUMBERS_WORDS)
    done = append(
        b[DONE], count, hashes, keys, usable, bands, columns, heads, records, pool, numbers, b[FIRST_ROW], first
    )
    b[DONE] = 0 if done == count else done
    return done


probe_rows = probe


@cfunc(CALL, **CALLABLE)
def probe(block, first, count, restart):
    """Find pairs of the `count` probes from `first` on, anew or further; return 1 when all are found."""
    b, status = view_i8(block, BLOCK_WORDS), view_i8(block, STATUS_WORDS)
    arena = view_i8(b[PROBING], ARENA_COLUMNS + PROBE_WIDTH + 2 * SCAN_KEYS)
    mask = arena[ARENA_MASK]
    slot = first & mask
    columns, constants, oldest, newest, out_probe, out_row = probing_arrays(b, arena, slot, count)
    keys = view_keys(b[PROBE_KEYS], KEY_ROWS, count)
    if restart != 0:
        arena_keys = view_keys(arena[ARENA_KEYS], KEY_ROWS, mask + 1)
        for k in range(KEY_ROWS):
            for i in range(count):
                keys[k, i] = arena_keys[k, slot + i]
        for k in range(STATUS_WORDS):
            status[k] = 0
    hashes = view_u8(arena[ARENA_HASH] + 8 * slot, count)
    usable = view_u1(arena[ARENA_USABLE] + slot, count)
    bands, heads, records = index_of(b)
    work, over = view_work(b[WORK], WORK_SHAPE[0], WORK_SHAPE[1]), view_i8(b[CHOSEN], count)
    probe_rows(
        count, hashes, keys, usable, bands, oldest, newest, columns, constants,
        heads, records, b[FIRST_ROW], work, out_probe, out_row, over, status,
    )  # fmt: skip
    return int64(status[AT] == count and status[WAITING] == 0)
