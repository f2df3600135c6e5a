"""Template: the scan, for predicates without a usable key and for probes that an index does not help.

Blocks of the window that fit the first cache meet all probes; a slice of a block is tested at once for any hit, and
only a slice with a hit is looked at row by row.
"""

from numba import njit

from counterflow.windows.compiled.templates.check_rows import *
from counterflow.windows.compiled.templates.holes import *

# ---- holes: what stands here is only the meaning; `build` writes them, and those of `holes`


def slice_may_match(keys, lower, upper, columns, probe, constants, p, j):
    """Return whether any of SLICE rows from j on may match probe p."""


# ---- the text from here on is used as it stands

SLICE, BLOCK = 128, 4096

# status: where to go on, and what was found
AT, FOUND, AT_BLOCK, UNSURE = 0, 1, 2, 3


@njit(SCAN, **OPTIONS)
def scan(
    chosen, begins, ends, keys, lower, upper, probing, base, count, columns, constants, out_probe, out_row, status
):
    """Find the pairs of the `chosen` probes with `count` rows, which are numbered from `base`.

    Probe chosen[c] looks at the rows from begins[c] to ends[c]; its bounds of each of the `keys` are in `lower` and
    `upper`. `probing` are the probes' columns, `columns` the rows'.
    """
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
                    found, unsure = check_rows(
                        j, after, values, base, p, columns, constants, out_probe, out_row, found, unsure
                    )
                j = after
        first_probe = 0
    status[AT_BLOCK], status[AT], status[FOUND], status[UNSURE] = count, 0, found, unsure
