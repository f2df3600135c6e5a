"""The names that `build` writes into a module before its templates; what stands here is only their meaning."""

OPTIONS, INLINED, SPLICED = {}, {}, {}  # of compiled functions; `build` says what they are
DIMENSIONS, PLAIN = 2, 2  # of the index; how many of them are bands: the others are intervals, which overlap
KEY_ROWS = 2  # of `keys`: one for a band, start and end for an interval
APPEND, PROBE, SCAN = None, None, None  # signatures
ENTRY = {}  # options of `append` and `probe`: INLINED where compiled code calls them, OPTIONS where Python does


def accept(probe, stored, constants):
    """Return whether the pair satisfies the predicate: 0 no, 1 yes, 2 if that takes more than compiled code."""


def probe_values(columns, i):
    """Return the predicate's columns of one probing row."""


def row_values(columns, i):
    """Return the predicate's columns of one stored row."""


def record_values(record):
    """Return the predicate's columns of a record."""


def fill(record, columns, i):
    """Write the predicate's columns of a row into its record."""


def keep(record, keys, usable, i):
    """Write the keys of a row into its record, if it has them."""


def limits_of(keys, bands, p):
    """Return the bounds of the keys that a probe's partners have."""


def near(record, limits):
    """Return whether a record's keys are within them; True if it has no keys."""
