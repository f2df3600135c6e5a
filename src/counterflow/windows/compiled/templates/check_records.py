"""Template: the whole predicate on records that may match a probe. Part of the indexes that keep them side by side."""

from numba import int64, njit, uint8, uint32

from counterflow.windows.compiled.templates.holes import *

# ---- the text from here on is used as it stands


@njit(**SPLICED)
def check_records(begin, end, p, values, limits, base, span, records, constants, out_probe, out_row, found, unsure):
    """Write the pairs of probe p with the records from `begin` to `end` whose rows are `base` to `base + span`."""
    for e in range(begin, end):
        record = records[e]
        verdict = accept(values, record_values(record), constants) if near(record, limits) else uint8(0)
        age = int64(uint32(record.row - uint32(base)))
        holds = int64(verdict != 0) & int64(age <= span)
        out_probe[found] = p  # always written, kept only if it holds: no branch to mispredict
        out_row[found] = base + age
        found += holds
        unsure |= holds & int64(verdict >> 1)
    return found, unsure
