"""What a protocol's node and a predicate's compiled functions tell each other: a block of words, by position.

Protocols are compiled once, predicates each for themselves; a protocol calls `store`, `probe` and `scan` of a predicate
(`templates/indexed_entries.py`, `templates/scanned_entries.py`) through their addresses, with the address of such a
block. Arrays are given by address too, so that their owner may replace them by larger ones.
"""

# What a search has found and where it goes on: `status` of the templates
AT, FOUND, LEFT_OVER, UNSURE, WAITING, CANDIDATES = 0, 1, 2, 3, 4, 5
AT_BLOCK = 2  # a scan's, which leaves no probe over
STATUS_WORDS = 8
SPAN = 8  # the part of the ring that is scanned: 0 up to its end, 1 from its beginning, 2 done
TURN = 36  # the row at which the first part ends
CHOSEN_COUNT = 9  # how many probes are scanned
DONE = 10  # rows of a call of `store` that are in the index already
COPIES = 35  # whether `store` writes the ring's columns; 0 where another node that shares the ring does

# The rows that are stored, by number, and where they lie
FIRST_ROW, NEXT_ROW = 11, 12
RING = 13  # a descriptor: the ring's mask, its columns' addresses; with an index the hashes, usable, keys
RING_MASK, RING_COLUMNS = 0, 1
HEADS, HEADS_SIZE, RECORDS, RECORDS_SIZE, POOL, NUMBERS, BANDS = 14, 15, 16, 17, 18, 19, 20
POOL_WORDS, NUMBERS_WORDS, BAND_WORDS = 40, 128, 8

# Rows that come: descriptors of the arenas of the stored and of the probing side
STORED, PROBING = 21, 22
ARENA_MASK, ARENA_HASH, ARENA_USABLE, ARENA_KEYS, ARENA_COLUMNS = 0, 1, 2, 3, 4

# A probe's range of rows, its work space and its output
OLDEST, NEWEST, WORK, CHOSEN, BEGINS, ENDS, PROBE_KEYS = 23, 24, 25, 26, 27, 28, 29
WORK_SHAPE = (3, 32 * 97)  # the buckets of the 32 probes that the grid index has on their way
OUT_PROBE, OUT_ROW, OUT_SIZE = 30, 31, 32
CONSTANTS = 33
STAGE = 34  # a descriptor like an arena's: work space of `store`

BLOCK_WORDS = 40  # whole cache lines

RESTART_ALL, RESTART_CHOSEN, GO_ON = 0, 1, 2  # what `scan` is asked to do
