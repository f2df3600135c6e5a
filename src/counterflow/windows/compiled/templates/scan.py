"""Template: the scan, for predicates without a usable key and for probes that an index does not help.

Blocks of the window that fit the first cache, each against all probes; slices of a block are tested at once
for any hit, and only a slice with a hit is looked at row by row.
"""

from numba import int64, njit

# ---- holes: what stands here is only the meaning; `build` writes them

OPTIONS, SCAN = {}, None


def accept(probe, stored, constants):
    """Whether the pair satisfies the predicate: 0 no, 1 yes, 2 if that takes more than compiled code."""


def probe_values(columns, i):
    """The predicate's columns of one probing row."""


def row_values(columns, i):
    """The predicate's columns of one stored row."""


def slice_may_match(keys, lower, upper, columns, probe, constants, p, j):
    """Whether any of SLICE rows from j on may match probe p."""


# ---- the text from here on is used as it stands

SLICE, BLOCK = 128, 4096

# status: where to go on, and what was found
AT, FOUND, AT_BLOCK, UNSURE = 0, 1, 2, 3


@njit(SCAN, **OPTIONS)
def scan(
    chosen, begins, ends, keys, lower, upper, probing, base, count, columns, constants, out_probe, out_row, status
):
    """The chosen probes against `count` rows, numbered from `base`, from their `begins` to their `ends`."""
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
            while j < stop:
                after = min(j + SLICE, stop)
                if after - j < SLICE or slice_may_match(keys, lower, upper, columns, values, constants, p, j):
                    for k in range(j, after):
                        verdict = accept(values, row_values(columns, k), constants)
                        holds = int64(verdict != 0)
                        out_probe[found] = p
                        out_row[found] = base + k
                        found += holds
                        unsure |= holds & int64(verdict >> 1)
                j = after
        first_probe = 0
    status[AT_BLOCK], status[AT], status[FOUND], status[UNSURE] = count, 0, found, unsure
