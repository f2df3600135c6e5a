"""Template: the whole predicate on stored rows that may match a probe. Part of the scans."""

from numba import int64, njit

from counterflow.windows.compiled.templates.holes import *

# ---- the text from here on is used as it stands


@njit(**SPLICED)
def check_rows(begin, end, values, base, p, columns, constants, out_probe, out_row, found, unsure):
    """Write the pairs of probe p with the rows from `begin` to `end`, which are numbered from `base`."""
    for k in range(begin, end):
        verdict = accept(values, row_values(columns, k), constants)
        holds = int64(verdict != 0)
        out_probe[found] = p  # always written, kept only if it holds: no branch to mispredict
        out_row[found] = base + k
        found += holds
        unsure |= holds & int64(verdict >> 1)
    return found, unsure
