"""Template: the scan of a window with two bands, behind a filter on one byte a row and band.

The byte is the low end of the key's grid cell: a row whose key is in the band has one of the probe's few bytes,
so no pair is lost, and nearly all other rows are rejected 32 or 64 at a time.
"""

from numba import njit, uint8

from counterflow.windows.compiled.templates.buckets import *
from counterflow.windows.compiled.templates.check_rows import *
from counterflow.windows.compiled.templates.holes import *

# ---- holes: what stands here is only the meaning; `build` writes them, and those of `holes`

CODES, CODE_RANGES = None, None  # signatures


def group_may_match(codes, lower, width, p, j):
    """Return whether any of GROUP rows from j on has bytes that probe p looks for."""


def piece_may_match(codes, lower, width, p, j):
    """Return the same of PIECE rows."""


def mark_group(codes, lower, width, p, j, marks):
    """Mark those of GROUP rows from j on that have them."""


# ---- the text from here on is used as it stands

GROUP, PIECE, BLOCK = 512, 32, 8192
AT_BLOCK = 2  # in `status`, besides those of `buckets`


@njit(CODES, **OPTIONS)
def codes_of(keys, bands, k, out):
    """Write the bytes of stored rows."""
    for i in range(len(out)):
        out[i] = uint8(cell(keys[k, i], bands[k, PER_UNIT]) & 255)


@njit(CODE_RANGES, **OPTIONS)
def code_ranges(keys, bands, k, lower, width):
    """Write which bytes each probe looks for: from `lower` to `lower + width`."""
    for i in range(len(lower)):
        first, last = cell_range(keys[k, i], bands, k)
        lower[i] = uint8(first & 255)
        width[i] = uint8(min(max(last - first, 0), 255))


@njit(SCAN, **OPTIONS)
def scan(
    chosen, begins, ends, codes, lower, width, probing, base, count, columns, constants,
    marks, words, out_probe, out_row, status,
):  # fmt: skip
    """Do what `scan` of the template `scan` does, with the rows' bytes for keys; `words` are the `marks`, by eights."""
    found, unsure, first_probe = status[FOUND], status[UNSURE], status[AT]
    for block in range(status[AT_BLOCK], count, BLOCK):
        for c in range(first_probe, len(chosen)):
            p = chosen[c]
            j, stop = max(block, begins[c]), min(block + BLOCK, ends[c])
            if j >= stop:
                continue
            if found + BLOCK >= len(out_probe):
                status[AT_BLOCK], status[AT], status[FOUND], status[UNSURE] = block, c, found, unsure
                return
            values = probe_values(probing, p)
            while j + GROUP <= stop:
                if group_may_match(codes, lower, width, p, j):
                    mark_group(codes, lower, width, p, j, marks)
                    for word in range(GROUP // 8):
                        if words[word] != 0:
                            first = j + 8 * word
                            found, unsure = check_rows(
                                first, first + 8, values, base, p, columns, constants, out_probe, out_row, found, unsure
                            )
                j += GROUP
            while j + PIECE <= stop:  # less than a group is left
                if piece_may_match(codes, lower, width, p, j):
                    found, unsure = check_rows(
                        j, j + PIECE, values, base, p, columns, constants, out_probe, out_row, found, unsure
                    )
                j += PIECE
            found, unsure = check_rows(j, stop, values, base, p, columns, constants, out_probe, out_row, found, unsure)
        first_probe = 0
    status[AT_BLOCK], status[AT], status[FOUND], status[UNSURE] = count, 0, found, unsure
